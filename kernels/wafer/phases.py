"""Time of a phase of messages on a mesh of cores, from what its routes load.

Letters
    W   wavelets (what a link carries in a cycle) of a message
    h   cycles from router to router
    C   wavelets that the busiest core sends or takes, or the busiest link carries
    E   wavelets x hops of all messages
    N   links that carry any
    L   longest way [cycles]
    D   messages that wait for each other, one after the other
    s   cycles of one of those beside its way: 2 T_R + 1, and what software adds
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean


@jit_lean
def wavelets_of(elements, elements_per_wavelet):
    """Wavelets that carry a vector: whole ones."""
    whole = elements // elements_per_wavelet
    return whole if whole * elements_per_wavelet == elements else whole + 1.0


@jit_lean
def step_cycles(ramp_cycles, stage_cycles):
    """Cycles that one dependent message takes beside its way and its wavelets.

    Parameters
    ----------
    ramp_cycles : float
        T_R, from core to router or back.
    stage_cycles : float
        What software adds: the issue of the instruction that receives, adds and sends.

    Returns
    -------
    float
        s = 2 T_R + 1 + stage (Luczynski et al., HPDC 2024: two ramps and the core's own cycle).
    """
    return 2.0 * ramp_cycles + 1.0 + stage_cycles


@jit_lean
def phase_cycles(contention, hops, links, longest, depth, ramp_cycles, stage_cycles=0.0):
    """Time of a phase of messages by its four counts.

    Parameters
    ----------
    contention, hops : float
        C and E [wavelets].
    links : float
        N, links in use; 0 where nothing is sent.
    longest : float
        L [cycles].
    depth : float
        D.
    ramp_cycles, stage_cycles : float
        T_R, and what software adds to each dependent message [cycles].

    Returns
    -------
    float
        ``max(C, E/N + L) + (2 T_R + 1 + stage) D`` [cycles] (Luczynski et al., "Near-Optimal
        Wafer-Scale Reduce", HPDC 2024, who measure it within 4 % on a WSE-2).
    """
    mean = hops / links if links > 0.0 else 0.0
    return max(contention, mean + longest) + step_cycles(ramp_cycles, stage_cycles) * depth


@jit_lean
def message_cycles(wavelets, hops, hop_cycles, ramp_cycles, stage_cycles=0.0):
    """Time of one message, or of one that routers copy on its way (a broadcast) [cycles].

    ``W + hops h + s``: the phase of one message, whose mean load is its own.
    """
    return wavelets + hops * hop_cycles + step_cycles(ramp_cycles, stage_cycles)
