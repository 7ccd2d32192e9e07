"""What a model is made of: parameters by kind, layers, FLOPs per token, weights, state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.base.units import format_si
from perfmodel.model.layers import describe_layer, layer_parameters
from perfmodel.model.presets import model_from_record
from perfmodel.model.spec import ModelSpec
from perfmodel.model.state import sequence_state
from perfmodel.training.flops import adapter_parameters, model_flops_per_token


def model_facts(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    """Return what a model is made of, and its FLOPs per token of sequences of a length.

    Parameters
    ----------
    model : ModelSpec
    seq_len : int

    Returns
    -------
    dict
        Fit for JSON.
    """
    distinct, index = model.layer_kinds()
    return {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied_embeddings,
        "position_embedding": model.position_embedding,
        "max_positions": model.max_positions,
        "parameters": parameters_by_kind(model),
        "flops_per_token": {
            "sequence_length": seq_len,
            "causal": float(model_flops_per_token(model, [seq_len], causal=True)[0]),
            "non_causal": float(model_flops_per_token(model, [seq_len], causal=False)[0]),
        },
        "layers": [
            {"count": index.count(i)} | dataclasses.asdict(layer) | {"text": describe_layer(layer)}
            for i, layer in enumerate(distinct)
        ],
        "mtp_layers": len(model.mtp_layers),
        "adapters": _adapters(model),
        "towers": [
            {
                "name": tower.name,
                "parameters": tower.parameter_count(),
                "layers": len(tower.layers),
                "hidden_size": tower.hidden_size,
            }
            for tower in model.towers
        ],
        "weights": _weights(model),
        "sequence": _sequence(model, seq_len),
        "remarks": list(model.remarks),
    }


def _sequence(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Return what serving keeps of one sequence, beside the weights."""
    return dataclasses.asdict(sequence_state(model, tokens))


def _weights(model: ModelSpec) -> dict[str, Any]:
    """Return the bytes of the weights as published, and in which formats they are."""
    found = model.weight_bytes()
    quantization = model.quantization
    return {
        "total_bytes": sum(found.values()),
        "bytes": found,
        "formats": quantization.text() if quantization else "",
        "quantization": dataclasses.asdict(quantization) if quantization else None,
    }


def parameters_by_kind(model: ModelSpec) -> dict[str, int]:
    """Return the parameters by kind; all but total and active add up to total."""
    layers = [layer_parameters(layer, model.hidden_size) for layer in model.layers]
    return {
        "total": model.parameter_count(),
        "active": model.active_parameter_count(),
        "embedding": model.embedding_parameters(),
        "attention": sum(layer.attention for layer in layers),
        "recurrence": sum(layer.recurrence for layer in layers),
        "mlp": sum(layer.mlp_dense for layer in layers),
        "experts": sum(layer.experts for layer in layers),
        "router": sum(layer.router for layer in layers),
        "norms": sum(layer.norms for layer in layers) + model.final_norm_parameters(),
        "extra": sum(layer.extra for layer in layers) + model.edge_parameters(),
        "output": model.output_parameters(),
        "encoder": sum(tower.parameter_count() for tower in model.encoders),
        "multi_token_prediction": model.mtp_parameters(),
    }


def _adapters(model: ModelSpec) -> dict[str, int] | None:
    """Return what is trained beside frozen weights; None where all of them are."""
    if model.adapters is None:
        return None
    return {"parameters": adapter_parameters(model), "rank": model.adapters.rank}


def recorded_facts(model: Mapping[str, Any]) -> list[list[str]]:
    """Return what is worth knowing of one model that results state; nothing of several."""
    try:
        spec = model_from_record(model)
        parameters = format_si(spec.parameter_count(), "", 4)
        return [
            ["layers", f"{len(spec.layers):,}"],
            ["hidden size", f"{spec.hidden_size:,}"],
            ["vocabulary", f"{spec.vocab_size:,}"],
            ["parameters", parameters],
            ["model from", spec.source or "not stated"],
        ]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, PerfModelError):
        return []
