"""Counting the FLOP and bytes of operation lists."""

from __future__ import annotations

import numpy as np

from perfmodel.base.axes import columns_from_rows
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Attention,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.software.framework import load_framework
from perfmodel.training.flops import model_flops_per_token
from perfmodel.training.schedule import stage_compositions

PASSES = ("forward", "backward_input", "backward_weight")
MEGATRON = load_framework("megatron")


def number(value):
    """The first key's value of a size."""
    return float(np.asarray(value).reshape(-1)[0])


def keys_of(**fields):
    columns = columns_from_rows([{"sequence_length": 2048, **fields}])
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def operations_of(model, part_name, framework=MEGATRON, **fields):
    (part,) = [item for item in model_parts(model) if item.name == part_name]
    return part_operations(model, part, keys_of(**fields), framework, Machine())


def matrix_flops(operation):
    """FLOP of one operation per micro-batch, as mathematics asks for them."""
    if isinstance(operation, Gemm):
        sizes = (operation.m, operation.n, operation.k, operation.batch, operation.count)
        return 2.0 * np.prod([number(size) for size in sizes])
    if isinstance(operation, Attention):
        length, keys = number(operation.query_length), number(operation.key_length)
        window = number(operation.window) or keys
        seen = keys
        if operation.causal:
            seen = min(window, keys) * (1 - min(window, keys) / (2 * keys))
        width = operation.head_dim_qk + operation.head_dim_v
        calls = number(operation.batch) * number(operation.heads) * number(operation.count)
        return 2.0 * calls * length * seen * width * (2.0 if operation.backward else 1.0)
    return 0.0


def step_flops(model, grid, framework=MEGATRON):
    """FLOP of all devices in one step, recomputation left out."""
    row = grid.row(0)
    keys = LayerKeys({name: grid[name] for name in LAYER_KEY_FIELDS})
    per_part = np.array(
        [
            sum(
                matrix_flops(item)
                for item in part_operations(model, part, keys, framework, Machine())
                if item.phase in PASSES
            )
            for part in model_parts(model)
        ]
    )
    stages = stage_compositions(model, row["pipeline_parallel"], row["virtual_pipeline"])
    plane = row["tensor_parallel"] * row["context_parallel"] * row["data_parallel"]
    batches = row["global_batch_size"] // (row["data_parallel"] * row["micro_batch_size"])
    return float((stages @ per_part).sum() * plane * batches)


def needed_flops(model, grid, causal=True):
    row = grid.row(0)
    tokens = row["global_batch_size"] * row["sequence_length"]
    return float(model_flops_per_token(model, row["sequence_length"], causal=causal)) * tokens


def wire_bytes(operation):
    """Bytes that one rank sends: ring algorithms, nccl-tests PERFORMANCE.md."""
    members = number(operation.members)
    share = (members - 1) / members
    factor = {"all_reduce": 2 * share, "point_to_point": 1.0}.get(operation.collective, share)
    return number(operation.size) * factor * number(operation.count)


def communications(operations, axis=None):
    return [
        item
        for item in operations
        if isinstance(item, Communication)
        and number(item.count) > 0
        and (axis is None or item.axis == axis)
    ]


def total_bytes(operations, axis, phases):
    return sum(
        wire_bytes(item) for item in communications(operations, axis) if item.phase in phases
    )
