"""What functions of several families need to turn keys into a `ModelSpec`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perfmodel.model.build import AttentionSpec, LayerSpec, MlpSpec, ModelSpec
from perfmodel.model.checks import LAYER_LIMIT, check_at_most, check_multiple
from perfmodel.model.config_keys import ConfigKeys


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
