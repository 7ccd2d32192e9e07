"""DeepSeek and Kimi with latent attention; GPT-OSS and MiniMax, whose routers have a bias too."""

from __future__ import annotations

from perfmodel.base.errors import ModelError
from perfmodel.model.build import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.checks import LAYER_LIMIT
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families.shared import (
    decoder,
    grouped_attention,
    layer_count,
    layer_windows,
    routed_experts,
)


def deepseek(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    heads = keys.size("num_attention_heads")
    groups = keys.size("num_key_value_heads", heads)
    if groups != heads:
        raise ModelError(
            f"key 'num_key_value_heads': {groups} should be 'num_attention_heads' {heads} "
            "with latent attention"
        )
    nope, rope = keys.size("qk_nope_head_dim"), keys.size("qk_rope_head_dim")
    bias = keys.flag("attention_bias", False)
    attention = AttentionSpec(
        "mla",
        heads,
        groups,
        nope + rope,
        keys.size("v_head_dim"),
        qkv_bias=bias,
        output_bias=bias,
        q_lora_rank=keys.size("q_lora_rank", 0, minimum=0),
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
    )
    function = keys.activation("hidden_act", "silu")
    dense = LayerSpec(
        (attention,), (MlpSpec("dense", keys.size("intermediate_size"), activation=function),)
    )
    sparse = dense
    keys.pass_over("moe_intermediate_size", "num_experts_per_tok", "n_shared_experts")
    if keys.size("n_routed_experts", 0, minimum=0):
        width = keys.size("moe_intermediate_size")
        correction = "greedy" if keys.model_type == "deepseek_v2" else "noaux_tc"
        mlp = routed_experts(
            keys,
            "n_routed_experts",
            "moe_intermediate_size",
            shared_intermediate_size=keys.size("n_shared_experts", 0, minimum=0) * width,
            router_bias=keys.value("topk_method", correction) == "noaux_tc",
            **_routing_groups(keys),
        )
        sparse = LayerSpec((attention,), (mlp,))
    first = keys.size("first_k_dense_replace", 0, minimum=0)
    step = keys.size("moe_layer_freq", 1)
    modules = keys.size("num_nextn_predict_layers", 0, minimum=0, limit=LAYER_LIMIT)
    return decoder(
        keys,
        hidden,
        tuple(sparse if i >= first and i % step == 0 else dense for i in range(layers)),
        mtp_layers=(sparse,) * modules,
    )


def gpt_oss(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    bias = keys.flag("attention_bias", True)
    attention = grouped_attention(
        keys, hidden, head_dim=64, qkv_bias=bias, output_bias=bias, sinks=True
    )
    mlp = routed_experts(
        keys, "num_local_experts", "intermediate_size", bias=True, router_bias=True
    )
    again = keys.size("experts_per_token", mlp.experts_per_token)
    if again != mlp.experts_per_token:
        raise ModelError(
            f"key 'experts_per_token': {again} contradicts 'num_experts_per_tok' "
            f"{mlp.experts_per_token}"
        )
    window = keys.size("sliding_window", 128)
    windows = layer_windows(keys, layers, [0 if i % 2 else window for i in range(layers)], window)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec((attention(w),), (mlp,)) for w in windows),
    )


def minimax_m2(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    if any(kind != 1 for kind in keys.integers("attn_type_list")):
        raise ModelError("key 'attn_type_list': lightning attention (0) is not modelled yet")
    scope = keys.choice("qk_norm_type", ["per_layer", "per_head"], "per_layer")
    attention = grouped_attention(
        keys,
        hidden,
        qk_norm=keys.flag("use_qk_norm", False),
        qk_norm_scope="whole" if scope == "per_layer" else "head",
    )
    mlp = routed_experts(
        keys,
        "num_local_experts",
        "intermediate_size",
        shared_intermediate_size=keys.size("shared_intermediate_size", 0, minimum=0),
        router_bias=keys.flag("use_routing_bias", False),
    )
    layer = LayerSpec((attention(0),), (mlp,))
    modules = 0
    if keys.flag("use_mtp", False):
        modules = keys.size("num_mtp_modules", 0, minimum=0, limit=LAYER_LIMIT)
        if keys.size("mtp_transformer_layers", 1) != 1:
            raise ModelError("key 'mtp_transformer_layers': only 1 layer per module is modelled")
    return decoder(
        keys,
        hidden,
        tuple(
            LayerSpec((attention(w),), (mlp,)) if w else layer for w in layer_windows(keys, layers)
        ),
        mtp_layers=(layer,) * modules,
    )


def _routing_groups(keys: ConfigKeys) -> dict[str, int]:
    """Limit of a token's experts to some groups; one group, or all of them, is no limit."""
    groups = keys.size("n_group", 0, minimum=0) if keys.value("n_group", None) else 0
    chosen = keys.size("topk_group", 0, minimum=0) if keys.value("topk_group", None) else 0
    if groups <= 1 or chosen in (0, groups):
        return {}
    return {"expert_groups": groups, "expert_groups_per_token": chosen}
