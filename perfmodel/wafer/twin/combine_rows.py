"""Rows of a combine: experts' rows on their way back, their sum, and its distribution.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from perfmodel.wafer.twin.expert_layer import SHARED, ExpertLayer
from perfmodel.wafer.twin.routes import digest
from perfmodel.wafer.twin.rows import Tensor


def combine_rows(layer: ExpertLayer, outputs: dict[str, Tensor]) -> Tensor:
    """Add a combine of what each of the node's experts made; return what comes of it."""
    ways = {
        "alltoall": _combine_alltoall,
        "multicast": _combine_unicast,
        "allgather": _combine_allgather,
    }
    how = layer.iteration.system.expert_exchange
    made = _sum(layer, ways[how](layer, outputs))
    # After an all-gather every node has all of its cluster's tokens.
    return made if how == "allgather" else _distribute(layer, made)


def _returns(
    layer: ExpertLayer, outputs: dict[str, Tensor], target: int, name: str
) -> Tensor | None:
    """Join what goes back to an owner."""
    rows, routes = layer.rows, layer.routes
    found = routes.returned(layer.node, target)
    parts, labels = [], []
    for token, rank in found:
        if rank < layer.iteration.model.top_k:
            expert = str(routes.token_experts[token, rank])
            at = int(routes.expert_place[token, rank])
        else:
            expert = SHARED
            at = token - routes.shared_start(layer.node)
        output = outputs[expert]
        label = f"{output.name}_slice{routes.names[token]}"
        parts.append(rows.slice(output, at, at + 1, name=label))
        labels.append(f"{routes.names[token]}e{expert}")
    return rows.concat(parts, name=f"{name}{digest(labels)}") if parts else None


def _combine_alltoall(layer: ExpertLayer, outputs: dict[str, Tensor]) -> list[Tensor]:
    sent = [
        _returns(layer, outputs, target, f"{layer.name}_gather_concat_") or layer.empty(target)
        for target in layer.nodes
    ]
    name = f"{layer.name}_combine_a2a"
    received = [int(count) for count in layer.routes.back[:, layer.node]]
    layer.all_to_all(name, sent, received)
    layer.rows.barrier(f"{layer.name}_barrier_combine_a2a", layer.nodes)
    buffers = [
        Tensor(f"{name}_{source}", (received[source], 1, layer.hidden)) for source in layer.nodes
    ]
    return _arrived(layer, buffers, "_", "_")


def _combine_unicast(layer: ExpertLayer, outputs: dict[str, Tensor]) -> list[Tensor]:
    rows = layer.rows
    for target in layer.nodes:
        joined = _returns(layer, outputs, target, f"{layer.name}_gather_unicast_concat_")
        if joined is None:
            continue
        name = f"{layer.name}_unicast_{target}"
        sent = 0 if target == layer.node else joined.size * rows.element
        there = [f"{target}:{name}_{layer.node}"]
        text = f"{list(joined.dims)}"
        rows.add(name, "Unicast", text, [joined.name], there, sent=sent, group=[target])
    rows.barrier(f"{layer.name}_barrier_uc", layer.nodes)
    buffers = [
        Tensor(
            f"{layer.name}_unicast_{layer.node}_{source}",
            (int(layer.routes.back[source, layer.node]), 1, layer.hidden),
        )
        for source in layer.nodes
    ]
    return _arrived(layer, buffers, "expert{}_", "shared_")


def _arrived(layer: ExpertLayer, buffers: list[Tensor], routed: str, shared: str) -> list[Tensor]:
    """Slice and join what came back for each of the node's own tokens."""
    rows, routes, top_k = layer.rows, layer.routes, layer.iteration.model.top_k
    found = []
    for token in routes.own(layer.node):
        at = layer.position(token)[1]
        parts = []
        for rank in range(top_k + 1):
            last = rank == top_k
            expert = -1 if last else int(routes.token_experts[token, rank])
            source = routes.shared[token] if last else layer.iteration.expert_nodes[expert]
            buffer = buffers[source]
            place = int(routes.back_place[token, rank])
            mark = shared if last else routed.format(expert)
            label = f"{buffer.name}{mark}slice{place}.{at}"
            parts.append(rows.slice(buffer, place, place + 1, name=label))
        name = f"{layer.name}_combine_add_concat_batchid{routes.names[token]}"
        found.append(rows.concat(parts, name=name))
    return found


