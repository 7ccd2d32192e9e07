"""What a row of a table of wafers is projected as, and constants that are fitted to such rows.

Fits are judged on rows that they have not seen. Few rows and two constants a phase: what is worth
knowing is how constants that were fitted to one model predict another. A fit is Gauss and
Newton's, on logarithms of projected over measured and of the constants, all rows alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.errors import PerfModelError
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import CLOSED_ROWS, PHASES
from perfmodel.kernels.wafer.products import gemv_cycles
from perfmodel.kernels.wafer.reduce import TWO_LEVEL
from perfmodel.measured.rows import Skip
from perfmodel.measured.wafer_rows import CAPACITY, DECODE, GEMV, PREFILL, WHOLE, WaferCase
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.chips import mesh_device, streamed_grid
from perfmodel.wafer.layers import WaferParts, wafer_parts
from perfmodel.wafer.mappings import WaferGrid, wafer_grid
from perfmodel.wafer.project import close_grid

SHOWN = (
    *("compute_time", "sram_time", "issue_time", "network_time", "transfer_time", "chip_time"),
    *("memory_time", "host_time", "region_count", "layers_per_region"),
    *("weight_bytes", "cache_bytes", "activation_bytes", "sram_used"),
)
"""Variables of a projection that a scored row keeps."""
TOKENS_HELD = {"concatenated": "cache_tokens_row", "shifted": "cache_tokens_shifted"}
STEPS = 9  # lengths of the context at which the tokens of an answer are projected
ELEMENT_BYTES = 2.0  # of fp16, in which the products of the tables are


@dataclass(frozen=True)
class Price:
    """A projection.

    Attributes
    ----------
    value : float
        Time [s], or tokens of a capacity.
    details : mapping of str to value
        What it is made of, SI units.
    assumed : tuple of str
        What the row leaves open and the projection chose, as ``field=value``.
    """

    value: float
    details: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def price(case: WaferCase, constants: Mapping[str, float] | None = None) -> Price:
    """Project a case.

    Parameters
    ----------
    case : WaferCase
    constants : mapping of str to float, optional
        Values that stand in for those of the profile.

    Raises
    ------
    Skip
        The row does not say enough, or there is no projection of such a run.
    PerfModelError
        The projection refuses it.
    """
    hardware = case.hardware
    if constants:
        changed = {f"constants.{name}": value for name, value in constants.items()}
        hardware = hardware.with_values(changed)
    if case.phase == GEMV:
        return _product(case, hardware)
    if case.model is None:
        raise Skip("architecture not stated", scorable=False)
    if case.phase == CAPACITY:
        return _capacity(case, hardware)
    if case.phase == WHOLE:
        return _request(case, hardware)
    lengths = [case.input_length]
    times, details = _times(case, hardware, case.phase, lengths)
    return Price(times[0], details, _assumed(case, hardware))


def _assumed(case: WaferCase, hardware: MeshHardware) -> tuple[str, ...]:
    return ("weights=bfp8",) if hardware.dram_bandwidth else ()


def _times(
    case: WaferCase, hardware: MeshHardware, phase: str, lengths: Sequence[int]
) -> tuple[list[float], dict[str, Any]]:
    """Return the time of a prompt, or of a token, of each length, and details of the first."""
    chips = hardware.dram_bandwidth > 0.0
    if not chips and phase not in case.grids:
        raise Skip("grid of cores not stated", phase)
    grid = (hardware.rows, hardware.columns) if chips else case.grids[phase]
    mappings = wafer_grid(
        grid=grid,
        context=list(lengths),
        batch=1 if phase == PREFILL else case.batch,
        product="distance_blind" if case.blind else "mesh_gemm",
    )
    found = _closed(_reaching(case, max(lengths)), hardware, mappings, phase)
    if not np.isfinite(found[0]).all():
        what = "the weights exceed the memory" if chips else "the grid of cores exceeds the mesh"
        raise Skip(what, f"{grid[0]}x{grid[1]}")
    return found[0].tolist(), _shown(found)


def _closed(model: ModelSpec, hardware: MeshHardware, mappings: WaferGrid, phase: str) -> Floats:
    """Return `CLOSED_ROWS` of mappings, as `perfmodel.wafer.project.wafer_table` has them.

    Published rates leave the output matrix out, but for those of whole chips.
    """
    if hardware.dram_bandwidth > 0.0:
        return streamed_grid(model, mappings, hardware, phase, "bfp8")[0]
    code = PHASES.index(phase)
    return close_grid(_parts_of(model, code), mappings, mesh_device(hardware), code, False)[0]


@lru_cache(maxsize=64)
def _parts_of(model: ModelSpec, phase: int) -> WaferParts:
    return wafer_parts(model, phase)


def _shown(found: Floats) -> dict[str, float]:
    return {name: float(found[CLOSED_ROWS.index(name), 0]) for name in SHOWN}


def _reaching(case: WaferCase, length: int) -> ModelSpec:
    """Return the model, made to reach as far as the run did whatever its description says."""
    assert case.model is not None
    longest = case.model.max_positions
    return replace(case.model, max_positions=length) if 0 < longest < length else case.model


def _request(case: WaferCase, hardware: MeshHardware) -> Price:
    """Project a whole request: the prompt, then token after token of a growing context."""
    (prompt,), _ = _times(case, hardware, PREFILL, [case.input_length])
    first, last = case.input_length + 1, case.input_length + case.output_length
    steps = min(STEPS, case.output_length)
    lengths = sorted({first + (last - first) * i // max(steps - 1, 1) for i in range(steps)})
    times, _ = _times(case, hardware, DECODE, lengths)
    token = _mean(lengths, times)
    whole = prompt + case.output_length * token
    return Price(whole, {"prompt_time": prompt, "token_time": token}, _assumed(case, hardware))


def _mean(places: Sequence[float], values: Sequence[float]) -> float:
    """Return the mean of a function given at places, linear in between."""
    if len(places) == 1:
        return values[0]
    area = sum(
        0.5 * (values[i] + values[i + 1]) * (places[i + 1] - places[i])
        for i in range(len(places) - 1)
    )
    return area / (places[-1] - places[0])


def _capacity(case: WaferCase, hardware: MeshHardware) -> Price:
    """Project the most tokens whose keys and values a grid of cores holds."""
    if DECODE not in case.grids:
        raise Skip("grid of cores not stated", case.phase)
    model = case.model
    assert model is not None
    mappings = wafer_grid(grid=case.grids[DECODE], context=1)
    found = _closed(model, hardware, mappings, DECODE)
    value = float(found[CLOSED_ROWS.index(TOKENS_HELD[case.layout]), 0])
    if not value > 0.0:
        raise Skip("the model exceeds the memory of the cores", model.name)
    return Price(value, _shown(found))


def _product(case: WaferCase, hardware: MeshHardware) -> Price:
    """Project a vector times a matrix, on the fastest square that holds it where none is stated."""
    rows, columns = case.product
    grid = case.grids.get(PREFILL)
    if grid is not None:
        compute, network = _gemv(hardware, rows, columns, *grid)
        return Price((compute + network) / hardware.clock, _parts(hardware, compute, network))
    best = None
    for side in range(1, min(hardware.rows, hardware.columns, rows, columns) + 1):
        held = -(-rows // side) * -(-columns // side) * ELEMENT_BYTES
        if held > hardware.sram_per_core - hardware.sram_reserved:
            continue
        parts = _gemv(hardware, rows, columns, side, side)
        if best is None or sum(parts) < sum(best[0]):
            best = (parts, side)
    if best is None:
        raise Skip("the matrix exceeds the memory of the cores", f"{rows} x {columns}")
    (compute, network), side = best
    details = _parts(hardware, compute, network)
    return Price((compute + network) / hardware.clock, details, (f"grid={side}x{side}",))


def _parts(hardware: MeshHardware, compute: float, network: float) -> dict[str, float]:
    return {"compute_time": compute / hardware.clock, "network_time": network / hardware.clock}


def _gemv(
    hardware: MeshHardware, rows: int, columns: int, grid_rows: int, grid_columns: int
) -> tuple[float, float]:
    """Return the cycles of compute and network of a vector times a matrix."""
    compute, network = gemv_cycles(
        float(rows),
        float(columns),
        float(grid_columns),
        float(grid_rows),
        TWO_LEVEL,
        ELEMENT_BYTES,
        hardware.peak_macs("fp16"),
        hardware.sram_read,
        hardware.sram_write,
        hardware.constant("vector_issue"),
        hardware.link_width / ELEMENT_BYTES,
        hardware.hop_cycles,
        hardware.constant("stage_latency"),
        hardware.ramp_cycles,
    )
    return float(compute), float(network)


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
