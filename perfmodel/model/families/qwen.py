"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from perfmodel.model.build import LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families.shared import (
    decoder,
    grouped_attention,
    layer_count,
    layer_windows,
    routed_experts,
)


def qwen(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    if keys.model_type == "qwen2":
        attention = grouped_attention(keys, hidden, qkv_bias=True)
    else:
        bias = keys.flag("attention_bias", False)
        attention = grouped_attention(
            keys, hidden, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True
        )
    mlp = MlpSpec(
        "dense",
        keys.size("intermediate_size"),
        activation=keys.activation("hidden_act", "silu"),
    )
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,)) for w in _windows(keys, layers)),
    )


def qwen2_moe(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    attention = grouped_attention(keys, hidden, qkv_bias=keys.flag("qkv_bias", True))
    sparse = routed_experts(
        keys,
        "num_experts",
        "moe_intermediate_size",
        shared_intermediate_size=keys.size("shared_expert_intermediate_size"),
        shared_expert_gate=True,
    )
    windows, mlps = _windows(keys, layers), _mlps(keys, layers, sparse)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (m,)) for w, m in zip(windows, mlps, strict=True)),
    )


def qwen3_moe(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, qkv_bias=bias, output_bias=bias, qk_norm=True)
    sparse = routed_experts(keys, "num_experts", "moe_intermediate_size")
    windows, mlps = _windows(keys, layers), _mlps(keys, layers, sparse)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (m,)) for w, m in zip(windows, mlps, strict=True)),
    )


def _windows(keys: ConfigKeys, layers: int) -> tuple[int, ...]:
    """Windows of Qwen 2 and 3: from ``max_window_layers`` on, if switched on at all."""
    stated = keys.size("sliding_window", 0, minimum=0)
    first = keys.size("max_window_layers", layers, minimum=0)
    window = stated if keys.flag("use_sliding_window", False) else 0
    return layer_windows(keys, layers, [window if i >= first else 0 for i in range(layers)])


def _mlps(keys: ConfigKeys, layers: int, sparse: MlpSpec) -> list[MlpSpec]:
    """Feed-forward blocks of Qwen MoE: some layers may be dense."""
    step = keys.size("decoder_sparse_step", 1)
    dense_layers = set(keys.integers("mlp_only_layers"))
    dense = MlpSpec("dense", keys.size("intermediate_size"), activation=sparse.activation)
    return [dense if i in dense_layers or (i + 1) % step else sparse for i in range(layers)]
