"""Communication beside compute: what of it shows; sends of a pipeline, and waiting for stages."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.kernels._jit import jit, jit_lean_inline
from perfmodel.kernels.collective.algorithms import POINT_TO_POINT
from perfmodel.kernels.collective.times import memoised_time
from perfmodel.kernels.fair_share import shared_time
from perfmodel.kernels.pipeline.closed import ends_wait
from perfmodel.kernels.step.placement import leaves_domain
from perfmodel.kernels.step.tables import GPIPE


@jit_lean_inline
def hide(total, window, tail, tax):
    """Exposed part of a communication that runs beside `window` seconds of compute.

    At least `tail` of it (the last bucket) has nothing beside it; the hidden rest
    slows the compute down by `tax`.
    """
    exposed = min(total, max(total - window, tail))
    return exposed + tax * (total - exposed)


@jit_lean_inline
def width_of(quantity, regimes):
    """Relative half-width of the regime in which a quantity lies.

    Parameters
    ----------
    quantity : float
    regimes : record of `perfmodel.kernels.step.tables.WIDTHS`
    """
    if quantity < regimes.middle_from:
        return regimes.small
    return regimes.middle if quantity < regimes.large_from else regimes.large


@jit_lean_inline
def hidden_width(total, window, tail, tax, relative):
    """Half-width of what `hide` leaves exposed of a communication known to ± `relative`.

    Half the difference between a slow and a fast communication: the whole of the error
    shows where compute no longer hides it, little where it has room.
    """
    more, less = 1.0 + relative, max(0.0, 1.0 - relative)
    slow = hide(more * total, window, more * tail, tax)
    return 0.5 * (slow - hide(less * total, window, less * tail, tax))


@jit_lean_inline
def drives_links(group, settings):
    """Whether a group's collectives drive device links, not adapters alone: two in one domain."""
    return group.members > 1 and group.stride < settings.domain


@jit_lean_inline
def overlap_tax(groups, experts, settings):
    """Return what compute loses beside collectives of the data-parallel groups [1].

    As `perfmodel.compute.collectives.overlap_compute_tax`: more where device links are driven, as
    in a ring over nodes of which several devices are members, than for adapters alone. Experts
    travel in a group of their own, which counts where there are any.
    """
    links = drives_links(groups.dense, settings)
    if experts and not links:
        links = drives_links(groups.sparse, settings)
    return settings.tax_inside if links else settings.tax_outside


@jit_lean_inline
def beside_sends(time, window, sends, sends_show, tail):
    """Share links between a data-parallel collective and the pipeline sends beside it.

    Parameters
    ----------
    time : float
        Of the collective alone [s].
    window : float
        Compute that it runs beside [s].
    sends : float
        Of the sends alone [s], in the same pass of the same micro-batch; 0: other links.
    sends_show : bool
        Whether the sends delay compute (True) or run beside it.
    tail : float
        Share of the collective that comes after the pass, when no sends are left.

    Returns
    -------
    wait : float
        What the sends lose and show [s].
    lost : float
        What the collective loses [s].
    window : float
        What the collective runs beside: sends that delay compute lengthen the pass, and
        leave it half of the links for twice their time [s].

    Notes
    -----
    Both get half of the links until one is done (max-min fairness): one that takes t alone
    is done after ``t + min(t, other)``. Derived here.
    """
    together = min(sends, (1.0 - tail) * time)
    if sends_show:
        return shared_time(sends, together) - sends, 0.0, window + together
    return 0.0, min(together, 0.5 * window), window


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
        Of `memoised_time`.
    """
    size = key.boundary_bytes
    span = boundary_span(groups.pipeline_stride, p)
    send = memoised_time(POINT_TO_POINT, size, 2, span, network, memo)
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
