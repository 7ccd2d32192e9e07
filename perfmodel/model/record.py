"""A model from the record of it that results keep (`dataclasses.asdict` of a `ModelSpec`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.layers import LayerSpec, Mixer
from perfmodel.model.mlp import MlpSpec
from perfmodel.model.pieces import Piece, Pieces
from perfmodel.model.quantization import PlaceFormat, QuantizationSpec, WeightFormat
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.model.tower import TowerSpec

_MIXERS = (AttentionSpec, RecurrenceSpec, ShortConvolutionSpec)


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
        return ModelSpec(
            **{
                **record,
                "layers": _layers(record["layers"]),
                "mtp_layers": _layers(record["mtp_layers"]),
                "extra": _pieces(record["extra"]),
                "towers": tuple(
                    TowerSpec(
                        **{
                            **tower,
                            "layers": _layers(tower["layers"]),
                            "extra": _pieces(tower["extra"]),
                        }
                    )
                    for tower in record["towers"]
                ),
                "quantization": _quantization(record["quantization"]),
                "adapters": _adapters(record.get("adapters")),
                "remarks": tuple(record["remarks"]),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"no record of a model: {error}") from None


def _adapters(record: Mapping[str, Any] | None) -> AdapterSpec | None:
    """Adapters; records of models before there were any name none."""
    return record and AdapterSpec(**{**record, "targets": tuple(record["targets"])})  # type: ignore[return-value]


def _quantization(record: Mapping[str, Any] | None) -> QuantizationSpec | None:
    if record is None:
        return None
    places = tuple(
        PlaceFormat(item["place"], WeightFormat(**item["format"]), tuple(item["layers"]))
        for item in record["places"]
    )
    return QuantizationSpec(record["method"], places)


def _layers(records: Iterable[Mapping[str, Any]]) -> tuple[LayerSpec, ...]:
    return tuple(
        LayerSpec(
            **{
                **record,
                "mixers": tuple(_mixer(part) for part in record["mixers"]),
                "mlps": tuple(MlpSpec(**_with_pieces(part)) for part in record["mlps"]),
                "extra": _pieces(record["extra"]),
            }
        )
        for record in records
    )


def _mixer(record: Mapping[str, Any]) -> Mixer:
    """Return the mixer whose fields the record names."""
    for kind in _MIXERS:
        if {field.name for field in dataclasses.fields(kind)} == set(record):
            fields = _with_pieces(record)
            for key, spec in (("indexer", IndexerSpec), ("compression", CompressionSpec)):
                if fields.get(key) is not None:
                    fields[key] = spec(**fields[key])
            return kind(**fields)
    raise KeyError(f"a mixer with the keys {', '.join(sorted(record))}")


def _with_pieces(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "extra": _pieces(record["extra"])}


def _pieces(records: Iterable[Mapping[str, Any]]) -> Pieces:
    return tuple(Piece(**record) for record in records)
