"""A model on mappings of meshes of cores, and whole requests: tables of times and memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import versions
from perfmodel.base.table import Column, Table, described, flags, labelled
from perfmodel.hwprofiles import load_mesh
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import CLOSED_ROWS, PART_ROWS, PHASES
from perfmodel.kernels.work import kernel_work
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.chips import mesh_device, streamed_grid
from perfmodel.wafer.layers import WaferParts, wafer_parts
from perfmodel.wafer.mappings import WaferGrid, parse_grid, wafer_grid
from perfmodel.wafer.result_subject import (
    BOTTLENECKS,
    MAPPING_FIELDS,
    MOST_TOKENS,
    PART_VARIABLES,
    ROW_VARIABLES,
    SCHEMA_VERSION,
    TIME_COMPONENTS,
    VARIABLES,
)

if TYPE_CHECKING:
    import xarray as xr

# A model on mappings of meshes of cores: a labelled table of times, memory and regions.

DIMS = ("mapping", "hardware", "phase")
PART_DIMS = ("mapping", "hardware", "part")
STATUS = (
    "valid",
    "grid_beyond_mesh",
    "regions_beyond_mesh",
    "weights_beyond_memory",
    "cache_beyond_memory",
)
MAX_PARTS = 10_000
"""Mappings of which single parts may be asked: more is a mistake."""


def wafer_table(
    model: ModelSpec | str,
    hardware: MeshHardware | str | Sequence[MeshHardware | str],
    mappings: WaferGrid | None = None,
    *,
    phase: str | Sequence[str] = "decode",
    head: bool = True,
    precision: str = "",
    cache_precision: str = "",
    parts: bool = False,
    **axes: Any,
) -> Table:
    """Project a model on meshes of cores.

    Parameters
    ----------
    model : ModelSpec or str
        As of `perfmodel.model.presets.load_model`.
    hardware : MeshHardware or str, or sequence of them
        Where weights stream from memory beside the cores, all cores of all chips work on them
        (`perfmodel.wafer.chips`), whatever the grid.
    mappings : WaferGrid, optional
        From `wafer_grid`; else `axes` are what it takes. Without a grid: the largest square
        that all meshes hold.
    phase : {"decode", "prefill"} or sequence of them
        One token of every sequence, or whole prompts.
    head : bool
        Whether the output matrix counts (published measurements of layers leave it out).
    precision, cache_precision : str
        As of `perfmodel.wafer.chips.mesh_device`.
    parts : bool
        Add times of every part of every kind of layer, of one phase.
    axes
        Values of a mapping's fields, such as ``grid=420, context=4096``.

    Returns
    -------
    Table
        Dimensions ``mapping``, ``hardware`` and ``phase``; variables of
        `perfmodel.wafer.result_subject.VARIABLES`.

    Raises
    ------
    StrategyError
        An unknown field or value, a context beyond the model's, more than memory holds.
    HardwareError, ModelError
        No such mesh or model; layers without a rule.
    """
    spec = load_model(model)
    rows = mesh_rows(hardware)
    phases = phase_names(phase)
    if mappings is None:
        if "grid" not in axes:
            axes["grid"] = default_grid(rows)
        mappings = wafer_grid(**axes)
    elif axes:
        raise StrategyError(f"a grid of mappings leaves no room for '{sorted(axes)[0]}'")
    check_context(spec, mappings)
    if parts and (len(phases) > 1 or len(mappings) > MAX_PARTS):
        raise StrategyError(f"parts: ask for one phase, and for at most {MAX_PARTS:,} mappings")
    points = len(mappings) * len(rows) * len(phases)
    check_memory(
        f"{points:,} mappings",
        points * (len(CLOSED_ROWS) + 8) * 8.0,
        "take fewer mappings",
        StrategyError,
    )
    values = np.empty((len(CLOSED_ROWS), len(rows), len(phases), len(mappings)))
    status = np.zeros((len(rows), len(phases), len(mappings)), np.int64)
    details = []
    for place, name in enumerate(phases):
        code = PHASES.index(name)
        listed = wafer_parts(spec, code)
        for number, row in enumerate(rows):
            if row.dram_bandwidth > 0.0:
                values[:, number, place], status[number, place] = streamed_grid(
                    spec, mappings, row, name, precision
                )
                if parts:
                    raise StrategyError(f"parts: {row.name} reads weights from DRAM, as a whole")
                continue
            device = mesh_device(row, precision, cache_precision)
            values[:, number, place], status[number, place] = close_grid(
                listed, mappings, device, code, head
            )
            if parts:
                details.append(part_times(listed, mappings, device, code))
    table = _table(spec, mappings, rows, phases, values, status)
    table.attrs |= {"precision": precision or "16 bit", "head": "counted" if head else "left out"}
    if parts:
        _add_parts(table, listed, np.stack(details), head)
    return table


def project_wafer(
    model: ModelSpec | str,
    hardware: MeshHardware | str | Sequence[MeshHardware | str],
    mappings: WaferGrid | None = None,
    **asked: Any,
) -> xr.Dataset:
    """Project a model on meshes of cores: every mapping, on every mesh, in every phase.

    Parameters
    ----------
    model, hardware, mappings, asked
        As of `wafer_table`, which returns the same as a table.

    Returns
    -------
    xarray.Dataset
        Dimensions ``mapping``, ``hardware`` and ``phase``, with ``parts=True`` also ``part``;
        variables of `perfmodel.wafer.result_subject.VARIABLES`, each with ``units``.

    Raises
    ------
    StrategyError, HardwareError, ModelError
        As there.

    Examples
    --------
    >>> found = project_wafer("llama-3-8b", "wse-2", grid=[420, 540], context=4096)
    >>> dict(found.sizes)
    {'mapping': 2, 'hardware': 1, 'phase': 1}
    """
    from perfmodel.store.datasets import wrapped

    return wrapped(wafer_table(model, hardware, mappings, **asked))


def mesh_rows(hardware: MeshHardware | str | Sequence[MeshHardware | str]) -> list[MeshHardware]:
    """Return meshes, one or several, by name or as they are.

    Raises
    ------
    StrategyError
        None, or one twice.
    HardwareError
        No such mesh.
    """
    given = [hardware] if isinstance(hardware, str | MeshHardware) else list(hardware)
    rows = [load_mesh(item) for item in given]
    names = [row.name for row in rows]
    if not rows:
        raise StrategyError("hardware: at least one mesh of cores")
    if twice := [name for name in names if names.count(name) > 1]:
        raise StrategyError(f"hardware '{twice[0]}' is given twice")
    return rows


def default_grid(rows: Sequence[MeshHardware]) -> int:
    """Return the side of the largest square that all meshes hold."""
    return min(min(row.rows, row.columns) for row in rows)


def check_context(model: ModelSpec, mappings: WaferGrid) -> None:
    """Refuse a context beyond the longest that a model states.

    Raises
    ------
    StrategyError
    """
    longest = int(mappings["context"].max(initial=0))
    if model.max_positions and longest > model.max_positions:
        raise StrategyError(
            f"context: {longest:,} tokens exceed the {model.max_positions:,} of {model.name} "
            "(key 'max_position_embeddings' of its configuration)"
        )


def close_grid(
    parts: WaferParts, mappings: WaferGrid, device: Any, phase: int, head: bool
) -> tuple[Floats, NDArray[np.int64]]:
    """Close a model on all mappings of one mesh.

    Returns
    -------
    values : array, shape (len(CLOSED_ROWS), mappings)
        [s, B, 1]; NaN where a mapping is impossible.
    status : array of int, shape (mappings,)
        Place in `STATUS`.
    """
    from perfmodel.kernels.wafer import close

    columns = mappings.kernel_columns()
    found = np.empty((len(CLOSED_ROWS), len(mappings)))
    status = np.zeros(len(mappings), np.int64)
    with kernel_work(mesh_mappings=len(mappings)):
        close.close_mappings(
            parts.columns, parts.counts, head, columns, phase, device, found, status
        )
    return found, status


def part_times(parts: WaferParts, mappings: WaferGrid, device: Any, phase: int) -> Floats:
    """Return `PART_ROWS` of every part on every mapping, shape (mappings, parts, rows) [cycles]."""
    from perfmodel.kernels.wafer import close

    columns = mappings.kernel_columns()
    found = np.zeros((len(mappings), len(parts.names), len(PART_ROWS)))
    with kernel_work(mesh_mappings=len(mappings)):
        for i in range(len(mappings)):
            for layer in range(len(parts.layer_names)):
                close.time_layer(parts.columns, layer, columns, i, phase, device, found[i])
    found[..., :5] /= device.clock
    return found


def phase_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return phases, one or several, each once.

    Raises
    ------
    StrategyError
        Another name, or none.
    """
    names = [given] if isinstance(given, str) else list(dict.fromkeys(given))
    for name in names:
        if name not in PHASES:
            raise StrategyError(f"phase: unknown '{name}'{did_you_mean(name, PHASES)}")
    if not names:
        raise StrategyError(f"phase: one of {', '.join(PHASES)}")
    return tuple(names)


