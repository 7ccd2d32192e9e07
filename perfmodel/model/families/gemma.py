"""Gemma 1, 2 and 3."""

from __future__ import annotations

from perfmodel.model.build import LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.checks import LAYER_LIMIT
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families.shared import (
    decoder,
    grouped_attention,
    layer_count,
    layer_windows,
)


def gemma(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, head_dim=256, qkv_bias=bias, output_bias=bias)
    window = keys.size("sliding_window", 4096) if keys.model_type == "gemma2" else 0
    windows = layer_windows(keys, layers, [0 if i % 2 else window for i in range(layers)])
    norms = 4 if keys.model_type == "gemma2" else 2
    mlp = _mlp(keys, keys.size("intermediate_size"))
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,), norms=norms) for w in windows),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
    )


def gemma3(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size", 2304)
    layers = keys.size("num_hidden_layers", 26, limit=LAYER_LIMIT)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(
        keys,
        hidden,
        heads=8,
        key_value_heads=4,
        head_dim=256,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    window = keys.size("sliding_window", 4096)
    pattern = keys.size_of(["sliding_window_pattern", "_sliding_window_pattern"], 6)
    default = [window if (i + 1) % pattern else 0 for i in range(layers)]
    mlp = _mlp(keys, keys.size("intermediate_size", 9216))
    return decoder(
        keys,
        hidden,
        tuple(
            LayerSpec((attention(w),), (mlp,), norms=4)
            for w in layer_windows(keys, layers, default, window)
        ),
        vocab_size=keys.size("vocab_size", 262_208),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
    )


def _mlp(keys: ConfigKeys, width: int) -> MlpSpec:
    """Gemma's feed-forward block; ``hidden_act`` is what older files call the activation."""
    key = "hidden_activation" if keys.value("hidden_activation", None) else "hidden_act"
    stated = keys.activation(key, "gelu_pytorch_tanh")
    # Gemma's first files say "gelu" where the tanh form is meant and used.
    return MlpSpec("dense", width, activation="gelu_tanh" if stated == "gelu" else stated)
