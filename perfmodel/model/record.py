"""A model from the record of it that results keep (`dataclasses.asdict` of a `ModelSpec`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.layers import AttentionSpec, LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec


def model_from_record(record: Mapping[str, Any]) -> ModelSpec:
    """Return the model that a record describes.

    Parameters
    ----------
    record : mapping
        As `dataclasses.asdict` makes it, perhaps through JSON.

    Raises
    ------
    ModelError
        It is no such record.
    """
    try:
        fields = dict(record)
        for key in ("layers", "mtp_layers"):
            fields[key] = tuple(_layer(layer) for layer in fields[key])
        return ModelSpec(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"no record of a model: {error}") from None


def _layer(record: Mapping[str, Any]) -> LayerSpec:
    fields = dict(record)
    fields["attention"] = AttentionSpec(**fields["attention"])
    fields["mlp"] = MlpSpec(**fields["mlp"])
    return LayerSpec(**fields)
