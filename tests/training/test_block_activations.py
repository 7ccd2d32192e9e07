"""Bytes that blocks of a layer keep, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.layers import LayerSpec, MlpSpec
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope
from perfmodel.training.block_activations import (
    attention_kept,
    context_working,
    mlp_kept,
    recurrence_saved_bytes,
)
from tests.training.gpt import keys_of
from tests.training.saved_layers import SAVED, TOKENS, per_token

H = 64
PLAIN = AttentionSpec("full", 8, 2, 16)


def kept(mixer, framework="megatron", **fields):
    """Bytes per token of a mixer, without the input of its products."""
    return per_token(LayerSpec((mixer,), norms=0), H, framework, **fields) - H * 2


def test_plain_attention():
    """Queries, keys, values, output and a statistic per query (`FlashAttnFunc`)."""
    assert kept(PLAIN) == 2 * (8 + 2 + 2 + 8) * 16 + 4 * 8


def test_output_gates_keep_gate_and_product():
    channel = kept(replace(PLAIN, output_gate="channel")) - kept(PLAIN)
    assert channel == 2 * 8 * 16 + 2 * 8 * 16
    head = kept(replace(PLAIN, output_gate="head")) - kept(PLAIN)
    assert head == 2 * 8 + 2 * 8 * 16


def test_norms_of_queries_and_keys_keep_their_inputs():
    for scope, scaled in {"head": 8 + 2, "whole": 8 + 2, "none": 0, "keys": 2}.items():
        normed = replace(PLAIN, qk_norm=True, qk_norm_scope=scope)
        assert kept(normed) - kept(PLAIN) == 2 * (8 + 2) * 16
        # Unfused: single precision, and a copy of what is to be scaled.
        unfused = (4 * (8 + 2) + 2 * scaled) * 16
        assert kept(normed, "fsdp") - kept(PLAIN, "fsdp") == unfused


def test_chosen_keys_and_the_latent_space_of_sparse_attention():
    """DeepSeek-V3.2: indices of 2,048 keys, index queries and keys, queries in latent space."""
    dense = SAVED["DeepSeek-V3 dense"].layer
    indexer = IndexerSpec(64, 128, 2048, query_inputs=1536)
    sparse = replace(dense, mixers=(replace(dense.attention, indexer=indexer),))
    shared = replace(
        dense, mixers=(replace(dense.attention, indexer=replace(indexer, shared=True)),)
    )
    kept = {
        name: per_token(layer, 7168, "megatron")
        for name, layer in {"dense": dense, "sparse": sparse, "shared": shared}.items()
    }
    chosen = 4 * min(2048, TOKENS)
    assert kept["sparse"] - kept["shared"] == chosen + 2 * 65 * 128 + 4 * 64
    heads = 2 * 128 * (192 + 128)  # keys and values of all heads, as dense attention has them
    latent = 2 * (128 * (512 + 64) + 128 * 512 + 512 + 64)
    assert kept["shared"] - kept["dense"] == latent - heads


def test_shared_keys_are_kept_by_the_layer_that_made_them():
    assert kept(PLAIN) - kept(replace(PLAIN, shared_keys=True)) == 2 * (2 + 2) * 16


def test_selective_recomputation_spares_what_sparse_attention_puts_out():
    """Its kernel would have to run again: only what leads to it is made anew."""
    sparse = replace(SAVED["DeepSeek-V3 dense"].layer.attention, indexer=IndexerSpec(64, 128, 2048))
    at = Scope(keys_of(sequence_length=TOKENS), load_framework("megatron"))
    found = attention_kept(at, sparse)
    assert found.modules["mla_up_proj",][0] / TOKENS == 2 * 128 * (192 + 512 + 64)


def test_compressed_keys():
    """Keys and their gates, and an entry of ratio tokens around its norm; values are keys."""
    plain = replace(PLAIN, key_value_heads=1, key_is_value=True)
    for overlap, projections in ((False, 2), (True, 4)):
        compressed = replace(plain, compression=CompressionSpec(8, overlap))
        more = kept(compressed) - kept(plain)
        assert more == 2 * 16 * (projections + 2 / 8) - 2 * 16
    indexer = IndexerSpec(4, 32, 16, compressed=True)
    compressed = replace(plain, compression=CompressionSpec(8))
    more = kept(replace(compressed, indexer=indexer)) - kept(compressed)
    assert more == 2 * 32 * (2 + 2 / 8) + 4 * 16 + 2 * 5 * 32 + 4 * 4


def test_a_short_convolution():
    """LFM2: 3 c projected, c that the convolution reads, c that it writes, c for the product."""
    assert kept(ShortConvolutionSpec(48, 3)) == 48 * 2 * (3 + 1 + 1 + 1)
    assert kept(
        ShortConvolutionSpec(48, 3), tensor_parallel=2, sequence_parallel=False
    ) == 24 * 2 * (3 + 1 + 1 + 1)


def test_values_that_are_views_keep_the_projection():
    """Transformers' GPTNeoXAttention: queries and keys ahead of their rotation stay with values.

    34 h a layer of GPT-NeoX-20B (torch's saved tensors) where attention is a kernel that returns
    tokens in order; torch's own lies head by head behind a partial rotation, and is copied: 36 h.
    """
    plain = AttentionSpec("full", 4, 4, 16)
    fused = replace(plain, fused_projection=True)
    partial = replace(fused, partial_rotary=True)
    assert kept(fused, "fsdp") - kept(plain, "fsdp") == 4 * H
    assert kept(partial, "fsdp") - kept(plain, "fsdp") == 6 * H
    assert kept(plain) == kept(fused) == kept(partial)


def test_nanotron_keeps_the_copy_of_which_queries_are_a_slice():
    """6 h of queries, keys and values, and 4 h of keys and values as attention reads them."""
    without = load_framework("nanotron", copies_heads=False)
    whole = AttentionSpec("full", 4, 4, 16)
    assert kept(whole, "nanotron") - kept(whole, without) == 4 * H
    assert kept(PLAIN, "nanotron") == kept(PLAIN, without)  # each a copy of its own


@pytest.mark.parametrize(
    ("kind", "buffers"),
    [
        # Four pieces of two key-value heads and eight outputs; or two gathered copies; or all.
        ("ring", 4 * (2 * 2 + 8)),
        ("all_gather", 2 * 4 * 2 * 2),
        ("all_to_all", 8 + 2 * 2 + 8),
    ],
)
def test_buffers_of_context_ranks(kind, buffers):
    """Heads of 16 numbers per token of a rank; besides gradients of queries, keys and values."""
    fields = {"context_parallel": 4, "context_parallel_kind": kind, "sequence_length": 4 * TOKENS}
    found = context_working(Scope(keys_of(**fields), load_framework("megatron")), PLAIN)
    assert found / TOKENS == (8 + 2 * 2 + buffers) * 16 * 2
    assert context_working(Scope(keys_of(), load_framework("megatron")), PLAIN) == 0.0


def test_two_context_ranks_hold_gradients_beside_keys_and_values():
    """A ring of two: four pieces in its two buffers in backward, where outputs are small."""
    wide = AttentionSpec("full", 2, 2, 16)
    fields = {"context_parallel": 2, "sequence_length": 2 * TOKENS}
    found = context_working(Scope(keys_of(**fields), load_framework("megatron")), wide)
    assert found / TOKENS == (2 + 4 + 4 * 4) * 16 * 2


N, M, K, V, C = 8, 4, 16, 32, 64  # heads of values and keys, their lengths, tokens of a chunk


READ = 2 * M * K + N * V
DELTA = RecurrenceSpec("gated_delta", N, M, K, V, conv_kernel=4)


def test_gated_delta_rule():
    """Fla `ChunkGatedDeltaRuleFunction`: q, k, v, step, triangle; norms and decay in fp32.

    Around it the input of the convolution, output and gate with a statistic per head, and the
    input of the output's projection.
    """
    saved = 2 * (READ + N + N * C) + 4 * (2 * M + N)
    around = 2 * READ + 2 * (2 * N * V) + 4 * N + 2 * N * V
    assert kept(DELTA) == saved + around
    assert kept(replace(DELTA, conv_kernel=0)) == saved + around - 2 * READ
    # The gated norm in single precision: three tensors, and two copies in 16 bits.
    assert kept(DELTA, "fsdp") - kept(DELTA) == N * V * (3 * 4 + 2 * 2 - 2 * 2)


def test_kimi_delta():
    """Fla `ChunkKDAFunction`: a decay per channel, two triangles; low ranks of decay and gate."""
    kimi = RecurrenceSpec("kimi_delta", N, N, K, K, conv_kernel=4, gate_rank=K)
    read = 3 * N * K
    saved = 2 * (read + N * K + N + 2 * N * C) + 4 * 2 * N
    around = 2 * read + 2 * (2 * N * K) + 4 * N + 2 * N * K + 2 * (K + K)
    assert kept(kimi) == saved + around


def test_mamba2_keeps_its_projection_and_output():
    """mamba_ssm `MambaSplitConv1dScanCombinedFn`: zxbcdt, the output, a statistic per group."""
    mamba = RecurrenceSpec("mamba2", N, M, K, V, conv_kernel=4, chunk=128)
    fused = 2 * (2 * N * V + 2 * M * K + N) + 2 * N * V + 4 * M
    assert kept(mamba, "torchtitan") == fused
    # Megatron-Core's norm and output projection are modules of their own.
    assert kept(mamba, "megatron") == fused + 2 * N * V + 2 * N * V
    plain = replace(mamba, output_norm=False)
    assert kept(plain, "megatron") == fused - 4 * M + 2 * N * V


def test_mamba1():
    """mamba_ssm `MambaInnerFn`: input, gate, output; x_dbl, B and C; states 2,048 tokens apart."""
    inner, state, rank = 128, 16, 8
    mamba = RecurrenceSpec("mamba1", inner, 1, state, 1, conv_kernel=4, time_step_rank=rank)
    states = 2 * state * inner * 4 / 2048
    assert kept(mamba) == 2 * 3 * inner + 2 * (rank + 4 * state) + states
    # Jamba: convolved input, time step and gated output besides (`SelectiveScanFn`).
    jamba = replace(mamba, inner_norms=True)
    assert kept(jamba) - kept(mamba) == 2 * 3 * inner + 2 * rank


def test_lightning_attention():
    """Queries, keys and values ahead of and behind SiLU; norm, two factors, projection."""
    lightning = RecurrenceSpec("lightning", N, N, V, V, chunk=256)
    inner = N * V
    assert kept(lightning) == 2 * 2 * 3 * inner + 2 * inner + 2 * 2 * inner + 2 * inner


@pytest.mark.parametrize("kind", ["gated_delta", "mamba2", "lightning"])
def test_heads_are_sharded(kind):
    whole = RecurrenceSpec(kind, N, M, K, V, conv_kernel=4)
    assert kept(whole, tensor_parallel=4, sequence_parallel=False) == kept(whole) / 4


ROUTED = MlpSpec("moe", experts=8, experts_per_token=2, expert_intermediate_size=32)


def kept_of(mlp, framework="megatron", **fields):
    """Bytes per token of a block, without the input of its products."""
    return per_token(LayerSpec((), (mlp,), norms=0), 64, framework, **fields) - 64 * 2


@pytest.mark.parametrize(("gated", "unfused"), [(True, 2), (False, 0)])
def test_dense_blocks(gated, unfused):
    """What the activation reads, and the second product; unfused, the factor of the gate too."""
    dense = MlpSpec("dense", 256, gated=gated)
    assert kept_of(dense) == 256 * 2 * (3 if gated else 2)
    assert kept_of(dense, "fsdp") - kept_of(dense) == 256 * unfused


def test_routed_experts():
    """Inputs, gate and value, product of both and weight per chosen expert; scores of all."""
    assert kept_of(ROUTED) == 2 * 2 * (64 + 3 * 32) + 2 * 4 + 8 * 8


def test_outputs_of_experts_stay_where_they_are_weighed():
    """Megatron Core 0.13: "moving the probs multiplication from unpermutation to activation"."""

    def kept(**facts):
        at = Scope(keys_of(), load_framework("megatron", **facts))
        return float(np.ravel(mlp_kept(at, ROUTED, 64.0).everything / at.own)[0])

    assert kept(scales_in_experts=False) - kept() == 2 * (2 * 64 - 4)
    assert load_framework("megatron@0.2").scales_in_experts is False


def test_deepseek_v3_keeps_inputs_of_swiglu_and_outputs_of_attention_narrow():
    """arXiv:2412.19437, section 3.3.3: fp8, and 12 bits that serve attention and projection."""
    keys = keys_of(precision="fp8")
    facts = {"scales_in_experts": True, "fp8_library": "transformer-engine"}
    plain = Scope(keys, load_framework("megatron", **facts))
    narrow = Scope(
        keys,
        load_framework(
            "megatron",
            **facts,
            activation_input_bytes=1.0,
            repeats_activations=True,
            attention_output_bytes=1.5,
        ),
    )

    def less(kept):
        return float(np.ravel((kept(plain).everything - kept(narrow).everything) / plain.own)[0])

    assert less(lambda at: mlp_kept(at, ROUTED, 64.0)) == 2 * (2 * 32 + 32)
    attention = AttentionSpec("full", 4, 4, 16)
    assert less(lambda at: attention_kept(at, attention)) == 64 * (2 + 1 - 1.5)


def test_the_weighted_sum_of_eager_experts_goes_backward_in_single_precision():
    """transformers, integrations/moe.py: weights of the choice are fp32 and widen the product."""
    tokens = 128
    at = Scope(keys_of(sequence_length=tokens), load_framework("fsdp"))
    narrow = replace(ROUTED, expert_intermediate_size=16)
    assert mlp_kept(at, narrow, 64.0).widest == 3 * 4 * 2 * 64 * tokens
    fused = Scope(at.keys, load_framework("megatron"))
    assert mlp_kept(fused, narrow, 64.0).widest == 2 * 2 * 64 * tokens


@pytest.mark.parametrize(
    ("facts", "held"),
    [({"capacity_factor": 1.5}, 1.5), ({"expert_buffer": 1e9}, 4), ({"routing": "identical"}, 4)],
)
def test_experts_keep_the_rows_of_their_buffer(facts, held):
    """Inputs, gate, value, product and weight for every row that is held, as the busiest rank's."""

    def everything(**changes):
        scope = Scope(keys_of(expert_parallel=8), load_framework("megatron", **changes))
        return float(np.ravel(mlp_kept(scope, ROUTED, 64.0).everything)[0])

    tokens = float(Scope(keys_of(), load_framework("megatron")).own[0])
    per_row = 2 * (64 + 3 * 32) + 4
    assert everything(**facts) - everything() == (held - 1) * tokens * 2 * per_row


@pytest.mark.parametrize(("what", "mlp"), [("mlp", MlpSpec("dense", 256)), ("cheap moe", ROUTED)])
def test_modules_that_are_repeated_keep_their_input_alone(what, mlp):
    """All that they keep is dropped; their input is counted with the norm ahead."""

    def dropped(what):
        framework = load_framework("megatron", selective_recompute=what)
        at = Scope(keys_of(recompute="selective"), framework)
        found = mlp_kept(at, mlp, 64.0)
        return 1.0 - float(np.max(found.selective(at.policy, 0.0) / found.everything))

    assert dropped(what) == 1.0
    assert 0.0 < dropped("cheap") < 1.0


def test_the_gate_of_a_shared_expert_keeps_what_it_scales():
    shared = replace(ROUTED, shared_intermediate_size=16)
    assert kept_of(shared) - kept_of(ROUTED) == 2 * 3 * 16
    assert kept_of(replace(shared, shared_expert_gate=True)) - kept_of(shared) == 2 * 64


def test_latent_experts_dispatch_their_latent():
    wide = MlpSpec("moe", experts=8, experts_per_token=2, expert_intermediate_size=32)
    latent = replace(wide, latent_size=16)
    less = per_token(LayerSpec((), (wide,), norms=1), 64, "megatron") - per_token(
        LayerSpec((), (latent,), norms=1), 64, "megatron"
    )
    assert less == 2 * 2 * (64 - 16) - 2 * 16  # inputs of experts; their sum


STATES_SAVED = [
    ("gated_delta", (2 * 2 * 128 + 4 * 128 + 4 + 4 * 64) * 2 + (2 * 2 + 4) * 4),
    ("kimi_delta", (2 * 2 * 128 + 4 * 128 + 4 * 128 + 4 + 2 * 4 * 64) * 2 + 2 * 2 * 4),
    ("mamba2", (3 * 4 * 128 + 2 * 2 * 128 + 4) * 2),
    ("lightning", (2 * 2 * 128 + 4 * 128) * 2),
]


@pytest.mark.parametrize(("kind", "by_hand"), STATES_SAVED)
def test_kept_bytes_of_a_token_by_hand(kind, by_hand):
    shape = {"heads": 4, "key_heads": 2, "key_dim": 128, "value_dim": 128, "chunk": 64}
    assert recurrence_saved_bytes(kind, **shape) == by_hand


def test_kept_states_of_the_selective_scan_are_one_pair_per_2048_tokens():
    shape = {"heads": 8, "key_heads": 1, "key_dim": 16, "value_dim": 1, "chunk": 64}
    found = recurrence_saved_bytes("mamba1", **shape)
    assert found == (4 * 8 + 2 * 16) * 2 + 8 * 2 * 16 * 4 / 2048