def _combine_allgather(layer: ExpertLayer, outputs: dict[str, Tensor]) -> list[Tensor]:
    rows, routes, top_k = layer.rows, layer.routes, layer.iteration.model.top_k
    if outputs:
        name = f"{layer.name}_combine_concat"
        joined = rows.concat(list(outputs.values()), name=name)
    else:
        joined = Tensor(f"{layer.name}_empty_combine_concat", (0, 1, layer.hidden))
    name = f"{layer.name}_ag_comb"
    layer.all_gather(name, joined)
    rows.barrier(f"{layer.name}_barrier_combine_ag", layer.nodes)
    produced = routes.back.sum(axis=1)
    starts = routes.expert_starts()
    cluster = layer.cluster_start * layer.length
    local = range(cluster, cluster + int(layer.iteration.local_batch[layer.node]) * layer.length)
    found = []
    for token in local:
        parts = []
        # Here the experts of a token are taken in the order of their numbers.
        experts = sorted(
            (int(expert), rank) for rank, expert in enumerate(routes.token_experts[token])
        )
        for expert, rank in [*experts, (-1, top_k)]:
            last = rank == top_k
            source = int(routes.shared[token] if last else layer.iteration.expert_nodes[expert])
            if last:
                # The generator takes the last row of the buffer for every token.
                place = int(produced[source]) - 1
            else:
                place = int(starts[expert] + routes.expert_place[token, rank])
            buffer = Tensor(f"{name}_ag_{source}", (int(produced[source]), 1, layer.hidden))
            label = f"{buffer.name}_slice_exp{SHARED if last else expert}_{routes.names[token]}"
            parts.append(rows.slice(buffer, place, place + 1, name=label))
        label = f"{layer.name}_combine_sum_concat_{routes.names[token]}"
        found.append(rows.concat(parts, name=label))
    return found


def _sum(layer: ExpertLayer, arrived: list[Tensor]) -> Tensor:
    """Add up each token's rows, and join the tokens again."""
    rows = layer.rows
    if not arrived:
        name = f"{layer.name}_empty_combine_out_concat_{layer.node}"
        return Tensor(name, (0, layer.length, layer.hidden))
    tokens = [each.name.rpartition("batchid")[2].rpartition("_")[2] for each in arrived]
    sums = [
        rows.sum(f"{layer.name}_sum_{token}", each)
        for token, each in zip(tokens, arrived, strict=True)
    ]
    joined = [
        rows.concat(sums[at :: layer.length], name=f"{layer.name}_combine_add_concat_seq{at}")
        for at in range(layer.length)
    ]
    return rows.concat(joined, 1, f"{layer.name}_combine_out_concat_{layer.node}")


def _distribute(layer: ExpertLayer, x: Tensor) -> Tensor:
    """Send the node's own tokens to its cluster; counted even where that is one node."""
    rows, group = layer.rows, layer.iteration.group(layer.node, "cluster")
    others = [node for node in group if node != layer.node]
    rows.multicast(f"{layer.name}_multicast_dp", x, others)
    rows.barrier(f"{layer.name}_barrier_mc", group)
    owned = layer.iteration.own_batch
    parts = [
        Tensor(
            f"{layer.name}_combine_out_concat_{node}",
            (int(owned[node]), layer.length, layer.hidden),
        )
        for node in group
        if owned[node]
    ]
    if not parts:
        name = f"{layer.name}_empty_combine_out_concat_{layer.node}"
        return Tensor(name, (0, layer.length, layer.hidden))
    return rows.concat(parts, name=f"{layer.name}_combine_out_concat")
