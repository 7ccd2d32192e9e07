"""The pipeline: waiting for other stages, and the sends between them."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit, jit_inline
from perfmodel.kernels.collective.times import POINT_TO_POINT
from perfmodel.kernels.pipeline.closed import ends_wait
from perfmodel.kernels.pipeline.orders import GPIPE
from perfmodel.kernels.step.memo import remembered_time
from perfmodel.kernels.step.overlap import width_of
from perfmodel.kernels.step.placement import leaves_domain


@jit
def boundary_span(stride, members):
    """Distance that stands for neighbours of a row, or its ends, the farthest setting the pace.

    Two ranks this far apart lie in one domain of an even number of devices where the whole
    row does: half of what the row spans, at least a stride. (A row that fills a domain of an
    odd number counts as outside: half of it is no whole distance.)
    """
    return max(stride, (stride * members + 1) // 2)


@jit
def pipeline_sends(send, m, p, v, stage_time, overlap, relative):
    """Total and exposed time of the stage-to-stage sends on the critical stage [s].

    Third, the half-width of the exposed time where a send is known to ± `relative`.

    Every chunk of every micro-batch is received once forward and once backward; filling
    and draining the pipeline adds one of each per further stage. Interleaved schedules
    can send beside the next chunk's compute.
    """
    fill = 2.0 * (p - 1) * send
    steady = 2.0 * m * v * send
    exposed = steady
    fast, slow = max(0.0, 1.0 - relative) * send, (1.0 + relative) * send
    width = m * v * (slow - fast)
    if overlap and v > 1:
        beside = stage_time / (2.0 * v)
        exposed = 2.0 * m * v * max(0.0, send - beside)
        width = m * v * (max(0.0, slow - beside) - max(0.0, fast - beside))
    width += (p - 1) * (slow - fast)
    return fill + steady, fill + exposed, width


@jit
def alone_share(m, p, v):
    """Share of a step's passes without a partner, where micro-batches go in pairs [1].

    One chunk more than a pipeline's warm-up goes forward before any goes backward, and as
    many go backward at the end: on the mean of all ranks (p - 1) + (v - 1) p + 1 of m v
    interleaved chunks, (p - 1) / 2 + 1 of m plain ones (Megatron-Core, schedules.py,
    get_pp_rank_microbatches, and combined_1f1b.py).
    """
    ahead = (p - 1.0) * (1.0 if v > 1 else 0.5) + (v - 1.0) * p + 1.0
    return min(1.0, ahead / (m * v))


class Pipeline(NamedTuple):
    """What a step loses to its pipeline."""

    bubble: float  # the slowest stage waits for others [s]
    total: float  # sends of the slowest stage [s]
    exposed: float  # those that delay the step [s]
    width: float  # half-width of that [s]
    beside: float  # sends of a micro-batch and pass through the adapters of its gradients [s]


@jit_inline
def boundary_send(boundary, p, groups, settings, network, memo):
    """Time of a stage-to-stage send, and what of it keeps the adapters of gradients [s].

    Parameters
    ----------
    boundary, groups, settings, network, memo
        As of `pipeline_time`.
    p : int
        Stages.
    """
    size, gather = boundary
    span = boundary_span(groups.pipeline_stride, p)
    send = remembered_time(POINT_TO_POINT, size, 2, span, network, memo)
    beside = 0.0
    if 2 * span > settings.domain and leaves_domain(groups.dense, settings):
        beside = send  # gradients and sends leave through the same adapters
    return send + gather, beside


@jit_inline
def waited_pipeline(m, passes, p, v, load, groups, boundary, waits, row, settings, network, memo):
    """Bubble and sends of a strategy whose passes ran one by one.

    Parameters
    ----------
    m, p, v, load, groups, boundary, settings, network, memo
        As of `pipeline_time`; m of either copy of the model.
    passes : float
        Forward passes of all chunks of a stage.
    waits : Waits
        Of `perfmodel.kernels.step.scheduled.run_schedules`.
    row : int
        Of the strategy in it.

    Returns
    -------
    Pipeline
    """
    send, beside = boundary_send(boundary, p, groups, settings, network, memo)
    relative = width_of(boundary[0], settings.collective_widths)
    exposed = waits.with_sends[row] - waits.makespan[row]
    total = max(exposed, 2.0 * (passes + p - 1.0) * send)
    # Copies to and from a host come on top of passes, `load.offload_exposed` each micro-batch.
    bubble = max(0.0, waits.makespan[row] - m * (load.slowest - load.offload_exposed))
    return Pipeline(bubble, total, exposed, relative * exposed, v * beside)


@jit_inline
def pipeline_time(schedule, m, p, v, load, groups, boundary, settings, network, memo):
    """Bubble and sends of a strategy.

    Parameters
    ----------
    schedule, m, p, v
        Which it is, micro-batches, stages, chunks per stage.
    load : Load
    groups : Groups
    boundary : tuple of two floats
        Hidden state that a stage sends to the next, per device [B], and the time in which its
        tensor ranks gather what came in shares [s].
    settings : Settings
    network : Network
    memo : ndarray
        Of `remembered_time`.

    Returns
    -------
    Pipeline
    """
    if p == 1:
        return Pipeline(0.0, 0.0, 0.0, 0.0, 0.0)
    bubble = ends_wait(schedule == GPIPE, p, v, m, load.ends)
    send, beside = boundary_send(boundary, p, groups, settings, network, memo)
    relative = width_of(boundary[0], settings.collective_widths)
    total, exposed, width = pipeline_sends(
        send, m, p, v, load.slowest, settings.overlap_pipeline, relative
    )
    return Pipeline(bubble, total, exposed, width, v * beside)
