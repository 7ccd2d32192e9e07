"""What devices of a served model tell each other in a pass: all-reduces and experts' exchanges."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Floats
from perfmodel.compute.collectives import (
    collective_times,
    members_per_domain,
    serving_all_reduce_times,
)
from perfmodel.compute.expert_exchange import MODES, PHASES, moe_exchange_times
from perfmodel.compute.network import is_scale_out
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.schema import BUS_NAMES
from perfmodel.software.engine import Engine

WIDE_BYTES = 2.0  # of an element that is summed or gathered unquantised: bf16


def all_reduce_times(
    hardware: Hardware,
    engine: Engine,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    *,
    called: bool = False,
) -> Floats:
    """Return times of the all-reduces that a pass runs.

    Parameters
    ----------
    hardware : Hardware
    engine : Engine
        Says whether it has kernels of its own for small buffers, and whether they need a copy.
    size : array_like
        Buffer of a rank [B].
    members, stride : array_like of int
        As in `perfmodel.compute.collectives.collective_times`.
    called : bool
        Called by itself from Python with a result of its own, as benchmarks do: the host takes
        `Engine.all_reduce_call_time`, and the buffer is copied.

    Returns
    -------
    float64[rows]
        [s]; the arguments are broadcast together, then flattened; 0 for a single member.

    Raises
    ------
    StrategyError, HardwareError
        As `collective_times` does.

    Notes
    -----
    Kernels of an engine run inside a node: one shot where every rank reads all buffers, two
    shots where each sums a part; for large buffers the library is faster. Where switches reduce,
    some engines copy the buffer to where they can (`Engine.copies_to_reduce`).

    With `Engine.fuses_all_reduce_norm` the residual addition, the norm and the cast that follow
    run in the same kernel on data that it holds (`fused_norms`): they take no time beside the
    exchange, and the all-reduce stands for all of it.
    """
    time, own = _both_times(hardware, engine, size, members, stride)
    time = np.minimum(time, own)
    if called:
        sizes, ranks = (x.ravel() for x in np.broadcast_arrays(size, members, stride)[:2])
        copies = stream_times(hardware, sizes, sizes).time + time
        time = np.where(ranks > 1, np.maximum(copies, engine.all_reduce_call_time), time)
    return time


def fused_norms(
    hardware: Hardware,
    engine: Engine,
    size: ArrayLike,
    members: ArrayLike,
    stride: ArrayLike = 1,
    *,
    experts: bool,
) -> NDArray[np.bool_]:
    """Return whether the norm behind an all-reduce runs inside it.

    Only an engine's own kernel can take it in, so it does where that is faster than the library;
    such kernels came with the switches that reduce (Hopper).

    Parameters
    ----------
    hardware, engine, size, members, stride
        As for `all_reduce_times`.
    experts : bool
        Whether the model has experts.
    """
    wanted = engine.fuses_all_reduce_norm in ("always", *(("experts",) if experts else ()))
    if not wanted or not hardware.system.network[0].in_network_reduction:
        return np.zeros(np.broadcast(size, members, stride).size, np.bool_)
    library, own = _both_times(hardware, engine, size, members, stride)
    return np.asarray(own < library)


def _both_times(
    hardware: Hardware, engine: Engine, size: ArrayLike, members: ArrayLike, stride: ArrayLike
) -> tuple[Floats, Floats]:
    """Return times of the library's all-reduce and of the engine's own, infinite without one."""
    library = collective_times(hardware, "all_reduce", size, members, stride)
    if not engine.own_all_reduce:
        return library, np.full(library.shape, np.inf)
    own = serving_all_reduce_times(hardware, size, members, stride)
    sizes, ranks, steps = (x.ravel() for x in np.broadcast_arrays(size, members, stride))
    if engine.copies_to_reduce and hardware.system.network[0].in_network_reduction:
        own = own + np.where(ranks > 1, stream_times(hardware, sizes, sizes).time, 0.0)
    # Such kernels read their peers' memory: they end where adapters begin.
    levels = hardware.system.network
    inside = [i for i, level in enumerate(levels) if not is_scale_out(level, i)]
    reached = members_per_domain(hardware, ranks, steps)[max(inside, default=0)]
    served = reached >= ranks
    if levels[0].name in BUS_NAMES:
        most = engine.bus_all_reduce if levels[0].peer_path != "memory" else 1
        served &= ranks <= max(most, 1)
    return library, np.where(served, own, np.inf)


def expert_exchange_times(
    hardware: Hardware,
    engine: Engine,
    tokens: Floats,
    hidden: float,
    top_k: int,
    experts: int,
    tensor: Floats,
    attention: Floats,
    degree: Floats,
    wire_bytes: float = WIDE_BYTES,
) -> tuple[Floats, Floats]:
    """Return times of bringing tokens to their experts and results back, in one layer.

    Parameters
    ----------
    hardware, engine
    tokens : array of float64, shape (row,)
        Tokens of an attention rank.
    hidden : float
        Elements of a token that travels (of its latent, where experts have one).
    top_k, experts : int
        Experts of a token, and of the layer.
    tensor, attention, degree : array of float64, shape (row,)
        Devices of an attention rank, attention ranks, and devices with different experts.
    wire_bytes : float
        An element that all ranks gather, where the engine quantises before [B].

    Returns
    -------
    time : ndarray of float64, shape (row,)
        [s]; 0 on one device.
    apart : ndarray of bool, shape (row,)
        Whether a device meets only tokens of its own experts (all-to-all), not all.

    Notes
    -----
    One attention rank: every device has all tokens and computes its experts' part, one
    all-reduce over t sums (as of a dense block). Several: all tokens are gathered over the a
    ranks and results reduce-scattered, which costs a·T rows each; or, where e = t·a > k and the
    engine can, DeepEP's dispatch and combine (`moe_exchange_times`), the faster of its modes.
    What t devices then hold of a rank's tokens is summed or gathered over them.
    """
    t, a, e = (np.asarray(x, np.int64) for x in (tensor, attention, degree))
    own = tokens * hidden * WIDE_BYTES
    reduced = all_reduce_times(hardware, engine, own, t)
    apart = (a > 1) & (e == t * a) & (e > top_k) & engine.expert_all_to_all
    gathered = (a > 1) & ~apart
    time = np.where(apart, 0.0, reduced)
    if gathered.any():
        rows, ranks, steps = own[gathered] * a[gathered], a[gathered], t[gathered]
        sent = wire_bytes if engine.gathers_quantised else WIDE_BYTES
        time[gathered] += collective_times(
            hardware, "all_gather", rows * (sent / WIDE_BYTES), ranks, steps
        )
        time[gathered] += collective_times(hardware, "reduce_scatter", rows, ranks, steps)
    if apart.any():
        # Devices of a rank send a part of its tokens each.
        each = tokens[apart] / t[apart]
        sizes = (each, hidden, top_k, experts, e[apart])
        modes = [
            [moe_exchange_times(hardware, phase, mode, *sizes) for phase in PHASES]
            for mode in MODES
        ]
        time[apart] = np.array(modes).sum(axis=1).min(axis=0)
        time[apart] += collective_times(hardware, "all_gather", own[apart], t[apart])
    return time, apart
