"""A model as facts about its architecture: sizes, layers, parameter counts.

The one module to import these names from. `ModelSpec` holds nothing about how the model
is run. It comes from a preset or a ``config.json`` (`perfmodel.model.presets.load_model`),
or from `dense_model` and `moe_model` here. Sizes are counts; nothing here has a unit.
"""

from __future__ import annotations

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import (
    AttentionSpec,
)
from perfmodel.model.layers import (
    LayerSpec,
    MlpSpec,
)
from perfmodel.model.pieces import LAYER_LIMIT, check_size
from perfmodel.model.spec import ModelSpec


def dense_model(
    name: str,
    *,
    layers: int,
    hidden_size: int,
    heads: int,
    intermediate_size: int,
    vocab_size: int,
    key_value_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = True,
    activation: str | None = None,
    norm: str = "rms",
    norms: int = 2,
    bias: bool = False,
    qkv_bias: bool | None = None,
    qk_norm: bool = False,
    window: int = 0,
    tied_embeddings: bool = False,
    position_embedding: str = "rope",
    max_positions: int = 0,
    embedding_norm: bool = False,
    family: str = "dense",
    source: str = "",
) -> ModelSpec:
    """Build a model of equal dense layers.

    Parameters
    ----------
    name : str
        What the model is called.
    layers, hidden_size, heads, intermediate_size, vocab_size : int
        Sizes, see `ModelSpec`, `AttentionSpec` and `MlpSpec`.
    key_value_heads : int, optional
        As many as `heads` when left out.
    head_dim : int, optional
        ``hidden_size / heads`` when left out.
    gated : bool
        Two matrices lead into the feed-forward block.
    activation : str, optional
        "silu" when gated and "gelu" otherwise, when left out.
    norm, norms
        See `LayerSpec`.
    bias : bool
        Biases on all projections of attention and feed-forward block.
    qkv_bias : bool, optional
        Bias on queries, keys and values; as `bias` when left out.
    qk_norm, window
        See `AttentionSpec`; a `window` above 0 makes every layer slide.
    tied_embeddings, position_embedding, max_positions, embedding_norm, family, source
        See `ModelSpec`.
    """
    check_size("layers", layers, limit=LAYER_LIMIT)
    attention = _attention(
        hidden_size,
        heads,
        key_value_heads,
        head_dim,
        kind="sliding" if window else "full",
        window=window,
        qkv_bias=bias if qkv_bias is None else qkv_bias,
        output_bias=bias,
        qk_norm=qk_norm,
    )
    mlp = MlpSpec(
        "dense",
        intermediate_size,
        gated=gated,
        activation=activation or ("silu" if gated else "gelu"),
        bias=bias,
    )
    return ModelSpec(
        name,
        family,
        hidden_size,
        vocab_size,
        layers=(LayerSpec((attention,), (mlp,), norm, norms),) * layers,
        tied_embeddings=tied_embeddings,
        position_embedding=position_embedding,
        max_positions=max_positions,
        embedding_norm=embedding_norm,
        source=source,
    )


