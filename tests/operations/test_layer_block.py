"""Blocks of a layer: norms, residual additions, streams, and products of every kind of layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.operations.operations import PHASES, Communication, Gemm, Role, Stream
from perfmodel.software.framework import load_framework
from perfmodel.training.flops import matrix_parameters, model_flops_per_token
from tests.operations.counting import communications, number, operations_of, total_bytes
from tests.operations.layers import HIDDEN, LAYERS, model_of

TOKENS = 2048


def layer_of(name, **fields):
    return operations_of(model_of(name), "layer0", **fields)


def forward(operations):
    return [item for item in operations if item.phase == "forward"]


def test_eager_rms_norms_are_composed_of_operators_and_layer_norms_are_not():
    eager, compiled = load_framework("fsdp"), load_framework("torchtitan")

    def norms(kind, framework, **changes):
        model = model_of("sliding")
        layers = tuple(replace(layer, norm=kind) for layer in model.layers)
        found = operations_of(
            replace(model, layers=layers), "layer0", replace(framework, **changes)
        )
        moved = (x for x in found if x.name == "mlp.norm")
        return [number(x.bytes_read) + number(x.bytes_written) for x in moved]

    forward, backward = norms("rms", eager)
    elements = TOKENS * HIDDEN
    assert (forward, backward) == (36 * elements, 88 * elements)
    assert norms("layer", eager) == norms("rms", eager, fused_norm_and_rotary=True)
    assert sum(norms("rms", compiled)) < sum(norms("layer", eager))


@pytest.mark.parametrize(
    ("name", "norms", "residuals"),
    [
        ("mamba2", 1, 1),
        ("attention alone", 1, 1),
        ("mlp alone", 1, 1),
        ("sliding", 2, 2),
        ("side by side", 2, 2),
        ("shared keys", 4, 2),
        ("encoder-decoder", 3, 3),
        ("parallel, one norm", 1, 2),
        ("parallel, two norms", 2, 2),
        ("dense beside experts", 7, 2),
    ],
)
def test_a_layer_runs_its_norms_and_one_residual_addition_per_block(name, norms, residuals):
    blocks = ("attention", "recurrence", "cross", "mlp")
    wanted = {f"{block}.{kind}" for block in blocks for kind in ("norm", "post_norm", "part_norms")}
    items = forward(layer_of(name))
    moved = sum(number(item.bytes_written) for item in items if item.name in wanted)
    assert moved == norms * TOKENS * HIDDEN * 2.0
    assert sum(item.name.endswith(".residual") for item in items) == residuals


@pytest.mark.parametrize("name", ["side by side", "dense beside experts"])
def test_outputs_of_parts_side_by_side_are_added_up_once(name):
    (both,) = [item for item in layer_of(name) if item.name.endswith(".sum")]
    assert (both.phase, number(both.count)) == ("forward", 1)
    assert number(both.bytes_read) == 2 * number(both.bytes_written) == 2 * TOKENS * HIDDEN * 2


# Of every tensor rank, for all tokens: what leads to scores of an indexer, and low ranks in
# front of sharded products. A single key head is computed by every rank too.
REPEATED = ("index_query", "forget_down", "gate_down")


def repeats(layer, piece, tensor):
    heads = min((part.key_value_heads for part in layer.attentions), default=tensor)
    return piece.name in REPEATED or (piece.name == "key" and heads < tensor)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("tensor", [1, 4])
def test_products_of_all_tensor_ranks_are_those_of_the_pieces(name, tensor):
    """Forward, and twice as many backward; neither lost nor done twice but for what is named."""
    operations = layer_of(name, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    for phase in ("forward", "backward_input", "backward_weight"):
        done = sum(
            2.0 * np.prod([number(x) for x in (i.m, i.n, i.k, i.batch, i.count)])
            for i in operations
            if isinstance(i, Gemm) and i.phase == phase
        )
        needed = sum(
            2.0 * TOKENS * piece.products * (tensor if repeats(LAYERS[name], piece, tensor) else 1)
            for _, piece in LAYERS[name].pieces(HIDDEN)
            if piece.kind == "matrix"
        )
        assert done * tensor == pytest.approx(needed, rel=1e-12)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("framework", ["megatron", "megatron-2022", "fsdp"])
def test_operations_of_every_layer_are_well_formed(name, framework):
    fields = {"tensor_parallel": 2, "context_parallel": 2, "recompute": "full", "precision": "fp8"}
    operations = operations_of(model_of(name), "layer0", load_framework(framework), **fields)
    for item in operations:
        assert item.phase in PHASES
        assert item.role != Role.NONE
        assert number(item.count) >= 0
        if isinstance(item, Stream):
            assert number(item.bytes_read) + number(item.bytes_written) > 0
        if isinstance(item, Communication):
            assert number(item.members) >= 2 or number(item.count) == 0
    again = [item.name for item in operations if item.phase == "recompute"]
    assert again == [item.name for item in forward(operations)]


@pytest.mark.parametrize("name", LAYERS)
def test_one_device_communicates_nothing(name):
    assert not communications(layer_of(name))


def test_residual_streams_are_read_and_written_whole():
    items = {item.name: item for item in forward(layer_of("compressed"))}
    one = TOKENS * HIDDEN * 2.0
    narrow, widen = items["attention.streams.narrow"], items["mlp.streams.widen"]
    assert (number(narrow.bytes_read), number(narrow.bytes_written)) == (4 * one, one)
    assert (number(widen.bytes_read), number(widen.bytes_written)) == (5 * one, 4 * one)
    weights = items["attention.streams.weights"]
    assert (number(weights.k), number(weights.n)) == (4 * HIDDEN, 24)  # 2 m + m²
    assert not any(name.endswith(".residual") for name in items)


def test_residual_streams_of_both_ends():
    model = model_of("compressed")
    output = {item.name for item in forward(operations_of(model, "output"))}
    assert {"output.stream_head", "output.streams", "output.norm", "output.logits"} <= output


def test_matrices_beside_a_layer_are_products_and_vectors_are_not():
    items = layer_of("dense beside experts")
    extra = {item.name for item in items if item.name.startswith("extra.")}
    assert extra == {"extra.per_layer_gate", "extra.per_layer_projection"}


def test_parts_have_the_communication_of_their_own_linear_layers():
    fields = {"tensor_parallel": 4, "sequence_parallel": True}
    both = layer_of("side by side", **fields)
    alone = [layer_of("mamba2", **fields), layer_of("attention alone", **fields)]
    mlp = layer_of("sliding", **fields)
    sent = total_bytes(both, "tensor", ["forward"])
    mixers = sum(total_bytes(items, "tensor", ["forward"]) for items in alone)
    names = [item for item in mlp if item.name.startswith("mlp.")]
    assert sent == pytest.approx(mixers + total_bytes(names, "tensor", ["forward"]))


def test_matrix_parameters_are_the_products_of_all_pieces():
    model = model_of("mamba2")
    inner, conv = 64 * 64, 64 * 64 + 2 * 8 * 128
    by_hand = HIDDEN * (2 * inner + 2 * 8 * 128 + 64) + 4 * conv + inner * HIDDEN
    assert matrix_parameters(model, model.layers[0]) == by_hand


def test_gated_streams_are_normalised_and_gated_through_a_low_rank():
    items = {item.name: item for item in forward(layer_of("gated streams"))}
    wide = TOKENS * 4 * HIDDEN * 2.0
    assert number(items["recurrence.streams.norm"].bytes_written) == wide
    assert number(items["mlp.streams.gate_up"].n) == 4 * HIDDEN
    narrow = items["mlp.streams.narrow"]
    assert (number(narrow.bytes_read), number(narrow.bytes_written)) == (2 * wide, wide / 4)
    output = {item.name for item in forward(operations_of(model_of("gated streams"), "output"))}
    assert {"output.stream_gate_down", "output.stream_gate_up"} <= output


def test_tables_and_convolutions_beside_a_layer_are_streams():
    items = {item.name: item for item in forward(layer_of("gated streams"))}
    assert number(items["extra.ngram_table"].bytes_written) == TOKENS * 256 * 2
    assert number(items["extra.ngram_convolution"].bytes_read) == TOKENS * 4 * HIDDEN * 2


def test_streams_that_do_not_mix_have_no_weights_between_them():
    layer = replace(LAYERS["compressed"], stream_mixing=False)
    model = replace(model_of("compressed"), layers=(layer,))
    items = {item.name: item for item in forward(operations_of(model, "layer0"))}
    assert number(items["mlp.streams.weights"].n) == 8
    mixed = model_flops_per_token(model_of("compressed"), 2048, backward=False)
    plain = model_flops_per_token(model, 2048, backward=False)
    # The mixing itself, and 16 of 24 weights of two blocks.
    assert float(mixed - plain) == 2 * 2 * 16 * HIDDEN + 2 * 2 * 4 * HIDDEN * 16
