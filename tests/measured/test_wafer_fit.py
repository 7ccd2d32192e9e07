"""Constants of a mesh fitted to rows, and judged on those of another model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.measured.wafer_fit import FREE, FitRow, fit_constants, judgements
from perfmodel.measured.wafer_prices import price
from perfmodel.measured.wafer_rows import DECODE, PREFILL, WaferCase
from perfmodel.model.presets import load_model

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


ROWS = [
    made_up(name, phase, side)
    for name in ("llama-3-8b", "codellama-34b")
    for phase in (PREFILL, DECODE)
    for side in (450, 570, 690)
]


def test_a_fit_finds_the_constants_that_made_the_rows() -> None:
    assert fit_constants(ROWS) == pytest.approx(TRUE, rel=1e-4)


def test_too_few_rows_fit_nothing() -> None:
    few = [row for row in ROWS if row.case.phase == PREFILL][:2]
    assert fit_constants(few) == {}


def test_every_model_is_judged_by_the_others() -> None:
    found = list(judgements(ROWS))
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


def test_a_single_model_and_bad_mappings_are_not_judged() -> None:
    assert list(judgements([row for row in ROWS if row.model == "llama-3-8b"])) == []
    blind = [replace(row, case=replace(row.case, blind=True)) for row in ROWS]
    assert list(judgements(blind)) == []