def _table(
    model: ModelSpec,
    mappings: WaferGrid,
    rows: Sequence[MeshHardware],
    phases: Sequence[str],
    values: Floats,
    status: NDArray[np.int64],
) -> Table:
    turned = values.transpose(0, 3, 1, 2)  # mapping, hardware, phase
    found = dict(zip(CLOSED_ROWS, turned, strict=True))
    verdicts = status.transpose(2, 0, 1)
    tokens = np.ones((len(mappings), 1, len(phases)))
    if "prefill" in phases:
        tokens[:, 0, phases.index("prefill")] = mappings["context"]
    impossible = np.isnan(found["latency"])
    components = np.stack([found[name] for name in TIME_COMPONENTS])
    bottleneck = np.where(impossible, 0.0, components).argmax(axis=0).astype(np.int8)
    bottleneck[impossible] = len(BOTTLENECKS)
    # A region is free again once the next has what it made.
    stage = found["layers_per_region"] * found["layer_time"] + found["transfer_time"] / np.maximum(
        found["region_count"] - 1.0, 1.0
    )
    busy = np.where(found["region_count"] > 1.0, stage, found["latency"])
    extra = {
        "mesh_tokens_per_second": tokens * mappings["batch"][:, None, None] / busy,
        "tokens_per_second": tokens / found["latency"],
        "link_utilization": found["link_time"] / found["latency"],
        "bottleneck": bottleneck,
        "fits": verdicts == 0,
        "status": verdicts.astype(np.int8),
    }
    columns = {it.name: labelled(it, found[it.name], DIMS) for it in ROW_VARIABLES}
    columns |= {name: labelled(VARIABLES[name], data, DIMS) for name, data in extra.items()}
    columns["bottleneck"].attrs |= flags((*BOTTLENECKS, "none"))
    columns["status"].attrs |= flags(STATUS)
    return Table(
        columns,
        _coordinates(mappings, rows, phases),
        described(
            f"{model.name} on meshes of cores",
            SCHEMA_VERSION,
            model=model.name,
            provenance={
                "model": dataclasses.asdict(model),
                "hardware": {row.name: row.to_dict() for row in rows},
                "versions": versions("numpy", "numba"),
            },
        ),
        dict(zip(DIMS, (len(mappings), len(rows), len(phases)), strict=True)),
    )


