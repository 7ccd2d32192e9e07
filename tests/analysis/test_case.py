"""Cases: changes of a projection, all at once, and those that cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel import PerfModelError, project
from perfmodel.hwprofiles.hardware import known_paths, unit_of
from tests.analysis.toy_case import power_of_time, training


def test_all_rates_faster_and_all_times_shorter_scale_the_step() -> None:
    """Homogeneity: in units of another second the same machine takes as many of them less."""
    case = training()
    paths = {
        path: power_of_time(unit_of(case.hardware, path))
        for path, field in known_paths(case.hardware).items()
        if field.kind == "number"
    }
    base = case.base().value
    for factor in (1.01, 3.0):
        change = {
            path: case.hardware.value(path) * factor**-power
            for path, power in paths.items()
            if case.hardware.value(path)  # energies stay as they are, whatever the clock
        }
        (found,) = case.vary([change])
        assert found.value * factor == pytest.approx(base, rel=1e-9)


def test_changes_of_all_kinds_come_out_in_their_order() -> None:
    case = training()
    changes: list[dict[str, Any]] = [
        {"recompute": "full"},
        {"device.memory.bandwidth": 5e12},
        {"software.gradient_bytes": 2.0},
        {"device.memory.bandwidth": 4e12, "device.tdp": 500.0},
    ]
    together = [outcome.value for outcome in case.vary(changes)]
    assert together == [case.vary([change])[0].value for change in changes]
    assert len(set(together)) == len(changes)
    lengths: dict[str, Any] = {"global_batch_size": 32, "sequence_length": 4096}
    run: dict[str, Any] = {"tensor_parallel": 2, "pipeline_parallel": 2, "recompute": "full"}
    run |= {"virtual_pipeline": 1, "micro_batch_size": 1}
    alone = project("llama-3.1-8b", "dgx-h100", 16, **lengths, **run)
    assert together[0] == alone["step_time"]


def test_what_cannot_be_says_why_and_leaves_the_others_alone() -> None:
    case = training()
    found = case.vary(
        [
            {"tensor_parallel": 3},
            {"device.memory.bandwidth": -1.0},
            {"software.gradient_bytes": 0.0},
            {"device.memory.bandwidth": 4e12},
        ]
    )
    assert [math.isfinite(outcome.value) for outcome in found] == [False, False, False, True]
    assert "multiply to the number of devices" in found[0].reason
    assert "must be a finite number above 0" in found[1].reason
    assert "gradient_bytes" in found[2].reason


def test_several_strategies_need_a_choice() -> None:
    from perfmodel import strategies_from_rows
    from perfmodel.analysis.case import TrainingCase

    case = training()
    row = case.choices.row(0)
    grid = strategies_from_rows(case.model, 16, [row, row])
    with pytest.raises(PerfModelError, match="pick one"):
        TrainingCase(case.model, grid, case.hardware, case.software)


def test_a_price_becomes_the_hardwares_and_tokens_are_needed_for_totals() -> None:
    case = training(by="cost_per_token", costs={"price": 2.5})
    assert case.hardware.system.price == 2.5
    total = training(by="training_cost", costs={"price": 2.5, "tokens": 1e12})
    assert total.base().value == pytest.approx(1e12 * case.base().value)
    with pytest.raises(PerfModelError, match="needs tokens"):
        training(by="training_cost")
