"""A small sweep of several problems, at once and in blocks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from perfmodel.base.table import Table
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.sweeps.blocks import BlockSweep, block_sweep
from perfmodel.sweeps.several import enumerate_problems
from perfmodel.sweeps.sweep import sweep_problems

AXES: dict[str, Any] = {
    "sequence_length": 4096,
    "global_batch_size": [64, 128],
    "micro_batch_size": [1, 2],
    "tensor_parallel": [1, 2, 4],
    "pipeline_parallel": [1, 2],
    "zero_stage": [0, 1],
    "context_parallel": 1,
    "virtual_pipeline": 1,
    "recompute": ["none", "full"],
    "precision": ["bf16", "fp8"],
}
BLOCK = 250


def asked(**more: Any) -> dict[str, Any]:
    return {
        "models": [load_model("llama-3.1-8b")],
        "frameworks": [load_framework(name) for name in ("megatron", "torchtitan")],
        "devices": [8, 16],
        "axes": AXES,
        "hardware": [load_hardware(name) for name in ("dgx-a100-80gb", "dgx-h100")],
    } | more


def blocks(**more: Any) -> BlockSweep:
    return block_sweep(**asked(block_size=BLOCK) | more)


def at_once(**more: Any) -> Table:
    """Return the sweep as one table; A100 has no rate for fp8."""
    given = asked(**more)
    found = enumerate_problems(**given)
    table = sweep_problems(found.problems, given["hardware"], dtype=given.get("dtype", np.float32))
    table.attrs["scaling"] = given.get("scaling", "strong")
    return table


@functools.cache
def whole() -> Table:
    return at_once()


def assert_same(a: Table, b: Table, *, but: tuple[str, ...] = ()) -> None:
    """Two tables hold the same, bit for bit; attributes may lack those of `but`."""
    assert set(a.data_vars) == set(b.data_vars)
    assert set(a.coords) == set(b.coords)
    assert set(a.attrs) ^ set(b.attrs) <= set(but)
    for name in set(a.attrs) - set(but):
        assert np.array_equal(a.attrs[name], b.attrs[name]), name
    for name, column in a.variables.items():
        other = b[name]
        assert column.dims == other.dims
        np.testing.assert_array_equal(column.labelled(), other.labelled(), name)
        if but:  # files have kinds of their own for texts and choices
            continue
        assert column.values.dtype == other.values.dtype, name
        np.testing.assert_array_equal(column.values, other.values, name)
        assert set(column.attrs) == set(other.attrs)
        for key, value in column.attrs.items():
            assert np.array_equal(value, other.attrs[key]), (name, key)


def small(**more: Any) -> BlockSweep:
    """Return a sweep of one problem in three blocks, the last one shorter."""
    given = {"frameworks": [load_framework("megatron")], "devices": [8], "block_size": 70}
    return blocks(hardware=[load_hardware("dgx-h100")], **given | more)


@functools.cache
def small_whole() -> Table:
    sweep = small()
    return sweep.table(0, sweep.count)
