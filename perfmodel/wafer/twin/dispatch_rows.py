"""Rows of a dispatch: tokens on their way to the nodes of their experts, three ways.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.wafer.twin.expert_layer import ExpertLayer
from perfmodel.wafer.twin.routes import digest
from perfmodel.wafer.twin.rows import Tensor


def dispatch_rows(layer: ExpertLayer, x: Tensor) -> dict[str, Tensor]:
    """Add a dispatch; return what each of the node's experts reads."""
    ways = {
        "alltoall": _dispatch_alltoall,
        "multicast": _dispatch_multicast,
        "allgather": _dispatch_allgather,
    }
    return ways[layer.iteration.system.expert_exchange](layer, x)


def _received(
    layer: ExpertLayer, expert: str, tokens: Sequence[int], parts: list[Tensor]
) -> Tensor:
    """Join what an expert reads, under a name that depends on its tokens."""
    label = digest([layer.routes.names[token] for token in tokens])
    return layer.rows.concat(
        parts, name=f"{layer.name}_dispatch_recv_concat_expert{expert}_{label}"
    )


def _dispatch_alltoall(layer: ExpertLayer, x: Tensor) -> dict[str, Tensor]:
    rows, routes = layer.rows, layer.routes
    first = layer.cluster_start
    sent = []
    for target in layer.nodes:
        parts = []
        for token in routes.sent(layer.node, target):
            sequence, at = layer.position(token)
            name = f"{x.name}_slice{routes.names[token]}_dst{target}"
            part = rows.slice(x, sequence - first, sequence - first + 1, name=name)
            parts.append(rows.slice(part, at, at + 1, 1, f"{name}_seq{at}"))
        if parts:
            name = f"{layer.name}_dispatch_send_concat_{target}"
            sent.append(rows.concat(parts, name=name))
        else:
            sent.append(layer.empty(target))
    name = f"{layer.name}_a2a_disp"
    received = [int(count) for count in routes.pairs[:, layer.node]]
    layer.all_to_all(name, sent, received)
    rows.barrier(f"{layer.name}_barrier_disp_a2a", layer.nodes)
    inputs = {}
    for expert, tokens in layer.served().items():
        parts = []
        for token in tokens:
            source = int(routes.owner[token])
            buffer = Tensor(f"{name}_{source}", (received[source], 1, layer.hidden))
            at = int(routes.place[token, layer.node])
            label = f"{buffer.name}_expert{expert}_slice{routes.names[token]}"
            parts.append(rows.slice(buffer, at, at + 1, name=label))
        inputs[expert] = _received(layer, expert, tokens, parts)
    return inputs


def _dispatch_multicast(layer: ExpertLayer, x: Tensor) -> dict[str, Tensor]:
    rows, routes = layer.rows, layer.routes
    own = routes.own(layer.node)
    # The generator counts from the node's own first sequence, not from its cluster's.
    first = layer.position(own.start)[0]
    part = x
    for token in own:
        sequence, at = layer.position(token)
        if at == 0:
            name = f"{x.name}_slice{sequence}"
            part = rows.slice(x, sequence - first, sequence - first + 1, name=name)
        one = rows.slice(part, at, at + 1, 1, f"{part.name}.{at}")
        targets = [
            node for node in layer.nodes if node != layer.node and routes.reached[token, node]
        ]
        if targets:
            rows.multicast(f"{layer.name}_multicast_exp_{sequence}_{at}", one, targets)
    rows.barrier(f"{layer.name}_barrier_disp_mc", layer.nodes)
    return {
        expert: _received(
            layer,
            expert,
            tokens,
            [
                Tensor(f"{x.name}_slice{routes.names[token]}", (1, 1, layer.hidden))
                for token in tokens
            ],
        )
        for expert, tokens in layer.served().items()
    }


def _dispatch_allgather(layer: ExpertLayer, x: Tensor) -> dict[str, Tensor]:
    rows, routes = layer.rows, layer.routes
    first, owned = layer.cluster_start, layer.iteration.own_batch
    parts = []
    for token in routes.own(layer.node)[:: layer.length]:
        sequence = layer.position(token)[0]
        name = f"{x.name}_slice{sequence}"
        parts.append(rows.slice(x, sequence - first, sequence - first + 1, name=name))
    if parts:
        gathered = rows.concat(parts, name=f"{layer.name}_dispatch_concat")
    else:
        gathered = Tensor(f"{x.name}_empty_dispatch_tensor", (0, layer.length, layer.hidden))
    name = f"{layer.name}_ag_disp"
    layer.all_gather(name, gathered)
    rows.barrier(f"{layer.name}_barrier_disp_ag", layer.nodes)
    inputs = {}
    for expert, tokens in layer.served().items():
        parts = []
        for token in tokens:
            sequence, at = layer.position(token)
            source = int(routes.owner[token])
            dims = (int(owned[source]), layer.length, layer.hidden)
            place = sequence - layer.position(int(routes.first[source]))[0]
            label = f"{x.name}_expert{expert}_slice{routes.names[token]}"
            part = rows.slice(Tensor(f"{name}_ag_{source}", dims), place, place + 1, name=label)
            parts.append(rows.slice(part, at, at + 1, 1, f"{label}_seq{at}"))
        inputs[expert] = _received(layer, expert, tokens, parts)
    return inputs
