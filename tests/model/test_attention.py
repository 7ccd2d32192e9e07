"""Attention blocks of new kinds: parameters by hand, counted on transformers' models."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.pieces import parameters_of


def count(spec: AttentionSpec, hidden: int) -> int:
    return parameters_of(spec.pieces(hidden))


def test_an_output_gate_doubles_the_query_projection() -> None:
    # Qwen3-Next: h(2 a d + 2 g d) + a d h + 2 d
    h, a, g, d = 2048, 16, 2, 256
    spec = AttentionSpec("full", a, g, d, qk_norm=True, output_gate="channel")
    assert count(spec, h) == h * (2 * a * d + 2 * g * d) + a * d * h + 2 * d
    assert count(AttentionSpec("full", a, g, d, output_gate="head"), h) == (
        h * (a * d + 2 * g * d) + a * d * h + h * a
    )


def test_values_that_are_keys_and_keys_of_an_earlier_layer() -> None:
    # Gemma 4: h a d + a d h + (1 or 2) h g d + d per norm
    h, a, g, d = 2816, 16, 2, 512
    spec = AttentionSpec("full", a, g, d, qk_norm=True, key_is_value=True)
    assert count(spec, h) == 2 * h * a * d + h * g * d + 2 * d
    assert count(AttentionSpec("full", a, g, d, qk_norm=True, shared_keys=True), h) == (
        2 * h * a * d + d
    )


def deepseek(indexer: IndexerSpec | None) -> AttentionSpec:
    return AttentionSpec(
        "mla",
        128,
        128,
        192,
        128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        indexer=indexer,
    )


def test_an_indexer_beside_latent_attention() -> None:
    # DeepSeek-V3.2: r_q H d_i + h d_i + 2 d_i + h H more
    h, heads, d = 7168, 64, 128
    more = count(deepseek(IndexerSpec(heads, d, 2048, query_inputs=1536)), h)
    more -= count(deepseek(None), h)
    assert more == 1536 * heads * d + h * d + 2 * d + h * heads
    shared = deepseek(IndexerSpec(heads, d, 2048, shared=True))
    assert count(shared, h) == count(deepseek(None), h)


@pytest.mark.parametrize(("ratio", "overlap"), [(4, True), (128, False)])
def test_compressed_attention(ratio: int, overlap: bool) -> None:
    # DeepSeek-V4-Flash: a + h r_q + r_q + r_q a d + h d + d + r_o a d + h G r_o, and
    # HCA 128 d + 2 d h + d or CSA 4*2d + 4dh + d + 4*2d_i + 4 d_i h + d_i + H d_i r_q + h H
    h, a, d, rank, out_rank, groups, heads, di = 4096, 64, 512, 1024, 1024, 8, 64, 128
    indexer = IndexerSpec(heads, di, 512, query_inputs=rank, compressed=True)
    spec = AttentionSpec(
        "sliding",
        a,
        1,
        d,
        window=128,
        q_lora_rank=rank,
        key_is_value=True,
        qk_norm=True,
        qk_norm_scope="keys",
        sinks=True,
        output_groups=groups,
        output_lora_rank=out_rank,
        compression=CompressionSpec(ratio, overlap),
        indexer=indexer if overlap else None,
    )
    base = a + h * rank + rank + rank * a * d + h * d + d + out_rank * a * d + h * groups * out_rank
    if overlap:
        more = 4 * 2 * d + 4 * d * h + d + 4 * 2 * di + 4 * di * h + di + heads * di * rank
        more += h * heads
    else:
        more = 128 * d + 2 * d * h + d
    assert count(spec, h) == base + more


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: IndexerSpec(0, 128, 2048), "key 'heads': 0"),
        (lambda: CompressionSpec(1), "key 'ratio': 1 should be"),
        (lambda: AttentionSpec("full", 8, 8, 64, output_groups=2), "both be given, or neither"),
        (
            lambda: AttentionSpec("full", 8, 8, 64, output_groups=3, output_lora_rank=4),
            "key 'heads': 8 should be a multiple of 'output_groups'",
        ),
        (lambda: AttentionSpec("full", 8, 8, 64, output_gate="row"), "key 'output_gate'"),
    ],
)
def test_attention_at_fault(build: object, message: str) -> None:
    with pytest.raises(ModelError) as error:
        build()  # type: ignore[operator]
    assert message in str(error.value)
