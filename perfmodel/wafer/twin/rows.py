"""Rows and graph of one node, and those of an attention.

Names follow from the tensors that operations read. Source: huawei-csl/wse-workload-generator
85e1ae7, ``src/node_level/common/tensor.py`` and ``src/node_level/layers``.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers``:
``mla_absorb_block.py``, ``mla_naive_block.py``, ``mha_block.py`` and the attention of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from perfmodel.wafer.cores.setting import ceiling
from perfmodel.wafer.generator_files import GraphNode, NodeOperation
from perfmodel.wafer.twin.setting import Iteration


class Tensor(NamedTuple):
    """A name and sides."""

    name: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.dims)


class Rows:
    """What one node writes, in the order in which it runs.

    Parameters
    ----------
    node : int
    element : int
        Bytes of an element.

    Attributes
    ----------
    table : list of NodeOperation
    graph : list of GraphNode
    """

    def __init__(self, node: int, element: int) -> None:
        self.node = node
        self.element = element
        self.table: list[NodeOperation] = []
        self.graph: list[GraphNode] = []

    def add(
        self,
        name: str,
        operation: str,
        dimensions: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        kind: str = "",
        macs: int = 0,
        weights: int = 0,
        sent: int = 0,
        group: Sequence[int] | None = None,
    ) -> None:
        """Add an operation; `inputs` are this node's, `outputs` have their node before them."""
        nodes = None if group is None else tuple(group)
        self.table.append(
            NodeOperation(name, operation, weights, macs, weights, sent, nodes, dimensions)
        )
        read = tuple([f"{self.node}:{tensor}" for tensor in inputs])
        self.graph.append(GraphNode(name, kind or operation, read, tuple(outputs)))

    def local(
        self, operation: str, inputs: Sequence[str], output: Tensor, dimensions: str
    ) -> Tensor:
        """Add an operation that moves no data and is called after the tensor that it makes."""
        here = f"{self.node}:{output.name}"
        self.add(output.name, operation, dimensions, inputs, (here,))
        return output

    def barrier(self, name: str, group: Sequence[int]) -> None:
        """Add a barrier, which is no part of the graph."""
        self.table.append(NodeOperation(name, "Barrier", 0, 0, 0, 0, tuple(group), "N/A"))

    def view(self, tensor: Tensor, *dims: int, name: str = "") -> Tensor:
        """Add a view with other sides."""
        made = Tensor(name or f"{tensor.name}_view", dims)
        return self.local("View", (tensor.name,), made, f"{list(tensor.dims)} -> {list(dims)}")

    def transpose(self, tensor: Tensor, first: int, second: int) -> Tensor:
        """Add an exchange of two sides."""
        dims = list(tensor.dims)
        dims[first], dims[second] = dims[second], dims[first]
        made = Tensor(f"{tensor.name}_transpose", tuple(dims))
        text = f"{[first, second]} -> {list(tensor.dims)} -> {dims}"
        return self.local("Transpose", (tensor.name,), made, text)

    def split(self, tensor: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
        """Add a cut of the last side in two."""
        name = f"{tensor.name}_split"
        outer = tensor.dims[:-1]
        parts = (
            Tensor(f"{name}0:{left}", (*outer, left)),
            Tensor(f"{name}{left}:{left + right}", (*outer, right)),
        )
        text = f"-1 -> {[left, right]} -> {list(tensor.dims)}"
        made = [f"{self.node}:{part.name}" for part in parts]
        self.add(name, "Split", text, (tensor.name,), made)
        return parts

    def slice(self, tensor: Tensor, start: int, stop: int, axis: int = 0, name: str = "") -> Tensor:
        """Add a slice along a side."""
        dims = (*tensor.dims[:axis], stop - start, *tensor.dims[axis + 1 :])
        place = f"{start}" if stop - start == 1 else f"{start}:{stop}"
        made = name or f"{tensor.name}_slice{place}"
        text = f"{list(tensor.dims)} -> {axis} -> {start}:{stop}"
        # Written out here: four rows of five are slices.
        self.table.append(NodeOperation(made, "Slice", 0, 0, 0, 0, None, text))
        read, here = (f"{self.node}:{tensor.name}",), (f"{self.node}:{made}",)
        self.graph.append(GraphNode(made, "Slice", read, here))
        return Tensor(made, dims)

    def concat(self, tensors: Sequence[Tensor], axis: int = 0, name: str = "") -> Tensor:
        """Add a concatenation along a side, which may be counted from the last."""
        first = tensors[0].dims
        sides = [tensor.dims[axis] for tensor in tensors]
        dims = list(first)
        dims[axis] = sum(sides)
        made = Tensor(name or f"{tensors[0].name}_concat", tuple(dims))
        text = f"{axis} -> {sides} -> {dims}"
        return self.local("Concat", [tensor.name for tensor in tensors], made, text)

    def sum(self, name: str, tensor: Tensor) -> Tensor:
        """Add a sum over the first side, which costs nothing there."""
        dims = (1, *tensor.dims[1:])
        made = Tensor(f"{name}_out", dims)
        text = f"{list(tensor.dims)} -> 0 -> {list(dims)}"
        self.add(name, "Sum", text, (tensor.name,), (f"{self.node}:{made.name}",))
        return made

    def linear(self, name: str, tensor: Tensor, outputs: int) -> Tensor:
        """Add a product with a matrix of weights."""
        *outer, inputs = tensor.dims
        rows = prod(outer)
        made = Tensor(f"{name}_out", (*outer, outputs))
        self.add(
            name,
            "Linear",
            f"[{rows}, {inputs}] x [{inputs}, {outputs}] -> [{rows}, {outputs}]",
            (tensor.name,),
            (f"{self.node}:{made.name}",),
            macs=rows * inputs * outputs,
            weights=inputs * outputs * self.element,
        )
        return made

    def grouped_linear(self, name: str, tensor: Tensor, outputs: int) -> Tensor:
        """Add one product per index of the first side."""
        groups, *outer, inputs = tensor.dims
        made = Tensor(f"{name}_out", (groups, *outer, outputs))
        weights = [groups, inputs, outputs]
        self.add(
            name,
            "GroupedLinear",
            f"{list(tensor.dims)} x {weights} -> {list(made.dims)}",
            (tensor.name,),
            (f"{self.node}:{made.name}",),
            macs=groups * prod(outer) * inputs * outputs,
            weights=prod(weights) * self.element,
        )
        return made

    def attention(
        self, name: str, operation: str, tensor: Tensor, width: int, counts: tuple[int, int, str]
    ) -> Tensor:
        """Add an attention, which makes `width` features a head.

        `counts` are multiply-accumulates, bytes of cache and dimensions.
        """
        macs, cache, text = counts
        made = Tensor(f"{name}_out", (*tensor.dims[:-1], width))
        here = (f"{self.node}:{made.name}",)
        self.add(name, operation, text, (tensor.name,), here, macs=macs, weights=cache)
        return made

    def all_reduce(self, name: str, tensor: Tensor, group: Sequence[int]) -> Tensor:
        """Add an all-reduce, whose vector is counted once."""
        made = Tensor(f"{name}_out", tensor.dims)
        self.add(
            name,
            "AllReduce",
            f"{list(tensor.dims)}",
            (tensor.name,),
            (f"{self.node}:{made.name}",),
            kind="Allreduce",
            sent=tensor.size * self.element,
            group=group,
        )
        return made

    def multicast(self, name: str, tensor: Tensor, group: Sequence[int]) -> None:
        """Add a message to several nodes, counted once; it keeps the tensor's name there."""
        there = [f"{node}:{tensor.name}" for node in group]
        sent = tensor.size * self.element
        text = f"{list(tensor.dims)}"
        self.add(name, "Multicast", text, (tensor.name,), there, sent=sent, group=group)

    def feed_forward(
        self, name: str, tensor: Tensor, width: int, group: Sequence[int] = ()
    ) -> Tensor:
        """Add a gated network, and an all-reduce over a group of several nodes."""
        up = self.linear(f"{name}_up", tensor, width)
        gate = self.linear(f"{name}_gate", tensor, width)
        made = Tensor(f"{name}_add_out", up.dims)
        here = (f"{self.node}:{made.name}",)
        self.add(f"{name}_add", "Add", f"{list(up.dims)}", (up.name, gate.name), here)
        down = self.linear(f"{name}_down", made, tensor.dims[-1])
        return self.all_reduce(f"{name}_ar", down, group) if len(group) > 1 else down


# Rows of an attention: absorbed and naive latent attention, grouped queries.


def attention_rows(rows: Rows, iteration: Iteration, layer: str, x: Tensor) -> Tensor:
    """Add an attention with its all-reduces; return what the next part reads."""
    if not iteration.model.latent:
        return _grouped_query(rows, iteration, f"{layer}_attn", x)
    if iteration.prefill:
        return _naive(rows, iteration, f"{layer}_attn_naive", x)
    return _absorbed(rows, iteration, f"{layer}_attn_absorb", x)


def _absorbed(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    rows.linear(f"{name}_wkva", x, model.kv_rank + model.rope)
    query = rows.linear(f"{name}_wqa", x, model.q_rank)
    query = rows.linear(f"{name}_wqb", query, heads * (model.nope + model.rope))
    query = rows.view(query, batch, length, heads, model.nope + model.rope)
    plain, rotated = rows.split(query, model.nope, model.rope)
    plain = rows.view(plain, batch * length, heads, model.nope)
    plain = rows.transpose(plain, 0, 1)
    plain = rows.grouped_linear(f"{name}_wkvb1", plain, model.kv_rank)
    plain = rows.transpose(plain, 0, 1)
    plain = rows.view(plain, batch, length, heads, model.kv_rank)
    query = rows.concat([plain, rotated], axis=-1)

    keys = ceiling(iteration.context, iteration.system.sequence_parallel)
    # One token is printed even where several are guessed.
    shown = [batch, 1, heads, model.kv_rank]
    made = rows.attention(
        f"{name}_absorbattn",
        "MLAAbsorbAttention",
        query,
        model.kv_rank,
        (
            batch * keys * heads * (2 * model.kv_rank + model.rope) * length,
            batch * keys * (model.kv_rank + model.rope) * rows.element,
            f"Q: {shown}, KV: {[batch, keys, model.kv_rank]}, PE: {[batch, keys, model.rope]}"
            f" -> {shown}",
        ),
    )
    if iteration.system.sequence_parallel > 1:
        made = rows.view(made, batch, length, heads * model.kv_rank)
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
        made = rows.view(made, batch, length, heads, model.kv_rank)
    made = rows.transpose(made, 0, 2)
    made = rows.view(made, heads, batch * length, model.kv_rank)
    made = rows.grouped_linear(f"{name}_wkvb2", made, model.value)
    made = rows.transpose(made, 0, 1)
    made = rows.view(made, batch, length, heads, model.value)
    made = rows.view(made, batch, length, heads * model.value)
    return _output(rows, iteration, name, f"{name}_wo", made)


def _naive(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    key_width = model.nope + model.rope
    latent = rows.linear(f"{name}_wkva", x, model.kv_rank + model.rope)
    plain, rotated = rows.split(latent, model.kv_rank, model.rope)
    plain = rows.linear(f"{name}_wkvb", plain, heads * (model.nope + model.value))
    plain = rows.view(plain, batch, length, heads, model.nope + model.value)
    plain, _ = rows.split(plain, model.nope, model.value)
    rotated = rows.view(rotated, batch, length, 1, model.rope)
    rotated = rows.concat([rotated] * heads, axis=-2)
    rows.concat([rotated, plain], axis=-1)
    query = rows.linear(f"{name}_wqa", x, model.q_rank)
    query = rows.linear(f"{name}_wqb", query, heads * key_width)
    query = rows.view(query, batch, length, heads, key_width)
    made = _causal_less(
        rows, iteration, f"{name}_naiveattn", "MLANaiveAttention", query, (heads, model.value)
    )
    made = rows.view(made, batch, length, heads * model.value)
    if iteration.system.sequence_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
    return _output(rows, iteration, name, f"{name}_wo", made)


def _grouped_query(rows: Rows, iteration: Iteration, name: str, x: Tensor) -> Tensor:
    model = iteration.model
    heads = ceiling(model.heads, iteration.system.tensor_parallel)
    cached = ceiling(model.kv_heads, iteration.system.tensor_parallel)
    batch, length, _ = x.dims
    query = rows.linear(f"{name}_qproj", x, heads * model.head_dim)
    rows.linear(f"{name}_kproj", x, cached * model.head_dim)
    rows.linear(f"{name}_vproj", x, cached * model.head_dim)
    query = rows.view(query, batch, length, heads, model.head_dim)
    made = _causal_less(
        rows, iteration, f"{name}_selfattn", "SelfAttention", query, (cached, model.head_dim)
    )
    made = rows.view(made, batch, length, heads * model.head_dim)
    if iteration.system.sequence_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_sp", made, iteration.group(rows.node, "sequence"))
    return _output(rows, iteration, name, f"{name}_oproj", made)


def _causal_less(
    rows: Rows,
    iteration: Iteration,
    name: str,
    operation: str,
    query: Tensor,
    cached: tuple[int, int],
) -> Tensor:
    """Add an attention of all queries to all keys; `cached`: heads of keys, width of values."""
    batch, length, heads, key_width = query.dims
    kept, value = cached
    keys = ceiling(iteration.context or length, iteration.system.sequence_parallel)
    shown = length if iteration.prefill else 1
    cache = 0 if iteration.prefill else batch * keys * kept * (key_width + value) * rows.element
    text = (
        f"Q: {[batch, shown, heads, key_width]}, K: {[batch, keys, kept, key_width]}, "
        f"V: {[batch, keys, kept, value]} -> {[batch, shown, heads, value]}"
    )
    macs = batch * keys * heads * (key_width + value) * length
    return rows.attention(name, operation, query, value, (macs, cache, text))


def _output(rows: Rows, iteration: Iteration, name: str, product: str, x: Tensor) -> Tensor:
    made = rows.linear(product, x, iteration.model.hidden)
    if iteration.system.tensor_parallel > 1:
        made = rows.all_reduce(f"{name}_ar_tp", made, iteration.group(rows.node, "tensor"))
    return made
