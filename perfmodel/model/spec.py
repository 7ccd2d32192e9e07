"""`ModelSpec`: a whole model as facts about its architecture, and its parameter counts.

Towers are stacks of layers beside the language model: vision towers and encoders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from perfmodel.base.errors import ModelError
from perfmodel.base.facts import Run
from perfmodel.base.units import counted, facts_html, format_si
from perfmodel.model.adapters import AdapterSpec, check_targets, fitted
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import (
    LayerSpec,
    MlpSpec,
    active_layer_parameters,
    describe_layer,
    layer_parameters,
    norm_parameters,
    stream_gates,
)
from perfmodel.model.pieces import (
    Piece,
    Pieces,
    check_choice,
    check_flag,
    check_pieces,
    check_size,
    matrix,
    parameters_of,
    vector,
)
from perfmodel.model.quantization import (
    PLACES,
    WIDE_BYTES,
    QuantizationSpec,
    WeightFormat,
    place_of,
)
from perfmodel.model.recurrence import RecurrenceSpec


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A stack of layers with a width and a sequence length of its own.

    Attributes
    ----------
    name : str
        "vision", "audio" or "encoder".
    hidden_size : int
        Width of its residual stream.
    layers : tuple of LayerSpec
    tokens : int
        Tokens of one sequence (patches of its images); 0 for as many as the language model
        has, as in an encoder-decoder.
    final_norm : bool
        A norm follows the last layer.
    extra : tuple of Piece
        Patch embedding, positions and projector.
    """

    name: str
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    tokens: int = 0
    final_norm: bool = False
    extra: Pieces = ()

    def __post_init__(self) -> None:
        check_size("hidden_size", self.hidden_size)
        check_size("tokens", self.tokens, minimum=0)
        check_flag("final_norm", self.final_norm)
        check_pieces("extra", self.extra)
        if not isinstance(self.layers, tuple) or not all(
            isinstance(layer, LayerSpec) for layer in self.layers
        ):
            raise ModelError("key 'layers': should be a tuple of LayerSpec")

    def parameter_count(self) -> int:
        """Parameters of the tower."""
        layers = sum(layer_parameters(layer, self.hidden_size).total for layer in self.layers)
        return layers + self._edges()

    def active_parameter_count(self) -> int:
        """Parameters that one of its tokens meets."""
        layers = sum(active_layer_parameters(layer, self.hidden_size) for layer in self.layers)
        return layers + self._edges()

    def _edges(self) -> int:
        norm = norm_parameters(self.layers[-1].norm, self.hidden_size) if self.layers else 0
        return parameters_of(self.extra) + (norm if self.final_norm else 0)


