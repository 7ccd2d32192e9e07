"""One small function per family of ``config.json``: its keys to a `ModelSpec`.

A function carries the defaults of the Hugging Face configuration class of the same
``model_type``, for keys that a published file leaves out. `FAMILIES` maps every
``model_type`` to its function, `ARCHITECTURES` every architecture to its ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.build import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.checks import LAYER_LIMIT, check_at_most, check_multiple
from perfmodel.model.config_keys import ConfigKeys

Family = Callable[[ConfigKeys], ModelSpec]
FAMILIES: dict[str, Family] = {}
ARCHITECTURES: dict[str, str] = {}


def family(**architectures: str) -> Callable[[Family], Family]:
    """Register a function under ``model_type=architecture`` pairs."""

    def register(function: Family) -> Family:
        for model_type, architecture in architectures.items():
            FAMILIES[model_type] = function
            ARCHITECTURES[architecture] = model_type
        return function

    return register


def layer_count(keys: ConfigKeys, key: str = "num_hidden_layers") -> int:
    """Return the number of layers, within reason."""
    return keys.size(key, limit=LAYER_LIMIT)


def layer_windows(
    keys: ConfigKeys, layers: int, default: Iterable[int] | None = None, window: int = 0
) -> tuple[int, ...]:
    """Return the attention window of every layer, 0 where it attends to everything.

    Parameters
    ----------
    keys : ConfigKeys
        Where ``layer_types`` decides, if present.
    layers : int
        Number of layers.
    default : iterable of int, optional
        Windows where ``layer_types`` is absent; none at all when left out.
    window : int
        Window of a sliding layer; ``sliding_window`` when 0.
    """
    kinds = keys.layer_kinds(layers)
    if kinds is None:
        return tuple(default) if default is not None else (0,) * layers
    if "sliding" not in kinds:
        return (0,) * layers
    width = window or keys.size("sliding_window")
    return tuple(width if kind == "sliding" else 0 for kind in kinds)


def grouped_attention(
    keys: ConfigKeys,
    hidden_size: int,
    *,
    key_value_heads: int | None = None,
    head_dim: int | None = None,
    heads: int | None = None,
    **fields: Any,
) -> Callable[[int], AttentionSpec]:
    """Return a function from a window to the grouped-query attention of these keys.

    The keyword arguments before `fields` are the family's defaults for absent keys.
    """
    heads_key = "num_attention_heads"
    heads = keys.size(heads_key) if heads is None else keys.size(heads_key, heads)
    groups = keys.size("num_key_value_heads", heads if key_value_heads is None else key_value_heads)
    check_multiple(heads_key, heads, "num_key_value_heads", groups)
    if head_dim is None:
        dim = keys.head_dim(heads_key, heads, "hidden_size", hidden_size)
    else:
        dim = keys.size("head_dim", head_dim)

    def attention(window: int) -> AttentionSpec:
        kind = "sliding" if window else "full"
        return AttentionSpec(kind, heads, groups, dim, window=window, **fields)

    return attention


def decoder(
    keys: ConfigKeys, hidden_size: int, layers: tuple[LayerSpec, ...], **fields: Any
) -> ModelSpec:
    """Build the model from `fields`, and from the keys that most families share."""
    if "vocab_size" not in fields:
        fields["vocab_size"] = keys.size("vocab_size")
    if "tied_embeddings" not in fields:
        fields["tied_embeddings"] = keys.flag("tie_word_embeddings", False)
    if "max_positions" not in fields:
        fields["max_positions"] = keys.size("max_position_embeddings", 0, minimum=0)
    return ModelSpec(
        keys.name, keys.model_type, hidden_size, layers=layers, source=keys.source, **fields
    )


def routed_experts(keys: ConfigKeys, experts: str, width: str, **fields: Any) -> MlpSpec:
    """Build a block of routed experts from the keys that hold their number and width."""
    count = keys.size(experts)
    visited = keys.size("num_experts_per_tok")
    check_at_most("num_experts_per_tok", visited, experts, count)
    return MlpSpec(
        "moe",
        activation=keys.activation("hidden_act", "silu"),
        experts=count,
        experts_per_token=visited,
        expert_intermediate_size=keys.size(width),
        **fields,
    )


@family(llama="LlamaForCausalLM")
def _llama(keys: ConfigKeys) -> ModelSpec:
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
        tuple(LayerSpec(attention(w), mlp) for w in layer_windows(keys, layers)),
    )


@family(mistral="MistralForCausalLM")
def _mistral(keys: ConfigKeys) -> ModelSpec:
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
        tuple(LayerSpec(attention(w), mlp) for w in windows),
    )


@family(mixtral="MixtralForCausalLM")
def _mixtral(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    attention = grouped_attention(keys, hidden, key_value_heads=8)
    mlp = routed_experts(keys, "num_local_experts", "intermediate_size")
    window = keys.size("sliding_window", 0, minimum=0)
    windows = layer_windows(keys, layers, (window,) * layers)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec(attention(w), mlp) for w in windows),
    )


def _qwen_windows(keys: ConfigKeys, layers: int) -> tuple[int, ...]:
    """Windows of Qwen 2 and 3: from ``max_window_layers`` on, if switched on at all."""
    stated = keys.size("sliding_window", 0, minimum=0)
    first = keys.size("max_window_layers", layers, minimum=0)
    window = stated if keys.flag("use_sliding_window", False) else 0
    return layer_windows(keys, layers, [window if i >= first else 0 for i in range(layers)])


def _qwen_mlps(keys: ConfigKeys, layers: int, sparse: MlpSpec) -> list[MlpSpec]:
    """Feed-forward blocks of Qwen MoE: some layers may be dense."""
    step = keys.size("decoder_sparse_step", 1)
    dense_layers = set(keys.integers("mlp_only_layers"))
    dense = MlpSpec("dense", keys.size("intermediate_size"), activation=sparse.activation)
    return [dense if i in dense_layers or (i + 1) % step else sparse for i in range(layers)]


@family(qwen2="Qwen2ForCausalLM", qwen3="Qwen3ForCausalLM")
def _qwen(keys: ConfigKeys) -> ModelSpec:
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
        tuple(LayerSpec(attention(w), mlp) for w in _qwen_windows(keys, layers)),
    )


@family(qwen2_moe="Qwen2MoeForCausalLM")
def _qwen2_moe(keys: ConfigKeys) -> ModelSpec:
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
    windows, mlps = _qwen_windows(keys, layers), _qwen_mlps(keys, layers, sparse)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec(attention(w), m) for w, m in zip(windows, mlps, strict=True)),
    )


@family(qwen3_moe="Qwen3MoeForCausalLM")
def _qwen3_moe(keys: ConfigKeys) -> ModelSpec:
    hidden = keys.size("hidden_size")
    layers = layer_count(keys)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, qkv_bias=bias, output_bias=bias, qk_norm=True)
    sparse = routed_experts(keys, "num_experts", "moe_intermediate_size")
    windows, mlps = _qwen_windows(keys, layers), _qwen_mlps(keys, layers, sparse)
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec(attention(w), m) for w, m in zip(windows, mlps, strict=True)),
    )


def _routing_groups(keys: ConfigKeys) -> dict[str, int]:
    """Limit of a token's experts to some groups; one group, or all of them, is no limit."""
    groups = keys.size("n_group", 0, minimum=0) if keys.value("n_group", None) else 0
    chosen = keys.size("topk_group", 0, minimum=0) if keys.value("topk_group", None) else 0
    if groups <= 1 or chosen in (0, groups):
        return {}
    return {"expert_groups": groups, "expert_groups_per_token": chosen}


