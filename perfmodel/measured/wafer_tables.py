"""What a comparison of wafers prints beside its errors: fits, bad mappings, public services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.measured.wafer_fit import FitRow, judgements
from perfmodel.measured.wafer_rows import CONTEXT, MAPPED, case_of, derived

if TYPE_CHECKING:
    from perfmodel.measured.compare import ComparedRow

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
