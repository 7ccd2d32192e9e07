"""Measured runs on wafer-scale engines and meshes of chips: `perfmodel.measured.wafer_rows`.

Times are compared: of a prompt, of a token, of a request, of a product; the longest answer of
which a core grid holds keys and values is compared in tokens. Printed beside the errors are fits,
mappings that ignore distance, and public services.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.measured.kind import Kind
from perfmodel.measured.rows import MeasuredRow, Outcome, Skip
from perfmodel.measured.wafer_prices import FitRow, Price, judgements, price
from perfmodel.measured.wafer_rows import (
    CONTEXT,
    MAPPED,
    WaferCase,
    case_of,
    check,
    derived,
    measured_value,
)

if TYPE_CHECKING:
    from perfmodel.measured.rows import ComparedRow


FITS = "Constants fitted to models, judged on models"
MAPPINGS = "A mapping that ignores distance: times slower than the one that does not"
SERVICES = "Public services, for context"
ALL = "all models"

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


def further(rows: Sequence[ComparedRow]) -> Tables:
    """Return tables by title, lines of columns by name, fit for JSON; empty ones left out."""
    found = {FITS: list(_fits(rows)), MAPPINGS: _mappings(rows), SERVICES: list(_services(rows))}
    return {title: lines for title, lines in found.items() if lines}


def _fits(rows: Sequence[ComparedRow]) -> Iterator[dict[str, Any]]:
    scored = []
    for row in rows:
        if row.scored and row.outcome.measured is not None:
            case = case_of(MeasuredRow(row.cells, "", row.line))
            scored.append(FitRow(case, row.outcome.measured))
    for one in judgements(scored):
        everything = not set(one.fitted) - set(one.judged)
        yield {
            "run": f"{one.device} {one.phase}",
            "fitted to": (ALL if everything else one.fitted[0]) if one.fitted else "as shipped",
            "judged on": ALL if everything else ", ".join(one.judged),
            "mean_error": one.mean,
            "worst_error": one.worst,
            "constants": ", ".join(f"{name} {value:.3g}" for name, value in one.constants.items()),
        }


def _mappings(rows: Sequence[ComparedRow]) -> list[dict[str, Any]]:
    """Return how much slower each phase of a model gets, smallest grid first."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        details = row.outcome.details
        if row.outcome.skip_reason == MAPPED:
            lines.append(
                {
                    "phase": derived(MeasuredRow(row.cells, "", row.line))["phase"],
                    "model": row.cells.get("model", ""),
                    "grid": row.cells.get("core_grid", ""),
                    "projected": details.get("slowdown"),
                    "measured": details.get("measured_slowdown"),
                    "time_ratio": details.get("time_ratio"),
                }
            )
    return lines


def _services(rows: Sequence[ComparedRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row.outcome.skip_reason == CONTEXT:
            yield {
                "system": row.cells.get("system", "").partition("(")[0].strip(),
                "model": row.cells.get("model", ""),
                "measured": _number(row.cells.get("value", "")),
                "unit": row.cells.get("unit", ""),
                "by": row.cells.get("measured_by", ""),
            }


def _number(text: str) -> float | None:
    try:
        return MeasuredRow({"value": text}, "", 0).number("value")
    except Skip:
        return None


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
    whole=("isl", "osl"),
    positive=("value", "clock_GHz"),
    check=check,
    derived=derived,
    load_profile=load_mesh,
    further=further,
)
