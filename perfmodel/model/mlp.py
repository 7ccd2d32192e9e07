"""The feed-forward block of one layer, dense or with routed experts, and its pieces.

Shape letters: h hidden size, f width, e experts, l latent size of routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import (
    Piece,
    Pieces,
    check_at_most,
    check_choice,
    check_flag,
    check_pieces,
    check_size,
    matrix,
    vector,
)

MLP_KINDS = ("dense", "moe")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "xielu", "tanh")


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """The feed-forward block of one layer.

    Attributes
    ----------
    kind : {"dense", "moe"}
        One block, or routed experts with perhaps a shared one.
    intermediate_size : int
        Width f of the dense block; 0 for "moe".
    gated : bool
        Two matrices lead in (SwiGLU, GeGLU) instead of one; experts alike.
    activation : str
        Function between the matrices, one of `ACTIVATIONS`.
    bias : bool
        Biases on every matrix, experts included.
    experts, experts_per_token : int
        Routed experts in the layer, and those that one token visits.
    expert_intermediate_size : int
        Width of one routed expert.
    shared_intermediate_size : int
        Summed width of the experts that every token visits; 0 for none.
    shared_expert_gate : bool
        The shared expert's output is scaled by a learned gate, h -> 1 (Qwen 2 MoE).
    expert_groups, expert_groups_per_token : int
        Experts stand in groups, and a token visits only so many of them (DeepSeek-V2
        and V3); 0 for no such limit.
    router_bias : bool
        One number per expert joins the router's scores: a trained bias (GPT-OSS) or
        the load-balancing correction of DeepSeek-V3, which checkpoints hold too.
    """

    kind: str
    intermediate_size: int = 0
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    shared_intermediate_size: int = 0
    shared_expert_gate: bool = False
    router_bias: bool = False
    expert_groups: int = 0
    expert_groups_per_token: int = 0
    latent_size: int = 0
    hash_routing: bool = False
    extra: Pieces = ()

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MLP_KINDS)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_pieces("extra", self.extra)
        for key in ("gated", "bias", "shared_expert_gate", "router_bias", "hash_routing"):
            check_flag(key, getattr(self, key))
        routed = (
            "experts",
            "experts_per_token",
            "expert_intermediate_size",
            "shared_intermediate_size",
        )
        limits = ("expert_groups", "expert_groups_per_token", "latent_size")
        for key in ("intermediate_size", *routed, *limits):
            check_size(key, getattr(self, key), minimum=0)
        if self.kind == "dense":
            check_size("intermediate_size", self.intermediate_size)
            flags = ("shared_expert_gate", "router_bias", "hash_routing")
            for key in (*routed, *limits, *flags):
                if getattr(self, key):
                    raise ModelError(f"key {key!r}: belongs to kind 'moe', not 'dense'")
            return
        for key in routed[:3]:
            check_size(key, getattr(self, key))
        check_at_most("experts_per_token", self.experts_per_token, "experts", self.experts)
        check_at_most(
            "expert_groups_per_token",
            self.expert_groups_per_token,
            "expert_groups",
            self.expert_groups,
        )
        if self.intermediate_size:
            raise ModelError(
                f"key 'intermediate_size': {self.intermediate_size} should be 0 for kind 'moe'; "
                "'expert_intermediate_size' and 'shared_intermediate_size' hold its widths"
            )
        if self.shared_expert_gate and not self.shared_intermediate_size:
            raise ModelError(
                "key 'shared_expert_gate': there is no shared expert "
                "('shared_intermediate_size' is 0)"
            )

    def pieces(self, hidden_size: int) -> Pieces:
        """Return the pieces of the block: the routed ones begin with "expert" or "router"."""
        h = hidden_size
        if self.kind == "dense":
            return (*self._block("", h, self.intermediate_size), *self.extra)
        found = [matrix("router", h, self.experts, "whole")]
        if self.router_bias:
            found.append(vector("router_bias", self.experts))
        if self.latent_size:
            found.append(matrix("latent_down", h, self.latent_size, "whole"))
            found.append(matrix("latent_up", self.latent_size, h, "whole"))
        found += self._block(
            "expert_",
            self.latent_size or h,
            self.expert_intermediate_size,
            self.experts,
            self.experts_per_token,
        )
        if self.shared_intermediate_size:
            found += self._block("shared_", h, self.shared_intermediate_size)
        if self.shared_expert_gate:
            found.append(matrix("shared_gate", h, 1, "whole"))
        return (*found, *self.extra)

    def _block(
        self, prefix: str, h: int, width: int, copies: int = 1, visited: int = 1
    ) -> tuple[Piece, ...]:
        """Matrices into and out of a width; gated ones lead in as one of twice the width."""
        inner = width * (2 if self.gated else 1)
        return (
            Piece(f"{prefix}up", "matrix", h, inner, self.bias, "columns", copies, visited),
            Piece(f"{prefix}down", "matrix", width, h, self.bias, "rows", copies, visited),
        )
