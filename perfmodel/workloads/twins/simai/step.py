"""SimAI-Analytical's result for an AICB workload file (parity mode).

What SimAI's analytical back end prints, in closed form and for all rows at once: SimAI
itself counts every simulated nanosecond in a loop. Its oddities are kept on purpose and
stay here (``docs/parity.md`` lists them); our own model shares nothing with this mode.

Sources: aliyun/SimAI (Apache-2.0) f5efb5a9, formulas unchanged in cef83f9d:
``astra-sim/workload/Layer.cc``, ``Layer::compute_time`` and ``Layer::report``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import DataError, StrategyError
from perfmodel.workloads.formats.aicb_text import (
    NO_COLLECTIVE,
    TRANSFORMER,
    AicbPhase,
    AicbWorkload,
)
from perfmodel.workloads.twins.simai.bandwidth import (
    DATA,
    EXPERT,
    EXPERT_DATA,
    LATENCY,
    SMALLEST_LARGE_MESSAGE,
    TENSOR,
    Degrees,
    SimaiSystem,
    bandwidth_ratio,
    bus_bandwidth,
    group_layout,
    is_number,
)

GIBI = 2**30
NO_GROUP = "none"
EMBEDDING = "embedding_layer"  # the row that SimAI leaves out of the bubble
LEAST_FORWARD_MESSAGE = 4096  # [B]; Workload.cc pads smaller ones, in this phase alone
LARGEST_MESSAGE = 2**31 - 1  # pp_comm goes through C++ stoi

Ticks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SimaiOverlap:
    """Shares of communication that SimAI's user declares hidden, 0 to 1.

    Parameters
    ----------
    data, tensor, expert : float
        ``-dp_o``, ``-tp_o``, ``-ep_o``; `data` also holds for the groups of experts.
    pipeline : float
        ``-pp_o``. SimAI divides by it where the bandwidth belongs; its default 1 gives 0.

    Raises
    ------
    StrategyError
        A share is not within 0 and 1.
    """

    data: float = 0.0
    tensor: float = 0.0
    expert: float = 0.0
    pipeline: float = 1.0

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "expert", "pipeline"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= 1:
                raise StrategyError(f"overlap of {name} {value!r} should be 0 to 1")


@dataclass(frozen=True, slots=True, eq=False)
class SimaiPhase:
    """One phase of every row; arrays of shape (rows,).

    Attributes
    ----------
    compute : ndarray of float
        Time of the computation [s].
    communication : ndarray of float
        Time of the collective [s].
    exposed : ndarray of float
        Part of it that is not declared hidden [s].
    algorithm_bandwidth, bus_bandwidth : ndarray of float
        Size over time, and as nccl-tests define it [B/s]; as in SimAI's output, not a number or
        infinite where a time is 0, and a bus bandwidth of 0 without a collective.
    """

    compute: Floats
    communication: Floats
    exposed: Floats
    algorithm_bandwidth: Floats
    bus_bandwidth: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SimaiResult:
    """What SimAI-Analytical reports for a workload; times [s].

    Attributes
    ----------
    name : ndarray of str, shape (rows,)
    forward, input_gradient, weight_gradient : SimaiPhase
    data_parallel, expert_data_parallel, tensor_parallel, expert_parallel : float
        Exposed communication; SimAI's DP, DP_EP, TP and EP.
    pipeline_parallel : float
        Exposed sends between stages; 0 with SimAI's default overlap.
    bubble : float
        Idle time of the pipeline.
    compute : float
        Sum of all computations.
    exposed_communication : float
        Sum of the first four.
    total : float
        One iteration. Not a number where the workload has no micro-batch or no layer.
    notes : tuple of str
        Where SimAI's result has no meaning, and why.
    """

    name: NDArray[np.str_]
    forward: SimaiPhase
    input_gradient: SimaiPhase
    weight_gradient: SimaiPhase
    data_parallel: float
    expert_data_parallel: float
    tensor_parallel: float
    expert_parallel: float
    pipeline_parallel: float
    bubble: float
    compute: float
    exposed_communication: float
    total: float
    notes: tuple[str, ...]


def simulate(
    workload: AicbWorkload,
    world_size: int,
    system: SimaiSystem,
    overlap: SimaiOverlap | None = None,
) -> SimaiResult:
    """Compute what SimAI-Analytical reports for a workload.

    Parameters
    ----------
    workload : AicbWorkload
    world_size : int
        SimAI's ``-g``; it sets the data-parallel size, whatever the workload's header says.
    system : SimaiSystem
    overlap : SimaiOverlap, optional

    Returns
    -------
    SimaiResult

    Raises
    ------
    FormatError
        The workload's header lacks a degree.
    StrategyError
        A degree is 0, or the devices are fewer than the tensor and pipeline degrees need.
    DataError
        SimAI has no result: no rows, another kind of workload, a message above 16 GiB in a
        collective with a ratio table, or a pipeline message above 2 GiB.

    Notes
    -----
    Formulas in ``docs/parity.md``. Times are whole nanoseconds as in SimAI, cut, not
    rounded; sums are in microseconds and in SimAI's order.
    """
    overlap = overlap or SimaiOverlap()
    degrees = workload_degrees(workload, world_size)
    forward = _Phase(_padded(workload.forward), TENSOR, degrees, system)
    input_gradient = _Phase(workload.input_gradient, TENSOR, degrees, system)
    weight_gradient = _Phase(workload.weight_gradient, DATA, degrees, system)

    # The forward group decides for both directions (Layer::report).
    expert = forward.group == EXPERT
    hidden = np.where(expert, np.float32(overlap.expert), np.float32(overlap.tensor))
    forward_exposed = _exposed(forward.ticks, hidden)
    input_exposed = _exposed(input_gradient.ticks, hidden)
    weight_exposed = _exposed(weight_gradient.ticks, np.float32(overlap.data))
    model_parallel = (forward_exposed + input_exposed) / 1e3
    replicas = weight_exposed / 1e3
    expert_replicas = weight_gradient.group == EXPERT_DATA

    computes = (forward.compute, weight_gradient.compute, input_gradient.compute)
    compute = _sum(computes)
    exposed = _sum((forward_exposed, weight_exposed, input_exposed))
    bubble = _bubble(workload, (forward.ticks, *computes, input_gradient.ticks))
    pipeline = _pipeline(workload, overlap.pipeline)
    return SimaiResult(
        workload.name,
        forward.result(forward_exposed),
        input_gradient.result(input_exposed),
        weight_gradient.result(weight_exposed),
        data_parallel=_total(replicas[~expert_replicas]) / 1e6,
        expert_data_parallel=_total(replicas[expert_replicas]) / 1e6,
        tensor_parallel=_total(model_parallel[~expert]) / 1e6,
        expert_parallel=_total(model_parallel[expert]) / 1e6,
        pipeline_parallel=pipeline / 1e6,
        bubble=bubble / 1e6,
        compute=compute / 1e6,
        exposed_communication=exposed / 1e6,
        total=(compute + exposed + bubble + pipeline) / 1e6,
        notes=_notes((forward, input_gradient, weight_gradient), bubble),
    )


class _Phase:
    """Times of one phase in SimAI's ticks, which are nanoseconds."""

    def __init__(
        self, phase: AicbPhase, default: str, degrees: Degrees, system: SimaiSystem
    ) -> None:
        rows = len(phase.size)
        self.size = phase.size
        self.compute = phase.compute_time.astype(np.uint64)
        self.ticks = np.zeros(rows, np.uint64)
        self.group = np.full(rows, NO_GROUP, dtype="<U11")
        self.factor = np.full(rows, np.nan)  # bus over algorithm bandwidth; none without collective
        self.notes: dict[str, None] = {}
        texts, which = np.unique(phase.collective, return_inverse=True)
        for i, text in enumerate(texts):
            if text == NO_COLLECTIVE:
                continue
            chosen = which == i
            kind, group = kind_and_group(str(text), default)
            members = _members(group, default, degrees)
            with np.errstate(divide="ignore", invalid="ignore"):
                times = self._times(kind, group, members, phase.size[chosen], degrees, system)
                ring = np.float64(members - 1) / np.float64(members)
            self.ticks[chosen] = times
            self.group[chosen] = group
            self.factor[chosen] = 2 * ring if kind == "ALLREDUCE" else ring

    def _times(
        self,
        kind: str,
        group: str,
        members: int,
        size: NDArray[np.int64],
        degrees: Degrees,
        system: SimaiSystem,
    ) -> Ticks:
        """Return the times of one collective in one group (``Layer::compute_time``)."""
        small = (size > 1) & (size < SMALLEST_LARGE_MESSAGE)
        times = np.where(small, LATENCY.get(members, 0.0), 0.0)
        if small.any() and members not in LATENCY and members > 1:
            self.notes[f"SimAI counts no time for small messages among {members} devices"] = None
        layout = group_layout(group, members, degrees, system)
        if layout is not None and not small.all():
            large = size[~small]
            bandwidth, nvlink_bound = bus_bandwidth(kind == "ALLTOALL", layout, system)
            if bandwidth <= 0:
                why = "one device" if bandwidth == 0 else "no adapter to serve it"
                self.notes[f"SimAI's time for a {group}-parallel group with {why} is void"] = None
            try:
                ratio = bandwidth_ratio(
                    kind, group, large, members, degrees.tensor_parallel, system.devices_per_node,
                    nvlink_bound,
                )  # fmt: skip
            except ValueError as error:
                raise DataError(
                    f"SimAI aborts ('{error}'): {kind} of {large.max()} B in a {group}-parallel "
                    f"group; its ratio tables end at {16 * GIBI} B"
                ) from None
            nanoseconds = large / GIBI / (ratio * bandwidth).astype(np.float64) * 1e9
            times[~small] = (
                nanoseconds * (2 if kind == "ALLREDUCE" else 1) * (members - 1) / members
            )
        return _ticks(times)

    def result(self, exposed: Ticks) -> SimaiPhase:
        """Return the phase in seconds."""
        seconds = self.ticks / 1e9
        with np.errstate(divide="ignore", invalid="ignore"):
            bandwidth = self.size / seconds
            bus = np.where(np.isnan(self.factor), 0.0, bandwidth * self.factor)
        return SimaiPhase(self.compute / 1e9, seconds, exposed / 1e9, bandwidth, bus)


