"""What rows of tables of wafers are projected as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.measured.rows import Skip
from perfmodel.measured.wafer_prices import FREE, FitRow, fit_constants, judgements, price
from perfmodel.measured.wafer_rows import CAPACITY, DECODE, GEMV, PREFILL, WHOLE, WaferCase
from perfmodel.model.presets import load_model
from perfmodel.wafer.chips import chip_times
from perfmodel.wafer.project import wafer_table

GRID = {PREFILL: (480, 480), DECODE: (360, 360)}


def case(phase: str, **changed: Any) -> WaferCase:
    fields: dict[str, Any] = {
        "phase": phase,
        "hardware": load_mesh("wse-2"),
        "model": load_model("llama-3-8b"),
        "blind": False,
        "grids": GRID,
        "product": (0, 0),
        "layout": "",
        "batch": 1,
        "input_length": 2048,
        "output_length": 0,
        "notes": (),
    }
    return WaferCase(**{**fields, **changed})


def latency(phase: str, **axes: Any) -> float:
    found = wafer_table("llama-3-8b", "wse-2", phase=phase, head=False, **axes)
    return float(found["latency"].values.flat[0])


def test_prompts_and_tokens_are_projections_without_the_output_matrix() -> None:
    assert price(case(PREFILL)).value == latency("prefill", grid=480, context=2048)
    found = price(case(DECODE))
    assert found.value == latency("decode", grid=360, context=2048)
    times = ("compute_time", "sram_time", "issue_time", "network_time", "transfer_time")
    assert sum(found.details[name] for name in times) == pytest.approx(found.value)


def test_a_request_is_a_prompt_and_tokens_of_a_growing_context() -> None:
    prompt = latency("prefill", grid=480, context=2048)
    one = price(case(WHOLE, output_length=1)).value
    assert one == pytest.approx(prompt + latency("decode", grid=360, context=2049))
    many = price(case(WHOLE, output_length=2048))
    ends = [latency("decode", grid=360, context=length) for length in (2049, 4096)]
    assert ends[0] < many.details["token_time"] < ends[1]
    assert many.value == pytest.approx(prompt + 2048 * many.details["token_time"])


def test_the_context_may_exceed_what_a_model_states() -> None:
    short = load_model("llama-2-13b")
    assert short.max_positions == 4096
    assert price(case(WHOLE, model=short, input_length=4096, output_length=4096)).value > 0


def test_shifted_keys_and_values_use_every_row() -> None:
    found = {layout: price(case(CAPACITY, layout=layout)) for layout in ("concatenated", "shifted")}
    assert found["shifted"].value == 360 * found["concatenated"].value
    # 72 B of each token: keys and values of ceil(1,024 / 360) numbers in 6 layers of 2 B.
    free = 49152 - found["shifted"].details["sram_used"]
    assert found["concatenated"].value == pytest.approx(free / 72, abs=2)


def test_a_vector_times_a_matrix_takes_the_fastest_square_that_holds_it() -> None:
    found = price(case(GEMV, model=None, grids={}, product=(8192, 8192)))
    (assumed,) = found.assumed
    side = int(assumed.removeprefix("grid=").split("x")[0])
    times = {
        one: price(case(GEMV, model=None, product=(8192, 8192), grids={PREFILL: (one, one)})).value
        for one in (60, side - 1, side, side + 1, 700)
    }
    assert min(times, key=times.__getitem__) == side
    assert found.value == times[side]
    with pytest.raises(Skip, match="exceeds the memory of the cores"):
        price(case(GEMV, model=None, grids={}, product=(2**20, 2**20)))


def test_chips_with_memory_beside_them_have_their_own_model() -> None:
    chip, falcon = load_mesh("n150"), load_model("falcon-7b")
    row = {"hardware": chip, "model": falcon, "grids": {}, "batch": 32, "input_length": 128}
    token = chip_times(falcon, chip, phase="decode", batch=32, context=128)
    assert price(case(DECODE, **row)).value == pytest.approx(token.time, rel=0.02)
    prompt = chip_times(falcon, chip, phase="prefill", context=128)
    assert price(case(PREFILL, **row)).value == pytest.approx(prompt.time, rel=0.02)


@pytest.mark.parametrize("phase", [PREFILL, DECODE])
def test_a_mapping_that_ignores_distance_is_slower(phase: str) -> None:
    slower = price(case(phase, blind=True)).value / price(case(phase)).value
    assert slower > (30 if phase == PREFILL else 3)


def test_constants_may_stand_in_for_those_of_the_profile() -> None:
    shipped = load_mesh("wse-2").constants
    assert price(case(DECODE), shipped).value == price(case(DECODE)).value
    slower: Mapping[str, float] = {"stage_latency": 2 * shipped["stage_latency"]}
    assert price(case(DECODE), slower).value > price(case(DECODE)).value
    with pytest.raises(HardwareError):
        price(case(DECODE), {"stage_latenzy": 1.0})


@pytest.mark.parametrize("phase", [PREFILL, DECODE, CAPACITY])
def test_a_grid_has_to_be_stated(phase: str) -> None:
    with pytest.raises(Skip, match="grid of cores not stated"):
        price(case(phase, grids={}, layout="shifted"))


TRUE = {"mac_fraction": 0.5, "loop_issue": 50.0, "element_cycles": 8.0, "stage_latency": 30.0}


def made_up(name: str, phase: str, side: int) -> FitRow:
    """A row that was "measured" on a wafer with other constants."""
    case = WaferCase(
        phase=phase,
        hardware=load_mesh("wse-2"),
        model=load_model(name),
        blind=False,
        grids={phase: (side, side)},
        product=(0, 0),
        layout="",
        batch=1,
        input_length=4000,
        output_length=0,
        notes=(),
    )
    return FitRow(case, price(case, TRUE).value)


@pytest.fixture(scope="module")
def rows() -> list[FitRow]:
    return [
        made_up(name, phase, side)
        for name in ("llama-3-8b", "codellama-34b")
        for phase in (PREFILL, DECODE)
        for side in (450, 570, 690)
    ]


def test_a_fit_finds_the_constants_that_made_the_rows(rows: list[FitRow]) -> None:
    assert fit_constants(rows) == pytest.approx(TRUE, rel=1e-4)


def test_too_few_rows_fit_nothing(rows: list[FitRow]) -> None:
    few = [row for row in rows if row.case.phase == PREFILL][:2]
    assert fit_constants(few) == {}


def test_every_model_is_judged_by_the_others(rows: list[FitRow]) -> None:
    found = list(judgements(rows))
    assert [(one.fitted, one.phase) for one in found] == [
        (origin, phase)
        for origin in ((), ("llama-3-8b", "codellama-34b"), ("llama-3-8b",), ("codellama-34b",))
        for phase in FREE
    ]
    for one in found:
        assert len(one.errors) == 3 * len(one.judged)
        assert not set(one.fitted) & set(one.judged) or len(one.judged) == 2
        if one.fitted:
            assert one.worst < 1e-4
            assert one.constants == pytest.approx({k: TRUE[k] for k in FREE[one.phase]}, rel=1e-3)
        else:
            assert one.mean > 0.02


def test_a_single_model_and_bad_mappings_are_not_judged(rows: list[FitRow]) -> None:
    assert list(judgements([row for row in rows if row.model == "llama-3-8b"])) == []
    blind = [replace(row, case=replace(row.case, blind=True)) for row in rows]
    assert list(judgements(blind)) == []
