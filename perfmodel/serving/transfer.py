"""Sequences that go from prefill to decode workers: what is sent, over which links, how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers, distinct_keys
from perfmodel.model.spec import ModelSpec
from perfmodel.model.state import sequence_state
from perfmodel.serving.layouts import KV_FORMATS
from perfmodel.serving.rules import prefill_columns

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.serving.grid import DeploymentGrid

LINK_SHARE = 0.87
"""Of a link's rate that transfers between memories of devices reach: 87 GB/s over 4 x 200 Gbit/s
(Mooncake, arXiv:2407.00079, on its transfer engine)."""


@dataclass(frozen=True)
class Side:
    """The devices of one attention rank, and their links to the other pool.

    Attributes
    ----------
    tensor, stages : int
        Degrees t and p: the rank has t·p devices.
    bandwidth : float
        Of a device's link in one direction [B/s].
    shared : float
        Of what all devices of the rank share beyond their links [B/s]; inf: nothing.
    """

    tensor: int
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
        stage, place = np.divmod(np.arange(side.tensor * side.stages), side.tensor)
        parts = min(side.tensor, heads)
        part = place * parts // side.tensor
        return stage / side.stages, (stage + 1) / side.stages, part / parts, (part + 1) / parts

    def overlap(low: Floats, high: Floats, other_low: Floats, other_high: Floats) -> Floats:
        below = np.minimum(high[:, None], other_high[None, :])
        return np.maximum(below - np.maximum(low[:, None], other_low[None, :]), 0.0)

    mine, theirs = cuts(source), cuts(target)
    common = overlap(*mine[:2], *theirs[:2]) * overlap(*mine[2:], *theirs[2:])
    copies = max(source.tensor // heads, 1)
    if copies > 1:
        sender = np.arange(source.tensor * source.stages) % source.tensor % copies
        common *= sender[:, None] == np.arange(target.tensor * target.stages)[None, :] % copies
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
    out, into = source.tensor * source.stages, target.tensor * target.stages
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
        code, tensor, stages, own_tensor, own_stages, near, layerwise = row
        level = 0 if near else -1
        source = _side(device, level, tensor, stages)
        target = _side(hardware, level, own_tensor, own_stages)
        rate = seconds_per_byte(source, target, heads)
        state = sequence_state(grid.model, 1, KV_FORMATS[code])
        token = state.per_token * rate
        if layerwise:
            fastest = work / (tensor * stages * max(device.device.peak_flops.values()))
            token = exposed_time(token, fastest, layers)
        begin = hardware.system.network[level].latency + state.recurrent * rate
        of_kind[:, number] = begin, token
    latency[apart], per_token[apart] = of_kind[:, kind]
    latency += apart * np.array([item.handover_host for item in grid.engines])[grid["engine"]]
    return latency, per_token


def _side(hardware: Hardware, level: int, tensor: int, stages: int) -> Side:
    network = hardware.system.network[level]
    bandwidth = LINK_SHARE * network.bandwidth
    shared = float("inf")
    if network.oversubscription > 1.0:
        shared = tensor * stages * bandwidth / network.oversubscription
    return Side(tensor, stages, bandwidth, shared)