POSITION_EMBEDDINGS = ("rope", "learned", "alibi", "none")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A language model: a stack of layers between token table and output matrix.

    Attributes
    ----------
    name : str
    family : str
        Architecture family, such as "llama".
    hidden_size : int
        Width h of the residual stream.
    vocab_size : int
        Rows of the token table, as stored (padding that the checkpoint has included).
    layers : tuple of LayerSpec
        All layers, first to last.
    tied_embeddings : bool
        The output matrix is the token table.
    position_embedding : {"rope", "learned", "alibi", "none"}
    max_positions : int
        Rows of the learned table; for the others the longest context stated, or 0.
    embedding_norm : bool
        A norm follows the token table (BLOOM).
    final_norm : bool
        A norm precedes the output matrix.
    lm_head_bias : bool
        The output matrix has a bias.
    mtp_layers : tuple of LayerSpec
        One layer per multi-token-prediction module that is trained and counted. A module
        also holds a projection 2h -> h and three norms; token table and output matrix are
        the main model's (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    embedding_width : int
        Width of the token table where it is not h: two matrices lead to and from h
        (OPT-350m); 0 for h.
    stream_head : bool
        Several residual streams are mixed by weights at the end, and not only summed.
    extra : tuple of Piece
        What else stands beside the layers; tables are ahead of the first layer.
    towers : tuple of TowerSpec
        Encoder, vision tower: stacks with a sequence length of their own.
    quantization : QuantizationSpec or None
        Matrices that are published in fewer than 16 bits. Training keeps its own precision.
    adapters : AdapterSpec or None
        Low-rank adapters that are trained beside frozen weights; None: all weights are trained.
        Counts of parameters and FLOP of the model itself leave them out.
    remarks : tuple of str
        What whoever uses the model should know of how it was read, a sentence each.
    source : str
        Where the figures are from.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool = False
    position_embedding: str = "rope"
    max_positions: int = 0
    embedding_norm: bool = False
    final_norm: bool = True
    lm_head_bias: bool = False
    mtp_layers: tuple[LayerSpec, ...] = ()
    embedding_width: int = 0
    stream_head: bool = True
    extra: Pieces = ()
    towers: tuple[TowerSpec, ...] = ()
    quantization: QuantizationSpec | None = None
    adapters: AdapterSpec | None = None
    remarks: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        check_size("hidden_size", self.hidden_size)
        check_size("vocab_size", self.vocab_size)
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        check_size(
            "max_positions",
            self.max_positions,
            minimum=1 if self.position_embedding == "learned" else 0,
        )
        for key in ("tied_embeddings", "embedding_norm", "final_norm", "lm_head_bias"):
            check_flag(key, getattr(self, key))
        for key in ("layers", "mtp_layers"):
            value = getattr(self, key)
            if not isinstance(value, tuple) or not all(isinstance(x, LayerSpec) for x in value):
                raise ModelError(f"key {key!r}: should be a tuple of LayerSpec")
        check_size("embedding_width", self.embedding_width, minimum=0)
        check_pieces("extra", self.extra)
        if not self.layers:
            raise ModelError("key 'layers': a model should have at least one layer")
        if self.adapters is not None:
            encoders = (layer for tower in self.encoders for layer in tower.layers)
            check_targets(self.adapters, (*self.layer_kinds()[0], *encoders))

    def __repr__(self) -> str:
        count = format_si(float(self.parameter_count()))
        return f"<ModelSpec {self.name}: {count} parameters, {self.num_layers} layers>"

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [
            ("parameters", f"{self.parameter_count():,}"),
            ("layers", self.num_layers),
            ("hidden size", self.hidden_size),
            ("vocabulary", self.vocab_size),
        ]
        kinds, index = self.layer_kinds()
        for number, layer in enumerate(kinds):
            facts.append((f"{index.count(number)} layers", describe_layer(layer)))
        return facts_html(f"{self.name} ({self.family})", facts)

    @property
    def num_layers(self) -> int:
        """Number of layers, multi-token-prediction modules left out."""
        return len(self.layers)

    def layer_kinds(self) -> tuple[tuple[LayerSpec, ...], tuple[int, ...]]:
        """Return the distinct layers and, for each layer, which of them it is.

        Returns
        -------
        distinct : tuple of LayerSpec
            In the order of first appearance.
        index : tuple of int
            One entry per layer, into `distinct`.
        """
        seen: dict[LayerSpec, int] = {}
        objects = {id(layer): layer for layer in self.layers}  # few: hashes of layers take time
        kinds = {name: seen.setdefault(layer, len(seen)) for name, layer in objects.items()}
        return tuple(seen), tuple(kinds[id(layer)] for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether any layer has routed experts, an encoder's included."""
        encoders = (layer for tower in self.encoders for layer in tower.layers)
        return any(layer.experts for layer in (*self.layer_kinds()[0], *encoders))

    @property
    def has_sinks(self) -> bool:
        """Whether the softmax of any layer has a learned logit besides those of keys."""
        kinds = self.layer_kinds()[0]
        return any(part.sinks for layer in kinds for part in layer.attentions)

    @property
    def streams(self) -> int:
        """Residual streams between the layers; 1 without hyper-connections."""
        return max(layer.streams for layer in self.layers)

    @property
    def table_width(self) -> int:
        """Width of a row of the token table and of the output matrix."""
        return self.embedding_width or self.hidden_size

    def edge_pieces(self) -> Pieces:
        """Return what stands beside the layers but for token table, norms and output matrix.

        Residual streams are summed by learned weights behind the last layer (DeepSeek-V4:
        a matrix m h -> m, m offsets and a scale; Qwen4-Exp: gates through a low rank).
        """
        found = list(self.extra)
        if self.embedding_width:
            found.append(matrix("embedding_up", self.embedding_width, self.hidden_size, "whole"))
            found.append(matrix("embedding_down", self.hidden_size, self.embedding_width, "whole"))
        if self.streams > 1 and self.stream_head:
            m, rank = self.streams, self.layers[-1].stream_rank
            if rank:
                found += stream_gates(m * self.hidden_size, rank)
            else:
                found.append(matrix("stream_head", m * self.hidden_size, m, "whole"))
                found.append(vector("stream_head_offsets", m + 1))
        return tuple(found)

    def embedding_parameters(self) -> int:
        """Parameters ahead of the first layer: tables, learned positions, their norm."""
        positions = self.max_positions if self.position_embedding == "learned" else 0
        norm = norm_parameters(self.layers[0].norm, self.hidden_size) if self.embedding_norm else 0
        tables = parameters_of(piece for piece in self.extra if piece.kind == "table")
        rows = self.vocab_size * self.table_width + positions * self.hidden_size
        return rows + norm + tables

    def output_parameters(self) -> int:
        """Parameters of the output matrix and its bias; a tied matrix counts 0."""
        matrix = 0 if self.tied_embeddings else self.vocab_size * self.table_width
        return matrix + (self.vocab_size if self.lm_head_bias else 0)

    def edge_parameters(self) -> int:
        """Parameters of `edge_pieces`, tables left out."""
        return parameters_of(piece for piece in self.edge_pieces() if piece.kind != "table")

    def final_norm_parameters(self) -> int:
        """Parameters of the norm ahead of the output matrix."""
        return norm_parameters(self.layers[-1].norm, self.hidden_size) if self.final_norm else 0

    def mtp_parameters(self) -> int:
        """Parameters of all multi-token-prediction modules, shared tables left out."""
        return sum(
            layer_parameters(layer, self.hidden_size).total + self.mtp_extra(layer)
            for layer in self.mtp_layers
        )

    @property
    def encoders(self) -> tuple[TowerSpec, ...]:
        """Stacks that are half of an encoder-decoder: their parameters are the model's."""
        return tuple(tower for tower in self.towers if tower.name == "encoder")

    def parameter_count(self) -> int:
        """Return the number of parameters, those of `mtp_layers` and `encoders` among them."""
        layers = self._sum(
            self.layers, lambda layer: layer_parameters(layer, self.hidden_size).total
        )
        return (
            self.embedding_parameters()
            + layers
            + self.edge_parameters()
            + self.final_norm_parameters()
            + self.output_parameters()
            + self.mtp_parameters()
            + sum(tower.parameter_count() for tower in self.encoders)
        )

    def active_parameter_count(self, include_embeddings: bool = True) -> int:
        """Return the number of parameters that one token meets, in an encoder-decoder a pair.

        Parameters
        ----------
        include_embeddings : bool
            Count what lies ahead of the first layer. Without it the output matrix still
            counts, tied or not, since every token is multiplied by it (the convention
            of the GPT-OSS model card).
        """
        layers = self.layers + self.mtp_layers
        active = self._sum(layers, lambda layer: active_layer_parameters(layer, self.hidden_size))
        active += sum(self.mtp_extra(layer) for layer in self.mtp_layers)
        active += sum(tower.active_parameter_count() for tower in self.encoders)
        active += self.final_norm_parameters() + self.output_parameters() + self.edge_parameters()
        if include_embeddings:
            return active + self.embedding_parameters()
        return active + (self.vocab_size * self.table_width if self.tied_embeddings else 0)

    def weight_bytes(self) -> dict[str, float]:
        """Bytes of the weights as published, scales included, by place [B].

        Returns
        -------
        dict of str to float
            Places as `PLACES`, then "norms", "extra", "encoder" and "multi_token_prediction";
            without the second copy of shared tables that checkpoints of such modules may hold.
        """
        found: dict[str, float] = {}

        def add(place: str, count: float) -> None:
            found[place] = found.get(place, 0.0) + count

        known: dict[object, tuple[tuple[str, float], ...]] = {}
        for index, layer in enumerate((*self.layers, *self.mtp_layers)):
            formats = _formats(self.quantization, index)
            key = (id(layer), formats)
            if key not in known:
                known[key] = tuple(_layer_bytes(layer, self.hidden_size, dict(formats)))
            for place, count in known[key]:
                add(place if index < self.num_layers else "multi_token_prediction", count)
        for layer in self.mtp_layers:
            add("multi_token_prediction", WIDE_BYTES * self.mtp_extra(layer))
        for place, count in (
            ("embedding", self.embedding_parameters()),
            ("output", self.output_parameters()),
        ):
            item = self.quantization.at(place) if self.quantization else None
            piece = Piece(place, "matrix", self.table_width, max(count // self.table_width, 1))
            add(place, item.bytes_of(piece) if item and count else WIDE_BYTES * count)
        add("norms", WIDE_BYTES * self.final_norm_parameters())
        add("extra", WIDE_BYTES * self.edge_parameters())
        add("encoder", WIDE_BYTES * sum(tower.parameter_count() for tower in self.encoders))
        return {place: count for place, count in found.items() if count}

    def matrix_precision(self, place: str, layer: int = 0) -> str:
        """Return the format of products with published weights at a place.

        Parameters
        ----------
        place : str
            One of `perfmodel.model.quantization.PLACES`.
        layer : int
            Number of the layer.

        Returns
        -------
        str
            A name of `perfmodel.base.precisions.FORMATS`.
        """
        check_choice("place", place, PLACES)
        found = self.quantization.at(place, layer) if self.quantization else None
        return found.products if found else "bf16"

    def without_mtp(self) -> ModelSpec:
        """Return the model without multi-token-prediction modules, and the remark that says so."""
        if not self.mtp_layers:
            return self
        count = len(self.mtp_layers)
        text = (
            f"{counted(count, 'multi-token-prediction module')} left out: "
            f"--mtp stated counts {'it' if count == 1 else 'them'}"
        )
        return replace(self, mtp_layers=(), remarks=(*self.remarks, text))

    def with_adapters(self, adapters: AdapterSpec | None) -> ModelSpec:
        """Return the model with adapters beside frozen weights; its name and a remark say so.

        Raises
        ------
        ModelError
            A target that no layer has.
        """
        if adapters is None:
            return self
        adapters = fitted(adapters, (*self.layers, *self.mtp_layers))
        name = f"{self.name}[{adapters.label()}]"
        remarks = (*self.remarks, f"{adapters.described()}: all other weights are frozen")
        return replace(self, name=name, adapters=adapters, remarks=remarks)

    def with_wide_layers(self, first: int, last: int) -> ModelSpec:
        """Return the model whose first and last layers keep 16-bit products in any precision.

        Megatron-Core's ``num_layers_at_start_in_bf16`` and ``…_end_…``; recipes of 4-bit training.

        Raises
        ------
        ModelError
            Fewer than none, or more than there are.
        """
        count = self.num_layers
        if first < 0 or last < 0 or first + last > count:
            raise ModelError(f"{first} first and {last} last layers in 16 bits, of {count}")
        if first + last == 0:
            return self
        wide = {id(layer): replace(layer, wide=True) for layer in self.layers}
        inside = range(first, count - last)
        layers = (it if i in inside else wide[id(it)] for i, it in enumerate(self.layers))
        return replace(self, layers=tuple(layers))

    def with_vocab_padding(self, multiple: int) -> ModelSpec:
        """Return the model with its vocabulary padded up to a multiple.

        Megatron-LM pads to a multiple of 128 times the tensor-parallel degree.
        """
        check_size("multiple", multiple)
        return replace(self, vocab_size=-(-self.vocab_size // multiple) * multiple)

    @staticmethod
    def _sum(layers: tuple[LayerSpec, ...], count: Callable[[LayerSpec], int]) -> int:
        """Sum a count over layers, once for each that stands there several times."""
        times = Counter(map(id, layers))
        return sum(times.pop(id(layer), 0) * count(layer) for layer in layers if id(layer) in times)

    def mtp_extra(self, layer: LayerSpec) -> int:
        """Return the parameters of a multi-token-prediction module beside its layer."""
        projection = 2 * self.hidden_size * self.hidden_size
        return projection + 3 * norm_parameters(layer.norm, self.hidden_size)


def _formats(
    quantization: QuantizationSpec | None, layer: int
) -> tuple[tuple[str, WeightFormat | None], ...]:
    if quantization is None:
        return ()
    return tuple((place, quantization.at(place, layer)) for place in PLACES)


def _layer_bytes(
    layer: LayerSpec, hidden_size: int, formats: dict[str, WeightFormat | None]
) -> Iterator[tuple[str, float]]:
    for where, piece in layer.pieces(hidden_size):
        place = place_of(where, piece)
        item = formats.get(place)
        narrow = item is not None and item.takes(piece)
        yield place, item.bytes_of(piece) if item and narrow else WIDE_BYTES * piece.parameters


def run_of_model(model: ModelSpec, precision: str, domain: int = 0, device: str = "") -> Run:
    """Return what facts may depend on that hold for some runs only, also on no certain machine."""
    recurrent = any(layer.recurrences for layer in model.layer_kinds()[0])
    return Run(precision, model.has_experts, domain, device, recurrent, model.has_sinks)


def head_counts(model: ModelSpec) -> list[tuple[int, int]]:
    """Return heads, and groups of them that share keys, of every kind of mixer in a model.

    Latent attention expands its keys for every head; channels of a convolution are heads.
    """
    found = set()
    for layer in distinct_layers(model):
        for part in layer.mixers:
            if isinstance(part, AttentionSpec):
                groups = part.heads if part.kind == "mla" else part.key_value_heads
                found.add((part.heads, groups))
                if part.output_groups:
                    found.add((part.output_groups, part.output_groups))
            elif isinstance(part, RecurrenceSpec):
                found.add((part.heads, part.key_heads))
            else:
                found.add((part.channels, part.channels))
    return sorted(found)


def mlps_of(model: ModelSpec) -> set[MlpSpec]:
    """Return the distinct feed-forward blocks of a model."""
    return {part for layer in distinct_layers(model) for part in layer.mlps}


def distinct_layers(model: ModelSpec) -> tuple[LayerSpec, ...]:
    """Return the distinct layers of a model, those of its encoder among them."""
    towers = (layer for tower in model.encoders for layer in tower.layers)
    return tuple(dict.fromkeys((*model.layer_kinds()[0], *towers)))
