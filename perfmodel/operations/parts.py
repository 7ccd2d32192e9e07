"""The exact list of operations of each part of a model, for all layer keys at once.

A model is a row of *parts*: its distinct layers, then the embedding, the output
(final norm, logits, loss) and the projection of a multi-token-prediction module.
A pipeline stage holds some number of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.compute.stream_catalogue import cross_entropy, embedding, norm, traffic
from perfmodel.model.build import LayerSpec, ModelSpec
from perfmodel.operations.attention_block import add_attention
from perfmodel.operations.mlp_block import add_mlp
from perfmodel.operations.operations import (
    Communication,
    LayerKeys,
    Machine,
    Operation,
    OperationList,
    Role,
    Stream,
)
from perfmodel.software.framework import Framework


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of thing that a pipeline stage can hold.

    Attributes
    ----------
    name : str
        "layer0", "layer1", …, "embedding", "output" or "mtp".
    kind : {"layer", "embedding", "output", "mtp"}
    layer : LayerSpec or None
        The layer, for a layer part.
    """

    name: str
    kind: str
    layer: LayerSpec | None = None


def model_parts(model: ModelSpec) -> tuple[Part, ...]:
    """Return the distinct parts of a model: layer kinds (main, then MTP), then the edges."""
    distinct = dict.fromkeys((*model.layers, *model.mtp_layers))
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
    ops = OperationList(keys, framework, machine)
    if part.layer is not None:
        _add_layer(ops, model, part.layer)
    elif part.kind == "embedding":
        with ops.in_role(Role.EMBEDDING):
            _add_embedding(ops, model)
    elif part.kind == "output":
        with ops.in_role(Role.OUTPUT):
            _add_output(ops, model)
    else:
        with ops.in_role(Role.PREDICTION):
            _add_mtp(ops, model)
    return ops.operations


def padded_vocabulary(model: ModelSpec, keys: LayerKeys, framework: Framework) -> np.ndarray:
    """Vocabulary rows on one device, after padding, shape (keys,)."""
    multiple = framework.pads_vocabulary_to * keys.tensor
    return np.ceil(model.vocab_size / multiple) * multiple / keys.tensor


def _add_norm(
    ops: OperationList, name: str, elements: np.ndarray, *, selective: bool = True
) -> None:
    """Norm: read and write once; its gradient reads input and output gradient.

    Unfused (PyTorch ``layer_norm``) statistics are a pass of their own, and so is the
    weight gradient, which reads both tensors again.
    """
    fused = ops.framework.fused_elementwise
    forward, backward = (traffic(norm(1, 1, backward=b, fused=fused)) for b in (False, True))
    cheap = selective and ops.framework.flash_attention
    ops.stream(name, elements, forward, backward, flops=6.0, launches=1.0, selective=cheap)


def _add_residual(ops: OperationList, name: str, elements: np.ndarray) -> None:
    """Residual addition (with dropout mask and bias where the framework has dropout)."""
    mask = 1.0 if ops.framework.dropout else 0.0
    passes = 1.0 if ops.framework.fused_elementwise or not mask else 2.0
    ops.stream(name, elements, (4 * passes, 2 * passes + mask), (4 + 2 * mask, 2 + mask))


def _add_layer(ops: OperationList, model: ModelSpec, layer: LayerSpec) -> None:
    elements = ops.keys.stream_tokens * model.hidden_size
    with ops.in_role(Role.ATTENTION):
        _add_norm(ops, "attention.norm", elements)
        add_attention(ops, model, layer)
    with ops.in_role(Role.ATTENTION_OUTPUT):
        if layer.norms > 2:
            _add_norm(ops, "attention.post_norm", elements, selective=False)
        _add_residual(ops, "attention.residual", elements)
    routed = layer.mlp.kind == "moe"
    with ops.in_role(Role.EXPERTS if routed else Role.MLP):
        if not layer.parallel_block:
            _add_norm(ops, "mlp.norm", elements)
        add_mlp(ops, model, layer)
    with ops.in_role(Role.EXPERTS if routed else Role.MLP_OUTPUT):
        if layer.norms > 2:
            _add_norm(ops, "mlp.post_norm", elements, selective=False)
        _add_residual(ops, "mlp.residual", elements)


def _add_embedding(ops: OperationList, model: ModelSpec) -> None:
    """Gather rows; the gradient is scattered back in fp32. Nothing here is recomputed."""
    keys = ops.keys
    elements = keys.tokens * model.hidden_size
    tables = 2.0 if model.position_embedding == "learned" else 1.0
    for phase, backward in (("forward", False), ("backward_weight", True)):
        read, written = traffic(embedding(1, 1, tables=tables, backward=backward))
        ops.append(Stream("embedding.lookup", phase, elements * read, elements * written))
    # Rows of a vocabulary-parallel table are summed over the tensor-parallel group.
    parallel = (keys.tensor > 1) * 1.0
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
                    keys.tensor,
                    keys.tensor_stride,
                    count=count,
                )
            )


def _add_output(ops: OperationList, model: ModelSpec) -> None:
    """Final norm, logits and the loss; kept in 16 bits whatever the layers use."""
    keys = ops.keys
    start = len(ops.operations)
    _add_norm(ops, "output.norm", keys.stream_tokens * model.hidden_size)
    ops.enter_tensor_parallel("output.input", float(model.hidden_size), "output.logits")
    vocabulary = padded_vocabulary(model, keys, ops.framework)
    ops.linear("output.logits", keys.tokens, float(model.hidden_size), vocabulary, quantised=False)
    with ops.in_role(Role.LOSS):
        _add_loss(ops, vocabulary)
    # The edges of a model are not recomputed.
    ops.operations[start:] = [item for item in ops.operations[start:] if item.phase != "recompute"]


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
    parallel = (keys.tensor > 1) * 1.0
    if np.any(parallel > 0):
        # Maximum, sum and the target's logit of every token, fp32.
        ops.add(
            Communication(
                "output.loss.all_reduce",
                "forward",
                "tensor",
                "all_reduce",
                keys.tokens * 4.0,
                keys.tensor,
                keys.tensor_stride,
                count=3.0 * parallel,
            )
        )


def _add_mtp(ops: OperationList, model: ModelSpec) -> None:
    """Norms of hidden state and next token, and their projection 2h -> h."""
    keys = ops.keys
    elements = keys.stream_tokens * model.hidden_size
    _add_norm(ops, "mtp.norms", 2.0 * elements)
    ops.enter_tensor_parallel("mtp.input", 2.0 * model.hidden_size, "mtp.projection")
    ops.linear(
        "mtp.projection",
        keys.tokens,
        2.0 * model.hidden_size,
        model.hidden_size / keys.tensor,
    )
