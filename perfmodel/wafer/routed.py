"""Which experts the tokens of every layer go to, read from a file or drawn."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError


@dataclass(frozen=True)
class RoutedTokens:
    """Experts of every token in the layers that have experts.

    Attributes
    ----------
    experts : array of int, shape (layers, sequences, length, top_k)
        Layers with experts, first to last; one layer stands for all where only one is given.
    num_experts : int
    """

    experts: Integers
    num_experts: int

    def __post_init__(self) -> None:
        if self.experts.ndim != 4:
            raise DataError(
                "routing: an array of layers x sequences x length x experts per token should "
                f"have 4 dimensions, not {self.experts.ndim}"
            )
        if self.experts.size and (self.experts.min() < 0 or self.experts.max() >= self.num_experts):
            raise DataError(f"routing: experts should be 0 to {self.num_experts - 1}")
        ordered = self.experts.copy()
        ordered.sort(axis=3)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise DataError("routing: a token names the same expert twice")

    def of_layer(self, layer: int) -> Integers:
        """Return the experts of a layer with experts, shape (sequences, length, top_k)."""
        return self.experts[layer if len(self.experts) > 1 else 0]
