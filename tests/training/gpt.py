"""GPT models, and the activations of one of their layers."""

from __future__ import annotations

from perfmodel.base.axes import columns_from_rows
from perfmodel.model.build import dense_model
from perfmodel.operations.operations import LAYER_KEY_FIELDS, LayerKeys
from perfmodel.operations.parts import model_parts
from perfmodel.software.framework import load_framework
from perfmodel.training.memory import part_memory

SEQUENCE = 2048  # ibid., section 6


def gpt(heads, hidden, layers, **changes):
    return dense_model(
        "gpt",
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        intermediate_size=4 * hidden,
        vocab_size=51200,
        gated=False,
        norm="layer",
        bias=True,
        tied_embeddings=True,
        position_embedding="learned",
        max_positions=SEQUENCE,
        **changes,
    )


def keys_of(**fields):
    columns = columns_from_rows([{"sequence_length": SEQUENCE, **fields}])
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def layer_activations(model, framework="megatron-2022", **fields):
    part = model_parts(model)[0]
    kept = part_memory(model, part, keys_of(**fields), load_framework(framework))
    return float(kept.activations[0])
