"""Where the real ASTRA-sim would stop, or lose its figures, on traces that are simulated here.

`find_stops` says what each state of it does: it reads columns and runs nothing.

An exception inside an event of a rank is caught and logged (``system/Sys.cc``, ``call_events``):
the rank never ends and the process exits with 0. An exception while files are read, when the
ranks begin (``Workload.cc``, ``fire``), or at the end of a message, whose callback comes from the
network, ends the process with SIGABRT. Asserts are compiled in, as its build script has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel.formats.astra.records import AstraNetwork, AstraSystem
from perfmodel.parity.astra.versions import AstraVersion
from perfmodel.trace import TraceSet

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


def find_stops(
    traces: TraceSet,
    network: AstraNetwork,
    system: AstraSystem,
    version: AstraVersion,
    engine: str = "congestion-unaware",
) -> tuple[Stop, ...]:
    """Return what keeps the real simulator from a good end, in the order in which it happens.

    Parameters
    ----------
    traces : TraceSet
    network : AstraNetwork
    system : AstraSystem
    version : AstraVersion
    engine : {"congestion-unaware", "congestion-aware"}

    Notes
    -----
    Of several nodes of one rank that it would stop at for one reason, the first is named. Not
    foreseen: that ranks wait for each other, which a simulation of them finds, and what memory
    tracking does with a tensor that is written twice.

    Examples
    --------
    >>> from perfmodel.convert.synthetic import chained_collectives
    >>> from perfmodel.formats.astra.records import uniform_system
    >>> from perfmodel.parity.astra.versions import VERSIONS
    >>> network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    >>> system = uniform_system(["ring"], endpoint_delay_nanoseconds=0)
    >>> traces = chained_collectives(4, "all_reduce", 2**20, 1)
    >>> [stop.kind for stop in find_stops(traces, network, system, VERSIONS["main"])]
    ['aborts']
    """
    from perfmodel.parity.astra.stops_of_files import file_stops
    from perfmodel.parity.astra.stops_of_groups import group_stops
    from perfmodel.parity.astra.stops_of_nodes import node_stops

    found = [
        *file_stops(traces, network, system, version, engine),
        *node_stops(traces, system, version),
        *group_stops(traces, network, system, version),
    ]
    return tuple(sorted(found, key=lambda stop: stop.stage))


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
