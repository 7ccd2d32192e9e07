"""What becomes of the modules of a layer: repeated, offloaded, captured; word by word.

Words of recomputation name modules of a layer, as Megatron-Core's ``recompute_modules`` do
(transformer_config.py), outputs that alone are saved, as MaxText's ``remat_policy`` does
(layers/decoders.py, ``get_remat_policy``), or rules over all of a layer. Operations and what a
layer keeps for its backward pass carry the same names: time repeats the operations of a module,
memory drops what it keeps.

Words of offloading are those of Megatron-Core's ``offload_modules`` (docs/user-guide/features,
fine_grained_activation_offloading): what the input of a module is, and what its kernel keeps
besides. Software without such a list offloads all of a layer, or of some layers (Transformer
Engine, ``cpu_offloading_num_layers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from perfmodel.base.errors import StrategyError, did_you_mean

MODULES: Mapping[str, str] = {
    "core_attn": "core of attention",
    "mla_up_proj": "latent attention's queries, keys and values out of their latents",
    "layernorm": "norms of their own ahead of latent attention and of experts",
    "norm_linear": "norms that are one function with the products behind them",
    "activation": "activations of dense blocks and of shared experts",
    "moe_act": "activations of routed experts",
    "mlp": "dense feed-forward blocks, their norms included",
    "moe": "blocks of experts, their exchanges included",
    "shared_experts": "experts that every token meets",
}
"""Module -> what it is."""

NORMS_AND_ACTIVATIONS = frozenset(
    ("layernorm", "norm_linear", "activation", "moe_act", "mla_up_proj")
)
"""What is cheap beside fused attention."""

SAVED: Mapping[str, str] = {
    "save_qkv_proj": "queries, keys and values",
    "save_context": "what attention puts out",
    "save_out_proj": "output of attention's last product",
    "save_mlpwi": "output of the first products of feed-forward blocks",
    "save_mlpwo": "output of their last one",
}
"""Word -> outputs that are saved, beside which a layer keeps its input alone."""

MADE_BY: Mapping[str, tuple[str, ...]] = {
    "save_qkv_proj": (
        *("attention.qkv", "attention.query", "attention.key_value", "attention.query_up"),
        *("attention.key_value_up", "attention.query_latent", "attention.assemble_keys"),
        *("attention.split_qkv", "attention.rope"),
    ),
    "save_context": (
        *("attention.core", "attention.core_remote", "attention.core_rest", "attention.cross"),
    ),
    "save_out_proj": ("attention.output", "attention.output_down"),
    "save_mlpwi": ("mlp.up", "mlp.shared.up", "mlp.experts_up"),
    "save_mlpwo": ("mlp.down", "mlp.output", "mlp.shared.down", "mlp.experts_down"),
}
"""Saved outputs -> operations that make them, sums over tensor ranks included."""

_PRODUCTS = "save_qkv_proj save_out_proj save_mlpwi save_mlpwo"
SAVING_POLICIES: Mapping[str, str] = {
    "minimal": _PRODUCTS,
    "minimal_with_context": " ".join(SAVED),
    "save_dot_with_context_except_mlp": "save_qkv_proj save_context save_out_proj",
    "save_dot_except_mlpwi": "save_qkv_proj save_out_proj save_mlpwo",
    "save_dot_except_mlp": "save_qkv_proj save_out_proj",
    "save_qkv_proj": "save_qkv_proj",
    "save_out_proj": "save_out_proj",
}
"""MaxText's ``remat_policy`` -> words."""
OFFLOADED_POLICIES: Mapping[str, str] = {
    "minimal_offloaded": _PRODUCTS,
    "qkv_proj_offloaded": "save_qkv_proj",
}
"""Those whose outputs wait in the host's memory."""

WORDS = (*MODULES, "cheap", "alternate_products", *SAVED)
"""All that may be said."""


class Policy(NamedTuple):
    """What is repeated where recomputation is selective: all that any of these says.

    Attributes
    ----------
    modules : frozenset of str
        Of `MODULES`.
    saved : tuple of str
        Of `SAVED`: all is repeated but what makes these. Empty: nothing is for that reason.
    alternate : bool
        All is, but attention, reductions, exchanges and every second matrix product.
    """

    modules: frozenset[str]
    saved: tuple[str, ...]
    alternate: bool

    def repeats(self, modules: Iterable[str]) -> bool:
        """Tell whether something is repeated that lies in these modules, one in the other."""
        return not self.modules.isdisjoint(modules)

    def saves(self, operation: str) -> bool:
        """Tell whether the output of an operation is saved, which then is not repeated."""
        return any(operation in MADE_BY[word] for word in self.saved)


@cache
def policy_of(words: str, fused_attention: bool) -> Policy:
    """Return what the words of a framework mean.

    Parameters
    ----------
    words : str
        The fact `selective_recompute`: words of `WORDS`.
    fused_attention : bool
        ``cheap`` is what costs little beside fused attention, and the core of unfused one.
    """
    chosen = words.split()
    modules = frozenset(MODULES).intersection(chosen)
    if "cheap" in chosen:
        modules |= NORMS_AND_ACTIVATIONS if fused_attention else {"core_attn"}
    saved = tuple(word for word in SAVED if word in chosen)
    return Policy(modules, saved, "alternate_products" in chosen)


INPUTS: Mapping[str, str] = {
    "attn_norm": "residual stream ahead of the norm of attention",
    "qkv_linear": "what that norm puts out",
    "core_attn": "queries, keys and values, and the kernel's statistics",
    "attn_proj": "what attention puts out",
    "mlp_norm": "residual stream ahead of the norm of the feed-forward block",
    "expert_fc1": "tokens that routed experts receive",
    "moe_act": "what their first products put out",
    "fused_group_mlp": "all that routed experts keep, where they run as one fused operator",
}
"""Module -> what waits of it."""


@cache
def offloaded_inputs(words: str) -> frozenset[str]:
    """Return the modules that a framework's `offload_modules` names; none for all of a layer.

    Raises
    ------
    StrategyError
        A word that is none, or experts as one operator and in parts.
    """
    chosen = words.split()
    for word in chosen:
        if word not in INPUTS:
            raise StrategyError(
                f"software.offload_modules: {word!r} is no module{did_you_mean(word, INPUTS)}"
            )
    if "fused_group_mlp" in chosen and not {"expert_fc1", "moe_act"}.isdisjoint(chosen):
        raise StrategyError(
            "software.offload_modules: fused_group_mlp holds expert_fc1 and moe_act; name either"
        )
    return frozenset(chosen)


# Word of Megatron-Core's ``cuda_graph_scope`` -> part of the fact `graph_scope`.
PARTS = (("attn", "attention"), ("router", "router"))

NO_GRAPHS = {"graph_launch": False, "graph_scope": "none", "layer_graphs": False}


def graph_facts(scope: str) -> dict[str, Any]:
    """Return the facts of a framework whose graphs are captured with a scope.

    Parameters
    ----------
    scope : str
        Words of ``cuda_graph_scope``: ``attn``, ``moe_router``, ``moe_preprocess``, ``full``,
        ``full_iteration``; empty holds whole layers.
    """
    parts = [part for word, part in PARTS if word in scope]
    whole = not scope.strip("[]'\" ") or "full" in scope
    return {
        "graph_launch": whole,
        "graph_scope": "_".join(parts) if parts and not whole else "none",
        "layer_graphs": whole and "full_iteration" not in scope,
    }