def _coordinates(
    mappings: WaferGrid, rows: Sequence[MeshHardware], phases: Sequence[str]
) -> dict[str, Column]:
    found = {
        "mapping": Column(
            "mapping", np.arange(len(mappings)), {"long_name": "mapping", "units": "1"}
        ),
        "hardware": Column(
            "hardware",
            np.array([row.name for row in rows]),
            {"long_name": "mesh of cores", "units": "1"},
        ),
        "phase": Column("phase", np.array(phases), {"long_name": "phase", "units": "1"}),
    }
    for spec in MAPPING_FIELDS:
        about: dict[str, Any] = {"units": "1", "long_name": spec.description}
        column = mappings[spec.name]
        if spec.choices:
            about |= flags(spec.choices)
            column = column.astype(np.int8)
        found[spec.name] = Column("mapping", column, about)
    return found


def _add_parts(table: Table, parts: WaferParts, times: Floats, head: bool) -> None:
    """Add times of single parts; `times` has shape (hardware, mappings, parts, rows)."""
    first = parts.columns.first
    count = int(first[-1] if head else first[-2])
    turned = times.transpose(1, 0, 2, 3)[:, :, :count]
    named = dict(zip(PART_ROWS, np.moveaxis(turned, -1, 0), strict=True))
    data = {
        "part_time": turned[..., :4].sum(axis=-1),
        "part_compute_time": named["compute_time"],
        "part_sram_time": named["sram_time"],
        "part_issue_time": named["issue_time"],
        "part_network_time": named["network_time"],
        "part_link_time": named["link_time"],
        "part_core_macs": named["macs"],
        "part_macs": named["useful_macs"],
    }
    for item in PART_VARIABLES:
        table[item.name] = labelled(item, data[item.name], PART_DIMS)
    layer_of = np.repeat(np.arange(len(parts.layer_names)), np.diff(first))[:count]
    counts = np.append(parts.counts, 1.0)[layer_of]
    table.coords["part"] = Column(
        "part", np.array(parts.names[:count]), {"long_name": "part of a layer", "units": "1"}
    )
    table.coords["layer"] = Column(
        "part",
        np.array(parts.layer_names)[layer_of],
        {"long_name": "kind of layer that the part is of", "units": "1"},
    )
    table.coords["layers"] = Column(
        "part", counts, {"long_name": "layers of that kind", "units": "1"}
    )
    table._sizes = {**table.sizes, "part": count}


