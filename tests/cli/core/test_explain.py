"""``perfmodel explain``: the operations of a projected step."""

from __future__ import annotations

import pytest

from perfmodel import load_hardware, load_model, strategies_from_rows
from perfmodel.analysis.explain import operation_costs
from perfmodel.kernels.variables import MEMORY_COMPONENTS, OPERATION_COMPONENTS
from tests.cli.projecting import DENSE, PROBLEMS, document, run


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_explained_operations_add_up_to_the_projected_components(problem: str) -> None:
    projected, explained = document("project", problem), document("explain", problem)
    sums = dict.fromkeys(OPERATION_COMPONENTS, 0.0)
    for operation in explained["operations"]:
        sums[operation["component"]] += operation["exposed"]
    for name in OPERATION_COMPONENTS:
        assert sums[name] == pytest.approx(projected[name], rel=1e-9, abs=1e-12), name
    for name in ("step_time", "memory_total"):
        assert explained[name] == projected[name]


def test_explain_sorts_by_time_and_sums_up_the_rest() -> None:
    operations = document("explain", DENSE)["operations"]
    times = [operation["exposed"] for operation in operations]
    assert times == sorted(times, reverse=True)
    assert {operation["bound"] for operation in operations} >= {"compute", "memory", "network"}
    text = run("explain", DENSE, "--top", "5").stdout
    assert f"{len(operations) - 5} more operations" in text
    assert "all operations" in text
    assert "memory of the fullest stage" in text


def test_explain_shows_one_phase() -> None:
    operations = document("explain", f"{DENSE} --phase backward_weight")["operations"]
    assert {operation["phase"] for operation in operations} == {"backward_weight"}
    assert "whole step" not in run("explain", DENSE, "--phase", "backward_weight").stdout


def test_explain_takes_exactly_one_possible_strategy() -> None:
    from perfmodel.base.errors import StrategyError

    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    row = {"global_batch_size": 8, "sequence_length": 4096}
    with pytest.raises(StrategyError, match="exactly one strategy, not 2"):
        operation_costs(model, strategies_from_rows(model, 8, [row, row]), hardware)
    with pytest.raises(StrategyError, match="impossible strategy"):
        operation_costs(
            model, strategies_from_rows(model, 7, [row | {"tensor_parallel": 7}]), hardware
        )


def test_memory_is_explained_by_stage_and_moment() -> None:
    found = document("explain", f"{DENSE} --memory")
    peaks = [
        sum(moment[name] for name in MEMORY_COMPONENTS)
        for stage in found["memory"]
        for moment in stage["moments"]
    ]
    assert max(peaks) == pytest.approx(found["memory_total"], rel=1e-9)
    text = run("explain", DENSE, "--memory").stdout
    assert "first layer backward" in text
    assert "memory of the fullest stage" in text
