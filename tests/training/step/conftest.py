"""Projected steps that the tests of them and of exports take."""

from __future__ import annotations

import functools

import pytest

from perfmodel.training.step.workload import projected_workload
from tests.training.step.cases import CASES, MODELS


@pytest.fixture(scope="session")
def made_workloads(grid_of, h100):
    """Return a function that returns one that makes the workload of a case, each once."""

    def maker(cases, model_of):
        @functools.cache
        def made(case, framework, fields):
            name, fixed = cases.get(case, (case, {}))
            grid = grid_of(model_of(name), **fixed, **dict(fields))
            return projected_workload(model_of(name), grid, h100, framework=framework)

        return lambda case, framework="megatron", **fields: made(
            case, framework, tuple(fields.items())
        )

    return maker


@pytest.fixture(scope="session")
def workload_of(request, made_workloads):
    """Return a function that makes the workload of a case."""
    return made_workloads(CASES, request.getfixturevalue)


@pytest.fixture(scope="module")
def small_workload(h100, grid_of):
    """Return a function that makes the workload of a model and the fields of a strategy."""

    def make(name, framework="megatron", **fields):
        grid = grid_of(MODELS[name], **fields)
        return projected_workload(MODELS[name], grid, h100, framework=framework)

    return make
