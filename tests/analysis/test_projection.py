"""One strategy as Python objects: the same numbers as a sweep, and how they show themselves."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.base.errors import ModelError, StrategyError

RUN = {"sequence_length": 4096, "global_batch_size": 32, "micro_batch_size": 1, "recompute": "none"}


def test_a_projection_is_the_row_of_a_sweep() -> None:
    found = perfmodel.project("llama-3.1-8b", "dgx-h100", 16, tensor_parallel=2, **RUN)
    grid = perfmodel.strategies_from_rows("llama-3.1-8b", 16, [RUN | {"tensor_parallel": 2}])
    row = perfmodel.best(
        perfmodel.sweep("llama-3.1-8b", grid, "dgx-h100", dtype="float64"), 1, fitting=False
    )[0]
    assert {**row, "strategy": 0} == {**found, "strategy": 0}
    assert found["data_parallel"] == 8


def test_facts_of_some_precisions_hold_for_their_rows_alone() -> None:
    """Megatron-Bridge 0.5 launches mxfp8 experts on NVL72 from graphs of whole iterations."""
    model, hardware, framework = "qwen3-30b-a3b", "gb200-nvl72", "megatron-bridge@0.5"
    rows = [RUN | {"expert_parallel": 8, "precision": name} for name in ("bf16", "mxfp8", "fp8")]
    grid = perfmodel.strategies_from_rows(model, 8, rows)
    swept = perfmodel.sweep(model, grid, hardware, framework=framework, dtype="float64")[
        "step_time"
    ]
    single = [
        perfmodel.project(model, hardware, 8, framework=framework, **row)["step_time"]
        for row in rows
    ]
    assert swept.values.ravel().tolist() == single
    plain = perfmodel.project(model, hardware, 8, framework="megatron-bridge@0.4", **rows[1])
    assert single[1] < plain["step_time"]


def test_objects_do_as_well_as_names() -> None:
    given = (perfmodel.load_model("llama-3.1-8b"), perfmodel.load_hardware("dgx-h100"))
    named = perfmodel.project("llama-3.1-8b", "dgx-h100", 8, framework="fsdp", **RUN)
    assert perfmodel.project(*given, 8, framework=perfmodel.load_framework("fsdp"), **RUN) == named


def test_it_shows_itself_in_one_line_and_as_a_page() -> None:
    found = perfmodel.project("llama-3.1-8b", "dgx-h100", 8, **RUN | {"micro_batch_size": 2})
    assert "\n" not in repr(found)
    assert len(repr(found)) < 200
    assert "does not fit" in repr(found)
    assert "llama-3.1-8b on 8 × dgx-h100" in found._repr_html_()


def test_an_explanation_adds_up() -> None:
    found = perfmodel.explain("llama-3.1-8b", "dgx-h100", 8, tensor_parallel=2, **RUN)
    whole = perfmodel.project("llama-3.1-8b", "dgx-h100", 8, tensor_parallel=2, **RUN)
    names = ("forward_time", "backward_time", "recompute_time", "tensor_parallel_exposed")
    assert sum(cost.exposed for cost in found) == pytest.approx(sum(whole[name] for name in names))
    assert len(found.to_dataframe()) == len(found)
    lines = repr(found).splitlines()
    assert len(lines) == 11
    assert lines[-1] == f"and {len(found) - 10} more"
    assert "<table" in found._repr_html_()


def test_mistakes_are_told() -> None:
    with pytest.raises(ModelError, match="lama"):
        perfmodel.project("lama-3.1-8b", "dgx-h100", 8, **RUN)
    with pytest.raises(StrategyError, match="not a multiple of tp 3"):
        perfmodel.project("llama-3.1-8b", "dgx-h100", 8, tensor_parallel=3, **RUN)
    with pytest.raises(StrategyError, match="unknown strategy field 'tensor_paralel'"):
        perfmodel.project("llama-3.1-8b", "dgx-h100", 8, tensor_paralel=2, **RUN)


def test_a_projection_has_its_costs() -> None:
    found = perfmodel.project(
        "llama-3.1-8b", "dgx-h100", 8, cost={"tokens": 1e12, "price": 3.0}, **RUN
    )
    hours = 1e12 / found["tokens_per_second_per_device"] / 3600
    assert found["training_cost"] == pytest.approx(3.0 * hours)
    assert found["cost"]["price"] == {"dgx-h100": 3.0}
    assert "training_cost" not in perfmodel.project("llama-3.1-8b", "dgx-h100", 8, **RUN)
