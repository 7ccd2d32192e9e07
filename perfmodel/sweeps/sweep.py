"""Sweep strategies over hardware into one labelled table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import StrategyError
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.strategy_fields import FIELDS
from perfmodel.base.table import Column, Table, described, flags, labelled
from perfmodel.hwprofiles.hardware import row_names, unit_of
from perfmodel.hwprofiles.rows import profiles_of
from perfmodel.kernels.variables import (
    HOST_MEMORY,
    SCHEMA_VERSION,
    STEP_ROWS,
    STEP_VARIABLES,
    VARIABLES,
)
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework, load_framework
from perfmodel.store.netcdf import narrow, narrow_kind, number_type, or_single
from perfmodel.strategy.grid import VALID, StrategyGrid, attended_lengths, families_of
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_NAMES
from perfmodel.sweeps.trust import add_trust

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.training.workload import Workload


def sweep_table(
    model: ModelSpec | str,
    grid: StrategyGrid,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    framework: str | Framework = "megatron",
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
) -> Table:
    """Project a training step for every strategy on every device.

    Takes what `perfmodel.sweeps.several.sweep` takes, and returns a table with codes for choices.
    """
    from perfmodel.model.presets import load_model

    return sweep_problems(
        [Problem(load_model(model), load_framework(framework), grid)],
        hardware,
        dtype=dtype,
        threads=threads,
        progress=progress,
        hardware_values=hardware_values,
    )


DIMS = ("strategy", "hardware")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A model, the software that trains it, and strategies on one number of devices."""

    model: ModelSpec
    framework: Framework
    grid: StrategyGrid


def sweep_problems(
    problems: Sequence[Problem],
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    dtype: Any = np.float64,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    hardware_values: Mapping[str, Sequence[float]] | None = None,
    among: Sequence[Problem] | None = None,
    provenance: bool = True,
) -> Table:
    """Project the strategies of several problems, one after another, into one table.

    Parameters
    ----------
    problems : sequence of Problem
        Their strategies follow each other along ``strategy``; several have the coordinates
        ``model``, ``framework`` and ``devices`` there.
    hardware, dtype, threads, progress, hardware_values
        As of `sweep`.
    among : sequence of Problem, optional
        Those of the longer sweep that these are a part of; their strategies are not looked at.
    provenance : bool
        Whether the table says what all was projected with.

    Raises
    ------
    StrategyError
        No strategy or no hardware given, or more than memory holds.
    DataError
        As of `perfmodel.store.netcdf.number_type`.
    """
    from perfmodel.kernels.work import expect

    rows, dtype = hardware_rows(hardware), number_type(dtype)
    total = sum(len(problem.grid) for problem in problems)
    if not rows or not total:
        raise StrategyError("a sweep needs at least one strategy and one hardware profile")
    check_memory(
        f"{total:,} strategies on {len(rows):,} rows of hardware",
        total * result_bytes(len(rows), dtype),
        f"take fewer of them{or_single(dtype)}",
        StrategyError,
    )
    expect(strategies=total * len(rows))
    values = np.zeros((len(rows), len(STEP_VARIABLES), total), dtype)
    start, before = 0, None
    for problem in problems:
        before = _project(problem, rows, values, start, threads, progress, before)
        start += len(problem.grid)
    if values.dtype != np.float64:
        keep_sides(problems, rows, values)
    table = Table(
        {
            variable.name: labelled(variable, values[:, i].T, DIMS)
            for i, variable in enumerate(STEP_VARIABLES)
        },
        _coordinates(problems, rows, hardware_values or {}, among or problems),
        _attributes(among or problems, rows) if provenance else {},
        {"strategy": total, "hardware": len(rows)},
    )
    return add_trust(_add_derived(table, problems, rows), rows)


def hardware_rows(hardware: Hardware | str | Sequence[Hardware | str]) -> list[Hardware]:
    """Return profiles, one or several, by name or as they are.

    Raises
    ------
    StrategyError
        One is given twice.
    HardwareError
        No such profile.
    """
    rows = profiles_of(hardware)
    names = row_names(rows)
    if twice := [name for name in names if names.count(name) > 1]:
        raise StrategyError(f"hardware '{twice[0]}' is given twice")
    return rows


def _project(
    problem: Problem,
    rows: Sequence[Hardware],
    values: NDArray[Any],
    start: int,
    threads: int | None,
    progress: Callable[[int], None] | None,
    before: tuple[Problem, Workload] | None = None,
) -> tuple[Problem, Workload]:
    """Fill the values of one problem, shape (rows, variables, strategies), from a column on.

    Returns it with its workload: that of the one `before` where the grids are the same.
    """
    from perfmodel.training.project import project_rows
    from perfmodel.training.workload import Workload

    grid = problem.grid
    if not np.all(grid.status == VALID):
        values[:, :, start : start + len(grid)] = np.nan
    same = before and before[0].model is problem.model and before[0].grid is grid
    whole = before[1] if before and same else Workload(problem.model, grid)
    # Numbered on, so that kernels are handed whole arrays: parts are another type to compile for.
    work = whole.numbered_on(start) if start else whole
    project_rows(work, rows, problem.framework, values, threads=threads, progress=progress)
    return problem, whole


