"""The exact list of operations of each part of a model, for all layer keys at once.

A model is a row of *parts*: its distinct layers, then the embedding, the output
(final norm, logits, loss) and the projection of a multi-token-prediction module.
A pipeline stage holds some number of each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.base.precisions import PRECISIONS
from perfmodel.base.strategy_fields import RECOMPUTE
from perfmodel.compute.stream_catalogue import cross_entropy, embedding, traffic
from perfmodel.model.layers import LayerSpec
from perfmodel.model.spec import ModelSpec, TowerSpec
from perfmodel.operations.adapters import listed_operations
from perfmodel.operations.attention_block import tower_tokens
from perfmodel.operations.layer_block import add_layer, add_norm
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import (
    Communication,
    Gemm,
    LayerKeys,
    Machine,
    Operation,
    Role,
    Stream,
)
from perfmodel.software.framework import Framework

BEHIND_LAYERS = (
    *("embedding_down", "stream_head", "stream_head_offsets"),
    *("stream_norm", "stream_gate_down", "stream_gate_up"),
)
"""Pieces of `ModelSpec.edge_pieces` that stand behind the last layer; the others are ahead."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of thing that a pipeline stage can hold.

    Attributes
    ----------
    name : str
        "layer0", "layer1", …, "embedding", "output" or "mtp".
    kind : {"layer", "embedding", "output", "mtp", "group"}
    layer : LayerSpec or None
        The layer, for a layer part.
    kept : bool
        It is not recomputed, whatever the strategy says of others.
    grouped : bool
        It is recomputed together with others, which a "group" stands for.
    members : tuple of LayerSpec
        Layers of a group, which has no operations of its own, but what they keep.
    """

    name: str
    kind: str
    layer: LayerSpec | None = None
    kept: bool = False
    grouped: bool = False
    members: tuple[LayerSpec, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # of a model's parts no two are called the same

    def keys(self, keys: LayerKeys) -> LayerKeys:
        """Return the layer keys under which it runs."""
        changed = {}
        if self.kept:
            changed["recompute"] = RECOMPUTE.index("none")
        if self.layer is not None and self.layer.wide:
            changed["precision"] = PRECISIONS.index("bf16")
        if not changed:
            return keys
        own = {name: np.full(len(keys), code, np.int64) for name, code in changed.items()}
        return LayerKeys({**keys.columns, **own})


def model_parts(model: ModelSpec) -> tuple[Part, ...]:
    """Return the distinct parts of a model: layer kinds (main, then MTP), then the edges."""
    objects = {id(layer): layer for layer in (*model.layers, *model.mtp_layers)}
    distinct = dict.fromkeys(objects.values())  # few objects, as hashes of layers take their time
    layers = tuple(Part(f"layer{i}", "layer", layer) for i, layer in enumerate(distinct))
    edges = (Part("embedding", "embedding"), Part("output", "output"))
    return layers + edges + ((Part("mtp", "mtp"),) if model.mtp_layers else ())


def part_operations(
    model: ModelSpec, part: Part, keys: LayerKeys, framework: Framework, machine: Machine
) -> list[Operation]:
    """List the operations of one part for one micro-batch.

    Parameters
    ----------
    model : ModelSpec
    part : Part
        One of `model_parts`.
    keys : LayerKeys
        Columns of the strategy fields that matter here, shape (keys,).
    framework : Framework
    machine : Machine

    Returns
    -------
    list of Operation
        Sizes are columns of shape (keys,) or numbers that hold for every key.
    """
    if part.kind == "group":
        return []
    keys, adapters = part.keys(keys), model.adapters
    if adapters is not None and part.layer is None:
        adapters = adapters.beside_layers()
    ops = listed_operations(keys, framework, machine, adapters)
    if part.layer is not None:
        add_layer(ops, model, part.layer)
        if part.layer.wide:
            ops.operations = [_in_16_bits(item) for item in ops.operations]
        if adapters is not None:
            return [item for item in ops.operations if not _trains_indexer(item)]
    elif part.kind == "embedding":
        with ops.in_role(Role.EMBEDDING):
            _add_embedding(ops, model)
        # The edges of a model are not recomputed, the layers of its towers are.
        ahead = _not_recomputed(ops) + _tower_operations(model, keys, framework, machine)
        return ahead if adapters is None else _with_gradients(model, ahead)
    elif part.kind == "output":
        with ops.in_role(Role.OUTPUT):
            _add_output(ops, model)
    else:
        with ops.in_role(Role.PREDICTION):
            _add_mtp(ops, model)
    return _not_recomputed(ops) if part.kind == "output" else ops.operations


def _in_16_bits(item: Operation) -> Operation:
    return replace(item, quantised=False) if isinstance(item, Gemm) else item


def _not_recomputed(ops: OperationList) -> list[Operation]:
    return [item for item in ops.operations if item.phase != "recompute"]


def _trains_indexer(item: Operation) -> bool:
    """Tell whether an operation is backward of an indexer, which has a loss of its own."""
    return item.name.startswith("attention.index") and item.phase.startswith("backward")


def _with_gradients(model: ModelSpec, ahead: list[Operation]) -> list[Operation]:
    """Return what runs ahead of the layers where all of it but an encoder is frozen.

    Nothing below the first adapter needs a gradient.
    """
    encoders = tuple(f"{tower.name}." for tower in model.encoders)
    return [item for item in ahead if item.phase == "forward" or item.name.startswith(encoders)]


def _tower_operations(
    model: ModelSpec, keys: LayerKeys, framework: Framework, machine: Machine
) -> list[Operation]:
    """List what the towers of a model do, ahead of its first layer.

    A tower runs as the layers of the model do, over its own tokens.
    """
    found: list[Operation] = []
    for tower in model.towers:
        tokens = tower_tokens(tower, keys.number("sequence_length"))
        if not np.any(tokens > 0):
            continue
        lengths = {**keys.columns, "sequence_length": tokens.astype(np.int64)}
        own = replace(
            model, hidden_size=tower.hidden_size, layers=tower.layers, towers=(), mtp_layers=()
        )
        adapters = model.adapters
        if adapters is not None and tower not in model.encoders:
            adapters = adapters.beside_layers()
        ops = listed_operations(LayerKeys(lengths), framework, machine, adapters)
        for layer, times in Counter(tower.layers).items():
            start = len(ops.operations)
            add_layer(ops, own, layer)
            ops.operations[start:] = [
                _within(tower, item, times) for item in ops.operations[start:]
            ]
        start = len(ops.operations)
        with ops.in_role(Role.EMBEDDING):
            ops.products("tower", tower.extra, own=True)
            if tower.final_norm:
                elements = ops.keys.stream_tokens * tower.hidden_size
                kind = tower.layers[-1].norm if tower.layers else "layer"
                with ops.in_module("norm_linear"):
                    add_norm(ops, "tower.norm", elements, kind)
        ops.operations[start:] = [_within(tower, item, 1) for item in ops.operations[start:]]
        found += ops.operations
    return found


def _within(tower: TowerSpec, item: Operation, times: int) -> Operation:
    """Return an operation of a tower, named so, as often as the tower has its layer."""
    changes: dict[str, Any] = {"name": f"{tower.name}.{item.name}", "count": item.count * times}
    if isinstance(item, Communication):
        changes["hidden_by"] = tuple(
            (name if name.endswith("*") else f"{tower.name}.{name}", phase)
            for name, phase in item.hidden_by
        )
    return replace(item, **changes)


def padded_vocabulary(model: ModelSpec, keys: LayerKeys, framework: Framework) -> np.ndarray:
    """Vocabulary rows on one device, after padding, shape (keys,)."""
    multiple = framework.pads_vocabulary_to * keys.tensor_parallel
    return np.ceil(model.vocab_size / multiple) * multiple / keys.tensor_parallel


def _add_embedding(ops: OperationList, model: ModelSpec) -> None:
    """Gather rows; the gradient is scattered back in fp32."""
    keys = ops.keys
    elements = keys.tokens * model.table_width
    tables = 2.0 if model.position_embedding == "learned" else 1.0
    lookups = [("embedding.lookup", elements, tables)]
    lookups += [
        (f"embedding.{piece.name}", keys.tokens * piece.outputs, 1.0)
        for piece in model.extra
        if piece.kind == "table"
    ]
    for name, numbers, read_tables in lookups:
        for phase, backward in (("forward", False), ("backward_weight", True)):
            read, written = traffic(embedding(1, 1, tables=read_tables, backward=backward))
            ops.append(Stream(name, phase, numbers * read, numbers * written))
    # Rows of a vocabulary-parallel table are summed over the tensor-parallel group.
    parallel = (keys.tensor_parallel > 1) * 1.0
    for collective, phase, count in (
        ("reduce_scatter", "forward", keys.sharded),
        ("all_reduce", "forward", parallel - keys.sharded),
        ("all_gather", "backward_weight", keys.sharded),
    ):
        if np.any(count > 0):
            ops.append(
                Communication(
                    f"embedding.{collective}",
                    phase,
                    "tensor",
                    collective,
                    elements * 2.0,
                    keys.tensor_parallel,
                    keys.tensor_stride,
                    count=count,
                )
            )
    ahead = [piece for piece in model.edge_pieces() if piece.name not in BEHIND_LAYERS]
    ops.products("embedding", tuple(ahead), own=True)


def _add_output(ops: OperationList, model: ModelSpec) -> None:
    """Final norm, logits and the loss; kept in 16 bits whatever the layers use."""
    keys = ops.keys
    behind = [piece for piece in model.edge_pieces() if piece.name in BEHIND_LAYERS]
    ops.products("output", tuple(behind), own=True)
    elements = keys.stream_tokens * model.hidden_size
    if model.streams > 1:
        m = float(model.streams)
        ops.stream("output.streams", elements, (2.0 * m, 2.0), (2.0 + 2.0 * m, 2.0 * m))
    add_norm(ops, "output.norm", elements, model.layers[-1].norm)
    width = float(model.table_width)
    ops.enter_tensor_parallel("output.input", width, "output.logits", quantised=False)
    vocabulary = padded_vocabulary(model, keys, ops.framework)
    ops.linear("output.logits", keys.tokens, width, vocabulary, quantised=False)
    with ops.in_role(Role.LOSS):
        _add_loss(ops, vocabulary)


def _add_loss(ops: OperationList, vocabulary: np.ndarray) -> None:
    """Cross entropy of every token's logits, and its gradient."""
    keys = ops.keys
    fused = ops.framework.fused_cross_entropy
    loss, gradient = (cross_entropy(1, 1, backward=b, fused=fused) for b in (False, True))
    ops.stream(
        "output.loss",
        keys.tokens * vocabulary,
        traffic(loss),
        traffic(gradient),
        flops=float(loss.flops),
        launches=float(loss.launches),
    )
    parallel = (keys.tensor_parallel > 1) * 1.0
    if np.any(parallel > 0):
        # Maximum, sum and the target's logit of every token, fp32.
        ops.add(
            Communication(
                "output.loss.all_reduce",
                "forward",
                "tensor",
                "all_reduce",
                keys.tokens * 4.0,
                keys.tensor_parallel,
                keys.tensor_stride,
                count=3.0 * parallel,
            )
        )


def _add_mtp(ops: OperationList, model: ModelSpec) -> None:
    """Norms of hidden state and next token, and their projection 2h -> h."""
    keys = ops.keys
    elements = keys.stream_tokens * model.hidden_size
    with ops.in_module("norm_linear"):
        add_norm(ops, "mtp.norms", 2.0 * elements, model.layers[-1].norm)
    ops.enter_tensor_parallel("mtp.input", 2.0 * model.hidden_size, "mtp.projection")
    ops.linear(
        "mtp.projection",
        keys.tokens,
        2.0 * model.hidden_size,
        model.hidden_size / keys.tensor_parallel,
    )
