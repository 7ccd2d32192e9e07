"""One transformer layer: what it is made of and how many parameters it holds.

Shape letters: h hidden size, a query heads, g key-value heads, d head dimension
of queries and keys, v head dimension of values, f intermediate size, e experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.checks import (
    check_at_most,
    check_choice,
    check_flag,
    check_multiple,
    check_size,
)

ATTENTION_KINDS = ("full", "sliding", "mla")
RESERVED_ATTENTION_KINDS = ("linear", "state_space", "sparse")
MLP_KINDS = ("dense", "moe")
NORMS = ("rms", "layer", "layer_no_bias")
QK_NORM_SCOPES = ("head", "whole")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention block of one layer.

    Attributes
    ----------
    kind : {"full", "sliding", "mla"}
        Attention to all keys, to the last `window` keys, or multi-head latent
        attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).
    heads, key_value_heads : int
        Query heads, and the heads of keys and values that they share.
    head_dim : int
        Length of one query and of one key; with "mla" the sum of
        `qk_nope_head_dim` and `qk_rope_head_dim`.
    value_head_dim : int
        Length of one value; 0 when given means `head_dim`, and is replaced by it.
    window : int
        Keys seen by a query of "sliding" attention, itself included; 0 otherwise.
    qkv_bias, output_bias : bool
        Biases on the query, key and value projections, and on the output projection.
    qk_norm : bool
        Queries and keys are normalised (RMS) before they meet.
    qk_norm_scope : {"head", "whole"}
        One weight of length `head_dim` shared by all heads (Qwen 3, Gemma 3), or one
        over all heads together (MiniMax-M2).
    sinks : bool
        One learned logit per query head joins the softmax (GPT-OSS).
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim : int
        Dimensions of "mla", 0 otherwise; `q_lora_rank` 0 projects queries directly.
    causal : bool
        A token sees only itself and what came before.
    """

    kind: str
    heads: int
    key_value_heads: int
    head_dim: int
    value_head_dim: int = 0
    window: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    qk_norm_scope: str = "head"
    sinks: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        if self.kind in RESERVED_ATTENTION_KINDS:
            raise ModelError(f"key 'kind': {self.kind!r} attention is not modelled yet")
        check_choice("kind", self.kind, ATTENTION_KINDS)
        for key in ("heads", "key_value_heads", "head_dim"):
            check_size(key, getattr(self, key))
        for key in (
            "value_head_dim",
            "window",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
        ):
            check_size(key, getattr(self, key), minimum=0)
        for key in ("qkv_bias", "output_bias", "qk_norm", "sinks", "causal"):
            check_flag(key, getattr(self, key))
        check_choice("qk_norm_scope", self.qk_norm_scope, QK_NORM_SCOPES)
        check_multiple("heads", self.heads, "key_value_heads", self.key_value_heads)
        if self.value_head_dim == 0:
            object.__setattr__(self, "value_head_dim", self.head_dim)
        if (self.kind == "sliding") != (self.window > 0):
            raise ModelError(
                f"key 'window': {self.window} should be positive for kind 'sliding' and 0 otherwise"
            )
        self._check_latent()

    def _check_latent(self) -> None:
        """Check the dimensions that only multi-head latent attention has."""
        latent = (
            self.q_lora_rank,
            self.kv_lora_rank,
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
        )
        if self.kind != "mla":
            if any(latent):
                raise ModelError(
                    "keys 'q_lora_rank', 'kv_lora_rank', 'qk_nope_head_dim' and 'qk_rope_head_dim' "
                    f"should be 0 for kind {self.kind!r}"
                )
            return
        check_size("kv_lora_rank", self.kv_lora_rank)
        if self.qk_nope_head_dim + self.qk_rope_head_dim != self.head_dim:
            raise ModelError(
                f"key 'head_dim': {self.head_dim} should be the sum of 'qk_nope_head_dim' "
                f"{self.qk_nope_head_dim} and 'qk_rope_head_dim' {self.qk_rope_head_dim}"
            )
        if self.key_value_heads != self.heads:
            raise ModelError(
                f"key 'key_value_heads': {self.key_value_heads} should be 'heads' {self.heads} "
                "for kind 'mla', which gives every query head its own key and value"
            )
        if self.qk_norm:
            raise ModelError(
                "key 'qk_norm': should be false for kind 'mla', whose latent norms are implied"
            )


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

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, MLP_KINDS)
        check_choice("activation", self.activation, ACTIVATIONS)
        for key in ("gated", "bias", "shared_expert_gate", "router_bias"):
            check_flag(key, getattr(self, key))
        routed = (
            "experts",
            "experts_per_token",
            "expert_intermediate_size",
            "shared_intermediate_size",
        )
        limits = ("expert_groups", "expert_groups_per_token")
        for key in ("intermediate_size", *routed, *limits):
            check_size(key, getattr(self, key), minimum=0)
        if self.kind == "dense":
            check_size("intermediate_size", self.intermediate_size)
            for key in (*routed, *limits, "shared_expert_gate", "router_bias"):
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


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One transformer layer.

    Attributes
    ----------
    attention : AttentionSpec
    mlp : MlpSpec
    norm : {"rms", "layer", "layer_no_bias"}
        RMS norm, layer norm with weight and bias, layer norm with weight only.
    norms : int
        Norms over the hidden size: 2 in Llama, 4 in Gemma 2 and 3.
    parallel_block : bool
        Attention and feed-forward read the same input (GPT-J, PaLM).
    """

    attention: AttentionSpec
    mlp: MlpSpec
    norm: str = "rms"
    norms: int = 2
    parallel_block: bool = False

    def __post_init__(self) -> None:
        check_choice("norm", self.norm, NORMS)
        check_size("norms", self.norms, minimum=0)
        check_flag("parallel_block", self.parallel_block)


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, split the way that sharding splits them.

    Attributes
    ----------
    attention : int
        Projections, their biases, norms of queries and keys, sinks.
    mlp_dense : int
        The dense block, or the shared expert and its gate.
    experts : int
        All routed experts together.
    router : int
        Router matrix and bias.
    norms : int
        Norms over the hidden size.
    """

    attention: int
    mlp_dense: int
    experts: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.attention + self.mlp_dense + self.experts + self.router + self.norms


