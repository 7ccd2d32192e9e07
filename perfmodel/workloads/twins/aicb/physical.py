"""AICB's text workloads on a hardware profile: collectives by our own network model.

The course of a step is the file's, as SimAI-Analytical takes it: each row computes for the time
that it states, then runs its collective, and nothing overlaps. What SimAI simplifies is
not: collectives take their latency and algorithm on the network where the group lies, sizes are
bytes, sends between stages take time, and only rows of micro-batches fill a pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import COLLECTIVE_OF_WORD
from perfmodel.base.errors import HardwareError, StrategyError
from perfmodel.compute.network import check_places
from perfmodel.workloads.formats.aicb_text import NO_COLLECTIVE, AicbPhase, AicbWorkload
from perfmodel.workloads.twins.simai.bandwidth import DATA, EXPERT, EXPERT_DATA, TENSOR, Degrees
from perfmodel.workloads.twins.simai.step import (
    SimaiPhase,
    SimaiResult,
    kind_and_group,
    workload_degrees,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

# Rows that run once a step whatever the micro-batches, by the beginnings of their names.
ONCE_A_STEP = ("grad_", "moe_grad_norm", "embedding_grads", "layernorm", "optimizer")


def run_on_hardware(
    workload: AicbWorkload, devices: int, hardware: Hardware, *, virtual_pipeline: int = 1
) -> SimaiResult:
    """Time a workload on a hardware profile.

    Parameters
    ----------
    workload : AicbWorkload
    devices : int
        All devices; they set the data-parallel size, whatever the header says. Tensor-parallel
        groups lie innermost, then expert-, data- and pipeline-parallel ones, as in Megatron.
    hardware : Hardware
    virtual_pipeline : int
        Model chunks per pipeline stage. AICB's header has the number of layers in its place.

    Returns
    -------
    SimaiResult
        Times [s] in SimAI's categories; all communication is exposed.

    Raises
    ------
    FormatError
        The workload's header lacks a degree.
    StrategyError
        A degree is 0, expert ranks do not divide the data ranks, there is no micro-batch, or
        devices are too few.
    DataError
        No rows, or another kind of workload.
    HardwareError
        The network has too few places, or a collective cannot run on it.

    Notes
    -----
    ``bubble = (pp - 1) / (virtual ga) · Σ (computation + communication of micro-batch rows)``
    (Narayanan et al. 2021, section 2.2); ``2 virtual ga`` sends of ``pp_comm`` bytes.
    """
    from perfmodel.compute.collectives import collective_times

    degrees = workload_degrees(workload, devices)
    header = workload.header
    stages, batches = header.pipeline_parallel, header.micro_batches
    if isinstance(virtual_pipeline, bool) or not 1 <= virtual_pipeline <= 10_000:
        raise StrategyError(f"virtual_pipeline is {virtual_pipeline}; it should be 1 to 10000")
    if batches < 1:
        raise StrategyError(f"'ga: {batches}' in the workload's header should be >= 1")
    if degrees.data_parallel % degrees.expert_parallel:
        raise StrategyError(
            f"'ep: {degrees.expert_parallel}' in the workload's header does not divide the "
            f"{degrees.data_parallel} data-parallel ranks"
        )
    check_places(hardware, devices, f"{devices} devices")

    forward = _priced(workload.forward, TENSOR, degrees, hardware)
    input_gradient = _priced(workload.input_gradient, TENSOR, degrees, hardware)
    weight_gradient = _priced(workload.weight_gradient, DATA, degrees, hardware)
    phases = (forward, input_gradient, weight_gradient)
    by_group = {name: 0.0 for name in (TENSOR, EXPERT, DATA, EXPERT_DATA)}
    for phase, groups in phases:
        for name in by_group:
            by_group[name] += float(phase.communication[groups == name].sum())

    busy = sum(phase.compute + phase.communication for phase, _ in phases)
    once = np.char.startswith(workload.name[:, None], np.array(ONCE_A_STEP)).any(axis=1)
    chunks = virtual_pipeline * batches
    bubble = (stages - 1) / chunks * float(np.asarray(busy)[~once].sum())
    sends = 0.0
    if stages > 1:
        stride = degrees.tensor_parallel * degrees.data_parallel
        message = float(header.pipeline_message)
        one = collective_times(hardware, "point_to_point", [message], 2, stride)[0]
        sends = 2 * chunks * float(one) if message else 0.0
    compute = sum(float(phase.compute.sum()) for phase, _ in phases)
    exposed = sum(by_group.values())
    return SimaiResult(
        workload.name,
        forward[0],
        input_gradient[0],
        weight_gradient[0],
        data_parallel=by_group[DATA],
        expert_data_parallel=by_group[EXPERT_DATA],
        tensor_parallel=by_group[TENSOR],
        expert_parallel=by_group[EXPERT],
        pipeline_parallel=sends,
        bubble=bubble,
        compute=compute,
        exposed_communication=exposed,
        total=compute + exposed + bubble + sends,
        notes=(),
    )


def _priced(
    phase: AicbPhase, default: str, degrees: Degrees, hardware: Hardware
) -> tuple[SimaiPhase, NDArray[np.str_]]:
    """Return one phase of every row, and the group of each row's collective."""
    from perfmodel.compute.collectives import collective_times

    shapes = {
        TENSOR: (degrees.tensor_parallel, 1),
        EXPERT: (degrees.expert_parallel, degrees.tensor_parallel),
        DATA: (degrees.data_parallel, degrees.tensor_parallel),
        EXPERT_DATA: (
            degrees.data_parallel // degrees.expert_parallel,
            degrees.tensor_parallel * degrees.expert_parallel,
        ),
    }
    rows = len(phase.size)
    times, factor = np.zeros(rows), np.zeros(rows)
    groups = np.full(rows, "", dtype="<U11")
    texts, which = np.unique(phase.collective, return_inverse=True)
    for i, text in enumerate(texts):
        if text == NO_COLLECTIVE:
            continue
        chosen = which == i
        kind, group = kind_and_group(str(text), default)
        if kind not in COLLECTIVE_OF_WORD or group not in shapes:
            raise StrategyError(
                f"{text} is no collective that runs; known: {', '.join(COLLECTIVE_OF_WORD)}"
            )
        members, stride = shapes[group]
        groups[chosen] = group
        if members < 2:
            continue
        sizes, place = np.unique(phase.size[chosen], return_inverse=True)
        found = collective_times(
            hardware, COLLECTIVE_OF_WORD[kind], sizes.astype(float), members, stride
        )
        if not np.isfinite(found).all():
            raise HardwareError(f"{kind} among {members} devices cannot run on this network")
        times[chosen] = np.where(sizes > 0, found, 0.0)[place]
        factor[chosen] = (2 if kind == "ALLREDUCE" else 1) * (members - 1) / members
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = phase.size / times
        bus = np.where(factor > 0, bandwidth * factor, 0.0)
    return SimaiPhase(phase.compute_time / 1e9, times, times, bandwidth, bus), groups
