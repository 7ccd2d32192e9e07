"""What waits elsewhere of what a layer keeps, word by word.

Words are those of Megatron-Core's ``offload_modules`` (docs/user-guide/features,
fine_grained_activation_offloading; transformer_config.py): what the input of a module is, and what
its kernel keeps besides. Software without such a list offloads all of a layer, or of some layers
(Transformer Engine, ``cpu_offloading_num_layers``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from perfmodel.base.errors import StrategyError, did_you_mean

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
