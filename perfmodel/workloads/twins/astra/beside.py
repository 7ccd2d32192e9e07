"""What ASTRA-sim would say of a run on our own models, and why it says something else.

Every part of the difference is one of two real runs that differ in one thing, from ASTRA-sim's
costs on the network of the same hardware to ours: computation, launches and the host; the times
of collectives and messages (protocols, algorithms); communication of different groups side by side
(overlap); the ports that it shares (congestion).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.base.units import format_time
from perfmodel.workloads.export.astra_sim import astra_export
from perfmodel.workloads.simulation.costs import Costs, LocalCosts
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.result import Simulation
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import ABSENT, OtherPeers, Trace, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.astra.versions import SIMULATOR, AstraVersion

PARTS = ("launch and host", "protocol", "overlap", "congestion")
MOST_NODES = 100_000  # of all ranks: some more runs are not noticed beside reading them


@dataclass(frozen=True, slots=True)
class Beside:
    """ASTRA-sim's answer beside ours.

    Attributes
    ----------
    version : AstraVersion
    wall_time, ours : float
        [s].
    parts : dict of str to float
        What each of `PARTS` adds to ASTRA-sim's wall time to make it ours [s]; they sum to the
        difference.
    """

    version: AstraVersion
    wall_time: float
    ours: float
    parts: dict[str, float]

    def line(self) -> str:
        """Return it as a line; shares are of our wall time."""
        share = (self.wall_time - self.ours) / self.ours
        which = "less" if share < 0 else "more"
        parts = ", ".join(
            f"{name} {_signed(-value / self.ours)}" for name, value in self.parts.items()
        )
        return (
            f"{self.version} on this hardware's network (workload … --for astra-sim) would say "
            f"{format_time(self.wall_time)}, {abs(100 * share):.1f} % {which}: {parts}"
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON documents have it."""
        return {
            "simulator": str(self.version),
            "wall_time": self.wall_time,
            "ours_is_longer_by": {
                name.replace(" ", "_"): time for name, time in self.parts.items()
            },
        }


def beside_astra_sim(
    traces: TraceSet, costs: HardwareCosts, ours: Simulation, simulator: str = SIMULATOR
) -> Beside:
    """Run traces as ASTRA-sim would on a profile's network, and step by step towards our models.

    Parameters
    ----------
    traces : TraceSet
    costs : HardwareCosts
        With which `ours` was simulated.
    ours : Simulation
    simulator : str
        State of ASTRA-sim: see `perfmodel.workloads.twins.astra.versions.astra_version`.

    Raises
    ------
    FormatError, HardwareError
        ASTRA-sim cannot run these traces, or has no such network.
    """
    export = astra_export(traces, costs.hardware, simulator)
    theirs = AstraCosts(export.network, export.system, version=export.version)
    alone = copy.copy(costs)
    alone.ports, alone.streams = None, "one"
    side_by_side = copy.copy(costs)
    side_by_side.ports = None
    walls = [
        _wall(export.traces, theirs),
        _wall(traces, _OurComputation(theirs, costs)),
        _wall(traces, alone),
    ]
    if costs.ports is not None:
        walls.append(_wall(traces, side_by_side))
    walls.append(float(ours.wall_time.max()))
    walls += walls[-1:] * (len(PARTS) + 1 - len(walls))
    parts = dict(zip(PARTS, np.diff(walls).tolist(), strict=True))
    return Beside(export.version, walls[0], walls[-1], parts)


def worth_it(traces: TraceSet) -> bool:
    """Tell whether ASTRA-sim's answer is cheap, and no recording with lanes side by side."""
    return 1 < traces.devices <= traces.nodes <= MOST_NODES and not any(
        ((part.trace if isinstance(part, OtherPeers) else part).lane != ABSENT).any()
        for part in traces.parts
    )


class _OurComputation(AstraCosts):
    """ASTRA-sim's communication, and what our models say of computation and the host."""

    def __init__(self, theirs: AstraCosts, ours: HardwareCosts) -> None:
        super().__init__(theirs.network, theirs.system, theirs.engine, theirs.version)
        self.ours = ours

    def local(self, trace: Trace) -> LocalCosts:
        """Return our times, in whole nanoseconds."""
        costs = self.ours.local(trace)
        return replace(costs, times=np.rint(costs.times * 1e9))


def _wall(traces: TraceSet, costs: Costs) -> float:
    """Return the wall time of a run [s]."""
    return float(simulate(traces, costs, memory=False).wall_time.max())


def _signed(share: float) -> str:
    """Return a share with its sign; none for what rounds to nothing."""
    text = f"{100 * share:+.1f} %"
    return text if text.strip("+-") != "0.0 %" else "0 %"
