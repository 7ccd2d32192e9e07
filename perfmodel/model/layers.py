"""One layer: mixers, feed-forward blocks, norms and residual streams; its parameters; in words.

A feed-forward block is dense or has routed experts.

Shape letters of feed-forward blocks: h hidden size, f width, e experts, l latent size of routed
experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import AttentionSpec
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
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec

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


NORMS = ("rms", "layer", "layer_no_bias", "no_weight")

Mixer = AttentionSpec | RecurrenceSpec | ShortConvolutionSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer.

    Attributes
    ----------
    mixers : tuple of AttentionSpec, RecurrenceSpec or ShortConvolutionSpec
        What exchanges information between tokens; several run side by side (Falcon-H1), and
        a layer may have none.
    mlps : tuple of MlpSpec
        Feed-forward blocks, likewise (Gemma 4 runs a dense one beside its experts).
    norm : {"rms", "layer", "layer_no_bias", "no_weight"}
        RMS norm, layer norm with weight and bias, layer norm with weight only, or a norm
        without parameters.
    norms : int
        Norms over the hidden size: 2 in Llama, 4 in Gemma 2 and 3, 1 in Mamba.
    parallel_block : bool
        Mixers and feed-forward blocks read the same input (GPT-J, PaLM).
    streams : int
        Residual streams beside each other, mixed ahead of and behind every block
        (hyper-connections, arXiv:2409.19606; DeepSeek-V4: 4); 1 for the usual one.
    stream_rank : int
        Streams are gated number by number, through a low rank (Qwen4-Exp); 0 for weights
        per stream (DeepSeek-V4).
    stream_mixing : bool
        The streams are mixed with each other too, by m x m weights; without it blocks read
        from them and write to them only (Hunyuan V4).
    extra : tuple of Piece
        What else stands in the layer.
    wide : bool
        Its products stay in 16 bits, whatever precision a strategy has.
    """

    mixers: tuple[Mixer, ...]
    mlps: tuple[MlpSpec, ...] = ()
    norm: str = "rms"
    norms: int = 2
    parallel_block: bool = False
    streams: int = 1
    stream_rank: int = 0
    stream_mixing: bool = True
    extra: Pieces = ()
    wide: bool = False

    def __post_init__(self) -> None:
        for key, kinds in (("mixers", Mixer), ("mlps", MlpSpec)):
            parts = getattr(self, key)
            if not isinstance(parts, tuple) or not all(isinstance(part, kinds) for part in parts):
                raise ModelError(f"key {key!r}: should be a tuple of the parts of a layer")
        check_choice("norm", self.norm, NORMS)
        check_size("norms", self.norms, minimum=0)
        check_flag("parallel_block", self.parallel_block)
        check_size("streams", self.streams)
        check_size("stream_rank", self.stream_rank, minimum=0)
        check_flag("stream_mixing", self.stream_mixing)
        check_flag("wide", self.wide)
        check_pieces("extra", self.extra)

    @property
    def attention(self) -> AttentionSpec:
        """The attention of a layer that has one."""
        for part in self.attentions:
            return part
        raise ModelError("key 'mixers': the layer has no attention")

    @property
    def mlp(self) -> MlpSpec:
        """The feed-forward block of a layer that has one; the one with routed experts of two."""
        for part in sorted(self.mlps, key=lambda part: part.kind == "dense"):
            return part
        raise ModelError("key 'mlps': the layer has no feed-forward block")

    @property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """Every attention among the mixers."""
        return tuple(part for part in self.mixers if isinstance(part, AttentionSpec))

    @property
    def recurrences(self) -> tuple[RecurrenceSpec, ...]:
        """Every mixer with a state."""
        return tuple(part for part in self.mixers if isinstance(part, RecurrenceSpec))

    @property
    def experts(self) -> int:
        """Routed experts of the layer; 0 in one without."""
        return sum(part.experts for part in self.mlps)

    def pieces(self, hidden_size: int) -> Iterator[tuple[str, Piece]]:
        """Yield every piece with its place, such as "attention" or "experts".

        Parameters
        ----------
        hidden_size : int
            Width h of the residual stream.

        Yields
        ------
        place, piece : str, Piece
            The place is a field of `LayerParameters`.
        """
        for mixer in self.mixers:
            place = "attention" if isinstance(mixer, AttentionSpec) else "recurrence"
            for piece in mixer.pieces(hidden_size):
                yield place, piece
        for mlp in self.mlps:
            for piece in mlp.pieces(hidden_size):
                first = piece.name.split("_")[0]
                yield {"expert": "experts", "router": "router"}.get(first, "mlp_dense"), piece
        size = norm_parameters(self.norm, hidden_size)
        if self.norms and size:
            yield "norms", vector("norms", self.norms * size)
        for piece in (*self.extra, *self._stream_pieces(hidden_size)):
            yield "extra", piece

    def _stream_pieces(self, hidden_size: int) -> Pieces:
        """Mixing of the residual streams around every block.

        DeepSeek-V4: one matrix from all m streams to the m weights in, m weights out and m x m
        weights of the streams, as many offsets, and three scales. Qwen4-Exp: a norm over all
        streams, their gates through a low rank, and m weights out. Hunyuan V4: DeepSeek-V4's
        without the m x m weights and their scale.
        """
        m = self.streams
        if m == 1:
            return ()
        blocks = len(self.mixers) + len(self.mlps)
        if self.stream_rank:
            gates = stream_gates(m * hidden_size, self.stream_rank)
            return (*gates, matrix("stream_weights", m * hidden_size, m, "whole")) * blocks
        weights = 2 * m + (m * m if self.stream_mixing else 0)
        scales = 3 if self.stream_mixing else 2
        mixing = matrix("stream_weights", m * hidden_size, weights, "whole")
        return (mixing, vector("stream_offsets", weights + scales)) * blocks


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, split the way that sharding splits them.

    Attributes
    ----------
    attention : int
        Projections, their biases, norms of queries and keys, sinks, indexers.
    recurrence : int
        The same of mixers with a state, and of short convolutions.
    mlp_dense : int
        The dense block, or the shared expert and its gate.
    experts : int
        All routed experts together.
    router : int
        Router matrix and bias.
    norms : int
        Norms over the hidden size.
    extra : int
        What else stands in the layer.
    """

    attention: int = 0
    recurrence: int = 0
    mlp_dense: int = 0
    experts: int = 0
    router: int = 0
    norms: int = 0
    extra: int = 0

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        without_experts = self.attention + self.recurrence + self.mlp_dense + self.router
        return without_experts + self.experts + self.norms + self.extra


def stream_gates(width: int, rank: int) -> Pieces:
    """Norm and low-rank gates over residual streams of a summed width (Qwen4-Exp)."""
    return (
        vector("stream_norm", width),
        matrix("stream_gate_down", width, rank, "whole"),
        matrix("stream_gate_up", rank, width, "whole"),
    )


def norm_parameters(norm: str, hidden_size: int) -> int:
    """Parameters of one norm over `hidden_size` numbers."""
    return hidden_size * {"rms": 1, "layer": 2, "layer_no_bias": 1, "no_weight": 0}[norm]


def expert_parameters(layer: LayerSpec, hidden_size: int) -> int:
    """Parameters of one routed expert; 0 in a dense layer."""
    return sum(
        piece.parameters // piece.copies
        for place, piece in layer.pieces(hidden_size)
        if place == "experts"
    )


def layer_parameters(layer: LayerSpec, hidden_size: int) -> LayerParameters:
    """Parameters of a layer, split by part.

    Parameters
    ----------
    layer : LayerSpec
        The layer.
    hidden_size : int
        Width h of the residual stream.
    """
    found: dict[str, int] = {}
    for place, piece in layer.pieces(hidden_size):
        found[place] = found.get(place, 0) + piece.parameters
    return LayerParameters(**found)


def active_layer_parameters(layer: LayerSpec, hidden_size: int) -> int:
    """Parameters of a layer that one token meets: the idle experts left out."""
    return sum(piece.active_parameters for _, piece in layer.pieces(hidden_size))


_RECURRENCES = {
    "gated_delta": "gated delta rule",
    "kimi_delta": "Kimi delta attention",
    "mamba2": "Mamba-2",
    "mamba1": "Mamba-1",
    "lightning": "lightning attention",
}


def describe_layer(layer: LayerSpec) -> str:
    """Return one line about a kind of layer: its mixers, then its feed-forward blocks."""
    mixers = " beside ".join(describe_mixer(part) for part in layer.mixers)
    mlps = " beside ".join(describe_mlp(part) for part in layer.mlps)
    text = "; ".join(part for part in (mixers, mlps) if part)
    return f"{text}; {layer.streams} residual streams" if layer.streams > 1 else text


def describe_mixer(part: Mixer) -> str:
    """Return a few words about a mixer."""
    if isinstance(part, AttentionSpec):
        return _describe_attention(part)
    if isinstance(part, RecurrenceSpec):
        name = _RECURRENCES[part.kind]
        if part.kind == "mamba1":
            return f"{name}, {part.heads:,} channels, state {part.key_dim}"
        return f"{name}, {part.heads} heads, state {part.key_dim} x {part.value_dim}"
    return f"short convolution of {part.kernel} taps"


def _describe_attention(part: AttentionSpec) -> str:
    text = f"{part.kind} attention, {part.heads} heads"
    if part.key_value_heads != part.heads:
        text += f" in {part.key_value_heads} groups"
    text += f" of {part.head_dim}"
    if part.window:
        text += f", {'chunks of' if part.kind == 'chunked' else 'window'} {part.window:,}"
    if part.compression is not None:
        text += f", 1 in {part.compression.ratio} compressed"
    if part.indexer is not None:
        text += f", {part.indexer.top_k:,} keys selected"
    if part.shared_keys:
        text += ", keys of an earlier layer"
    return text + (", keys of the encoder" if part.cross else "")


def describe_mlp(part: MlpSpec) -> str:
    """Return a few words about a feed-forward block."""
    gate = "gated " if part.gated else ""
    if part.kind == "dense":
        return f"{gate}MLP of {part.intermediate_size:,}"
    text = (
        f"{part.experts} {gate}experts of {part.expert_intermediate_size:,}, "
        f"{part.experts_per_token} per token"
    )
    if part.latent_size:
        text += f", latent {part.latent_size:,}"
    if part.shared_intermediate_size:
        text += f", shared {part.shared_intermediate_size:,}"
    return text
