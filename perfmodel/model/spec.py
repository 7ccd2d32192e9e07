"""`ModelSpec`: a whole model as facts about its architecture, and its parameter counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.base.notebook import facts_html
from perfmodel.base.units import format_si
from perfmodel.model.checks import check_choice, check_flag, check_size
from perfmodel.model.layers import (
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    active_layer_parameters,
    layer_parameters,
    norm_parameters,
)

POSITION_EMBEDDINGS = ("rope", "learned", "alibi", "none")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model.

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
        One layer per multi-token-prediction module. A module also holds a projection
        2h -> h and three norms; token table and output matrix are the main model's
        (DeepSeek-V3, arXiv:2412.19437, section 2.2).
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
        if not self.layers:
            raise ModelError("key 'layers': a model should have at least one layer")

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
            heads = f"{layer.attention.heads} heads over {layer.attention.key_value_heads} of keys"
            mlp = f"width {layer.mlp.intermediate_size or layer.mlp.expert_intermediate_size}"
            experts = f", {layer.mlp.experts} experts" if layer.mlp.experts else ""
            facts.append((f"{index.count(number)} layers", f"{heads}; {mlp}{experts}"))
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
        index = tuple(seen.setdefault(layer, len(seen)) for layer in self.layers)
        return tuple(seen), index

    def embedding_parameters(self) -> int:
        """Parameters ahead of the first layer: token table, learned positions, their norm."""
        rows = self.vocab_size
        rows += self.max_positions if self.position_embedding == "learned" else 0
        norm = norm_parameters(self.layers[0].norm, self.hidden_size) if self.embedding_norm else 0
        return rows * self.hidden_size + norm

    def output_parameters(self) -> int:
        """Parameters of the output matrix and its bias; a tied matrix counts 0."""
        matrix = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return matrix + (self.vocab_size if self.lm_head_bias else 0)

    def final_norm_parameters(self) -> int:
        """Parameters of the norm ahead of the output matrix."""
        return norm_parameters(self.layers[-1].norm, self.hidden_size) if self.final_norm else 0

    def mtp_parameters(self) -> int:
        """Parameters of all multi-token-prediction modules, shared tables left out."""
        return sum(
            layer_parameters(layer, self.hidden_size).total + self._mtp_extra(layer)
            for layer in self.mtp_layers
        )

    def parameter_count(self, include_mtp: bool = False) -> int:
        """Return the number of parameters.

        Parameters
        ----------
        include_mtp : bool
            Count the multi-token-prediction modules too. Published totals leave them out.
        """
        layers = sum(layer_parameters(layer, self.hidden_size).total for layer in self.layers)
        return (
            self.embedding_parameters()
            + layers
            + self.final_norm_parameters()
            + self.output_parameters()
            + (self.mtp_parameters() if include_mtp else 0)
        )

    def active_parameter_count(
        self, include_mtp: bool = False, include_embeddings: bool = True
    ) -> int:
        """Return the number of parameters that one token meets.

        Parameters
        ----------
        include_mtp : bool
            Count the multi-token-prediction modules too.
        include_embeddings : bool
            Count what lies ahead of the first layer. Without it the output matrix still
            counts, tied or not, since every token is multiplied by it (the convention
            of the GPT-OSS model card).
        """
        layers = self.layers + (self.mtp_layers if include_mtp else ())
        active = sum(active_layer_parameters(layer, self.hidden_size) for layer in layers)
        if include_mtp:
            active += sum(self._mtp_extra(layer) for layer in self.mtp_layers)
        active += self.final_norm_parameters() + self.output_parameters()
        if include_embeddings:
            return active + self.embedding_parameters()
        return active + (self.vocab_size * self.hidden_size if self.tied_embeddings else 0)

    def with_vocab_padding(self, multiple: int) -> ModelSpec:
        """Return the model with its vocabulary padded up to a multiple.

        Megatron-LM pads to a multiple of 128 times the tensor-parallel degree.
        """
        check_size("multiple", multiple)
        return replace(self, vocab_size=-(-self.vocab_size // multiple) * multiple)

    def _mtp_extra(self, layer: LayerSpec) -> int:
        """Parameters of a multi-token-prediction module beside its layer."""
        projection = 2 * self.hidden_size * self.hidden_size
        return projection + 3 * norm_parameters(layer.norm, self.hidden_size)


def model_from_dict(document: Mapping[str, Any]) -> ModelSpec:
    """Return the model that `dataclasses.asdict` described.

    Raises
    ------
    ModelError
        The document is not a complete model.
    """

    def layers(key: str) -> tuple[LayerSpec, ...]:
        return tuple(
            LayerSpec(
                **{
                    **layer,
                    "attention": AttentionSpec(**layer["attention"]),
                    "mlp": MlpSpec(**layer["mlp"]),
                }
            )
            for layer in document[key]
        )

    try:
        return ModelSpec(
            **{**document, "layers": layers("layers"), "mtp_layers": layers("mtp_layers")}
        )
    except (KeyError, TypeError) as error:
        raise ModelError(f"model document: not a complete model ({error})") from None
