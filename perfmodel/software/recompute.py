"""What selective recomputation repeats, word by word.

Words name modules of a layer, as Megatron-Core's ``recompute_modules`` do, or rules over all of it.
Operations and what a layer keeps for its backward pass carry the same names: time repeats the
operations of a module, memory drops what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

MODULES: Mapping[str, str] = {
    "core_attn": "core of attention",
    "mla_up_proj": "latent attention's queries, keys and values out of their latents",
    "layernorm": "norms of their own ahead of latent attention and of experts",
    "norm_linear": "norms that are one function with the products behind them",
    "activation": "activations of dense blocks and of shared experts",
    "moe_act": "activations of routed experts",
    "mlp": "dense feed-forward blocks",
    "moe": "blocks of experts, their exchanges included",
}
"""Module -> what it is."""

NORMS_AND_ACTIVATIONS = ("layernorm", "norm_linear", "activation", "moe_act", "mla_up_proj")
"""What is cheap beside fused attention."""


class Policy(NamedTuple):
    """What is repeated where recomputation is selective.

    Attributes
    ----------
    modules : frozenset of str
        Of `MODULES`.
    all_but_qkv : bool
        All is, but queries, keys and values.
    alternate : bool
        All is, but attention, reductions, exchanges and every second matrix product.
    """

    modules: frozenset[str]
    all_but_qkv: bool
    alternate: bool

    def repeats(self, modules: Iterable[str]) -> bool:
        """Tell whether something is repeated that lies in these modules, one in the other."""
        return not self.modules.isdisjoint(modules)


@cache
def policy_of(words: str, fused_attention: bool) -> Policy:
    """Return what the words of a framework mean.

    Parameters
    ----------
    words : str
        The fact `selective_recompute`.
    fused_attention : bool
        ``cheap`` is what costs little beside fused attention, and the core of unfused one.
    """
    chosen = words.split()
    modules = set(MODULES).intersection(chosen)
    if "attention" in chosen or ("cheap" in chosen and not fused_attention):
        # Around unfused attention the up-projections of a latent one are repeated, too.
        modules |= {"core_attn"} if fused_attention else {"core_attn", "mla_up_proj"}
    elif "cheap" in chosen:
        modules |= set(NORMS_AND_ACTIVATIONS)
    return Policy(frozenset(modules), "all_but_qkv" in chosen, "alternate_products" in chosen)