def result_bytes(hardware_rows: int, dtype: Any = np.float64) -> int:
    """Return what a sweep keeps of one strategy [B]: fields, variables, verdicts and status."""
    size = np.dtype(dtype).itemsize
    return 2 * len(FIELDS) + 2 * size + hardware_rows * (len(STEP_VARIABLES) * size + 3)


def keep_sides(
    problems: Sequence[Problem], rows: Sequence[Hardware], values: NDArray[np.float32]
) -> None:
    """Let memory in single precision stand on the side of a limit where it really is.

    Rounding takes nothing past a limit but what becomes the limit itself, rounded. That is
    projected in double precision, and where it rounds to the other side it becomes the next
    number on its own. So what fits is decided as by float64, also of results that are stored.

    Parameters
    ----------
    problems, rows
        As of `sweep_problems`.
    values : ndarray, shape (rows, variables, strategies)
    """
    for own, row in zip(values, rows, strict=True):
        for name, limit in memory_limits(row).items():
            held, rounded = own[STEP_ROWS[name]], np.float32(limit)
            near = np.flatnonzero(held == rounded) if limit > 0.0 else np.zeros(0, np.intp)
            if near.size:
                above = _exact(problems, row, name, near) > limit
                other = np.where(above, np.float32(np.inf), np.float32(-np.inf))
                wrong = (float(rounded) > limit) != above
                held[near] = np.where(wrong, np.nextafter(rounded, other), rounded)


def memory_limits(row: Hardware) -> dict[str, float]:
    """Return what memory must not exceed, by variable [B]; 0 where there is none to use."""
    capacity, host = row.device.memory.capacity, row.system.host
    own = {"memory_total": capacity, "memory_high": capacity}
    return own | {name: float(getattr(host, place)) for name, place in HOST_MEMORY.items()}