def workload_degrees(workload: AicbWorkload, world_size: int) -> Degrees:
    """Return the parallel degrees that SimAI uses, all checked."""
    header = workload.header
    if header.policy != TRANSFORMER:
        raise DataError(f"SimAI-Analytical's results are known for {TRANSFORMER} workloads only")
    if not workload.rows:
        raise DataError("the workload has no rows")
    if any(isinstance(value, tuple) for value in header.entries.values()):
        raise DataError("SimAI-Analytical's results are known for workloads without checkpoints")
    tensor, pipeline, expert = (
        header.tensor_parallel, header.pipeline_parallel, header.expert_parallel,
    )  # fmt: skip
    for key, value in (("model_parallel_NPU_group", tensor), ("pp", pipeline), ("ep", expert)):
        if value < 1:
            raise StrategyError(f"'{key}: {value}' in the workload's header should be >= 1")
    whole = is_number(world_size) and world_size == world_size // 1
    if not whole or world_size < tensor * pipeline:
        raise StrategyError(
            f"world_size {world_size} should be a whole number >= {tensor * pipeline} "
            f"(tensor {tensor} × pipeline {pipeline})"
        )
    return Degrees(tensor, expert, int(world_size) // (tensor * pipeline))


def _padded(phase: AicbPhase) -> AicbPhase:
    """Return the forward phase with its smallest messages enlarged."""
    small = (phase.size > 0) & (phase.size < LEAST_FORWARD_MESSAGE)
    return replace(phase, size=np.where(small, LEAST_FORWARD_MESSAGE, phase.size))


def kind_and_group(collective: str, default: str) -> tuple[str, str]:
    """Split a collective's name."""
    if collective.startswith("ALLREDUCEALLTOALL"):
        return "ALLREDUCE", NO_GROUP  # SimAI's prefix test takes it for an unknown all-reduce
    kind, _, suffix = collective.partition("_")
    return kind, {"": default, "EP": EXPERT, "DP_EP": EXPERT_DATA}[suffix]


def _members(group: str, default: str, degrees: Degrees) -> int:
    """Return the size of a group as ``Layer::report`` chooses it, phase by phase."""
    if default == DATA:
        return (
            degrees.data_parallel // degrees.expert_parallel
            if group == EXPERT_DATA
            else degrees.data_parallel
        )
    return degrees.expert_parallel if group == EXPERT else degrees.tensor_parallel


def _ticks(values: NDArray[np.floating]) -> Ticks:
    """Convert floating point to unsigned 64 bits as C++ compilers do on x86-64.

    Values that fit are cut. Others are undefined in C++; there, not-a-number becomes 2^63,
    a negative value wraps around, and 2^64 or more becomes 0.
    """
    top = np.uint64(2**63)
    values = np.asarray(values, np.float64)
    high = values >= 2.0**63
    signed = np.where(high, values - 2.0**63, values)
    fits = (signed >= -(2.0**63)) & (signed < 2.0**63)
    bits = np.where(fits, signed, 0.0).astype(np.int64).view(np.uint64)
    bits = np.where(fits, bits, top)
    return np.where(high, bits ^ top, bits)


def _exposed(ticks: Ticks, hidden: NDArray[np.float32] | np.float32) -> Ticks:
    """Return what is left of times, in C++ ``float`` even where nothing is hidden."""
    return _ticks(ticks.astype(np.float32) * (np.float32(1) - hidden))


def _total(values: Floats) -> float:
    """Add up in file order."""
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


def _sum(ticks: Iterable[Ticks]) -> float:
    """Add up several columns row by row, in microseconds."""
    return _total(np.stack([column / 1e3 for column in ticks], axis=1).ravel())


def _bubble(workload: AicbWorkload, ticks: tuple[Ticks, ...]) -> float:
    """Return the pipeline's idle time [µs]: maximal interleaving, as vpp counts layers."""
    header = workload.header
    rows = workload.name != EMBEDDING
    busy = np.stack(ticks)[:, rows].sum(axis=0) / 1e3
    slots = np.float64(header.micro_batches * header.layers_per_stage)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(_total(busy) * ((header.pipeline_parallel - 1) / slots))


def _pipeline(workload: AicbWorkload, ratio: float) -> float:
    """Return the exposed sends between stages [µs], divided by a ratio where a rate belongs."""
    header = workload.header
    message = header.pipeline_message if "pp_comm" in header.entries else 0
    if message > LARGEST_MESSAGE:
        raise DataError(f"SimAI aborts at 'pp_comm: {message}'; it reads up to {LARGEST_MESSAGE} B")
    sends = 2 * header.layers_per_stage * header.micro_batches
    share = np.float32(ratio)
    with np.errstate(divide="ignore", invalid="ignore"):
        nanoseconds = np.float64(message) / GIBI / np.float64(share) * 1e9
    return float(_exposed(_ticks(np.array([sends * nanoseconds / 1e3])), share)[0])


def _notes(phases: Iterable[_Phase], bubble: float) -> tuple[str, ...]:
    """Collect where the result has no meaning."""
    notes = dict.fromkeys(note for phase in phases for note in phase.notes)
    if not np.isfinite(bubble):
        notes["SimAI divides the bubble by 0 micro-batches or layers: no total"] = None
    return tuple(notes)
