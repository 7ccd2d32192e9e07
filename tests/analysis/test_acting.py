"""Numbers that were set and change nothing: told from those that act, and others named."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.analysis.acting import (
    FEW,
    Idle,
    idle_numbers,
    serving_results,
    spread,
    training_results,
)
from perfmodel.base.errors import StrategyError
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.model.presets import load_model
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.sweep import Problem

H100 = load_hardware("dgx-h100")


def of_paths(*paths: str, limit: float = 0.0) -> Any:
    """Return a request whose answer some numbers decide, each up to a limit."""

    def results(rows: list[Hardware], most: int) -> list[object]:
        return [tuple(min(row.value(it), limit or 1e99) for it in paths) for row in rows]

    return results


TDP, BANDWIDTH = "device.tdp", "device.memory.bandwidth"
FP8, BF16 = "device.peak_flops.fp8", "device.peak_flops.bf16"


def test_a_number_that_acts_is_not_idle() -> None:
    assert idle_numbers(H100, {TDP: 500}, {}, of_paths(TDP)) == []
    assert idle_numbers(H100, {}, {TDP: [500, 600]}, of_paths(TDP)) == []
    assert idle_numbers(H100, {TDP: 500, BANDWIDTH: 1e12}, {}, of_paths(TDP, BANDWIDTH)) == []


def test_one_that_cannot_act_is_named_with_those_that_would() -> None:
    (idle,) = idle_numbers(H100, {FP8: 1e15, TDP: 500}, {}, of_paths(TDP, BF16))
    assert idle == Idle(FP8, True, (BF16,))
    (idle,) = idle_numbers(H100, {}, {FP8: [1e15, 2e15]}, of_paths(TDP))
    assert idle == Idle(FP8, True, (TDP,))
    (idle,) = idle_numbers(H100, {"system.network.nvlink.latency": 1e-6}, {},
                           of_paths("system.network.1.latency"))  # fmt: skip
    assert idle == Idle("system.network.0.latency", True, ("system.network.1.latency",))


def test_one_that_others_bind_is_told_from_one_that_cannot_act() -> None:
    (idle,) = idle_numbers(H100, {TDP: 900}, {}, of_paths(TDP, limit=300))
    assert idle == Idle(TDP, False, ())


def test_a_value_that_is_the_profile_s_own_is_asked_whether_it_could_act() -> None:
    assert idle_numbers(H100, {TDP: 700}, {}, of_paths(TDP)) == []
    (idle,) = idle_numbers(H100, {TDP: 700}, {}, of_paths(BANDWIDTH))
    assert idle.never


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("device.fp8_transposed_copies", False),
        ("system.network.0.topology", "ring"),
        ("calibration.gemm.store_loss", 0),
    ],
)
def test_switches_choices_and_zeros(path: str, value: Any) -> None:
    def results(rows: list[Hardware], most: int) -> list[object]:
        return [row.value(path) for row in rows]

    assert idle_numbers(H100, {path: value}, {}, results) == []
    (idle,) = idle_numbers(H100, {path: value}, {}, of_paths(TDP))
    assert idle.never


def test_a_free_text_is_no_number() -> None:
    assert idle_numbers(H100, {"device.name": "x"}, {}, of_paths(TDP)) == []


def test_where_there_is_no_answer_nothing_is_refused() -> None:
    def fails(rows: list[Hardware], most: int) -> list[object]:
        raise StrategyError("no")

    assert idle_numbers(H100, {TDP: 500}, {}, fails) == []
    assert idle_numbers(H100, {TDP: 500}, {}, lambda rows, most: [None] * len(rows)) == []


def test_few_are_tried_first_and_many_before_a_refusal() -> None:
    asked = []

    def results(rows: list[Hardware], most: int) -> list[object]:
        asked.append(most)
        return [row.value(TDP) if most > FEW else 0 for row in rows]

    assert idle_numbers(H100, {TDP: 500}, {}, results) == []
    assert asked[0] == FEW < asked[-1]


def test_training_and_serving() -> None:
    model = load_model("gpt2")
    grid = strategy_grid(model, 8, sequence_length=[1024], global_batch_size=[64])
    assert len(grid) > FEW
    picked = grid.take(spread(grid, FEW))
    assert FEW <= len(picked) < len(grid)
    for name, column in grid.columns.items():
        assert (picked[name].min(), picked[name].max()) == (column.min(), column.max())
    trained = training_results([Problem(model, load_framework("megatron"), grid)], None)
    (idle,) = idle_numbers(H100, {FP8: 1e15, "device.boost_clock": 1e9}, {}, trained)
    assert idle == Idle(FP8, True, (BF16,))
    price = {"system.price": 2.0}
    assert [it.path for it in idle_numbers(H100, price, {}, trained)] == [*price]
    costed = training_results([Problem(model, load_framework("megatron"), grid)], {})
    assert idle_numbers(H100, price, {}, costed) == []
    loads = load_grid(input_length=100, output_length=10, concurrency=4)
    deployments = serving_grid(model, H100, tensor_parallel=1)
    served = serving_results(deployments, loads, "closed", None)
    paths = {"system.network.0.latency": 1e-5, BANDWIDTH: 1e12}
    (idle,) = idle_numbers(H100, paths, {}, served)
    assert idle.path == "system.network.0.latency"


@pytest.mark.parametrize("clock", [1.0e9, 4e9])
def test_a_clock_acts_on_a_training_step(clock: float) -> None:
    model = load_model("gpt2")
    grid = strategy_grid(model, 8, sequence_length=[1024], global_batch_size=[64])
    results = training_results([Problem(model, load_framework("megatron"), grid)], None)
    assert idle_numbers(H100, {"device.boost_clock": clock}, {}, results) == []
