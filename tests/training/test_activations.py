"""Activations of layers against what torch keeps of public models, and laws that all parts keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.pieces import Piece
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope, norms_kept
from perfmodel.training.memory import boundary_bytes, part_memory
from tests.training.gpt import keys_of
from tests.training.saved_layers import SAVED, TOKENS, one_layer, per_token


@pytest.mark.parametrize("name", SAVED)
def test_compiled_layers_keep_what_the_min_cut_keeps(name):
    saved = SAVED[name]
    found = per_token(saved.layer, saved.hidden, "torchtitan") + saved.compiled_alone
    assert found == pytest.approx(saved.compiled, rel=0.02)


@pytest.mark.parametrize("name", [name for name in SAVED if name != "DeepSeek-V4-Flash"])
def test_unfused_layers_keep_what_eager_autograd_saves(name):
    saved = SAVED[name]
    found = per_token(saved.layer, saved.hidden, "fsdp") + saved.eager_alone
    assert found == pytest.approx(saved.eager, rel=0.02)


def test_unfused_norms_and_activations_cost_8h_and_2f():
    """Llama-3.1-8B: 8 h + 2 f bytes a token more than where they are fused."""
    layer = SAVED["Llama-3.1-8B"].layer
    more = per_token(layer, 4096, "fsdp") - per_token(layer, 4096, "torchtitan")
    assert more == 8 * 4096 + 2 * 14336


def test_parallel_norms_share_their_input():
    at = Scope(keys_of(sequence_length=TOKENS), load_framework("megatron"))

    def kept(norms, parallel):
        layer = LayerSpec(*SPECS, norm="layer", norms=norms, parallel_block=parallel)
        return float(norms_kept(at, layer, 64.0).everything[0]) / TOKENS / 64

    assert kept(2, False) == 2 * (2 + 2)  # input and output of both
    assert kept(2, True) == 2 + 2 * 2  # GPT-NeoX: one stream, two outputs
    assert kept(1, True) == 2 + 2  # GPT-J
    assert kept(4, False) == 2 * (2 + 2) + 2 * 2  # Gemma 2: outputs of the blocks, too


SPECS = (AttentionSpec("full", 8, 2, 16),), (MlpSpec("dense", 256),)
RATES = ["bf16", "fp8"]


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("framework", ["megatron", "megatron-2022", "fsdp", "torchtitan"])
@pytest.mark.parametrize("precision", RATES)
def test_recomputation_and_sharding_never_keep_more(name, framework, precision):
    saved = SAVED[name]
    model = one_layer(saved.layer, saved.hidden)
    levels = ["none", "selective", "full"]
    for sequence_parallel in (False, True):
        previous = None
        for degree in (1, 2, 4):
            fields = {"tensor_parallel": degree, "sequence_parallel": sequence_parallel}
            kept = [
                part_memory(
                    model,
                    _part(model),
                    keys_of(recompute=level, precision=precision, **fields),
                    load_framework(framework),
                )
                for level in levels
            ]
            activations = [float(item.activations[0]) for item in kept]
            assert activations == sorted(activations, reverse=True)
            assert activations[-1] > 0.0
            assert all(float(np.asarray(item.working).reshape(-1)[0]) > 0 for item in kept)
            if previous is not None:
                assert all(a <= b for a, b in zip(activations, previous, strict=True))
            previous = activations


def _part(model):
    return model_parts(model)[0]


def test_full_recomputation_keeps_every_stream():
    layer = SAVED["DeepSeek-V4-Flash"].layer
    model = one_layer(layer, 4096)
    keys = keys_of(sequence_length=TOKENS, recompute="full")
    kept = part_memory(model, _part(model), keys, load_framework("megatron"))
    assert float(kept.activations[0]) == TOKENS * 4 * 4096 * 2
    assert float(boundary_bytes(model, keys)[0]) == TOKENS * 4 * 4096 * 2


def test_streams_stand_for_themselves():
    """Beside the layer: m streams in 2 and 4 bytes, an output, an m x m mix, twice."""
    layer = SAVED["DeepSeek-V4-Flash"].layer
    plain = replace(layer, streams=1)
    more = per_token(layer, 4096, "megatron") - per_token(plain, 4096, "megatron")
    assert more == 2 * (4 * 4096 * (2 + 4) + 4096 * 2 + 4 * 16)


def test_layers_with_one_kind_of_part():
    """Norm input and output, and the part: nothing of what is not there."""
    attention, mlp = SPECS[0][0], SPECS[1][0]
    both = per_token(LayerSpec((attention,), (mlp,)), 64, "megatron")
    alone = [
        per_token(LayerSpec((attention,), norms=1), 64, "megatron"),
        per_token(LayerSpec((), (mlp,), norms=1), 64, "megatron"),
    ]
    assert both == sum(alone)
    beside = per_token(LayerSpec((attention,), (mlp, mlp), norms=2), 64, "megatron")
    assert beside - both == alone[1] - 64 * (2 + 2)  # one norm for both


def test_extra_matrices_keep_inputs_and_outputs():
    """Per-layer embeddings of Gemma 3n: h -> p -> h."""
    layer = LayerSpec(*SPECS)
    gate = Piece("per_layer_gate", "matrix", 64, 8)
    more = replace(layer, extra=(gate, Piece("per_layer_up", "matrix", 8, 64)))
    found = per_token(more, 64, "megatron") - per_token(layer, 64, "megatron")
    assert found == 2 * 2 * (64 + 8)


def test_what_software_keeps_is_a_fact_of_its_own():
    """Unfused kernels whose intermediates are computed again keep no more than fused ones."""
    layer = SAVED["Llama-3.1-8B"].layer
    fused = load_framework("torchtitan")
    unfused = load_framework("torchtitan", fused_elementwise=False)
    kept = load_framework("torchtitan", keeps_intermediates=True, fused_norm_and_rotary=False)
    norms_fused = load_framework("torchtitan", keeps_intermediates=True)
    assert per_token(layer, 4096, unfused) == per_token(layer, 4096, fused)
    assert per_token(layer, 4096, kept) == per_token(layer, 4096, "fsdp")
    # Of each of two norms a single-precision input and a normalised copy less.
    less = per_token(layer, 4096, kept) - per_token(layer, 4096, norms_fused)
    assert less == 2 * (4 - 2 + 2) * 4096
