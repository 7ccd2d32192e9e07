"""Rows of a layer with experts on many nodes: dispatch, experts, combine, distribution.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.parity.wse.components import ceiling
from perfmodel.parity.wse.routes import Routes, digest
from perfmodel.parity.wse.rows import Rows, Tensor
from perfmodel.parity.wse.setting import Iteration

SHARED = "shared"
Served = dict[str, list[int]]
"""Expert -> its tokens in order; those with none are left out."""


class ExpertRows:
    """Adds the rows of one layer with experts to those of a node.

    Parameters
    ----------
    rows : Rows
    routes : Routes
    name : str
        Of the layer's experts, such as ``decode10_moe``.
    """

    def __init__(self, rows: Rows, routes: Routes, name: str) -> None:
        self.rows = rows
        self.routes = routes
        self.name = name
        self.iteration: Iteration = routes.iteration
        self.node = rows.node
        self.nodes = range(self.iteration.system.nodes)
        self.hidden = self.iteration.model.hidden
        self.length = self.iteration.length

    def add(self, x: Tensor) -> Tensor:
        """Add all of the layer behind its attention; return what the next layer reads."""
        self.rows.linear(f"{self.name}_gate", x, self.iteration.model.experts)
        how = self.iteration.system.expert_exchange
        if how == "alltoall":
            inputs = self._dispatch_alltoall(x)
        elif how == "multicast":
            inputs = self._dispatch_multicast(x)
        else:
            inputs = self._dispatch_allgather(x)
        outputs = self._experts(inputs)
        if how == "alltoall":
            arrived = self._combine_alltoall(outputs)
        elif how == "multicast":
            arrived = self._combine_unicast(outputs)
        else:
            arrived = self._combine_allgather(outputs)
        made = self._sum(arrived)
        return made if how == "allgather" else self._distribute(made)

    def served(self) -> Served:
        """Return the tokens of each expert that this node holds."""
        found: Served = {}
        ranks = self.iteration.expert_nodes
        for expert, tokens in enumerate(self.routes.of_expert):
            if ranks[expert] == self.node and len(tokens):
                found[str(expert)] = [int(token) for token in tokens]
        if shared := self.routes.shared_tokens(self.node):
            found[SHARED] = shared
        return found

    def _received(self, expert: str, tokens: Sequence[int], parts: list[Tensor]) -> Tensor:
        """Join what an expert reads, under a name that depends on its tokens."""
        label = digest([self.routes.names[token] for token in tokens])
        return self.rows.concat(
            parts, name=f"{self.name}_dispatch_recv_concat_expert{expert}_{label}"
        )

    def _empty(self, target: int) -> Tensor:
        return Tensor(f"{self.name}_empty_tensor_{target}", (0, 1, self.hidden))

    def _position(self, token: int) -> tuple[int, int]:
        return divmod(token, self.length)

    def _dispatch_alltoall(self, x: Tensor) -> dict[str, Tensor]:
        rows, routes = self.rows, self.routes
        first = self._cluster_start()
        sent = []
        for target in self.nodes:
            parts = []
            for token in routes.sent(self.node, target):
                sequence, at = self._position(token)
                name = f"{x.name}_slice{routes.names[token]}_dst{target}"
                part = rows.slice(x, sequence - first, sequence - first + 1, name=name)
                parts.append(rows.slice(part, at, at + 1, 1, f"{name}_seq{at}"))
            if parts:
                name = f"{self.name}_dispatch_send_concat_{target}"
                sent.append(rows.concat(parts, name=name))
            else:
                sent.append(self._empty(target))
        name = f"{self.name}_a2a_disp"
        received = [int(count) for count in routes.pairs[:, self.node]]
        self._all_to_all(name, sent, received)
        rows.barrier(f"{self.name}_barrier_disp_a2a", self.nodes)
        inputs = {}
        for expert, tokens in self.served().items():
            parts = []
            for token in tokens:
                source = int(routes.owner[token])
                buffer = Tensor(f"{name}_{source}", (received[source], 1, self.hidden))
                at = int(routes.place[token, self.node])
                label = f"{buffer.name}_expert{expert}_slice{routes.names[token]}"
                parts.append(rows.slice(buffer, at, at + 1, name=label))
            inputs[expert] = self._received(expert, tokens, parts)
        return inputs

    def _all_to_all(self, name: str, sent: list[Tensor], received: list[int]) -> None:
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

    def _dispatch_multicast(self, x: Tensor) -> dict[str, Tensor]:
        rows, routes = self.rows, self.routes
        own = routes.own(self.node)
        # The generator counts from the node's own first sequence, not from its cluster's.
        first = self._position(own.start)[0]
        part = x
        for token in own:
            sequence, at = self._position(token)
            if at == 0:
                name = f"{x.name}_slice{sequence}"
                part = rows.slice(x, sequence - first, sequence - first + 1, name=name)
            one = rows.slice(part, at, at + 1, 1, f"{part.name}.{at}")
            targets = [
                node for node in self.nodes if node != self.node and routes.reached[token, node]
            ]
            if targets:
                rows.multicast(f"{self.name}_multicast_exp_{sequence}_{at}", one, targets)
        rows.barrier(f"{self.name}_barrier_disp_mc", self.nodes)
        return {
            expert: self._received(
                expert,
                tokens,
                [
                    Tensor(f"{x.name}_slice{routes.names[token]}", (1, 1, self.hidden))
                    for token in tokens
                ],
            )
            for expert, tokens in self.served().items()
        }

    def _dispatch_allgather(self, x: Tensor) -> dict[str, Tensor]:
        rows, routes = self.rows, self.routes
        first, owned = self._cluster_start(), self.iteration.own_batch
        parts = []
        for token in routes.own(self.node)[:: self.length]:
            sequence = self._position(token)[0]
            name = f"{x.name}_slice{sequence}"
            parts.append(rows.slice(x, sequence - first, sequence - first + 1, name=name))
        if parts:
            gathered = rows.concat(parts, name=f"{self.name}_dispatch_concat")
        else:
            gathered = Tensor(f"{x.name}_empty_dispatch_tensor", (0, self.length, self.hidden))
        name = f"{self.name}_ag_disp"
        self._all_gather(name, gathered)
        rows.barrier(f"{self.name}_barrier_disp_ag", self.nodes)
        inputs = {}
        for expert, tokens in self.served().items():
            parts = []
            for token in tokens:
                sequence, at = self._position(token)
                source = int(routes.owner[token])
                dims = (int(owned[source]), self.length, self.hidden)
                place = sequence - self._position(int(routes.first[source]))[0]
                label = f"{x.name}_expert{expert}_slice{routes.names[token]}"
                part = rows.slice(Tensor(f"{name}_ag_{source}", dims), place, place + 1, name=label)
                parts.append(rows.slice(part, at, at + 1, 1, f"{label}_seq{at}"))
            inputs[expert] = self._received(expert, tokens, parts)
        return inputs

    def _all_gather(self, name: str, x: Tensor) -> None:
        self.rows.add(
            name,
            "AllGather",
            f"{list(x.dims)}",
            [x.name],
            [f"{target}:{name}_ag_{self.node}" for target in self.nodes],
            sent=x.size * self.rows.element,
            group=self.nodes,
        )

    def _experts(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        model, parts = self.iteration.model, self.iteration.system.ffn_tensor_parallel
        widths = {SHARED: ceiling(model.shared_intermediate, parts)}
        usual = ceiling(model.expert_intermediate, parts)
        return {
            expert: self.rows.feed_forward(
                f"{self.name}_exp_{expert}", x, widths.get(expert, usual)
            )
            for expert, x in inputs.items()
        }

    def _returns(self, outputs: dict[str, Tensor], target: int, name: str) -> Tensor | None:
        """Join what goes back to an owner."""
        rows, routes = self.rows, self.routes
        found = routes.returned(self.node, target)
        parts, labels = [], []
        for token, rank in found:
            if rank < self.iteration.model.top_k:
                expert = str(routes.token_experts[token, rank])
                at = int(routes.expert_place[token, rank])
            else:
                expert = SHARED
                at = token - routes.shared_start(self.node)
            output = outputs[expert]
            label = f"{output.name}_slice{routes.names[token]}"
            parts.append(rows.slice(output, at, at + 1, name=label))
            labels.append(f"{routes.names[token]}e{expert}")
        return rows.concat(parts, name=f"{name}{digest(labels)}") if parts else None

    def _combine_alltoall(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        sent = [
            self._returns(outputs, target, f"{self.name}_gather_concat_") or self._empty(target)
            for target in self.nodes
        ]
        name = f"{self.name}_combine_a2a"
        received = [int(count) for count in self.routes.back[:, self.node]]
        self._all_to_all(name, sent, received)
        self.rows.barrier(f"{self.name}_barrier_combine_a2a", self.nodes)
        buffers = [
            Tensor(f"{name}_{source}", (received[source], 1, self.hidden)) for source in self.nodes
        ]
        return self._arrived(buffers, "_", "_")

    def _combine_unicast(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        rows = self.rows
        for target in self.nodes:
            joined = self._returns(outputs, target, f"{self.name}_gather_unicast_concat_")
            if joined is None:
                continue
            name = f"{self.name}_unicast_{target}"
            sent = 0 if target == self.node else joined.size * rows.element
            there = [f"{target}:{name}_{self.node}"]
            text = f"{list(joined.dims)}"
            rows.add(name, "Unicast", text, [joined.name], there, sent=sent, group=[target])
        rows.barrier(f"{self.name}_barrier_uc", self.nodes)
        buffers = [
            Tensor(
                f"{self.name}_unicast_{self.node}_{source}",
                (int(self.routes.back[source, self.node]), 1, self.hidden),
            )
            for source in self.nodes
        ]
        return self._arrived(buffers, "expert{}_", "shared_")

    def _arrived(self, buffers: list[Tensor], routed: str, shared: str) -> list[Tensor]:
        """Slice and join what came back for each of the node's own tokens."""
        rows, routes, top_k = self.rows, self.routes, self.iteration.model.top_k
        found = []
        for token in routes.own(self.node):
            at = self._position(token)[1]
            parts = []
            for rank in range(top_k + 1):
                last = rank == top_k
                expert = -1 if last else int(routes.token_experts[token, rank])
                source = routes.shared[token] if last else self.iteration.expert_nodes[expert]
                buffer = buffers[source]
                place = int(routes.back_place[token, rank])
                mark = shared if last else routed.format(expert)
                label = f"{buffer.name}{mark}slice{place}.{at}"
                parts.append(rows.slice(buffer, place, place + 1, name=label))
            name = f"{self.name}_combine_add_concat_batchid{routes.names[token]}"
            found.append(rows.concat(parts, name=name))
        return found

    def _combine_allgather(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        rows, routes, top_k = self.rows, self.routes, self.iteration.model.top_k
        if outputs:
            name = f"{self.name}_combine_concat"
            joined = rows.concat(list(outputs.values()), name=name)
        else:
            joined = Tensor(f"{self.name}_empty_combine_concat", (0, 1, self.hidden))
        name = f"{self.name}_ag_comb"
        self._all_gather(name, joined)
        rows.barrier(f"{self.name}_barrier_combine_ag", self.nodes)
        produced = routes.back.sum(axis=1)
        starts = routes.expert_starts()
        cluster = self._cluster_start() * self.length
        local = range(cluster, cluster + int(self.iteration.local_batch[self.node]) * self.length)
        found = []
        for token in local:
            parts = []
            # Here the experts of a token are taken in the order of their numbers.
            experts = sorted(
                (int(expert), rank) for rank, expert in enumerate(routes.token_experts[token])
            )
            for expert, rank in [*experts, (-1, top_k)]:
                last = rank == top_k
                source = int(routes.shared[token] if last else self.iteration.expert_nodes[expert])
                if last:
                    # The generator takes the last row of the buffer for every token.
                    place = int(produced[source]) - 1
                else:
                    place = int(starts[expert] + routes.expert_place[token, rank])
                buffer = Tensor(f"{name}_ag_{source}", (int(produced[source]), 1, self.hidden))
                label = f"{buffer.name}_slice_exp{SHARED if last else expert}_{routes.names[token]}"
                parts.append(rows.slice(buffer, place, place + 1, name=label))
            label = f"{self.name}_combine_sum_concat_{routes.names[token]}"
            found.append(rows.concat(parts, name=label))
        return found

    def _cluster_start(self) -> int:
        """Return the first sequence of the node's data-parallel cluster."""
        return int(self.iteration.starts[self.node // self.iteration.system.cluster_nodes])

    def _sum(self, arrived: list[Tensor]) -> Tensor:
        """Add up each token's rows, and join the tokens again."""
        rows = self.rows
        if not arrived:
            name = f"{self.name}_empty_combine_out_concat_{self.node}"
            return Tensor(name, (0, self.length, self.hidden))
        tokens = [each.name.rpartition("batchid")[2].rpartition("_")[2] for each in arrived]
        sums = [
            rows.sum(f"{self.name}_sum_{token}", each)
            for token, each in zip(tokens, arrived, strict=True)
        ]
        joined = [
            rows.concat(sums[at :: self.length], name=f"{self.name}_combine_add_concat_seq{at}")
            for at in range(self.length)
        ]
        return rows.concat(joined, 1, f"{self.name}_combine_out_concat_{self.node}")

    def _distribute(self, x: Tensor) -> Tensor:
        """Send the node's own tokens to its cluster; counted even where that is one node."""
        rows, group = self.rows, self.iteration.group(self.node, "cluster")
        others = [node for node in group if node != self.node]
        rows.multicast(f"{self.name}_multicast_dp", x, others)
        rows.barrier(f"{self.name}_barrier_mc", group)
        owned = self.iteration.own_batch
        parts = [
            Tensor(
                f"{self.name}_combine_out_concat_{node}",
                (int(owned[node]), self.length, self.hidden),
            )
            for node in group
            if owned[node]
        ]
        if not parts:
            name = f"{self.name}_empty_combine_out_concat_{self.node}"
            return Tensor(name, (0, self.length, self.hidden))
        return rows.concat(parts, name=f"{self.name}_combine_out_concat")


def whole_expert_rows(rows: Rows, routes: Routes, name: str, x: Tensor) -> Tensor:
    """Add a layer of which every node holds a part of every expert, or that has one node.

    The generator's own rows end on a second node with an error; these are those of its later
    version (38a94c8), which gathers the batch first.
    """
    iteration, model = routes.iteration, routes.iteration.model
    parts, nodes = iteration.system.ffn_tensor_parallel, iteration.system.nodes
    everyone = range(nodes) if parts > 1 else ()
    rows.linear(f"{name}_gate", x, model.experts)
    local = x
    if iteration.system.data_parallel > 1:
        x = _gathered(rows, iteration, name, x)
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
        width = ceiling(model.expert_intermediate, parts)
        outputs.append(rows.feed_forward(f"{name}_exp_{expert}", joined, width, everyone))
    width = ceiling(model.shared_intermediate, parts)
    shared = rows.feed_forward(f"{name}_exp_{SHARED}", x, width, everyone)
    shared = rows.view(shared, routes.tokens, 1, model.hidden, name=f"{shared.name}_view_shared")
    sums = []
    for token in range(routes.tokens):
        slices = []
        for rank, expert in enumerate(routes.token_experts[token]):
            at = int(routes.expert_place[token, rank])
            slices.append(rows.slice(outputs[expert], at, at + 1))
        slices.append(rows.slice(shared, token, token + 1))
        sums.append(rows.sum(f"{name}_sum_{routes.names[token]}", rows.concat(slices)))
    made = rows.concat(sums, name=f"{name}_combine_out_concat")
    made = rows.view(made, iteration.batch, iteration.length, model.hidden)
    if local.dims[0] == iteration.batch:
        return made
    first = int(iteration.starts[rows.node // iteration.system.cluster_nodes])
    label = f"{name}_combine_out_local_slice"
    return rows.slice(made, first, first + local.dims[0], name=label)


def _gathered(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    """Gather the shares of all data-parallel clusters."""
    group = iteration.group(rows.node, "data")
    label = f"{name}_gather_fulltp_ag"
    rows.add(
        label,
        "AllGather",
        f"{list(x.dims)}",
        [x.name],
        [f"{node}:{label}_ag_{rows.node}" for node in group],
        sent=x.size * rows.element,
        group=group,
    )
    parts = [
        Tensor(f"{label}_ag_{node}", (int(iteration.local_batch[node]), *x.dims[1:]))
        for node in group
    ]
    return rows.concat(parts, name=f"{name}_gather_fulltp_concat")
