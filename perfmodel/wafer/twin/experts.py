"""Rows of a layer with experts: dispatch, products, combine.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from perfmodel.model.layers import MlpSpec
from perfmodel.wafer.setting import ceiling
from perfmodel.wafer.twin.routing import Routes, digest
from perfmodel.wafer.twin.rows import BlockRows, Rows, Tensor
from perfmodel.wafer.twin.setting import Iteration

SHARED = "shared"


class LayerRows(BlockRows):
    """Adds the blocks of a model on a node, experts among them.

    Parameters
    ----------
    iteration : Iteration
    rows : Rows
    routes : Routes or None
        Of the layer; None in one without experts.
    context : int, optional
        Tokens seen before; those of the iteration otherwise.
    """

    def __init__(
        self, iteration: Iteration, rows: Rows, routes: Routes | None, context: int | None = None
    ) -> None:
        super().__init__(iteration, rows, context)
        self.nodes = range(iteration.system.nodes)
        self.length = iteration.length
        if routes is not None:
            self.routes = routes

    @property
    def label(self) -> str:
        """What the names of a layer's experts begin with, such as ``decode10_moe``."""
        return f"{self.layer}_moe"

    def experts(self, spec: MlpSpec, number: int, x: Tensor) -> Tensor:
        """Add a layer's experts; return what the next layer reads."""
        self.linear("gate", x, self.hidden, spec.experts)
        if self.iteration.system.expert_parallel == 1:
            return whole_expert_rows(self, spec, x)
        parts = dispatch_rows(self, x)
        return combine_rows(
            self, {expert: self.expert(expert, part, spec) for expert, part in parts.items()}
        )

    def expert(self, expert: str, x: Tensor, spec: MlpSpec) -> Tensor:
        """Add the network of an expert, summed over the nodes that share it."""
        self.part = f"moe_exp_{expert}"
        width = spec.expert_intermediate_size
        if expert == SHARED:
            width = spec.shared_intermediate_size
        made = self.network(x, ceiling(width, self.setting.system.ffn_tensor_parallel), True)
        made = self.reduced("ar", made, "ffn_tensor")
        self.part = "moe"
        return made

    @property
    def cluster_start(self) -> int:
        """First sequence of the node's data-parallel cluster."""
        return int(self.iteration.starts[self.node // self.iteration.system.cluster_nodes])

    def served(self) -> dict[str, list[int]]:
        """Return the tokens of each expert that this node holds."""
        found: dict[str, list[int]] = {}
        ranks = self.iteration.expert_nodes
        for expert, tokens in enumerate(self.routes.of_expert):
            if ranks[expert] == self.node and len(tokens):
                found[str(expert)] = [int(token) for token in tokens]
        if shared := self.routes.shared_tokens(self.node):
            found[SHARED] = shared
        return found

    def empty(self, target: int) -> Tensor:
        """Return what goes to a node that nothing goes to."""
        return Tensor(f"{self.label}_empty_tensor_{target}", (0, 1, self.hidden))

    def position(self, token: int) -> tuple[int, int]:
        """Return the sequence of a token and where it stands there."""
        return divmod(token, self.length)

    def all_to_all(self, name: str, sent: list[Tensor], received: list[int]) -> None:
        """Add an exchange of rows; those to itself are not counted."""
        counts = [part.dims[0] for part in sent]
        others = sum(counts) - counts[self.node]
        self.rows.add(
            name,
            "AlltoAll",
            f"{[sum(counts), 1, self.hidden]} -> {counts} -> {received}",
            [part.name for part in sent],
            [f"{target}:{name}_{self.node}" for target in self.nodes],
            kind="AllToAllv",
            sent=others * self.hidden * self.rows.element,
            group=self.nodes,
        )

    def all_gather(self, name: str, x: Tensor, group: Sequence[int]) -> None:
        """Add a gathering on some nodes, counted once."""
        self.rows.add(
            name,
            "AllGather",
            f"{list(x.dims)}",
            [x.name],
            [f"{target}:{name}_ag_{self.node}" for target in group],
            sent=x.size * self.rows.element,
            group=group,
        )

    def home(self, token: int, rank: int) -> tuple[str, int]:
        """Return a token's expert of a rank, the shared one behind the others, and its node."""
        if rank == self.iteration.moe.experts_per_token:
            return SHARED, int(self.routes.shared[token])
        expert = int(self.routes.token_experts[token, rank])
        return str(expert), int(self.iteration.expert_nodes[expert])


# Rows of a dispatch: tokens on their way to the nodes of their experts, three ways.


Arrived = Callable[[str, int], Tensor]
"""An expert and a token -> the row of it that the node has, sliced out of what came."""


def dispatch_rows(layer: LayerRows, x: Tensor) -> dict[str, Tensor]:
    """Add a dispatch; return what each of the node's experts reads."""
    ways: dict[str, tuple[str, Callable[[LayerRows, Tensor], Arrived]]] = {
        "alltoall": ("a2a", _dispatch_alltoall),
        "multicast": ("mc", _dispatch_multicast),
        "allgather": ("ag", _dispatch_allgather),
    }
    word, way = ways[layer.iteration.system.expert_exchange]
    arrived = way(layer, x)
    layer.rows.barrier(f"{layer.label}_barrier_disp_{word}", layer.nodes)
    inputs = {}
    for expert, tokens in layer.served().items():
        parts = [arrived(expert, token) for token in tokens]
        # Its name depends on its tokens.
        label = digest([layer.routes.names[token] for token in tokens])
        name = f"{layer.label}_dispatch_recv_concat_expert{expert}_{label}"
        inputs[expert] = layer.rows.concat(parts, name=name)
    return inputs


def _dispatch_alltoall(layer: LayerRows, x: Tensor) -> Arrived:
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
        name = f"{layer.label}_dispatch_send_concat_{target}"
        sent.append(rows.concat(parts, name=name) if parts else layer.empty(target))
    name = f"{layer.label}_a2a_disp"
    received = [int(count) for count in routes.pairs[:, layer.node]]
    layer.all_to_all(name, sent, received)

    def arrived(expert: str, token: int) -> Tensor:
        source, at = int(routes.owner[token]), int(routes.place[token, layer.node])
        buffer = Tensor(f"{name}_{source}", (received[source], 1, layer.hidden))
        label = f"{buffer.name}_expert{expert}_slice{routes.names[token]}"
        return rows.slice(buffer, at, at + 1, name=label)

    return arrived


def _dispatch_multicast(layer: LayerRows, x: Tensor) -> Arrived:
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
            rows.multicast(f"{layer.label}_multicast_exp_{sequence}_{at}", one, targets)
    return lambda _, token: Tensor(f"{x.name}_slice{routes.names[token]}", (1, 1, layer.hidden))


def _dispatch_allgather(layer: LayerRows, x: Tensor) -> Arrived:
    rows, routes = layer.rows, layer.routes
    first, owned = layer.cluster_start, layer.iteration.own_batch
    parts = []
    for token in routes.own(layer.node)[:: layer.length]:
        sequence = layer.position(token)[0]
        name = f"{x.name}_slice{sequence}"
        parts.append(rows.slice(x, sequence - first, sequence - first + 1, name=name))
    if parts:
        gathered = rows.concat(parts, name=f"{layer.label}_dispatch_concat")
    else:
        gathered = Tensor(f"{x.name}_empty_dispatch_tensor", (0, layer.length, layer.hidden))
    name = f"{layer.label}_ag_disp"
    layer.all_gather(name, gathered, layer.nodes)

    def arrived(expert: str, token: int) -> Tensor:
        sequence, at = layer.position(token)
        source = int(routes.owner[token])
        dims = (int(owned[source]), layer.length, layer.hidden)
        place = sequence - layer.position(int(routes.first[source]))[0]
        label = f"{x.name}_expert{expert}_slice{routes.names[token]}"
        part = rows.slice(Tensor(f"{name}_ag_{source}", dims), place, place + 1, name=label)
        return rows.slice(part, at, at + 1, 1, f"{label}_seq{at}")

    return arrived


# Rows of a combine: experts' rows on their way back, their sum, and its distribution.


def combine_rows(layer: LayerRows, outputs: dict[str, Tensor]) -> Tensor:
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


def _returns(layer: LayerRows, outputs: dict[str, Tensor], target: int, name: str) -> Tensor | None:
    """Join what goes back to an owner."""
    rows, routes = layer.rows, layer.routes
    found = routes.returned(layer.node, target)
    parts, labels = [], []
    for token, rank in found:
        if rank < layer.iteration.moe.experts_per_token:
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


def _combine_alltoall(layer: LayerRows, outputs: dict[str, Tensor]) -> list[Tensor]:
    sent = [
        _returns(layer, outputs, target, f"{layer.label}_gather_concat_") or layer.empty(target)
        for target in layer.nodes
    ]
    name = f"{layer.label}_combine_a2a"
    received = [int(count) for count in layer.routes.back[:, layer.node]]
    layer.all_to_all(name, sent, received)
    layer.rows.barrier(f"{layer.label}_barrier_combine_a2a", layer.nodes)
    buffers = [
        Tensor(f"{name}_{source}", (received[source], 1, layer.hidden)) for source in layer.nodes
    ]
    return _arrived(layer, buffers, "_", "_")


def _combine_unicast(layer: LayerRows, outputs: dict[str, Tensor]) -> list[Tensor]:
    rows = layer.rows
    for target in layer.nodes:
        joined = _returns(layer, outputs, target, f"{layer.label}_gather_unicast_concat_")
        if joined is None:
            continue
        name = f"{layer.label}_unicast_{target}"
        sent = 0 if target == layer.node else joined.size * rows.element
        there = [f"{target}:{name}_{layer.node}"]
        text = f"{list(joined.dims)}"
        rows.add(name, "Unicast", text, [joined.name], there, sent=sent, group=[target])
    rows.barrier(f"{layer.label}_barrier_uc", layer.nodes)
    buffers = [
        Tensor(
            f"{layer.label}_unicast_{layer.node}_{source}",
            (int(layer.routes.back[source, layer.node]), 1, layer.hidden),
        )
        for source in layer.nodes
    ]
    return _arrived(layer, buffers, "expert{}_", "shared_")


def _arrived(layer: LayerRows, buffers: list[Tensor], routed: str, shared: str) -> list[Tensor]:
    """Slice and join what came back for each of the node's own tokens."""
    routes, top_k = layer.routes, layer.iteration.moe.experts_per_token

    def back(token: int, rank: int) -> tuple[Tensor, int, str]:
        expert, source = layer.home(token, rank)
        place = int(routes.back_place[token, rank])
        mark = shared if rank == top_k else routed.format(expert)
        at = layer.position(token)[1]
        return buffers[source], place, f"{mark}slice{place}.{at}"

    name = f"{layer.label}_combine_add_concat_batchid"
    ranks = range(top_k + 1)
    return [_joined(layer, token, ranks, back, name) for token in routes.own(layer.node)]


def _joined(
    layer: LayerRows,
    token: int,
    ranks: Iterable[int],
    back: Callable[[int, int], tuple[Tensor, int, str]],
    name: str,
) -> Tensor:
    """Slice a token's rows out of buffers, rank by rank among its experts, and join them."""
    parts = []
    for rank in ranks:
        buffer, place, label = back(token, rank)
        parts.append(layer.rows.slice(buffer, place, place + 1, name=f"{buffer.name}{label}"))
    return layer.rows.concat(parts, name=f"{name}{layer.routes.names[token]}")


def _combine_allgather(layer: LayerRows, outputs: dict[str, Tensor]) -> list[Tensor]:
    rows, routes, top_k = layer.rows, layer.routes, layer.iteration.moe.experts_per_token
    if outputs:
        name = f"{layer.label}_combine_concat"
        joined = rows.concat(list(outputs.values()), name=name)
    else:
        joined = Tensor(f"{layer.label}_empty_combine_concat", (0, 1, layer.hidden))
    name = f"{layer.label}_ag_comb"
    layer.all_gather(name, joined, layer.nodes)
    rows.barrier(f"{layer.label}_barrier_combine_ag", layer.nodes)
    produced = routes.back.sum(axis=1)
    starts = routes.expert_starts()

    def back(token: int, rank: int) -> tuple[Tensor, int, str]:
        expert, source = layer.home(token, rank)
        # The generator takes the last row of the buffer for every token of the shared expert.
        place = int(produced[source]) - 1
        if rank < top_k:
            chosen = routes.token_experts[token, rank]
            place = int(starts[chosen] + routes.expert_place[token, rank])
        buffer = Tensor(f"{name}_ag_{source}", (int(produced[source]), 1, layer.hidden))
        return buffer, place, f"_slice_exp{expert}_{routes.names[token]}"

    cluster = layer.cluster_start * layer.length
    local = range(cluster, cluster + int(layer.iteration.local_batch[layer.node]) * layer.length)
    label = f"{layer.label}_combine_sum_concat_"
    # Here the experts of a token are taken in the order of their numbers.
    order = np.argsort(routes.token_experts, axis=1, kind="stable").tolist()
    return [_joined(layer, token, [*order[token], top_k], back, label) for token in local]


def _sum(layer: LayerRows, arrived: list[Tensor]) -> Tensor:
    """Add up each token's rows, and join the tokens again."""
    rows = layer.rows
    if not arrived:
        name = f"{layer.label}_empty_combine_out_concat_{layer.node}"
        return Tensor(name, (0, layer.length, layer.hidden))
    tokens = [each.name.rpartition("batchid")[2].rpartition("_")[2] for each in arrived]
    sums = [
        rows.sum(f"{layer.label}_sum_{token}", each)
        for token, each in zip(tokens, arrived, strict=True)
    ]
    joined = [
        rows.concat(sums[at :: layer.length], name=f"{layer.label}_combine_add_concat_seq{at}")
        for at in range(layer.length)
    ]
    return rows.concat(joined, 1, f"{layer.label}_combine_out_concat_{layer.node}")


def _distribute(layer: LayerRows, x: Tensor) -> Tensor:
    """Send the node's own tokens to its cluster; counted even where that is one node."""
    rows, group = layer.rows, layer.iteration.group(layer.node, "cluster")
    others = [node for node in group if node != layer.node]
    rows.multicast(f"{layer.label}_multicast_dp", x, others)
    rows.barrier(f"{layer.label}_barrier_mc", group)
    owned = layer.iteration.own_batch
    parts = [
        Tensor(
            f"{layer.label}_combine_out_concat_{node}",
            (int(owned[node]), layer.length, layer.hidden),
        )
        for node in group
        if owned[node]
    ]
    if not parts:
        name = f"{layer.label}_empty_combine_out_concat_{layer.node}"
        return Tensor(name, (0, layer.length, layer.hidden))
    return rows.concat(parts, name=f"{layer.label}_combine_out_concat")


# Rows of a layer of which every node holds a part of every expert.


def whole_expert_rows(layer: LayerRows, spec: MlpSpec, x: Tensor) -> Tensor:
    """Add a layer of which every node holds a part of every expert, or that has one node.

    The generator's own rows end on a second node with an error; these are those of its later
    version (38a94c8), which gathers the batch first.
    """
    rows, routes, iteration, name = layer.rows, layer.routes, layer.iteration, layer.label
    local = x
    if iteration.system.data_parallel > 1:
        x = _gathered(layer, x)
    outputs = []
    for expert, tokens in enumerate(routes.of_expert):
        slices = []
        for token in tokens:
            sequence, at = divmod(int(token), iteration.length)
            label = f"{x.name}_expert{expert}_slice{sequence}.{at}"
            part = rows.slice(x, sequence, sequence + 1, name=label)
            slices.append(rows.slice(part, at, at + 1, 1, f"{label}_seq{at}"))
        if not slices:
            outputs.append(x)
            continue
        # Named after pairs of numbers as NumPy 2 prints them.
        pairs = (divmod(int(token), iteration.length) for token in tokens)
        label = digest([f"(np.int64({sequence}), np.int64({at}))" for sequence, at in pairs])
        joined = rows.concat(slices, name=f"{x.name}_concat_expert{expert}_{label}")
        outputs.append(layer.expert(str(expert), joined, spec))
    shared = layer.expert(SHARED, x, spec)
    shared = rows.view(shared, routes.tokens, 1, layer.hidden, name=f"{shared.name}_view_shared")
    sums = []
    for token in range(routes.tokens):
        slices = []
        for rank, expert in enumerate(routes.token_experts[token]):
            at = int(routes.expert_place[token, rank])
            slices.append(rows.slice(outputs[expert], at, at + 1))
        slices.append(rows.slice(shared, token, token + 1))
        sums.append(rows.sum(f"{name}_sum_{routes.names[token]}", rows.concat(slices)))
    made = rows.concat(sums, name=f"{name}_combine_out_concat")
    made = rows.view(made, iteration.batch, iteration.length, layer.hidden)
    if local.dims[0] == iteration.batch:
        return made
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    label = f"{name}_combine_out_local_slice"
    return rows.slice(made, first, first + local.dims[0], name=label)


def _gathered(layer: LayerRows, x: Tensor) -> Tensor:
    """Gather the shares of all data-parallel clusters."""
    group = layer.iteration.group(layer.node, "data")
    label = f"{layer.label}_gather_fulltp_ag"
    layer.all_gather(label, x, group)
    parts = [
        Tensor(f"{label}_ag_{node}", (int(layer.iteration.local_batch[node]), *x.dims[1:]))
        for node in group
    ]
    return layer.rows.concat(parts, name=f"{layer.label}_gather_fulltp_concat")
