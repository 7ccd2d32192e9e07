"""Pieces: the matrices, vectors, convolutions and tables that a model is made of.

Every part of a layer lists its pieces once. Parameters, FLOP and what tensor parallelism
shards follow from that list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.base.errors import ModelError

SIZE_LIMIT = 10**9  # far above any real size, and its products still fit in 64 bits
LAYER_LIMIT = 10_000  # far above any real depth, and a tuple of so many is still small


def check_size(key: str, value: object, *, minimum: int = 1, limit: int = SIZE_LIMIT) -> None:
    """Refuse anything but an integer from `minimum` to `limit`.

    Parameters
    ----------
    key : str
        Name of the field, as the user knows it.
    value : object
        What stands there. ``True`` and ``1.0`` are not sizes.
    minimum : int
        Smallest value allowed: 1 for sizes, 0 where zero means "none".
    limit : int
        Largest value allowed.
    """
    wanted = "a positive integer" if minimum == 1 else f"an integer of at least {minimum}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"key {key!r}: {value!r} should be {wanted}")
    if value < minimum:
        raise ModelError(f"key {key!r}: {value} should be {wanted}")
    if value > limit:
        raise ModelError(f"key {key!r}: {value} should be at most {limit}")


def check_flag(key: str, value: object) -> None:
    """Refuse anything but ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise ModelError(f"key {key!r}: {value!r} should be true or false")


def check_choice(key: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a word that is not among `choices`."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise ModelError(f"key {key!r}: {value!r} should be one of {', '.join(known)}")


def check_multiple(key: str, value: int, divisor_key: str, divisor: int) -> None:
    """Refuse a `value` that `divisor` does not divide."""
    if value % divisor:
        raise ModelError(
            f"key {key!r}: {value} should be a multiple of {divisor_key!r}, which is {divisor}"
        )


def check_at_most(key: str, value: int, limit_key: str, limit: int) -> None:
    """Refuse a `value` above the `limit` that another key sets."""
    if value > limit:
        raise ModelError(f"key {key!r}: {value} should be at most {limit_key!r}, which is {limit}")


PIECE_KINDS = ("matrix", "vector", "convolution", "table")
SPLITS = ("whole", "columns", "rows")


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor of parameters, or several alike.

    Attributes
    ----------
    name : str
    kind : {"matrix", "vector", "convolution", "table"}
        A matrix multiplies every token; a vector scales or shifts (norms, decays, sinks); a
        convolution is causal and depthwise; a table is looked up.
    inputs : int
        Input features of a matrix, taps of a convolution, rows of a table; 1 for a vector.
    outputs : int
        Output features, channels, width of a row, length of a vector.
    bias : bool
        One number more per output.
    split : {"whole", "columns", "rows"}
        How tensor parallelism cuts it: not at all, by its outputs (column-parallel), or by
        its inputs (row-parallel, its bias stays whole).
    copies : int
        Equal tensors, such as routed experts.
    visited : int
        Copies that one token meets; 0 when given means all.
    """

    name: str
    kind: str = "matrix"
    inputs: int = 1
    outputs: int = 1
    bias: bool = False
    split: str = "whole"
    copies: int = 1
    visited: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ModelError(f"key 'name': {self.name!r} should be the name of a piece")
        check_choice("kind", self.kind, PIECE_KINDS)
        check_choice("split", self.split, SPLITS)
        check_flag("bias", self.bias)
        for key in ("inputs", "outputs", "copies"):
            check_size(key, getattr(self, key))
        check_at_most("visited", self.visited, "copies", self.copies)
        if self.visited == 0:
            object.__setattr__(self, "visited", self.copies)

    @property
    def weights(self) -> int:
        """Numbers of one copy, without its bias."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Numbers of all copies, biases included."""
        return self.copies * (self.weights + (self.outputs if self.bias else 0))

    @property
    def active_parameters(self) -> int:
        """Numbers that one token meets."""
        return self.parameters // self.copies * self.visited

    @property
    def products(self) -> int:
        """Multiplications by weights per token: those of visited matrices and convolutions."""
        return self.weights * self.visited if self.kind in ("matrix", "convolution") else 0

    @property
    def sharded(self) -> int:
        """Parameters that tensor parallelism cuts; the others are on every rank."""
        if self.split == "whole":
            return 0
        biases = self.outputs if self.bias and self.split == "columns" else 0
        return self.copies * (self.weights + biases)


Pieces = tuple[Piece, ...]


def matrix(name: str, inputs: int, outputs: int, split: str, bias: bool = False) -> Piece:
    """Return a matrix of `inputs` x `outputs`."""
    return Piece(name, "matrix", inputs, outputs, bias, split)


def vector(name: str, size: int, split: str = "whole") -> Piece:
    """Return a vector of `size` numbers."""
    return Piece(name, "vector", 1, size, False, split)


def parameters_of(pieces: Iterable[Piece]) -> int:
    """Parameters of several pieces together."""
    return sum(piece.parameters for piece in pieces)


def check_pieces(key: str, pieces: object) -> None:
    """Refuse anything but a tuple of `Piece`."""
    if not isinstance(pieces, tuple) or not all(isinstance(item, Piece) for item in pieces):
        raise ModelError(f"key {key!r}: should be a tuple of Piece")
