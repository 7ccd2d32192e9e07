"""Bytes of attention and short convolutions, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.layers import LayerSpec
from perfmodel.model.recurrence import ShortConvolutionSpec
from perfmodel.software.framework import load_framework
from perfmodel.training.activations import Scope
from perfmodel.training.mixer_activations import attention_kept, context_working
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
