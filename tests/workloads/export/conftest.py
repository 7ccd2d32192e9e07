"""Workloads that the tests of exports write out."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.workloads.export.workload import projected_workload
from tests.workloads.export.cases import CASES, MODELS


@pytest.fixture(scope="session")
def workload_of(request, grid_of, h100):
    """Return a function that makes the workload of a case."""
    made: dict[Any, Any] = {}

    def make(case, framework="megatron", **fields):
        name, fixed = CASES.get(case, (case, {}))
        key = (case, framework, tuple(fields.items()))
        if key not in made:
            model = request.getfixturevalue(name)
            grid = grid_of(model, **fixed, **fields)
            made[key] = projected_workload(model, grid, h100, framework=framework)
        return made[key]

    return make


@pytest.fixture(scope="module")
def small_workload(h100, grid_of):
    """Return a function that makes the workload of a model and the fields of a strategy."""

    def make(name, framework="megatron", **fields):
        grid = grid_of(MODELS[name], **fields)
        return projected_workload(MODELS[name], grid, h100, framework=framework)

    return make
