"""Weights as they are published: number formats by place, and their bytes with scales.

What a checkpoint holds, and what serving holds of it; training keeps a precision of its own
(`perfmodel.strategy.fields`).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import Piece, check_choice, check_size

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


def place_of(where: str, piece: Piece) -> str:
    """Return the place of a piece, by that of its layer's list."""
    if where != "mlp_dense":
        return where
    return "shared" if piece.name.startswith("shared_") else "mlp"