# A whole request on meshes of cores: a prompt on one grid, its answer on another.

MOST_KNOTS = 257
"""Contexts of an answer that are projected; the token's time is linear between more."""


@dataclass(frozen=True)
class WaferRequest:
    """One request from its prompt to its last token.

    Attributes
    ----------
    time_to_first_token : float
        The prompt [s].
    time_per_output_token : float
        Mean over the answer, whose context grows [s].
    request_time : float
        Prompt and answer [s].
    tokens_per_second : float
        Tokens of the answer over `request_time` [1/s].
    prefill, decode : Table
        As of `wafer_table`: the prompt, and the answer's last token.
    fits : bool
        Both find room.
    """

    time_to_first_token: float
    time_per_output_token: float
    request_time: float
    tokens_per_second: float
    prefill: Table
    decode: Table
    fits: bool


def project_request(
    model: ModelSpec | str,
    hardware: MeshHardware | str,
    *,
    input_length: int,
    output_length: int,
    prefill_grid: Any = None,
    decode_grid: Any = None,
    **asked: Any,
) -> WaferRequest:
    """Project one request end to end.

    Parameters
    ----------
    model : ModelSpec or str
    hardware : MeshHardware or str
    input_length, output_length : int
        Tokens of the prompt and of its answer; every token of the answer is a pass of its own.
    prefill_grid, decode_grid : int, str or (int, int), optional
        Cores of a region in either phase; default: the largest square of the mesh. Moving weights
        and cache from one layout to the other is not counted.
    asked
        Further options of `wafer_table`, for both phases.

    Returns
    -------
    WaferRequest

    Raises
    ------
    StrategyError
        Lengths that mean nothing, or several values where one is wanted; as `wafer_table`.
    """
    for name, value in (("input_length", input_length), ("output_length", output_length)):
        if not isinstance(value, int | np.integer) or not 1 <= value <= MOST_TOKENS:
            raise StrategyError(f"{name}: a whole number from 1 to {MOST_TOKENS:,}, not {value!r}")
    (row,) = mesh_rows(hardware)
    grids = [
        parse_grid(given if given is not None else default_grid([row]))
        for given in (prefill_grid, decode_grid)
    ]
    prefill = wafer_table(
        model, row, phase="prefill", grid=[grids[0]], context=input_length, **asked
    )
    if prefill.sizes["mapping"] != 1:
        raise StrategyError("a request takes one value of every field of a mapping")
    knots, weights = _contexts(input_length, output_length, grids[1], row, asked)
    decode = wafer_table(
        model, row, phase="decode", grid=[grids[1]], context=knots.tolist(), **asked
    )
    first = float(prefill["latency"].values[0, 0, 0])
    token = float(decode["latency"].values[:, 0, 0] @ weights)
    whole = first + output_length * token
    last = decode.isel(mapping=[-1])
    fits = bool(prefill["fits"].values[0, 0, 0] and last["fits"].values[0, 0, 0])
    return WaferRequest(first, token, whole, output_length / whole, prefill, last, fits)


def _contexts(
    prompt: int, answer: int, grid: tuple[int, int], hardware: MeshHardware, asked: Any
) -> tuple[Integers, Floats]:
    """Return contexts of an answer's tokens to project, and the share of tokens of each."""
    every = np.arange(prompt + 1, prompt + answer + 1)
    if asked.get("cache_layout", "shifted") == "shifted" and hardware.dram_bandwidth <= 0.0:
        # Tiles grow by a whole token per row or column: between, nothing changes.
        tiles = np.ceil(every[:, None] / np.array(grid)).astype(np.int64)
        last = np.flatnonzero(np.append((tiles[1:] != tiles[:-1]).any(axis=1), True))
        if last.size <= MOST_KNOTS:
            return every[last], np.diff(last, prepend=-1) / answer
    count = min(answer, MOST_KNOTS)
    knots = np.unique(np.linspace(every[0], every[-1], count).round().astype(np.int64))
    if knots.size == answer:
        return knots, np.full(answer, 1.0 / answer)
    gaps = np.diff(knots)
    weights = 0.5 * (np.append(gaps, 0) + np.append(0, gaps))
    return knots, weights / math.fsum(weights)
