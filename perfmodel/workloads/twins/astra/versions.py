"""States of ASTRA-sim that are repeated, and how a run of the real one ends.

Which state of ASTRA-sim is repeated: where its states differ, with the line that decides.

``af2492b`` is the head of April 2025 (branch *stage*), ``main`` what a clone gave in March 2026
(518bd51). Paths are those of the ASTRA-sim repository at that state.

How a run of the real ASTRA-sim ends: what stops it, its exit code, what it prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean

__all__ = ["DEFAULT_VERSION", "SIMULATOR", "VERSIONS", "AstraVersion", "astra_version"]

SIMULATOR = "astra-sim"
ASSUMED_DIMENSIONS = 4  # of main's collectives that state none: Workload.cc, issue_coll_comm


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraVersion:
    """A state of ASTRA-sim.

    Attributes
    ----------
    name, commit, date : str
    dimensions_attribute : str
        The only attribute of a node that restricts a collective to some dimensions:
        ``workload/Workload.cc``, ``issue_coll_comm``.
    dimensions_override_group : bool
        Such a collective leaves its communicator group aside; else the group decides
        (``Sys.cc``, ``generate_all_reduce`` and its like).
    group_keeps_algorithm : bool
        A group that leaves devices out uses the algorithm of a list with one entry, and a
        ring otherwise; else always a ring (``system/CommunicatorGroup.cc``,
        ``get_collective_plan``).
    numbered_groups : bool
        Names of groups are read as numbers: ``Workload.cc``, ``initialize_comm_groups``
        (``stoi``).
    counts_host : bool
        Statistics know nodes of the host; else they are lost where a trace has one:
        ``workload/Statistics.cc``, ``extract_comp_comm_overlap``.
    """

    name: str
    commit: str
    date: str
    dimensions_attribute: str
    dimensions_override_group: bool
    group_keeps_algorithm: bool
    numbered_groups: bool
    counts_host: bool

    def reads(self, attributes: tuple[str, ...]) -> bool:
        """Tell whether dimensions count that a file states so; traces from no file name none."""
        return not attributes or self.dimensions_attribute in attributes

    def __str__(self) -> str:
        """Return the version as options name it."""
        return f"{SIMULATOR}@{self.name}"


VERSIONS = {
    version.name: version
    for version in (
        AstraVersion(
            name="af2492b",
            commit="af2492b",
            date="2025-04-17",
            dimensions_attribute="involve_dims",
            dimensions_override_group=True,
            group_keeps_algorithm=False,
            numbered_groups=False,
            counts_host=True,
        ),
        AstraVersion(
            name="main",
            commit="518bd51",
            date="2026-03",
            dimensions_attribute="involved_dim",
            dimensions_override_group=False,
            group_keeps_algorithm=True,
            numbered_groups=True,
            counts_host=False,
        ),
    )
}
DEFAULT_VERSION = VERSIONS["main"]  # what is cloned today


def astra_version(text: str | AstraVersion) -> AstraVersion:
    """Return the version that a text names.

    Parameters
    ----------
    text : str or AstraVersion
        ``astra-sim``, which is the default, or ``astra-sim@VERSION``.

    Raises
    ------
    HardwareError
        No such simulator or version; names those that are known.

    Examples
    --------
    >>> astra_version("astra-sim@af2492b").group_keeps_algorithm
    False
    """
    if isinstance(text, AstraVersion):
        return text
    simulator, stated, name = text.partition("@")
    if simulator != SIMULATOR:
        raise HardwareError(f"simulator '{text}' is not known; it should be {_known()}")
    if not stated:
        return DEFAULT_VERSION
    for version in VERSIONS.values():
        if name in (version.name, version.commit):
            return version
    raise HardwareError(
        f"{SIMULATOR} has no version '{name}' here; it should be {_known()}"
        + did_you_mean(name, VERSIONS)
    )


def _known() -> str:
    """Return all versions as options name them."""
    *others, last = map(str, VERSIONS.values())
    return ", ".join([SIMULATOR, *others]) + f" or {last}"


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
