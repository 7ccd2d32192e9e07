"""One layer: mixers, feed-forward blocks, norms and residual streams, and its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.mlp import MlpSpec
from perfmodel.model.pieces import (
    Piece,
    Pieces,
    check_choice,
    check_flag,
    check_pieces,
    check_size,
    matrix,
    vector,
)
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec

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