def moe_model(
    name: str,
    *,
    layers: int,
    hidden_size: int,
    heads: int,
    vocab_size: int,
    experts: int,
    experts_per_token: int,
    expert_intermediate_size: int,
    shared_intermediate_size: int = 0,
    first_dense_layers: int = 0,
    moe_every: int = 1,
    intermediate_size: int | None = None,
    key_value_heads: int | None = None,
    head_dim: int | None = None,
    q_lora_rank: int = 0,
    kv_lora_rank: int = 0,
    qk_nope_head_dim: int = 0,
    qk_rope_head_dim: int = 0,
    value_head_dim: int = 0,
    gated: bool = True,
    activation: str | None = None,
    norm: str = "rms",
    norms: int = 2,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    router_bias: bool = False,
    expert_groups: int = 0,
    expert_groups_per_token: int = 0,
    tied_embeddings: bool = False,
    mtp_modules: int = 0,
    family: str = "moe",
    source: str = "",
) -> ModelSpec:
    """Build a model with routed experts.

    Parameters
    ----------
    name : str
        What the model is called.
    layers, hidden_size, heads, vocab_size, experts, experts_per_token : int
        Sizes, see `ModelSpec`, `AttentionSpec` and `MlpSpec`.
    expert_intermediate_size, shared_intermediate_size : int
        Width of one routed expert, and of all shared experts together.
    first_dense_layers : int
        Layers before the first one with experts.
    moe_every : int
        From there on, layer i has experts when ``i % moe_every == 0``.
    intermediate_size : int, optional
        Width of the dense layers; needed when there are any.
    key_value_heads, head_dim : int, optional
        As in `dense_model`; both follow from the other sizes when `kv_lora_rank` is set.
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, value_head_dim : int
        A `kv_lora_rank` above 0 makes attention "mla".
    gated, activation, norm, norms, qkv_bias, qk_norm, router_bias
        See `MlpSpec`, `LayerSpec` and `AttentionSpec`.
    tied_embeddings, family, source
        See `ModelSpec`.
    mtp_modules : int
        Multi-token-prediction modules, each a layer with experts.
    """
    check_size("layers", layers, limit=LAYER_LIMIT)
    check_size("first_dense_layers", first_dense_layers, minimum=0)
    check_size("moe_every", moe_every)
    check_size("mtp_modules", mtp_modules, minimum=0, limit=LAYER_LIMIT)
    if kv_lora_rank:
        attention = AttentionSpec(
            "mla",
            heads,
            heads,
            qk_nope_head_dim + qk_rope_head_dim,
            value_head_dim,
            q_lora_rank=q_lora_rank,
            kv_lora_rank=kv_lora_rank,
            qk_nope_head_dim=qk_nope_head_dim,
            qk_rope_head_dim=qk_rope_head_dim,
            qkv_bias=qkv_bias,
        )
    else:
        attention = _attention(
            hidden_size,
            heads,
            key_value_heads,
            head_dim,
            kind="full",
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
        )
    function = activation or ("silu" if gated else "gelu")
    sparse = MlpSpec(
        "moe",
        gated=gated,
        activation=function,
        experts=experts,
        experts_per_token=experts_per_token,
        expert_intermediate_size=expert_intermediate_size,
        shared_intermediate_size=shared_intermediate_size,
        router_bias=router_bias,
        expert_groups=expert_groups,
        expert_groups_per_token=expert_groups_per_token,
    )
    routed = [i >= first_dense_layers and i % moe_every == 0 for i in range(layers)]
    sparse_layer = LayerSpec((attention,), (sparse,), norm, norms)
    dense_layer = sparse_layer
    if not all(routed):
        if intermediate_size is None:
            raise ModelError("key 'intermediate_size': needed, since some layers have no experts")
        dense = MlpSpec("dense", intermediate_size, gated=gated, activation=function)
        dense_layer = LayerSpec((attention,), (dense,), norm, norms)
    return ModelSpec(
        name,
        family,
        hidden_size,
        vocab_size,
        layers=tuple(sparse_layer if has_experts else dense_layer for has_experts in routed),
        tied_embeddings=tied_embeddings,
        mtp_layers=(sparse_layer,) * mtp_modules,
        source=source,
    )


def _attention(
    hidden_size: int,
    heads: int,
    key_value_heads: int | None,
    head_dim: int | None,
    *,
    kind: str,
    window: int = 0,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: bool = False,
) -> AttentionSpec:
    """Grouped-query attention, with the usual head dimension where none is given."""
    check_size("hidden_size", hidden_size)
    check_size("heads", heads)
    if head_dim is None:
        if hidden_size % heads:
            raise ModelError(
                f"key 'heads': {heads} does not divide 'hidden_size' {hidden_size}; "
                "state 'head_dim'"
            )
        head_dim = hidden_size // heads
    return AttentionSpec(
        kind,
        heads,
        heads if key_value_heads is None else key_value_heads,
        head_dim,
        window=window,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )
