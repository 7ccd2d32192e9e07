"""Rows and graph of one node, and those of a model's blocks.

Names follow from the tensors that operations read. Source: huawei-csl/wse-workload-generator
85e1ae7, ``src/node_level/common/tensor.py`` and ``src/node_level/layers``.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers``:
``mla_absorb_block.py``, ``mla_naive_block.py``, ``mha_block.py`` and the attention of each.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from perfmodel.model.attention import AttentionSpec
from perfmodel.wafer.generator_files import GraphNode, NodeOperation
from perfmodel.wafer.setting import ceiling
from perfmodel.wafer.twin.setting import Iteration
from perfmodel.wafer.walk import ABSORBED, BY_HEADS, NAIVE, AttentionShape, Walk


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


# Rows of the blocks of a model, those with experts left out.

WORDS = {
    "wq": "qproj", "wk": "kproj", "wv": "vproj", "attn": "selfattn", "wo": "oproj",
}  # fmt: skip
"""Words of a walk -> names, in an attention over heads."""
OPERATIONS = {
    ABSORBED: "MLAAbsorbAttention",
    NAIVE: "MLANaiveAttention",
    BY_HEADS: "SelfAttention",
}


class BlockRows(Walk[Tensor], ABC):
    """Adds the blocks of a model on a node.

    Parameters
    ----------
    iteration : Iteration
    rows : Rows
    context : int, optional
        Tokens seen before; those of the iteration otherwise.
    """

    keys_first = True

    def __init__(self, iteration: Iteration, rows: Rows, context: int | None = None) -> None:
        super().__init__(iteration)
        self.iteration = iteration
        self.rows = rows
        self.node = rows.node
        self.context = iteration.context if context is None else context

    def name(self, word: str) -> str:
        """Return the generator's name of an operation."""
        latent = self.setting.model.layers[0].attention.kind == "mla"
        part = "dense" if latent and self.part == "ffn" else self.part
        if part == "attn":
            word = WORDS.get(word, word)
        return "_".join(filter(None, (self.layer, part, word)))

    def linear(self, word: str, x: Tensor, inner: int, outer: int) -> Tensor:
        """Add a product with a matrix of weights."""
        return self.rows.linear(self.name(word), x, outer)

    def by_head(self, word: str, x: Tensor, inner: int, outer: int, heads: int) -> Tensor:
        """Add the views that bring heads to the front, their products, and the views back."""
        rows, (batch, length) = self.rows, x.dims[:2]
        if word == "wkvb2":
            made = rows.view(rows.transpose(x, 0, 2), heads, batch * length, inner)
            made = rows.transpose(rows.grouped_linear(self.name(word), made, outer), 0, 1)
            made = rows.view(made, batch, length, heads, outer)
            return rows.view(made, batch, length, heads * outer)
        width = x.dims[-1] // heads
        plain, rotated = rows.split(rows.view(x, batch, length, heads, width), inner, width - inner)
        plain = rows.transpose(rows.view(plain, batch * length, heads, inner), 0, 1)
        plain = rows.transpose(rows.grouped_linear(self.name(word), plain, outer), 0, 1)
        return rows.concat([rows.view(plain, batch, length, heads, outer), rotated], axis=-1)

    def keys_of_heads(self, spec: AttentionSpec, latent: Tensor, heads: int) -> Tensor:
        """Add the keys of all heads, rotary positions copied to each; values are cut off."""
        rows, (batch, length) = self.rows, latent.dims[:2]
        nope, value, rope = spec.qk_nope_head_dim, spec.value_head_dim, spec.qk_rope_head_dim
        plain, rotated = rows.split(latent, spec.kv_lora_rank, rope)
        plain = super().keys_of_heads(spec, plain, heads)
        plain, _ = rows.split(rows.view(plain, batch, length, heads, nope + value), nope, value)
        rotated = rows.view(rotated, batch, length, 1, rope)
        rotated = rows.concat([rotated] * heads, axis=-2)
        return rows.concat([rotated, plain], axis=-1)

    def softmax(
        self, spec: AttentionSpec, shape: AttentionShape, given: tuple[Tensor, ...]
    ) -> Tensor:
        """Add an attention of all queries to all keys, in one row."""
        query = given[0]
        batch, length = query.dims[:2]
        if shape.word != ABSORBED:
            query = self.rows.view(query, batch, length, shape.heads, shape.depth)
        keys = ceiling(self.context or length, self.setting.system.sequence_parallel)
        macs = batch * keys * shape.heads * shape.width * length
        # One token is printed even where several are guessed.
        shown = [batch, length if self.setting.phase == "prefill" else 1, shape.heads]
        made = f"{[*shown, shape.values]}"
        held = [batch, keys]
        if shape.word == ABSORBED:
            rope = spec.qk_rope_head_dim
            text = f"Q: {made}, KV: {[*held, shape.values]}, PE: {[*held, rope]} -> {made}"
        else:
            held.append(shape.key_heads)
            text = (
                f"Q: {[*shown, shape.depth]}, K: {[*held, shape.depth]}, "
                f"V: {[*held, shape.values]} -> {made}"
            )
        cache = batch * keys * shape.stored * self.rows.element if self.context else 0
        name, operation = self.name(shape.word), OPERATIONS[shape.word]
        return self.rows.attention(name, operation, query, shape.values, (macs, cache, text))

    def merged(self, x: Tensor, shape: AttentionShape) -> Tensor:
        """Add an all-reduce over those that share a context, which takes heads together."""
        shared = self.setting.system.sequence_parallel > 1
        if shape.word == ABSORBED and not shared:
            return x
        made = self.rows.view(x, *x.dims[:2], shape.heads * shape.values)
        made = self.reduced("ar_sp", made, "sequence")
        return self.rows.view(made, *x.dims) if shape.word == ABSORBED else made

    def reduced(self, word: str, x: Tensor, axis: str) -> Tensor:
        """Add an all-reduce over the nodes of an axis; nothing where it has one."""
        group = self.setting.group(self.node, axis)
        return self.rows.all_reduce(self.name(word), x, group) if len(group) > 1 else x

    def gated(self, up: Tensor, gate: Tensor) -> Tensor:
        """Add the product of both, as the sum that the generator makes of it."""
        made = Tensor(f"{self.name('add')}_out", up.dims)
        here = (f"{self.node}:{made.name}",)
        self.rows.add(self.name("add"), "Add", f"{list(up.dims)}", (up.name, gate.name), here)
        return made

    def last_tokens(self, x: Tensor) -> Tensor:
        """Take all tokens."""
        return x

    def gathered(self, x: Tensor) -> Tensor:
        """Add an all-reduce, where a gathering would do."""
        return self.reduced("ar", x, "cluster")
