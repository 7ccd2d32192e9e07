"""Measured runs on wafer-scale engines and meshes of chips: `perfmodel.measured.wafer_rows`.

Times are compared: of a prompt, of a token, of a request, of a product; the longest answer of
which a core grid holds keys and values is compared in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.measured.kind import Kind
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip
from perfmodel.measured.wafer_prices import Price, price
from perfmodel.measured.wafer_rows import (
    MAPPED,
    WaferCase,
    case_of,
    check,
    derived,
    measured_value,
)
from perfmodel.measured.wafer_tables import further


@dataclass(frozen=True, kw_only=True)
class WaferKind(Kind):
    """Runs on meshes of cores."""

    def project(
        self, rows: Sequence[MeasuredRow], progress: Callable[[int], None]
    ) -> list[Outcome]:
        """Project every row."""
        outcomes = []
        for row in rows:
            outcomes.append(_outcome(row))
            progress(1)
        return outcomes

    def related(self, rows: Sequence[MeasuredRow], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Compare rows of a mapping that ignores distance with those of the others."""
        known = {
            _setting(case_of(row)): outcome.measured
            for row, outcome in zip(rows, outcomes, strict=True)
            if outcome.projected is not None and outcome.measured is not None
        }
        return [
            _with_slowdown(row, outcome, known) if outcome.skip_reason == MAPPED else outcome
            for row, outcome in zip(rows, outcomes, strict=True)
        ]


def _outcome(row: MeasuredRow) -> Outcome:
    try:
        case = case_of(row)
        measured = measured_value(row)
        found = _price(case)
        aware = _price(replace(case, blind=False)) if case.blind else found
    except Skip as skip:
        return Outcome.skipped(skip)
    details = {"profile": case.hardware.name, **found.details}
    if not case.blind:
        return Outcome(
            measured=measured,
            projected=found.value,
            assumed=found.assumed,
            notes=case.notes,
            details=details,
        )
    return Outcome(
        measured=measured,
        notes=case.notes,
        details={
            **details,
            "time": found.value,
            "slowdown": found.value / aware.value,
            "time_ratio": found.value / measured,
        },
        skip_reason=MAPPED,
        scorable=False,
    )


def _price(case: WaferCase) -> Price:
    try:
        return price(case)
    except PerfModelError as error:
        raise Skip("the projection refuses the row", str(error)) from None


def _setting(case: WaferCase) -> Any:
    model = "" if case.model is None else case.model.name
    grids = tuple(sorted(case.grids.items()))
    return case.phase, case.hardware.name, model, grids, case.input_length, case.batch


def _with_slowdown(row: MeasuredRow, outcome: Outcome, known: dict[Any, float]) -> Outcome:
    """Add how much slower the row was measured than the same run well mapped, where that is."""
    aware = known.get(_setting(case_of(row)))
    if aware is None or outcome.measured is None:
        return outcome
    details = {**outcome.details, "measured_slowdown": outcome.measured / aware}
    return replace(outcome, details=details)


KIND = WaferKind(
    name="wafer",
    needed=("kind", "model", "value", "unit"),
    measurements=("system", "hardware"),
    group_by=("run", "device"),
    check=check,
    derived=derived,
    load_profile=load_mesh,
    further=further,
)
