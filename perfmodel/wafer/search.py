"""Search of the mappings of a phase, or of a whole request, that take the least time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.hwprofiles import load_mesh
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import CACHE_LAYOUTS, PHASES, PREFILL, MeshDevice
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.kernels.work import kernel_work
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.chips import mesh_device
from perfmodel.wafer.layers import WaferParts, wafer_parts
from perfmodel.wafer.mappings import WaferGrid, wafer_grid
from perfmodel.wafer.project import (
    WaferRequest,
    check_context,
    close_grid,
    phase_names,
    project_request,
    wafer_table,
)

# What a search may choose of a model on a mesh, within the routes of its routers.

SHAPES = ("square", "rectangle")

# Routes (colours) that a router holds at once, fixed ones and those for each core of a row. He et
# al. (OSDI 2025, section 4) give the orders: a fixed number for Cannon, MeshGEMM, chains and rings,
# K for K-trees, the length of the row for SUMMA and all-gathers. The numbers are our count:
# neighbours that pass on what they receive need two routes a direction, a copy to all one.
SUM_ROUTES: dict[str, tuple[int, int]] = {
    "chain": (3, 0),
    "ring": (4, 0),
    "star": (1, 1),
    "one_level": (3, 0),
    "two_level": (5, 0),
    "three_level": (7, 0),
    "four_level": (9, 0),
}
PRODUCT_ROUTES: dict[str, tuple[int, int]] = {
    "mesh_gemm": (8, 0),
    "cannon": (6, 0),
    "summa": (0, 2),
    "all_gather": (0, 2),
    "stationary_weights": (4, 0),
    "stationary_inputs": (4, 0),
}
"""``distance_blind`` is no mapping that anyone would choose; it is left out of every search."""


@dataclass(frozen=True)
class Choices:
    """What is chosen beside the grid and the regions; arrays of shape (choices,).

    Attributes
    ----------
    collective, product, cache_layout : array of int
        As of `perfmodel.kernels.wafer.columns.MeshMappings`.
    longest : array
        Longest side of a grid whose routes a router holds; 0 where none does.
    """

    collective: Integers
    product: Integers
    cache_layout: Integers
    longest: Floats

    def __len__(self) -> int:
        return len(self.collective)


def choices(
    hardware: MeshHardware,
    phase: int,
    *,
    collective: tuple[str, ...] = (),
    product: tuple[str, ...] = (),
    cache_layout: tuple[str, ...] = (),
) -> Choices:
    """Multiply out algorithms and layouts that a mesh has the routes for.

    Parameters
    ----------
    hardware : MeshHardware
    phase : int
        Decode multiplies no matrices, so that its products are not chosen.
    collective, product, cache_layout : tuple of str
        Those to choose from; empty for all.

    Raises
    ------
    StrategyError
        An unknown name, or one that no search may take.
    """
    sums = _named("collective", collective, SUM_ROUTES)
    multiplied = _named("product", product, PRODUCT_ROUTES)
    layouts = _named("cache_layout", cache_layout, dict.fromkeys(CACHE_LAYOUTS))
    if phase != PREFILL:
        multiplied = multiplied[:1]
    rows = list(itertools.product(layouts, multiplied, sums))
    longest = [
        longest_side(hardware.routes, algorithm, how if phase == PREFILL else None)
        for _, how, algorithm in rows
    ]
    if not any(longest):
        raise StrategyError(
            f"collective, product: {hardware.name} has {hardware.routes} routes a router "
            "('mesh.routes'), too few for any of these"
        )
    return Choices(
        collective=np.array([ALGORITHMS.index(one) for _, _, one in rows], np.int64),
        product=np.array([PRODUCTS.index(one) for _, one, _ in rows], np.int64),
        cache_layout=np.array([CACHE_LAYOUTS.index(one) for one, _, _ in rows], np.int64),
        longest=np.array(longest, float),
    )


def longest_side(routes: int, collective: str, product: str | None = None) -> float:
    """Return how long a row of cores may be, so that its routes are enough; infinite for any.

    Parameters
    ----------
    routes : int
        That a router holds; 0 where packets carry their address.
    collective : str
    product : str, optional
    """
    if not routes:
        return inf
    fixed, each = SUM_ROUTES[collective]
    if product is not None:
        fixed += PRODUCT_ROUTES[product][0]
        each += PRODUCT_ROUTES[product][1]
    left = routes - fixed
    if left < 0:
        return 0.0
    return float(left // each) if each else inf


def sides(hardware: MeshHardware, shape: str, given: list[int] | None) -> list[int]:
    """Return sides of grids to choose from, ascending: those given, or all that the mesh has.

    Raises
    ------
    StrategyError
        An unknown shape, or a side that the mesh does not have.
    """
    if shape not in SHAPES:
        raise StrategyError(f"shape: unknown '{shape}'{did_you_mean(shape, SHAPES)}")
    most = max(hardware.rows, hardware.columns)
    if shape == "square":
        most = min(hardware.rows, hardware.columns)
    if given is None:
        return list(range(1, most + 1))
    for side in given:
        if not isinstance(side, int) or not 0 < side <= most:
            raise StrategyError(
                f"grid: sides of 1 to {most} cores fit {hardware.name}, not {side!r}"
            )
    if not given:
        raise StrategyError("grid: the list of sides is empty")
    return sorted(set(given))


def _named(key: str, given: tuple[str, ...], known: dict[str, object] | dict) -> list[str]:
    for name in given:
        if name not in known:
            raise StrategyError(f"{key}: a search takes no '{name}'{did_you_mean(name, known)}")
    return list(dict.fromkeys(given)) or list(known)


# The mapping of a model on a mesh of cores that takes the least time.

EXHAUSTIVE = 20_000
"""Mappings up to which all are timed."""
CHUNK = 50_000


@dataclass(frozen=True)
class FoundMapping:
    """The best mapping, and what it took to find it.

    Attributes
    ----------
    grid : (int, int)
        Rows and columns of cores of a region.
    regions : int
    collective, product, cache_layout : str
    latency : float
        One token of every sequence, or a whole prompt [s].
    context, batch : int
    mappings : int
        Mappings that were to choose from.
    timed : int
        Those whose time was closed; bounds ruled out the others.
    exhaustive : bool
        Whether all were timed.
    """

    grid: tuple[int, int]
    regions: int
    collective: str
    product: str
    cache_layout: str
    latency: float
    context: int
    batch: int
    mappings: int
    timed: int
    exhaustive: bool

    def as_grid(self) -> WaferGrid:
        """Return the mapping as a grid of one, for `perfmodel.wafer.project.wafer_table`."""
        return wafer_grid(**self.axes())

    def axes(self) -> dict[str, Any]:
        """Return its fields as `perfmodel.wafer.mappings.wafer_grid` takes them."""
        return {
            "grid": self.grid,
            "regions": self.regions,
            "collective": self.collective,
            "product": self.product,
            "cache_layout": self.cache_layout,
            "context": self.context,
            "batch": self.batch,
        }


def search_mapping(
    model: ModelSpec | str,
    hardware: MeshHardware | str,
    *,
    phase: str = "decode",
    context: int = 4096,
    batch: int = 1,
    shape: str = "square",
    grid: list[int] | None = None,
    collective: tuple[str, ...] = (),
    product: tuple[str, ...] = (),
    cache_layout: tuple[str, ...] = (),
    most_regions: int | None = None,
    head: bool = True,
    precision: str = "",
    cache_precision: str = "",
    exhaustive: bool | None = None,
) -> FoundMapping:
    """Find the mapping with the least latency that fits the memory and the routes of a mesh.

    Chosen are the grid of cores of a region and with it the tiles, the number of regions, how
    tiles meet and so which operand stays where it is, how sums are made, and where the cache
    lies. Of mappings that take the same time the one with the fewest cores.

    Parameters
    ----------
    model, hardware
        As of `perfmodel.wafer.project.wafer_table`.
    phase : {"decode", "prefill"}
    context, batch : int
        Tokens of each sequence, sequences.
    shape : {"square", "rectangle"}
        Of grids. Measured kernels use squares, where what one product leaves over the columns the
        next takes over the rows; turning it on a rectangle is not timed.
    grid : list of int, optional
        Sides to choose from; else all that the mesh has.
    collective, product, cache_layout : tuple of str
        Names to choose from; empty for all of `perfmodel.wafer.search`.
    most_regions : int, optional
    head, precision, cache_precision
        As of `perfmodel.wafer.project.wafer_table`.
    exhaustive : bool, optional
        Time every mapping, or halve boxes of grids and drop those whose bound is no better than
        what was found. Both find the same; default: the first up to `EXHAUSTIVE` mappings.

    Raises
    ------
    StrategyError
        Nothing fits, or a value that a field cannot have.
    HardwareError, ModelError
        As of `perfmodel.wafer.project.wafer_table`.
    """
    spec, mesh = load_model(model), load_mesh(hardware)
    code = PHASES.index(phase_names(phase)[0])
    if mesh.dram_bandwidth > 0.0:
        raise StrategyError(
            f"hardware: {mesh.name} reads weights from memory beside its cores "
            "('mesh.dram_bandwidth'); a search maps models that stay in the cores"
        )
    asked = wafer_grid(grid=1, context=context, batch=batch)  # checks both
    check_context(spec, asked)
    if most_regions is not None and most_regions < 1:
        raise StrategyError(f"regions: a whole number above 0, not {most_regions}")
    found_sides = sides(mesh, shape, grid)
    options = choices(mesh, code, collective=collective, product=product, cache_layout=cache_layout)
    space = _Space(
        parts=wafer_parts(spec, code),
        device=mesh_device(mesh, precision, cache_precision),
        sides=np.array(found_sides, float),
        square=shape == "square",
        choices=options,
        most_regions=float(min(most_regions or spec.num_layers, spec.num_layers)),
        context=context,
        batch=batch,
        phase=code,
        head=head,
    )
    total = space.mappings()
    if not total:
        raise StrategyError(
            f"grid: rows of {found_sides[0]:,} cores need more than the {mesh.routes} routes of a "
            f"router of {mesh.name} ('mesh.routes') with these algorithms"
        )
    if exhaustive is None:
        exhaustive = total <= EXHAUSTIVE
    best, timed = (_time_all if exhaustive else _halve_boxes)(space)
    if best[4] < 0:
        raise StrategyError(
            f"grid: none of {total:,} mappings of {spec.name} with {context:,} tokens of "
            f"{batch:,} sequences fits the memory of {mesh.name}; take fewer tokens, or a mesh "
            "with more memory ('mesh.sram_per_core')"
        )
    choice = int(best[4])
    return FoundMapping(
        grid=(int(best[1]), int(best[2])),
        regions=int(best[3]),
        collective=ALGORITHMS[options.collective[choice]],
        product=PRODUCTS[options.product[choice]],
        cache_layout=CACHE_LAYOUTS[options.cache_layout[choice]],
        latency=float(best[0]),
        context=context,
        batch=batch,
        mappings=total,
        timed=timed,
        exhaustive=exhaustive,
    )


@dataclass(frozen=True)
class _Space:
    parts: WaferParts
    device: MeshDevice
    sides: Floats
    square: bool
    choices: Choices
    most_regions: float
    context: int
    batch: int
    phase: int
    head: bool

    def grids(self) -> Floats:
        """Rows, columns and most regions of every grid that the mesh holds: shape (grids, 3)."""
        rows, columns = (
            (self.sides, self.sides)
            if self.square
            else (one.reshape(-1) for one in np.meshgrid(self.sides, self.sides, indexing="ij"))
        )
        short, long = sorted((self.device.rows, self.device.columns))
        there = (np.minimum(rows, columns) <= short) & (np.maximum(rows, columns) <= long)
        rows, columns = rows[there], columns[there]
        room = self.device.chips * np.maximum(1.0, self.device.cores // (rows * columns))
        most = np.minimum(room, self.most_regions)
        return np.stack([rows, columns, most], axis=1)

    def mappings(self) -> int:
        """How many mappings there are."""
        grids = self.grids()
        longer = grids[:, :2].max(axis=1)
        held = longer[None, :] <= self.choices.longest[:, None]
        return int((held * grids[:, 2]).sum())


def _halve_boxes(space: _Space) -> tuple[Floats, int]:
    best = np.empty(5)
    counted = space.choices
    with kernel_work(mesh_mappings=len(space.sides) * 10.0):
        from perfmodel.kernels.wafer import close

        timed, _ = close.search_boxes(
            space.parts.columns,
            space.parts.counts,
            space.head,
            space.sides,
            space.sides,
            space.square,
            counted.collective,
            counted.product,
            counted.cache_layout,
            counted.longest,
            space.most_regions,
            float(space.context),
            float(space.batch),
            space.phase,
            space.device,
            best,
        )
    return best, int(timed)


def _time_all(space: _Space) -> tuple[Floats, int]:
    """Time every mapping, chunk by chunk, and keep the best."""
    best = np.array([np.inf, -1.0, -1.0, -1.0, -1.0])
    timed = 0
    for choice, longest in enumerate(space.choices.longest):
        grids = space.grids()
        grids = grids[grids[:, :2].max(axis=1) <= longest]
        first_region = np.cumsum(grids[:, 2]) - grids[:, 2]
        count = int(grids[:, 2].sum())
        for begin in range(0, count, CHUNK):
            place = np.arange(begin, min(count, begin + CHUNK))
            which = np.searchsorted(first_region, place, side="right") - 1
            rows, columns = grids[which, 0], grids[which, 1]
            regions = place - first_region[which] + 1.0
            latency = _latencies(space, choice, rows, columns, regions)
            timed += len(place)
            cores = rows * columns * regions
            first = int(np.lexsort((cores, latency))[0])
            if (latency[first], cores[first]) < (best[0], np.prod(best[1:4])):
                best = np.array(
                    [latency[first], rows[first], columns[first], regions[first], choice]
                )
    return best, timed


def _latencies(
    space: _Space, choice: int, rows: Floats, columns: Floats, regions: Floats
) -> Floats:
    """Time mappings that share a choice [s]; infinite where they do not fit."""
    chosen = space.choices
    same = {
        "context": space.context,
        "batch": space.batch,
        "collective": chosen.collective[choice],
        "product": chosen.product[choice],
        "cache_layout": chosen.cache_layout[choice],
    }
    grid = WaferGrid(
        {"grid_rows": rows, "grid_columns": columns, "regions": regions}
        | {name: np.full(len(rows), value) for name, value in same.items()}
    )
    found, status = close_grid(space.parts, grid, space.device, space.phase, space.head)
    return np.where(status == 0, found[0], np.inf)


# The mappings of a whole request that take the least time: of its prompt, and of its answer.

FOR_TOKENS = ("regions", "collective", "product", "cache_layout", "batch")


class FoundRequest(NamedTuple):
    """A request on the best mapping of either phase."""

    request: WaferRequest
    prefill: FoundMapping
    decode: FoundMapping


def search_request(
    model: ModelSpec | str,
    hardware: MeshHardware | str,
    *,
    input_length: int,
    output_length: int,
    head: bool = True,
    precision: str = "",
    cache_precision: str = "",
    **narrowed: Any,
) -> FoundRequest:
    """Find the mapping of a prompt and that of its answer, each the fastest that fits.

    Parameters
    ----------
    model, hardware, input_length, output_length
        As of `perfmodel.wafer.project.project_request`.
    head, precision, cache_precision
        As of `perfmodel.wafer.project.wafer_table`.
    narrowed
        Of `perfmodel.wafer.search.search_mapping`, for both phases: ``batch``, ``shape``,
        ``grid``, ``collective``, ``product``, ``cache_layout``, ``most_regions``.

    Returns
    -------
    FoundRequest
        The answer's mapping is the fastest with the context of its last token, which has to fit.

    Raises
    ------
    StrategyError, HardwareError, ModelError
        As both.
    """
    same: dict[str, Any] = {
        "head": head,
        "precision": precision,
        "cache_precision": cache_precision,
    }
    decode = search_mapping(
        model,
        hardware,
        phase="decode",
        context=input_length + output_length,
        **{name: value for name, value in narrowed.items() if name != "product"},
        **same,
    )
    prefill = search_mapping(
        model, hardware, phase="prefill", context=input_length, **narrowed, **same
    )
    axes = decode.axes()
    whole = project_request(
        model,
        hardware,
        input_length=input_length,
        output_length=output_length,
        prefill_grid=decode.grid,
        decode_grid=decode.grid,
        **{name: axes[name] for name in FOR_TOKENS},
        **same,
    )
    prompt = wafer_table(model, hardware, prefill.as_grid(), phase="prefill", **same)
    spent = prefill.latency + output_length * whole.time_per_output_token
    request = replace(
        whole,
        time_to_first_token=prefill.latency,
        request_time=spent,
        tokens_per_second=output_length / spent,
        prefill=prompt,
        fits=bool(prompt["fits"].values.all() and whole.decode["fits"].values.all()),
    )
    return FoundRequest(request, prefill, decode)
