"""Stacks of layers beside the language model: vision towers and encoders."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import ModelError
from perfmodel.model.layers import (
    LayerSpec,
    active_layer_parameters,
    layer_parameters,
    norm_parameters,
)
from perfmodel.model.pieces import Pieces, check_flag, check_pieces, check_size, parameters_of


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
