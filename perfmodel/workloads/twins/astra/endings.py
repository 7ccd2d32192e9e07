"""How a run of the real ASTRA-sim ends: what stops it, its exit code, what it prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel.workloads.twins.astra.versions import AstraVersion

# Exit codes as a shell's parent sees them: a signal is negative.
ABORTED, CRASHED, FAILED, REFUSED = -6, -11, 1, 255
# When it happens, in this order.
LOADING, STARTING, RUNNING, REPORTING, LEAVING = range(5)
# What is printed of the ranks that are concerned.
NO_FIGURES, WALL_TIME, ALL_FIGURES = "no figures", "wall time alone", "all figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What the real simulator does instead of a good end.

    Attributes
    ----------
    kind : {"refuses", "aborts", "never ends", "loses statistics", "may crash", "counts nonsense"}
    what : str
        What it does and where, in a line.
    remedy : str
        What would mend it.
    stage : int
        `LOADING`, `STARTING`, `RUNNING`, `REPORTING` or `LEAVING`.
    exit_codes : tuple of int
        The likeliest first; negative: a signal. Empty: it runs for ever.
    printed : {"no figures", "wall time alone", "all figures"}
    ranks : tuple of int or None
        Whose figures these are; None: those of all.
    """

    kind: str
    what: str
    remedy: str
    stage: int
    exit_codes: tuple[int, ...] = (0,)
    printed: str = NO_FIGURES
    ranks: tuple[int, ...] | None = None

    def line(self, version: AstraVersion) -> str:
        """Return the stop in a line."""
        return f"{version} {self.kind}: {self.what}; {self.remedy}"

    def document(self) -> dict[str, Any]:
        """Return it as JSON documents have it."""
        return {
            "kind": self.kind,
            "what": self.what,
            "remedy": self.remedy,
            "exit_codes": list(self.exit_codes),
            "printed": self.printed,
            "ranks": None if self.ranks is None else list(self.ranks),
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run of the real simulator ends.

    Attributes
    ----------
    exit_codes : tuple of int
        As in `Stop`.
    printed : tuple of str
        By rank, as in `Stop`.
    """

    exit_codes: tuple[int, ...]
    printed: tuple[str, ...]


def expected_end(stops: Iterable[Stop], ranks: int) -> Ending:
    """Return how a run ends of which these are all the stops."""
    printed = [ALL_FIGURES] * ranks
    codes: tuple[int, ...] = (0,)
    for stop in sorted(stops, key=lambda stop: stop.stage):
        for rank in range(ranks) if stop.ranks is None else stop.ranks:
            if printed[rank] != NO_FIGURES and stop.printed != ALL_FIGURES:
                printed[rank] = stop.printed
        if 0 in codes:  # it may get further
            codes = tuple(dict.fromkeys((*(c for c in codes if c), *stop.exit_codes)))
    return Ending(codes, tuple(printed))
