"""Constants of a mesh fitted to rows of a table, and judged on rows that the fit has not seen.

Few rows and two constants a phase: what is worth knowing is how constants that were fitted to
one model predict another. A fit is Gauss and Newton's, on logarithms of projected over measured
and of the constants, all rows alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.measured.wafer_prices import price
from perfmodel.measured.wafer_rows import DECODE, PREFILL, WaferCase

FREE: Mapping[str, tuple[str, ...]] = {
    PREFILL: ("mac_fraction", "loop_issue"),
    DECODE: ("element_cycles", "stage_latency"),
}
"""Constants that a phase says most about; those of both phases are fitted together."""

ROUNDS, STEP, SETTLED = 12, 0.01, 1e-4
FARTHEST = 0.7  # of a logarithm in one round


@dataclass(frozen=True)
class Judgement:
    """Constants of one origin, judged on the rows of one phase.

    Attributes
    ----------
    device, phase : str
    fitted, judged : tuple of str
        Models whose rows the constants were fitted to (none: as they ship), and that are judged.
    constants : mapping of str to float
        Those of the phase.
    errors : tuple of float
        Projected over measured time less 1, row by row.
    """

    device: str
    phase: str
    fitted: tuple[str, ...]
    judged: tuple[str, ...]
    constants: Mapping[str, float]
    errors: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean absolute error."""
        return float(np.mean(np.abs(self.errors)))

    @property
    def worst(self) -> float:
        """Largest absolute error."""
        return float(np.max(np.abs(self.errors)))


@dataclass(frozen=True)
class FitRow:
    """A row of a fit: its case and its measured time [s]."""

    case: WaferCase
    measured: float

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.case.model.name if self.case.model is not None else ""


def log_ratios(rows: Sequence[FitRow], constants: Mapping[str, float]) -> np.ndarray:
    """Return ln(projected / measured) of every row, shape (rows,), with some constants."""
    return np.array([math.log(price(row.case, constants).value / row.measured) for row in rows])


def fit_constants(rows: Sequence[FitRow]) -> dict[str, float]:
    """Fit the constants of the phases of some rows of one device together.

    Returns
    -------
    dict of str to float
        The constants of `FREE` for which there are enough rows.
    """
    counts = {phase: sum(row.case.phase == phase for row in rows) for phase in FREE}
    enough = [phase for phase, names in FREE.items() if counts[phase] > len(names)]
    own = [row for row in rows if row.case.phase in enough]
    if not own:
        return {}
    shipped = own[0].case.hardware.constants
    return fitted(own, {name: shipped[name] for phase in enough for name in FREE[phase]})


def fitted(
    rows: Sequence[FitRow], start: Mapping[str, float], others: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Fit some constants to all of some rows, from where they start; `others` are held."""
    values = dict(start)
    held = dict(others or {})
    for _ in range(ROUNDS):
        base = log_ratios(rows, {**held, **values})
        slopes = [
            (log_ratios(rows, {**held, **values, name: value * math.exp(STEP)}) - base) / STEP
            for name, value in values.items()
        ]
        step = np.linalg.lstsq(np.stack(slopes, axis=1), -base, rcond=None)[0]
        step = np.clip(step, -FARTHEST, FARTHEST)
        values = {
            name: min(value * math.exp(change), 1.0 if name == "mac_fraction" else math.inf)
            for (name, value), change in zip(values.items(), step.tolist(), strict=True)
        }
        if np.abs(step).max() < SETTLED:
            break
    return values


def judgements(rows: Sequence[FitRow]) -> Iterator[Judgement]:
    """Judge constants as they ship, fitted to all models, and to one model for the others.

    Only models with more rows of a phase than it has constants count, on devices with at least
    two of them.
    """
    devices: dict[str, list[FitRow]] = {}
    for row in rows:
        if row.case.phase in FREE and not row.case.blind and not row.case.hardware.dram_bandwidth:
            devices.setdefault(row.case.hardware.name, []).append(row)
    for device, members in devices.items():
        models = _fitted_models(members)
        if len(models) > 1:
            kept = [row for row in members if row.model in models]
            yield from _judged(device, models, kept)


def _fitted_models(rows: Sequence[FitRow]) -> list[str]:
    enough = []
    for model in dict.fromkeys(row.model for row in rows):
        counts = [
            sum(row.model == model and row.case.phase == phase for row in rows) for phase in FREE
        ]
        least = [len(names) for names in FREE.values()]
        if all(count > some for count, some in zip(counts, least, strict=True)):
            enough.append(model)
    return enough


def _judged(device: str, models: Sequence[str], rows: Sequence[FitRow]) -> Iterator[Judgement]:
    everything = tuple(models)
    origins: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), everything)]
    origins.append((everything, everything))
    for model in models:
        rest = tuple(one for one in models if one != model)
        origins.append(((model,), rest))
    for fitted, judged in origins:
        try:
            constants = fit_constants([row for row in rows if row.model in fitted])
        except (PerfModelError, np.linalg.LinAlgError):
            continue
        for phase, names in FREE.items():
            own = [row for row in rows if row.case.phase == phase and row.model in judged]
            errors = np.expm1(log_ratios(own, constants))
            shipped = own[0].case.hardware.constants
            values = {name: constants.get(name, shipped[name]) for name in names}
            yield Judgement(device, phase, fitted, judged, values, tuple(errors.tolist()))
