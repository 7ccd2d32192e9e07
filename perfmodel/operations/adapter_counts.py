"""How many parameters the adapters of a model have, and which FLOP frozen weights save.

Both follow from the operations of one token on one device, so that they cannot differ from them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfmodel.model.adapters import AdapterSpec, of_experts
from perfmodel.model.build import LayerSpec, ModelSpec
from perfmodel.operations.adapters import MARK, AdaptedList
from perfmodel.operations.layer_block import add_layer
from perfmodel.operations.operations import LAYER_KEY_FIELDS, Gemm, LayerKeys, Machine, Operation
from perfmodel.software.framework import load_framework
from perfmodel.strategy.fields import FIELD_BY_NAME
from perfmodel.strategy.grid import encode

TOKENS = 1 << 20
"""Of the sequence from which is counted: enough for every expert to have many."""


def adapter_weights(operations: list[Operation], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the adapters' parameters among operations: of dense matrices, and of experts.

    Parameters
    ----------
    operations : list of Operation
        Of a part.
    size : int
        Layer keys.

    Returns
    -------
    dense, experts : ndarray, shape (size,)
    """
    found = np.zeros((2, size))
    for item in operations:
        if isinstance(item, Gemm) and item.phase == "backward_weight" and MARK in item.name:
            number = np.asarray(item.m) * item.n * item.batch * item.count
            found[int(of_experts(item.name))] += number
    return found[0], found[1]


def adapter_parameters(model: ModelSpec) -> int:
    """Return how many parameters all adapters of a model have; 0 without adapters."""
    if model.adapters is None:
        return 0
    layers = Counter((*model.layers, *model.mtp_layers))
    total = 0.0
    for layer, times in layers.items():
        dense, experts = adapter_weights(_one_token(model, layer, model.adapters), 1)
        total += times * float(dense[0] + experts[0])
    return round(total)


def adapter_flops(model: ModelSpec) -> float:
    """Return the FLOP of the adapters per token, forward; 0 without adapters."""
    if model.adapters is None:
        return 0.0
    total = 0.0
    for layer, times in Counter((*model.layers, *model.mtp_layers)).items():
        for item in _one_token(model, layer, model.adapters):
            if isinstance(item, Gemm) and item.phase == "forward" and MARK in item.name:
                work = 2.0 * np.asarray(item.m) * item.n * item.k * item.batch * item.count
                total += times * float(work.reshape(-1)[0]) / TOKENS
    return total


def _one_token(model: ModelSpec, layer: LayerSpec, adapters: AdapterSpec) -> list[Operation]:
    """List the operations of a layer on one device, where every token has its experts."""
    values = {name: FIELD_BY_NAME[name].default for name in LAYER_KEY_FIELDS}
    values |= {"sequence_parallel": False, "sequence_length": TOKENS}
    columns = {name: np.array([encode(name, value)]) for name, value in values.items()}
    plain = load_framework(
        "megatron", grouped_gemm=True, expert_dispatch="all_to_all", capacity_factor=0.0
    )
    ops = AdaptedList(LayerKeys(columns), plain, Machine(), adapters)
    add_layer(ops, model, layer)
    return ops.operations
