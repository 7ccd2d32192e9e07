"""The pipeline: waiting for other stages, and the sends between them."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit, jit_lean_inline
from perfmodel.kernels.collective.times import POINT_TO_POINT
from perfmodel.kernels.pipeline.closed import ends_wait
from perfmodel.kernels.step.memo import remembered_time
from perfmodel.kernels.step.overlap import width_of
from perfmodel.kernels.step.placement import leaves_domain
from perfmodel.kernels.step.tables import GPIPE


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


class Sends(NamedTuple):
    """Sends between the stages of a strategy."""

    time: float  # of one [s]
    relative: float  # its half-width [1]
    beside: float  # what of one keeps the adapters of gradients [s]


@jit_lean_inline
def boundary_send(key, p, groups, settings, network, memo):
    """Return the `Sends` of a strategy.

    Parameters
    ----------
    key : record of KEY
    p : int
        Stages.
    groups : Groups
    settings : record of SETTINGS
    network : Network
    memo : ndarray
        Of `remembered_time`.
    """
    size = key.boundary_bytes
    span = boundary_span(groups.pipeline_stride, p)
    send = remembered_time(POINT_TO_POINT, size, 2, span, network, memo)
    beside = 0.0
    if 2 * span > settings.domain and leaves_domain(groups.dense, settings):
        beside = send  # gradients and sends leave through the same adapters
    relative = width_of(size, settings.collective_widths)
    return Sends(send + key.boundary_gather, relative, beside)


@jit_lean_inline
def waited_pipeline(m, batches, p, v, load, sends, wait):
    """Bubble and sends of a strategy whose passes ran one by one.

    Parameters
    ----------
    m, p, v, load, sends
        As of `pipeline_time`; m of either copy of the model.
    batches : int
        Micro-batches of all copies.
    wait : record of WAIT
        Of `perfmodel.kernels.step.scheduled.run_schedules`.

    Returns
    -------
    Pipeline
    """
    more = float(batches - wait.batches)
    makespan = wait.makespan + more * wait.growth
    exposed = wait.with_sends + more * wait.growth_with_sends - makespan
    total = max(exposed, 2.0 * (float(batches) * v + p - 1.0) * sends.time)
    # Copies to and from a host come on top of passes, `load.offload_exposed` each micro-batch.
    bubble = max(0.0, makespan - m * (load.slowest - load.offload_exposed))
    return Pipeline(bubble, total, exposed, sends.relative * exposed)


@jit_lean_inline
def pipeline_time(schedule, m, p, v, load, sends, overlap):
    """Bubble and sends of a strategy.

    Parameters
    ----------
    schedule, m, p, v
        Its `schedule_bits`, micro-batches, stages, chunks per stage.
    load : Load
    sends : Sends
    overlap : bool
        As of `pipeline_sends`.

    Returns
    -------
    Pipeline
    """
    if p == 1:
        return Pipeline(0.0, 0.0, 0.0, 0.0)
    bubble = ends_wait((schedule & GPIPE) != 0, p, v, m, load.ends)
    total, exposed, width = pipeline_sends(
        sends.time, m, p, v, load.slowest, overlap, sends.relative
    )
    return Pipeline(bubble, total, exposed, width)
