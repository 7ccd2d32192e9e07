"""GPT-2, GPT-J, GPT-NeoX, BLOOM, OPT, MPT: layer norms, learned or ALiBi positions."""

from __future__ import annotations

from perfmodel.base.errors import ModelError
from perfmodel.model.build import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.checks import check_multiple
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families.shared import (
    decoder,
    layer_count,
)


def gpt2(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size_of(["n_embd", "hidden_size"])
    heads = keys.size_of(["n_head", "num_attention_heads"])
    mlp = MlpSpec(
        "dense",
        keys.size("n_inner", 4 * hidden),
        gated=False,
        activation=keys.activation("activation_function", "gelu_new"),
        bias=True,
    )
    layer = LayerSpec((_multi_head(hidden, "n_embd", heads, "n_head", bias=True),), (mlp,), "layer")
    return decoder(
        keys,
        hidden,
        (layer,) * layer_count(keys, "n_layer"),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        position_embedding="learned",
        max_positions=keys.size_of(["n_positions", "n_ctx", "max_position_embeddings"]),
    )


def gptj(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("n_embd")
    heads = keys.size("n_head")
    mlp = MlpSpec(
        "dense",
        keys.size("n_inner", 4 * hidden),
        gated=False,
        activation=keys.activation("activation_function", "gelu_new"),
        bias=True,
    )
    attention = _multi_head(hidden, "n_embd", heads, "n_head", bias=False)
    layer = LayerSpec((attention,), (mlp,), "layer", norms=1, parallel_block=True)
    return decoder(
        keys,
        hidden,
        (layer,) * layer_count(keys, "n_layer"),
        max_positions=keys.size("n_positions", 2048),
        lm_head_bias=True,
    )


def gpt_neox(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    heads = keys.size("num_attention_heads")
    bias = keys.flag("attention_bias", True)
    mlp = MlpSpec(
        "dense",
        keys.size("intermediate_size"),
        gated=False,
        activation=keys.activation("hidden_act", "gelu"),
        bias=True,
    )
    layer = LayerSpec(
        (_multi_head(hidden, "hidden_size", heads, "num_attention_heads", bias=bias),),
        (mlp,),
        "layer",
        parallel_block=keys.flag("use_parallel_residual", True),
    )
    return decoder(
        keys,
        hidden,
        (layer,) * layer_count(keys),
    )


def bloom(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size_of(["hidden_size", "n_embed"])
    heads = keys.size_of(["n_head", "num_attention_heads"])
    mlp = MlpSpec("dense", 4 * hidden, gated=False, activation="gelu_tanh", bias=True)
    attention = _multi_head(hidden, "hidden_size", heads, "n_head", bias=True)
    depth = "n_layer" if keys.value("n_layer", None) is not None else "num_hidden_layers"
    return decoder(
        keys,
        hidden,
        (LayerSpec((attention,), (mlp,), "layer"),) * layer_count(keys, depth),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        position_embedding="alibi",
        max_positions=0,
        embedding_norm=True,
    )


def opt(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    projected = keys.size("word_embed_proj_dim", hidden)
    if projected != hidden or not keys.flag("do_layer_norm_before", True):
        raise ModelError(
            "keys 'word_embed_proj_dim' and 'do_layer_norm_before': only OPT models with "
            "embeddings as wide as the layers and with norms before them are modelled"
        )
    heads = keys.size("num_attention_heads")
    bias = keys.flag("enable_bias", True)
    mlp = MlpSpec(
        "dense",
        keys.size("ffn_dim"),
        gated=False,
        activation=keys.activation("activation_function", "relu"),
        bias=bias,
    )
    attention = _multi_head(hidden, "hidden_size", heads, "num_attention_heads", bias=bias)
    affine = keys.flag("layer_norm_elementwise_affine", True)
    if not affine:
        raise ModelError("key 'layer_norm_elementwise_affine': only true is modelled")
    return decoder(
        keys,
        hidden,
        (LayerSpec((attention,), (mlp,), "layer"),) * layer_count(keys),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        position_embedding="learned",
        max_positions=keys.size("max_position_embeddings") + 2,  # OPT's table starts at row 2
    )


def mpt(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("d_model")
    heads = keys.size("n_heads")
    attn = keys.section("attn_config")
    if attn.value("sliding_window_size", -1) != -1:
        raise ModelError("key 'sliding_window_size': only -1 (none) is modelled for 'mpt'")
    check_multiple("d_model", hidden, "n_heads", heads)
    groups = attn.size("kv_n_heads", heads)
    kinds = ["multihead_attention", "multiquery_attention", "grouped_query_attention"]
    if attn.choice("attn_type", kinds, kinds[0]) == "multiquery_attention":
        groups = 1
    check_multiple("n_heads", heads, "kv_n_heads", groups)
    bias = not keys.flag("no_bias", False)
    attention = AttentionSpec(
        "full",
        heads,
        groups,
        hidden // heads,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=attn.flag("qk_ln", False),
        qk_norm_scope="whole",
    )
    mlp = MlpSpec(
        "dense", keys.size("expansion_ratio", 4) * hidden, gated=False, activation="gelu", bias=bias
    )
    alibi = attn.flag("alibi", False)
    learned = not alibi and keys.flag("learned_pos_emb", True)
    layer = LayerSpec((attention,), (mlp,), "layer" if bias else "layer_no_bias")
    return decoder(
        keys,
        hidden,
        (layer,) * layer_count(keys, "n_layers"),
        tied_embeddings=keys.flag("tie_word_embeddings", True),
        position_embedding="alibi" if alibi else "learned" if learned else "none",
        max_positions=keys.size("max_seq_len", 2048),
    )


def _multi_head(
    hidden_size: int, hidden_key: str, heads: int, heads_key: str, *, bias: bool
) -> AttentionSpec:
    """Attention with one key and value per query head, and the usual head dimension."""
    check_multiple(hidden_key, hidden_size, heads_key, heads)
    return AttentionSpec(
        "full", heads, heads, hidden_size // heads, qkv_bias=bias, output_bias=bias
    )
