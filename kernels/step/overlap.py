"""Communication beside compute: what of it shows, and how sure that is."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean_inline
from perfmodel.kernels.fair_share import shared_time


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
