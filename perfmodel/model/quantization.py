"""Weights as they are published: number formats by place, and their bytes with scales.

What a checkpoint holds, and what serving holds of it; training keeps a precision of its own
(`perfmodel.strategy.fields`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import Piece, check_choice, check_size

if TYPE_CHECKING:
    from perfmodel.model.layers import LayerSpec
    from perfmodel.model.spec import ModelSpec

PLACES = ("attention", "recurrence", "mlp", "shared", "experts", "router", "embedding", "output")
"""Where matrices stand: "mlp" is a dense block, "shared" the experts that every token visits."""
WIDE_BYTES = 2.0
"""One number that no quantisation names [B]."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the numbers of a matrix are stored.

    Attributes
    ----------
    name : str
        "fp8", "mxfp8", "mxfp4", "nvfp4", "int8" or "int4".
    bits : int
        One number, scales apart.
    rows, columns : int
        Inputs and outputs that share a scale; 0 for all of a matrix.
    scale_bytes : float
        One scale, with its zero point where there is one [B].
    products : str
        Format of the products (`perfmodel.base.precisions.FORMATS`): "bf16" where only the
        weights are narrow.
    """

    name: str
    bits: int
    rows: int = 0
    columns: int = 0
    scale_bytes: float = 0.0
    products: str = "bf16"

    def __post_init__(self) -> None:
        check_size("bits", self.bits)
        check_size("rows", self.rows, minimum=0)
        check_size("columns", self.columns, minimum=0)

    def takes(self, piece: Piece) -> bool:
        """Whether a piece can be stored so: a matrix no smaller than the block of a scale."""
        return (
            piece.kind == "matrix" and piece.inputs >= self.rows and piece.outputs >= self.columns
        )

    def bytes_of(self, piece: Piece) -> float:
        """Bytes of a piece, its biases in 16 bits."""
        down = -(-piece.inputs // self.rows) if self.rows else 1
        across = -(-piece.outputs // self.columns) if self.columns else 1
        biases = WIDE_BYTES * piece.outputs if piece.bias else 0.0
        matrix = piece.weights * self.bits / 8 + down * across * self.scale_bytes
        return piece.copies * (matrix + biases)


@dataclass(frozen=True, slots=True)
class PlaceFormat:
    """The format of the matrices at one place.

    Attributes
    ----------
    place : str
        One of `PLACES`.
    format : WeightFormat
    layers : tuple of int
        Layers for which it holds, those of multi-token-prediction modules behind the others;
        empty for all.
    """

    place: str
    format: WeightFormat
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("place", self.place, PLACES)
        if not isinstance(self.format, WeightFormat):
            raise ModelError(f"key 'format': {self.format!r} should be a WeightFormat")


@dataclass(frozen=True, slots=True)
class QuantizationSpec:
    """Which matrices are published in fewer than 16 bits.

    Attributes
    ----------
    method : str
        As ``quantization_config`` calls it.
    places : tuple of PlaceFormat
        What it names; everything else is in 16 bits.
    """

    method: str
    places: tuple[PlaceFormat, ...]

    def at(self, place: str, layer: int = 0) -> WeightFormat | None:
        """Return the format at a place of a layer; None for 16 bits."""
        for item in self.places:
            if item.place == place and (not item.layers or layer in item.layers):
                return item.format
        return None

    def text(self) -> str:
        """Return it in words, such as "fp8 in blocks of 128 x 128: attention, experts"."""
        found: dict[WeightFormat, list[str]] = {}
        for item in self.places:
            some = f" of {len(item.layers)} layers" if item.layers else ""
            found.setdefault(item.format, []).append(item.place + some)
        parts = (f"{_words(key)}: {', '.join(places)}" for key, places in found.items())
        return "; ".join(parts)


def _words(item: WeightFormat) -> str:
    if item.rows and item.columns > 1:
        return f"{item.name} in blocks of {item.rows} x {item.columns}"
    return f"{item.name} in groups of {item.rows}" if item.rows else item.name


def places_of(model: ModelSpec) -> frozenset[str]:
    """Return where a model has matrices."""
    layers = dict.fromkeys((*model.layers, *model.mtp_layers))
    found = (
        place_of(where, piece)
        for layer in layers
        for where, piece in layer.pieces(model.hidden_size)
        if piece.kind == "matrix"
    )
    return frozenset((*found, "embedding", "output")) & frozenset(PLACES)


def weight_bytes(model: ModelSpec) -> dict[str, float]:
    """Bytes of a model's weights as published, scales included, by place [B].

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
    for index, layer in enumerate((*model.layers, *model.mtp_layers)):
        formats = _formats(model.quantization, index)
        key = (id(layer), formats)
        if key not in known:
            known[key] = tuple(_layer_bytes(layer, model.hidden_size, dict(formats)))
        for place, count in known[key]:
            add(place if index < model.num_layers else "multi_token_prediction", count)
    for layer in model.mtp_layers:
        add("multi_token_prediction", WIDE_BYTES * model.mtp_extra(layer))
    for place, count in (
        ("embedding", model.embedding_parameters()),
        ("output", model.output_parameters()),
    ):
        item = model.quantization.at(place) if model.quantization else None
        piece = Piece(place, "matrix", model.table_width, max(count // model.table_width, 1))
        add(place, item.bytes_of(piece) if item and count else WIDE_BYTES * count)
    add("norms", WIDE_BYTES * model.final_norm_parameters())
    add("extra", WIDE_BYTES * model.edge_parameters())
    add("encoder", WIDE_BYTES * sum(tower.parameter_count() for tower in model.encoders))
    return {place: count for place, count in found.items() if count}


def _formats(
    quantization: QuantizationSpec | None, layer: int
) -> tuple[tuple[str, WeightFormat | None], ...]:
    if quantization is None:
        return ()
    return tuple((place, quantization.at(place, layer)) for place in PLACES)


def place_of(where: str, piece: Piece) -> str:
    """Return the place of a piece, by that of its layer's list."""
    if where != "mlp_dense":
        return where
    return "shared" if piece.name.startswith("shared_") else "mlp"


def _layer_bytes(
    layer: LayerSpec, hidden_size: int, formats: dict[str, WeightFormat | None]
) -> Iterator[tuple[str, float]]:
    for where, piece in layer.pieces(hidden_size):
        place = place_of(where, piece)
        item = formats.get(place)
        narrow = item is not None and item.takes(piece)
        yield place, item.bytes_of(piece) if item and narrow else WIDE_BYTES * piece.parameters
