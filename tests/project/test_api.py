"""The public names, and the three lines of the README."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

import perfmodel
from perfmodel.base import errors


@pytest.mark.parametrize("name", perfmodel.__all__)
def test_every_public_name_is_there_and_documented(name):
    item = getattr(perfmodel, name)
    if name == "__version__":
        assert item.count(".") >= 1
        return
    assert item.__doc__
    assert name in dir(perfmodel)
    if inspect.isfunction(item):
        # A module whose name a function shares would hide the function once imported.
        assert item.__module__.startswith("perfmodel.")
        assert getattr(importlib.import_module("perfmodel"), name) is item


def test_functions_survive_the_import_of_their_modules():
    """`perfmodel.sweep` is the function whatever was imported before."""
    for module in (
        "sweeps.sweep",
        "store.results",
        "strategy.enumerate",
        "hwprofiles",
        "model.presets",
    ):
        importlib.import_module(f"perfmodel.{module}")
    assert callable(perfmodel.sweep)
    assert callable(perfmodel.best)
    assert callable(perfmodel.pareto)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        perfmodel.swep  # noqa: B018


def test_three_lines():
    model = perfmodel.load_model("llama-3.1-70b")
    grid = perfmodel.strategy_grid(
        model,
        1024,
        sequence_length=8192,
        global_batch_size=2048,
        tensor_parallel=8,
        pipeline_parallel=[4, 8],
        context_parallel=1,
    )
    results = perfmodel.sweep(model, grid, perfmodel.load_hardware("dgx-h100"))
    (first, second) = perfmodel.best(results, top=2)
    assert first["tokens_per_second_per_device"] >= second["tokens_per_second_per_device"]
    assert first["tensor_parallel"] == 8
    # Llama 3 reports 380 to 430 TFLOP/s per H100 (arXiv:2407.21783, table 4); the right
    # order of magnitude is all that is asked here.
    assert 0.3 < first["model_flops_utilization"] < 0.6


def test_every_error_is_one_family():
    for name, item in inspect.getmembers(errors, inspect.isclass):
        if item.__module__ == errors.__name__:
            assert issubclass(item, perfmodel.PerfModelError), name
            assert item.__doc__


def test_numpy_integers_are_fine_everywhere(llama_8b):
    axes: dict[str, Any] = {
        "devices": np.int64(8),
        "sequence_length": np.int32(4096),
        "global_batch_size": np.int64(64),
        "tensor_parallel": np.array([1, 2]),
        "zero_stage": np.uint8(1),
    }
    grid = perfmodel.strategy_grid(llama_8b, **axes)
    assert set(grid["tensor_parallel"]) == {1, 2}
