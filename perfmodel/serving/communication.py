"""What devices of a served model send each other: in a pass, and from prefill to decode workers.

In a pass these are all-reduces and the exchanges of experts; between pools, caches of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Floats, Integers, distinct_keys
from perfmodel.compute.collectives import (
    collective_times,
    members_per_domain,
    serving_all_reduce_times,
)
from perfmodel.compute.expert_exchange import MODES, PHASES, moe_exchange_times
from perfmodel.compute.network import is_scale_out
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles.schema import BUS_NAMES
from perfmodel.model.spec import ModelSpec
from perfmodel.model.state import sequence_state
from perfmodel.serving.grid import prefill_columns
from perfmodel.serving.layouts import KV_FORMATS
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.serving.grid import DeploymentGrid

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
    *,
    experts: bool,
) -> NDArray[np.bool_]:
    """Return whether the norm behind an all-reduce runs inside it.

    Only an engine's own kernel can take it in, so it does where that is faster than the library;
    such kernels came with the switches that reduce (Hopper).

    Parameters
    ----------
    hardware, engine, size, members
        As for `all_reduce_times`, of members side by side.
    experts : bool
        Whether the model has experts.
    """
    wanted = engine.fuses_all_reduce_norm in ("always", *(("experts",) if experts else ()))
    if not wanted or not hardware.system.network[0].in_network_reduction:
        return np.zeros(np.broadcast(size, members).size, np.bool_)
    library, own = _both_times(hardware, engine, size, members, 1)
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
    tensor_parallel: Floats,
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
    tensor_parallel, attention, degree : array of float64, shape (row,)
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
    t, a, e = (np.asarray(x, np.int64) for x in (tensor_parallel, attention, degree))
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


LINK_SHARE = 0.87
"""Of a link's rate that transfers between memories of devices reach: 87 GB/s over 4 x 200 Gbit/s
(Mooncake, arXiv:2407.00079, on its transfer engine)."""


@dataclass(frozen=True)
class Side:
    """The devices of one attention rank, and their links to the other pool.

    Attributes
    ----------
    tensor_parallel, stages : int
        Degrees t and p: the rank has t·p devices.
    bandwidth : float
        Of a device's link in one direction [B/s].
    shared : float
        Of what all devices of the rank share beyond their links [B/s]; inf: nothing.
    """

    tensor_parallel: int
    stages: int
    bandwidth: float
    shared: float = float("inf")


def key_value_heads(model: ModelSpec) -> int:
    """Return over how many tensor-parallel devices a cache is cut at most: 1 for a latent one."""
    heads = [
        1 if spec.kind == "mla" else spec.key_value_heads
        for layer in model.layers
        for spec in layer.attentions
        if not spec.shared_keys
    ]
    return min(heads, default=1)


def sequence_flows(source: Side, target: Side, heads: int) -> tuple[Integers, Integers, Floats]:
    """Return who sends what of a sequence's cache to whom.

    Parameters
    ----------
    source, target : Side
        Ranks of the prefill and decode pool.
    heads : int
        Parts into which tensor parallelism cuts the cache; on more devices parts have copies.

    Returns
    -------
    sources, targets : ndarray of int64, shape (flows,)
        Devices, numbered on each side: tensor-parallel ones of the first stage, then of the next.
    shares : ndarray, shape (flows,)
        Of the cache of a sequence, copies not counted.

    Notes
    -----
    Every decode device gets all that it keeps. Copies at the source send in turn, so that a
    device's sum over flows is its part of what the targets need.
    """

    def cuts(side: Side) -> tuple[Floats, Floats, Floats, Floats]:
        """Where each device's layers and heads begin and end, as shares."""
        stage, place = np.divmod(
            np.arange(side.tensor_parallel * side.stages), side.tensor_parallel
        )
        parts = min(side.tensor_parallel, heads)
        part = place * parts // side.tensor_parallel
        return stage / side.stages, (stage + 1) / side.stages, part / parts, (part + 1) / parts

    def overlap(low: Floats, high: Floats, other_low: Floats, other_high: Floats) -> Floats:
        below = np.minimum(high[:, None], other_high[None, :])
        return np.maximum(below - np.maximum(low[:, None], other_low[None, :]), 0.0)

    mine, theirs = cuts(source), cuts(target)
    common = overlap(*mine[:2], *theirs[:2]) * overlap(*mine[2:], *theirs[2:])
    copies = max(source.tensor_parallel // heads, 1)
    if copies > 1:
        sender = np.arange(source.tensor_parallel * source.stages) % source.tensor_parallel % copies
        common *= (
            sender[:, None] == np.arange(target.tensor_parallel * target.stages)[None, :] % copies
        )
    sources, targets = np.nonzero(common > 1e-12)
    return sources, targets, common[sources, targets]


def seconds_per_byte(source: Side, target: Side, heads: int) -> float:
    """Return how long a byte of a sequence's cache takes from one rank to another [s/B].

    Notes
    -----
    Flows share links max-min fairly, weighted by what they carry: those of the tightest link end
    together (`perfmodel.kernels.fair_share`). A device sends and receives over one link in
    each direction.
    """
    from perfmodel.kernels.work import kernel_work

    sources, targets, shares = sequence_flows(source, target, heads)
    out, into = source.tensor_parallel * source.stages, target.tensor_parallel * target.stages
    capacity = np.concatenate(
        (
            np.full(out, source.bandwidth),
            np.full(into, target.bandwidth),
            np.minimum([source.shared, target.shared], 1e30),
        )
    )
    common = np.full(sources.size, out + into)
    links = np.stack((sources, out + targets, common, common + 1), axis=1).ravel()
    with kernel_work(flows=sources.size):
        from perfmodel.kernels import fair_share

        rates = fair_share.weighted_max_min_rates(
            np.arange(0, links.size + 1, 4),
            links.astype(np.int64),
            np.ones(links.size),
            capacity,
            np.full(sources.size, np.inf),
            shares,
        )
    return float(np.max(shares / rates))


def exposed_time(sent: float, prefill: float, layers: int) -> float:
    """Return what of a transfer nothing hides where each layer is sent while the next ones run.

    Parameters
    ----------
    sent, prefill : float
        Times of the transfer and of the prompt's passes, alone [s].
    layers : int
        L.

    Notes
    -----
    The last layer's part comes after all passes; of the others what takes longer than passes.
    """
    last = sent / layers
    return last + max((sent - last) - prefill * (layers - 1) / layers, 0.0)


def handover(
    grid: DeploymentGrid, hardware: Hardware, prefill_hardware: Hardware | None = None
) -> tuple[Floats, Floats]:
    """Return what handing over a sequence takes, and what each of its tokens adds.

    Parameters
    ----------
    grid : DeploymentGrid
    hardware : Hardware
        Of the decode pool.
    prefill_hardware : Hardware, optional
        Of the prefill pool; default `hardware`.

    Returns
    -------
    latency, per_token : ndarray, shape (deployments,)
        [s] that nothing hides, handshakes of the engine included; 0 where there is one pool.

    Notes
    -----
    Pools that fit into the innermost network of one kind of hardware use that, others the
    outermost. Where an engine sends layer by layer, as much is hidden as takes a pass at the
    peak rate of matrices: at least that long it is.
    """
    device = prefill_hardware or hardware
    pool = prefill_columns(grid.columns)
    latency, per_token = np.zeros(len(grid)), np.zeros(len(grid))
    apart = grid["prefill_workers"] > 0
    if not apart.any():
        return latency, per_token
    heads = key_value_heads(grid.model)
    size = hardware.system.network[0].size
    inside = (device is hardware) & ((grid.devices <= size) | (size == 0))
    columns = {
        "code": grid["kv_precision"],
        "tensor": pool["tensor_parallel"],
        "stages": pool["pipeline_parallel"],
        "own_tensor": grid["tensor_parallel"],
        "own_stages": grid["pipeline_parallel"],
        "near": inside.astype(np.int64),
        "layerwise": np.array([int(it.layerwise_transfer) for it in grid.engines])[grid["engine"]],
    }
    kinds, kind = distinct_keys({k: it[apart] for k, it in columns.items()}, tuple(columns))
    of_kind = np.zeros((2, kinds["near"].size))
    layers = grid.model.num_layers
    work = 2.0 * grid.model.active_parameter_count(include_embeddings=False)
    for number, row in enumerate(zip(*(it.tolist() for it in kinds.values()), strict=True)):
        code, tensor_parallel, stages, own_tensor, own_stages, near, layerwise = row
        level = 0 if near else -1
        source = _side(device, level, tensor_parallel, stages)
        target = _side(hardware, level, own_tensor, own_stages)
        rate = seconds_per_byte(source, target, heads)
        state = sequence_state(grid.model, 1, KV_FORMATS[code])
        token = state.per_token * rate
        if layerwise:
            fastest = work / (tensor_parallel * stages * max(device.device.peak_flops.values()))
            token = exposed_time(token, fastest, layers)
        begin = hardware.system.network[level].latency + state.recurrent * rate
        of_kind[:, number] = begin, token
    latency[apart], per_token[apart] = of_kind[:, kind]
    latency += apart * np.array([item.handover_host for item in grid.engines])[grid["engine"]]
    return latency, per_token


def _side(hardware: Hardware, level: int, tensor_parallel: int, stages: int) -> Side:
    network = hardware.system.network[level]
    bandwidth = LINK_SHARE * network.bandwidth
    shared = float("inf")
    if network.oversubscription > 1.0:
        shared = tensor_parallel * stages * bandwidth / network.oversubscription
    return Side(tensor_parallel, stages, bandwidth, shared)