def norm_parameters(norm: str, hidden_size: int) -> int:
    """Parameters of one norm over `hidden_size` numbers."""
    return hidden_size * (2 if norm == "layer" else 1)


def attention_parameters(layer: LayerSpec, hidden_size: int) -> int:
    """Parameters of the attention block, without the norms over the hidden size.

    Notes
    -----
    Grouped-query attention: ``h (a d + g d + g v) + a v h``. Multi-head latent
    attention: ``h r_q + r_q + r_q a d`` for queries (``h a d`` without low rank),
    ``h (r_kv + d_rope) + r_kv + r_kv a (d_nope + v)`` for keys and values, and
    ``a v h`` for the output (arXiv:2405.04434, section 2.1 and appendix C); the
    lone ``r`` terms are the latent norms.
    """
    spec = layer.attention
    h, a, g, d, v = (
        hidden_size,
        spec.heads,
        spec.key_value_heads,
        spec.head_dim,
        spec.value_head_dim,
    )
    output = a * v * h + (h if spec.output_bias else 0)
    sinks = a if spec.sinks else 0
    if spec.kind == "mla":
        rank_q, rank_kv = spec.q_lora_rank, spec.kv_lora_rank
        if rank_q:
            query = h * rank_q + rank_q + rank_q * a * d
        else:
            query = h * a * d
        latent_width = rank_kv + spec.qk_rope_head_dim
        key_value = h * latent_width + rank_kv + rank_kv * a * (spec.qk_nope_head_dim + v)
        # Only the projections into latent space carry biases (modeling_deepseek.py).
        bias = rank_q + latent_width if spec.qkv_bias else 0
        return query + key_value + bias + output + sinks
    width = a * d + g * d + g * v
    projections = h * width + (width if spec.qkv_bias else 0)
    if not spec.qk_norm:
        qk_norms = 0
    elif spec.qk_norm_scope == "head":
        qk_norms = 2 * d
    else:
        qk_norms = (a + g) * d
    return projections + output + qk_norms + sinks


def expert_parameters(layer: LayerSpec, hidden_size: int) -> int:
    """Parameters of one routed expert; 0 in a dense layer."""
    mlp = layer.mlp
    if mlp.kind != "moe":
        return 0
    return _block(mlp, hidden_size, mlp.expert_intermediate_size)


def mlp_parameters(layer: LayerSpec, hidden_size: int) -> tuple[int, int, int]:
    """Parameters of the feed-forward block: dense part, routed experts, router.

    Returns
    -------
    dense, experts, router : int
        The dense part is the whole block of a dense layer, and the shared expert with
        its gate otherwise; `experts` counts all routed experts.
    """
    mlp = layer.mlp
    if mlp.kind == "dense":
        return _block(mlp, hidden_size, mlp.intermediate_size), 0, 0
    shared = 0
    if mlp.shared_intermediate_size:
        shared = _block(mlp, hidden_size, mlp.shared_intermediate_size)
        shared += hidden_size if mlp.shared_expert_gate else 0
    router = hidden_size * mlp.experts + (mlp.experts if mlp.router_bias else 0)
    return shared, mlp.experts * expert_parameters(layer, hidden_size), router


def layer_parameters(layer: LayerSpec, hidden_size: int) -> LayerParameters:
    """Parameters of a layer, split by part.

    Parameters
    ----------
    layer : LayerSpec
        The layer.
    hidden_size : int
        Width h of the residual stream.
    """
    dense, experts, router = mlp_parameters(layer, hidden_size)
    return LayerParameters(
        attention=attention_parameters(layer, hidden_size),
        mlp_dense=dense,
        experts=experts,
        router=router,
        norms=layer.norms * norm_parameters(layer.norm, hidden_size),
    )


def active_layer_parameters(layer: LayerSpec, hidden_size: int) -> int:
    """Parameters of a layer that one token meets: the idle experts left out."""
    parts = layer_parameters(layer, hidden_size)
    visited = layer.mlp.experts_per_token * expert_parameters(layer, hidden_size)
    return parts.total - parts.experts + visited


def _block(mlp: MlpSpec, hidden_size: int, width: int) -> int:
    """Parameters of one feed-forward block of the given width."""
    matrices = (3 if mlp.gated else 2) * hidden_size * width
    biases = (2 if mlp.gated else 1) * width + hidden_size
    return matrices + (biases if mlp.bias else 0)
