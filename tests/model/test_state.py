"""Caches and states of a sequence, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.build import dense_model
from perfmodel.model.layers import LayerSpec
from perfmodel.model.presets import load_model
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.model.state import cache_parts, recurrent_bytes, sequence_state

KIB = 1024


def model_of(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("m", "f", 64, 100, layers)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),  # 128 KiB: 32 layers, 8 heads of 128
        ("llama-3.1-405b", 126 * 2 * 8 * 128 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),  # 70,272 B, arXiv:2505.09343, table 1: 70.272 KB
        ("qwen2.5-72b", 80 * 2 * 8 * 128 * 2),  # arXiv:2505.09343, table 1: 327.680 KB
        ("gpt3-175b", 96 * 2 * 96 * 128 * 2),
    ],
)
def test_cache_of_a_token(name: str, per_token: int) -> None:
    found = sequence_state(load_model(name), 8192)
    assert found.per_token == found.per_token_beyond_windows == per_token
    assert found.cache == found.total == 8192 * per_token
    assert sequence_state(load_model(name), 8192, "fp8").cache == 8192 * per_token / 2


def test_windows_bound_the_cache() -> None:
    # Gemma 3 27B: 62 layers of 16 heads of 128, ten of them full, windows of 1,024.
    each = 2 * 16 * 128 * 2
    found = sequence_state(load_model("gemma-3-27b"), 8192)
    assert found.per_token == 62 * each
    assert found.per_token_beyond_windows == 10 * each
    assert found.cache == each * (10 * 8192 + 52 * 1024)
    assert sequence_state(load_model("gemma-3-27b"), 512).cache == each * 62 * 512


def test_chunks_bound_the_cache_too() -> None:
    chunked = AttentionSpec("chunked", 4, 2, 16, window=100)
    assert [part.bytes_at(250) for part in cache_parts(LayerSpec((chunked,)), 2.0)] == [
        2 * 2 * 16 * 2 * 100
    ]


def test_shared_keys_are_kept_once() -> None:
    own = LayerSpec((AttentionSpec("full", 4, 2, 16),))
    shared = LayerSpec((AttentionSpec("full", 4, 2, 16, shared_keys=True),))
    one, both = (sequence_state(model_of(*layers), 10) for layers in ((own,), (own, shared)))
    assert one == both


def test_keys_that_are_values() -> None:
    gemma = AttentionSpec("full", 8, 2, 512, key_is_value=True)
    assert [part.per_token for part in cache_parts(LayerSpec((gemma,)), 2.0)] == [2 * 2 * 512 * 2]
    turned = AttentionSpec(
        "sliding", 8, 1, 512, window=128, key_is_value=True, output_groups=2, output_lora_rank=8
    )
    (part,) = cache_parts(LayerSpec((turned,)), 2.0)
    assert (part.per_token, part.most) == (512 * 2, 128)


def test_compressed_entries_and_their_index_keys() -> None:
    # DeepSeek-V4 at ratio 4: a window of 128 entries of 512 numbers, one entry for 4 tokens,
    # and index keys of 128 in fp8 with a scale.
    indexer = IndexerSpec(64, 128, 512, compressed=True)
    spec = AttentionSpec(
        *("sliding", 64, 1, 512),
        window=128,
        key_is_value=True,
        output_groups=8,
        output_lora_rank=1024,
        compression=CompressionSpec(4, overlap=True),
        indexer=indexer,
    )
    found = sequence_state(model_of(LayerSpec((spec,))), 4098)
    assert found.cache == 128 * 512 * 2 + 1024 * 512 * 2 + 1024 * (128 + 4)
    assert found.per_token_beyond_windows == 512 * 2 / 4 + (128 + 4) / 4


def test_an_indexer_keeps_keys_unless_it_uses_another_layers_choice() -> None:
    latent = load_model("deepseek-v3").layers[0].attention
    sparse = replace(latent, indexer=IndexerSpec(64, 128, 2048))
    found = sequence_state(model_of(LayerSpec((sparse,))), 4096)
    assert found.per_token == (512 + 64) * 2 + 128 + 4  # DeepSeek-V3.2: 132 B of index keys
    shared = replace(latent, indexer=IndexerSpec(64, 128, 2048, shared=True))
    assert sequence_state(model_of(LayerSpec((shared,))), 4096).per_token == (512 + 64) * 2


def test_states_by_hand() -> None:
    # Qwen3-Next: 32 value and 16 key heads of 128, 4 taps.
    delta = RecurrenceSpec("gated_delta", 32, 16, 128, 128, conv_kernel=4)
    channels = 2 * 16 * 128 + 32 * 128
    assert recurrent_bytes(delta, 2.0) == 32 * 128 * 128 * 4 + 3 * channels * 2
    # Nemotron-3 Nano: 64 heads of 64, state 128, 8 groups.
    mamba = RecurrenceSpec("mamba2", 64, 8, 128, 64, conv_kernel=4)
    assert recurrent_bytes(mamba, 2.0) == 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    assert recurrent_bytes(ShortConvolutionSpec(2048, 3), 2.0) == 2 * 2048 * 2
    found = sequence_state(model_of(LayerSpec((delta,)), LayerSpec((mamba,))), 100)
    assert found.cache == 0
    assert found.recurrent == recurrent_bytes(delta, 2.0) + recurrent_bytes(mamba, 2.0)


def test_a_hybrid_keeps_both() -> None:
    model = load_model("qwen3.5-27b")
    found = sequence_state(model, 4096)
    # 16 of 64 layers attend, 4 heads of 256; 48 carry 48 heads of 128 x 128, 16 of keys.
    assert found.per_token == 16 * 2 * 4 * 256 * 2
    convolution = 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert found.recurrent == 48 * (48 * 128 * 128 * 4 + convolution)


def test_prediction_modules_keep_a_cache_of_their_own() -> None:
    stated = sequence_state(load_model("deepseek-v3", mtp="stated"), 10)
    assert stated.per_token == 62 * (512 + 64) * 2


def test_bad_input_is_told() -> None:
    model = dense_model(
        "m", layers=1, hidden_size=64, heads=4, intermediate_size=128, vocab_size=10
    )
    with pytest.raises(ModelError, match="key 'precision': 'int3' should be one of bf16"):
        sequence_state(model, 10, "int3")
    with pytest.raises(ModelError, match="key 'tokens': 0 should be a positive integer"):
        sequence_state(model, 0)