@family(
    deepseek_v2="DeepseekV2ForCausalLM",
    deepseek_v3="DeepseekV3ForCausalLM",
    kimi_k2="KimiK2ForCausalLM",
)
def _deepseek(keys: ConfigKeys) -> ModelSpec:
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
        attention, MlpSpec("dense", keys.size("intermediate_size"), activation=function)
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
        sparse = LayerSpec(attention, mlp)
    first = keys.size("first_k_dense_replace", 0, minimum=0)
    step = keys.size("moe_layer_freq", 1)
    modules = keys.size("num_nextn_predict_layers", 0, minimum=0, limit=LAYER_LIMIT)
    return decoder(
        keys,
        hidden,
        tuple(sparse if i >= first and i % step == 0 else dense for i in range(layers)),
        mtp_layers=(sparse,) * modules,
    )


@family(gpt_oss="GptOssForCausalLM")
def _gpt_oss(keys: ConfigKeys) -> ModelSpec:
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
        tuple(LayerSpec(attention(w), mlp) for w in windows),
    )


@family(minimax_m2="MiniMaxM2ForCausalLM")
def _minimax_m2(keys: ConfigKeys) -> ModelSpec:
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
    layer = LayerSpec(attention(0), mlp)
    modules = 0
    if keys.flag("use_mtp", False):
        modules = keys.size("num_mtp_modules", 0, minimum=0, limit=LAYER_LIMIT)
        if keys.size("mtp_transformer_layers", 1) != 1:
            raise ModelError("key 'mtp_transformer_layers': only 1 layer per module is modelled")
    return decoder(
        keys,
        hidden,
        tuple(LayerSpec(attention(w), mlp) if w else layer for w in layer_windows(keys, layers)),
        mtp_layers=(layer,) * modules,
    )
