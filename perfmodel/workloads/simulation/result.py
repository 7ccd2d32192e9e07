"""Results of a simulation of execution traces, per rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Floats, Integers

if TYPE_CHECKING:
    import xarray

# Per-rank figures: name, unit, what it is. Those in seconds are times.
FIGURES = (
    ("wall_time", "s", "End of the last operation"),
    ("gpu_time", "s", "Time in which the device computes"),
    ("cpu_time", "s", "Time in which the host works"),
    ("communication_time", "s", "Time in which communication runs or waits"),
    ("exposed_communication", "s", "Wall time without computation of the device"),
    ("compute_bound_fraction", "1", "Share of computation time at peak performance"),
    ("compute_utilization", "1", "Mean fraction of peak performance while computing"),
    ("memory_utilization", "1", "Mean fraction of memory bandwidth while computing"),
    ("operation_intensity", "FLOP B-1", "Mean operations per byte of computation"),
    ("peak_memory", "B", "Most bytes of tensors at one time"),
    ("sent_bytes", "B", "Bytes of messages sent"),
    ("sent_count", "1", "Messages sent"),
)
BY_COLLECTIVE = (
    ("collective_bytes", "B", "Sizes of collectives, added up"),
    ("collective_count", "1", "Number of collectives"),
    ("collective_time", "s", "Time from begin to end of collectives, added up, waiting included"),
)


@dataclass(slots=True)
class ClassFigures:
    """Figures of ranks that behave alike; see `FIGURES` and `BY_COLLECTIVE`.

    Times are in the cost model's unit.

    Attributes
    ----------
    start, end : float64[nodes]
        Of each node in file order.
    """

    wall_time: float
    gpu_time: float
    cpu_time: float
    communication_time: float
    exposed_communication: float
    compute_bound_fraction: float
    compute_utilization: float
    memory_utilization: float
    operation_intensity: float
    peak_memory: float
    collective_bytes: Floats
    collective_count: Integers
    collective_time: Floats
    sent_bytes: float
    sent_count: int
    start: Floats
    end: Floats


@dataclass(frozen=True, slots=True)
class Simulation:
    """When what happened, and how much of it.

    Figures of `FIGURES` are attributes too: float64[ranks], SI units; NaN where there is
    nothing to report (utilizations without a roofline, peak memory without tensors).

    Attributes
    ----------
    representative : int64[ranks]
        The rank that was run for each.
    classes : tuple of ClassFigures
        One per rank that was run.
    class_of_rank : int64[ranks]
    tick : float
        Seconds per unit of the times in `classes`.
    whole : bool
        These times are whole numbers (ASTRA-sim's nanoseconds).
    nodes : int
        Of all ranks together.
    contention : bool
        Communication shared the ports of its devices.
    together : bool
        Members of some collective end with the slowest here, which in ASTRA-sim end one by one:
        the run was too large to follow every message.
    """

    representative: Integers
    classes: tuple[ClassFigures, ...]
    class_of_rank: Integers
    tick: float
    whole: bool
    nodes: int
    contention: bool = False
    together: bool = False

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        """Return a figure of every rank, in SI units."""
        for known, unit, _ in FIGURES:
            if name == known:
                return self._raw(name) * (self.tick if unit == "s" else 1.0)
        raise AttributeError(name)

    @property
    def nodes_run(self) -> int:
        """Nodes of the ranks that were run."""
        return sum(len(figures.start) for figures in self.classes)

    def ticks(self, name: str) -> tuple[int, ...]:
        """Return a time of every rank as whole nanoseconds.

        Raises
        ------
        ValueError
            Times are no whole numbers.
        """
        if not self.whole:
            raise ValueError("times are in seconds, not in whole nanoseconds")
        return tuple(int(value) for value in self._raw(name))

    def starts(self, rank: int) -> Floats:
        """Return when the nodes of a rank began [s], in file order."""
        return self.classes[self.class_of_rank[rank]].start * self.tick

    def ends(self, rank: int) -> Floats:
        """Return when the nodes of a rank ended [s], in file order."""
        return self.classes[self.class_of_rank[rank]].end * self.tick

    def to_dataset(self) -> xarray.Dataset:
        """Return all figures by rank, and those of collectives by rank and kind."""
        import xarray

        variables: dict[str, Any] = {}
        for name, unit, text in FIGURES:
            variables[name] = (("rank",), getattr(self, name), {"units": unit, "long_name": text})
        for name, unit, text in BY_COLLECTIVE:
            rows = np.array([getattr(figures, name) for figures in self.classes])
            rows = rows[self.class_of_rank] * (self.tick if unit == "s" else 1)
            attributes = {"units": unit, "long_name": text}
            variables[name] = (("rank", "collective"), rows, attributes)
        text = "Rank that was simulated for this one"
        attributes = {"units": "1", "long_name": text}
        variables["representative"] = (("rank",), self.representative, attributes)
        rank_text = {"units": "1", "long_name": "Rank"}
        collective_text = {"units": "1", "long_name": "Collective"}
        return xarray.Dataset(
            variables,
            coords={
                "rank": ("rank", np.arange(len(self.class_of_rank)), rank_text),
                "collective": ("collective", list(TRACED), collective_text),
            },
        )

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole run under keys that do not change.

        SI units; None where there is nothing to report. They are those of the slowest rank,
        but `peak_memory` is that of the rank that needs most, and messages and collectives
        are added up over all ranks. `wall_time_nanoseconds` and the like are there where
        times are whole nanoseconds, `contention` where communication shared ports,
        `members_end_together` where `together` holds.
        """
        result: dict[str, Any] = {
            "ranks": len(self.class_of_rank),
            "distinct_ranks": len(self.classes),
            "nodes": self.nodes,
            "nodes_run": self.nodes_run,
        }
        if self.contention:
            result["contention"] = "max-min fair"
        if self.together:
            result["members_end_together"] = True
        slowest = int(np.argmax(self._raw("wall_time")))
        result["slowest_rank"] = slowest
        for name, _, _ in FIGURES:
            values = getattr(self, name)
            if np.isnan(values).all():
                result[name] = None
            elif name == "peak_memory":
                result[name] = float(np.nanmax(values))
            elif name.startswith("sent_"):
                result[name] = math.fsum(values)
            else:
                own = float(values[slowest])
                result[name] = None if math.isnan(own) else own
        collectives = {}
        for position, name in enumerate(TRACED):
            figures = {}
            for key, unit, _ in BY_COLLECTIVE:
                rows = np.array([getattr(own, key)[position] for own in self.classes])
                amount = rows[self.class_of_rank].sum() * (self.tick if unit == "s" else 1)
                figures[key.removeprefix("collective_")] = (
                    int(amount) if key == "collective_count" else float(amount)
                )
            if figures["count"]:
                collectives[name] = figures
        result["collectives"] = collectives
        if self.whole:
            for name, unit, _ in FIGURES:
                if unit == "s":
                    figure = getattr(self.classes[self.class_of_rank[slowest]], name)
                    result[f"{name}_nanoseconds"] = int(figure)
        return result

    def _raw(self, name: str) -> Floats:
        """Return a figure of every rank in the cost model's unit."""
        rows = np.array([getattr(figures, name) for figures in self.classes], np.float64)
        return rows[self.class_of_rank]
