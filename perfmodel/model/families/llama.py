"""Llama, Mistral, Mixtral, Nemotron."""

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


def llama(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, qkv_bias=bias, output_bias=bias)
    mlp = MlpSpec(
        "dense",
        keys.size("intermediate_size"),
        activation=keys.activation("hidden_act", "silu"),
        bias=keys.flag("mlp_bias", False),
    )
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,)) for w in layer_windows(keys, layers)),
    )


def mistral(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    attention = grouped_attention(keys, hidden, key_value_heads=8)
    mlp = MlpSpec(
        "dense",
        keys.size("intermediate_size"),
        activation=keys.activation("hidden_act", "silu"),
    )
    window = keys.size("sliding_window", 0, minimum=0)
    windows = layer_windows(keys, layers, (window,) * layers)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,)) for w in windows),
    )


def mixtral(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    attention = grouped_attention(keys, hidden, key_value_heads=8)
    mlp = routed_experts(keys, "num_local_experts", "intermediate_size")
    window = keys.size("sliding_window", 0, minimum=0)
    windows = layer_windows(keys, layers, (window,) * layers)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,)) for w in windows),
    )


def nemotron(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, qkv_bias=bias, output_bias=bias)
    mlp = MlpSpec(
        "dense",
        keys.size("intermediate_size"),
        gated=False,
        activation=keys.activation("hidden_act", "relu2"),
        bias=keys.flag("mlp_bias", False),
    )
    windows = layer_windows(keys, layer_count(keys))
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,), "layer") for w in windows),
    )