def _exact(
    problems: Sequence[Problem], row: Hardware, name: str, numbers: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return a variable of some strategies of all problems, which ascend, as float64 has it."""
    found, start = [], 0
    for problem in problems:
        stop = start + len(problem.grid)
        mine = numbers[(start <= numbers) & (numbers < stop)] - start
        few = replace(problem, grid=families_of(problem.grid).strategies(mine))
        out = np.zeros((1, len(STEP_VARIABLES), mine.size))
        if mine.size:
            _project(few, [row], out, 0, 1, None)
        found.append(out[0, STEP_ROWS[name]])
        start = stop
    return np.concatenate(found)


def _coordinates(
    problems: Sequence[Problem],
    rows: Sequence[Hardware],
    swept: Mapping[str, Sequence[float]],
    among: Sequence[Problem],
) -> dict[str, Column]:
    grids = [problem.grid for problem in problems]
    count = sum(map(len, grids))
    coordinates = {"strategy": numbered("strategy", count), **hardware_coordinates(rows, swept)}
    if len(among) > 1:
        coordinates |= _problem_coordinates(problems, among)
    for spec in FIELDS:
        attributes: dict[str, Any] = {"units": "1", "long_name": spec.description}
        # A share such as 0.1 is what a user named in 64 bits alone.
        kind: Any = np.float64
        if spec.kind == "int":
            kind = narrow_kind([it.of_families(spec.name) for it in grids])
        elif spec.kind != "float":
            kind = np.int8
            attributes |= flags(spec.choices or ("false", "true"))
        coordinates[spec.name] = Column("strategy", _spread(spec.name, kind, grids), attributes)
    return coordinates


def _spread(name: str, kind: Any, grids: Sequence[StrategyGrid]) -> NDArray[Any]:
    """Return a field of all strategies; one value that all have is seen from every row."""
    held = [it.of_families(name) for it in grids if len(it)]
    first = held[0][:1].astype(kind)
    if all(np.all(column == column[0]) and column[0] == held[0][0] for column in held):
        return np.broadcast_to(first, sum(map(len, grids)))
    return np.concatenate([it.column(name, kind) for it in grids])


def numbered(name: str, count: int) -> Column:
    """Return the coordinate of a dimension whose rows have numbers only."""
    return Column(name, np.arange(count), {"long_name": name, "units": "1"})


def hardware_coordinates(
    rows: Sequence[Hardware], swept: Mapping[str, Sequence[float]]
) -> dict[str, Column]:
    """Return names, memory and swept values of rows of hardware."""
    found = {
        "hardware": Column(
            "hardware", row_names(rows), {"long_name": "hardware profile", "units": "1"}
        ),
        "memory_capacity": Column(
            "hardware",
            np.array([row.device.memory.capacity for row in rows], np.float64),
            {"units": "B", "long_name": "memory of one device"},
        ),
    }
    for path, numbers in swept.items():
        about = {"long_name": f"swept value of {path}", "units": unit_of(rows[0], path)}
        found[path] = Column("hardware", numbers, about)
    return found


def _problem_coordinates(
    problems: Sequence[Problem], among: Sequence[Problem]
) -> dict[str, Column]:
    """Return which problem every strategy belongs to."""
    sizes = [len(problem.grid) for problem in problems]
    found = {}
    for name, text in (("model", "model"), ("framework", "training software")):
        labels = [str(getattr(problem, name).name) for problem in problems]
        known = list(dict.fromkeys(str(getattr(problem, name).name) for problem in among))
        codes = np.array([known.index(label) for label in labels], np.int16)
        about = {"long_name": text, "units": "1"} | flags(known)
        found[name] = Column("strategy", np.repeat(codes, sizes), about)
    devices = np.repeat([problem.grid.devices for problem in problems], sizes)
    about = {"long_name": "devices of the run", "units": "1"}
    return found | {"devices": Column("strategy", narrow(devices), about)}


def _add_derived(table: Table, problems: Sequence[Problem], rows: Sequence[Hardware]) -> Table:
    """Add FLOP per token, the memory verdict and the status of every pair."""
    from perfmodel.training.flops import model_flops_per_token

    dtype = table["step_time"].values.dtype
    for name, causal in (
        ("model_flops_per_token", True),
        ("model_flops_per_token_non_causal", False),
    ):
        parts = []
        for problem in problems:
            grid = problem.grid
            families = grid.families
            attended = attended_lengths(grid.columns if families is None else families.grid.columns)
            lengths, at = np.unique(attended, return_inverse=True)
            flops = model_flops_per_token(problem.model, lengths, causal=causal).astype(dtype)[at]
            parts.append(flops if families is None else np.repeat(flops, families.size))
        table[name] = labelled(VARIABLES[name], np.concatenate(parts), ["strategy"])
    step = table["step_time"].values
    capacity = table["memory_capacity"].values
    fits = np.isfinite(step) & (table["memory_total"].values <= capacity)
    for name, place in HOST_MEMORY.items():
        held = table[name].values
        if held.any():
            fits &= held <= np.array([getattr(row.system.host, place) for row in rows])
    table["fits"] = labelled(VARIABLES["fits"], fits, DIMS)
    tight = fits & (table["memory_high"].values > capacity)
    table["tight"] = labelled(VARIABLES["tight"], tight, DIMS)
    broken = np.concatenate([problem.grid.status for problem in problems])[:, None]
    status = np.where(
        (broken == VALID) & ~np.isfinite(step), np.uint8(PRECISION_UNSUPPORTED), broken
    ).astype(np.int8)
    table["status"] = labelled(VARIABLES["status"], status, DIMS)
    table["status"].attrs |= {
        "flag_values": np.array(list(STATUS_NAMES), np.int8),
        "flag_meanings": " ".join(STATUS_NAMES.values()),
    }
    return table


def _attributes(problems: Sequence[Problem], rows: Sequence[Hardware]) -> dict[str, Any]:
    """Return what holds for the whole table; of several models, all in one."""
    named = {problem.model.name: problem.model for problem in problems}
    models = {name: _record(it) for name, it in named.items()}
    used = {problem.framework.name: problem.framework for problem in problems}
    software = {name: dataclasses.asdict(it) for name, it in used.items()}
    devices = list(dict.fromkeys(problem.grid.devices for problem in problems))
    provenance = {
        "model": models if len(models) > 1 else next(iter(models.values())),
        "hardware": {name: row.to_dict() for name, row in zip(row_names(rows), rows, strict=True)},
        "framework": software if len(software) > 1 else next(iter(software.values())),
        "versions": versions("numpy", "numba"),
    }
    counts = f"{', '.join(map(str, devices))} devices"
    return described(
        f"Training step of {', '.join(models)} on {counts}",
        SCHEMA_VERSION,
        model=_alone(list(models)),
        framework=_alone(list(software)),
        devices=_alone(devices),
        mtp_layers=_alone([len(model["mtp_layers"]) for model in models.values()]),
        provenance=provenance,
    )


@functools.lru_cache(maxsize=8)
def _record(model: ModelSpec) -> dict[str, Any]:
    """Return a model as plain values, which takes as long as a thousand strategies."""
    return dataclasses.asdict(model)


def _alone(values: list[Any]) -> Any:
    """Return the only value, or all of them."""
    return values[0] if len(values) == 1 else values
