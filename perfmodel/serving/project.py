"""Project deployments under loads on one device: tables of passes once, then every point."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import HardwareError, StrategyError, did_you_mean
from perfmodel.base.memory import check_amount, check_memory
from perfmodel.serving.communication import handover
from perfmodel.serving.defaults import with_limits
from perfmodel.serving.grid import (
    CONTEXT_ABOVE_CACHE,
    CONTEXT_TOO_LONG,
    KERNEL_STATES,
    MEMORY_TOO_SMALL,
    PRECISION_UNSUPPORTED,
    TOO_FEW_STATE_BLOCKS,
    VALID,
    DeploymentGrid,
    LoadGrid,
    prefill_columns,
)
from perfmodel.serving.layouts import ACTIVATION_FORMATS, AS_STATED, KV_FORMATS, Layouts
from perfmodel.serving.memory import DeploymentMemory, deployment_memory
from perfmodel.serving.methods import (
    FOUND_BY,
    METHODS,
    PHASES,
    RECURSION_REQUESTS,
    is_small,
    requests_to_run,
)
from perfmodel.serving.mixers import check_cached
from perfmodel.serving.pass_table import pass_tables

if TYPE_CHECKING:
    from perfmodel.base.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.serving.tables import Deployments, Loads, PassTables

BETWEEN_TOKENS = ("time_per_output_token", "inter_token_latency", "tokens_per_second_per_user")
"""Beginnings of variables that an answer of one token has none of."""

CHUNK = 1 << 12  # operating points of a thread's share


@dataclass(frozen=True)
class Points:
    """Operating points of a grid of deployments under loads on one device.

    Attributes
    ----------
    values : ndarray of float64, shape (rows, deployments, loads)
        Rows as in `perfmodel.kernels.serving.tables.ROWS`; NaN where there is no answer.
    status : ndarray of int8, shape (deployments, loads)
        Codes of `perfmodel.serving.grid.STATUS_NAMES`.
    found_by : ndarray of int8, shape (deployments, loads)
        Codes of `perfmodel.serving.methods.FOUND_BY`.
    memory : DeploymentMemory
        Of decode workers, or of all; shape (deployments,).
    prefill_memory : DeploymentMemory or None
        As prefill workers have it; None where there is one pool everywhere.
    """

    values: Floats
    status: NDArray[np.int8]
    found_by: NDArray[np.int8]
    memory: DeploymentMemory
    prefill_memory: DeploymentMemory | None


def project_points(
    grid: DeploymentGrid,
    loads: LoadGrid,
    hardware: Hardware,
    *,
    method: str = "closed",
    small: bool | None = None,
    routing: Routing | None = None,
    prefill_hardware: Hardware | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    out: Floats | None = None,
) -> Points:
    """Project every deployment of a grid under every load on one device.

    Parameters
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
    hardware : Hardware
    method : {"auto", "closed", "recursion", "prefill", "decode"}
    small : bool, optional
        Whether points that are not large are run pass by pass; default: whether this grid is small
        (`perfmodel.serving.methods.is_small`).
    routing : Routing, optional
        How tokens spread over experts; default uniform.
    prefill_hardware : Hardware, optional
        Of the prefill pool, where there is one; default `hardware`.
    threads : int, optional
        Threads over chunks of deployments; default: one per core.
    progress : callable, optional
        Called with the number of points closed since the last call.
    out : ndarray of float64, shape (rows, deployments, loads), optional
        Where values go.

    Raises
    ------
    StrategyError
        An unknown method.
    HardwareError
        A constant that the profile lacks.
    """
    from perfmodel.kernels.serving.tables import ROWS

    if method not in METHODS:
        raise StrategyError(f"unknown method '{method}'{did_you_mean(method, METHODS)}")
    if method not in ("auto", "closed"):
        _check_method(method, grid, loads)
    if small is None:
        small = is_small(grid, loads)
    shape = (len(ROWS), len(grid), len(loads))
    values = np.empty(shape) if out is None else out
    ready = prepare(grid, hardware, routing=routing, prefill_hardware=prefill_hardware)
    points = np.repeat(ready.status[:, None], len(loads), axis=1)
    found_by = np.zeros_like(points)
    possible = ready.possible
    if possible.size < len(grid):
        values[:] = np.nan
    if ready.tables is not None and ready.deployments is not None:
        runs = requests_to_run(grid.take(possible), loads, method, small, ready.deployments)
        whole = possible.size == len(grid) and values.flags.c_contiguous
        found = values if whole else np.empty((len(ROWS), possible.size, len(loads)))
        found_by[possible] = close(
            ready.tables,
            ready.deployments,
            loads,
            found,
            method,
            threads,
            progress,
            runs,
        )
        if not whole:
            values[:, possible] = found
        states = np.nan_to_num(found[ROWS.status], nan=0.0).astype(np.int8)
        points[possible] = np.array(KERNEL_STATES, np.int8)[states]
    alone = loads["output_length"] < 2
    if alone.any() and method != "prefill":
        for row, name in enumerate(ROWS._fields):
            if name.startswith(BETWEEN_TOKENS):
                values[row][:, alone] = np.nan
    too_long = context_too_long(grid, loads)
    if too_long.any():
        values[:, too_long] = np.nan
        points[too_long & np.isin(points, KERNEL_STATES)] = CONTEXT_TOO_LONG
    return Points(values, points, found_by, ready.memory, ready.prefill_memory)


@dataclass(frozen=True)
class Prepared:
    """What does not depend on loads.

    Attributes
    ----------
    status : ndarray of int8, shape (deployments,)
        As of `Points`, before any load.
    possible : ndarray of int64
        Deployments that are.
    tables : PassTables or None
        Passes of their layouts; None where none is possible.
    deployments : Deployments or None
        The possible ones.
    memory, prefill_memory
        As of `Points`.
    """

    status: NDArray[np.int8]
    possible: Integers
    tables: PassTables | None
    deployments: Deployments | None
    memory: DeploymentMemory
    prefill_memory: DeploymentMemory | None


def prepare(
    grid: DeploymentGrid,
    hardware: Hardware,
    *,
    routing: Routing | None = None,
    prefill_hardware: Hardware | None = None,
) -> Prepared:
    """Return passes, limits and memory of deployments on one device; as `project_points`."""
    grid = with_limits(grid, [hardware])
    layouts, layout, second = grid.layouts()
    device = prefill_hardware or hardware
    _check_caches(grid, (hardware,) if device is hardware else (hardware, device))
    memory = deployment_memory(grid, layouts, layout, hardware)
    prefill_memory = None
    status = grid.status.astype(np.int8)
    _mark(status, unsupported(grid, hardware), PRECISION_UNSUPPORTED)
    _mark(status, ~memory.fits, MEMORY_TOO_SMALL)
    _mark(status, memory.refused, CONTEXT_ABOVE_CACHE)
    _mark(status, memory.starved, TOO_FEW_STATE_BLOCKS)
    apart = second >= 0
    if apart.any():
        pool = replace(grid, columns=prefill_columns(grid.columns))
        prefill_memory = deployment_memory(pool, layouts, np.where(apart, second, layout), device)
        _mark(status, apart & unsupported(grid, device), PRECISION_UNSUPPORTED)
        _mark(status, apart & ~prefill_memory.fits, MEMORY_TOO_SMALL)
    possible = np.flatnonzero(status == VALID)
    if not possible.size:
        return Prepared(status, possible, None, None, memory, prefill_memory)
    used = np.unique(np.concatenate((layout[possible], second[possible])))
    used = used[used >= 0]
    place = np.full(len(layouts) + 1, -1, np.int64)  # the last entry stands for no layout
    place[used] = np.arange(used.size)
    few = Layouts(layouts.engines, {k: it[used] for k, it in layouts.columns.items()})
    tables = pass_tables(grid.model, few, hardware, routing=routing)
    shift = 0
    if prefill_hardware is not None and apart.any():
        tables = _stacked(tables, pass_tables(grid.model, few, device, routing=routing))
        shift = used.size
    columns = deployment_columns(
        grid, memory, hardware, place[layout], place[second], shift, prefill_hardware
    )
    return Prepared(status, possible, tables, _taken(columns, possible), memory, prefill_memory)


def _check_method(method: str, grid: DeploymentGrid, loads: LoadGrid) -> None:
    """Refuse what only the closed form answers."""
    if not loads.is_closed_loop.all():
        raise StrategyError(f"method '{method}' takes a concurrency, not a rate of arrivals")
    if grid["prefill_workers"].any():
        raise StrategyError(f"method '{method}' takes one pool; some deployments have two")


def _check_caches(grid: DeploymentGrid, devices: Sequence[Hardware]) -> None:
    """Refuse caches in formats for which an engine, a device or the model has no kernels."""
    for code in np.unique(grid["engine"] * len(KV_FORMATS) + grid["kv_precision"]).tolist():
        engine, cache = divmod(code, len(KV_FORMATS))
        for device in devices:
            check_cached(grid.model, device, grid.engines[engine], KV_FORMATS[cache])


def _mark(status: NDArray[np.int8], broken: Flags, code: int) -> None:
    status[broken & (status == VALID)] = code


def unsupported(grid: DeploymentGrid, hardware: Hardware) -> Flags:
    """Whether a device lacks the products that deployments ask for, shape (deployments,)."""

    def lacks(name: str) -> bool:
        try:
            return name != AS_STATED and hardware.device.peak(name) <= 0
        except HardwareError:
            return True

    return np.array([lacks(name) for name in ACTIVATION_FORMATS])[grid["activation_precision"]]


def context_too_long(grid: DeploymentGrid, loads: LoadGrid) -> Flags:
    """Whether prompt and answer exceed the context, shape (deployments, loads)."""
    stated = grid["context_length"][:, None]
    most = np.where(stated > 0, stated, grid.model.max_positions)
    return np.asarray((loads["input_length"] + loads["output_length"] > most) & (most > 0))


def deployment_columns(
    grid: DeploymentGrid,
    memory: DeploymentMemory,
    hardware: Hardware,
    layout: Integers,
    prefill_layout: Integers,
    prefill_shift: int = 0,
    prefill_hardware: Hardware | None = None,
) -> Deployments:
    """Return deployments as kernels take them.

    Parameters
    ----------
    grid : DeploymentGrid
    memory : DeploymentMemory
    hardware : Hardware
    layout, prefill_layout : ndarray of int64, shape (deployments,)
        Rows of the tables of passes; -1 where there is one pool.
    prefill_shift : int
        Where the rows of prefill workers begin.
    prefill_hardware : Hardware, optional
        Of the prefill pool; default `hardware`.
    """
    from perfmodel.kernels.serving.tables import ADMISSIONS, SCHEDULERS, Deployments

    engine = grid["engine"]
    experts = grid.model.has_experts

    def fact(name: str) -> NDArray[Any]:
        return np.array([getattr(item, name) for item in grid.engines])[engine]

    def code(name: str, known: tuple[str, ...]) -> Integers:
        places = [known.index(getattr(item, name)) for item in grid.engines]
        return np.array(places, np.int64)[engine]

    def number(values: Any) -> Floats:
        return np.array(np.broadcast_to(values, engine.shape), np.float64)

    pool = prefill_columns(grid.columns)
    apart = prefill_layout >= 0
    ranks = grid["attention_data_parallel"]
    prefill_workers = grid["prefill_workers"]
    divided = fact("shared_token_budget")
    latency, per_token = handover(grid, hardware, prefill_hardware)
    return Deployments(
        layout=np.ascontiguousarray(layout),
        scheduler=code("scheduler", SCHEDULERS),
        admission=code("admission", ADMISSIONS),
        ranks=number(grid["workers"] * ranks),
        lockstep_ranks=number(ranks if experts else 1),
        stages=number(grid["pipeline_parallel"]),
        devices=number(grid.devices),
        token_budget=number(grid["token_budget"] / np.where(divided, ranks, 1)),
        max_sequences=number(np.minimum(grid["max_sequences"], memory.most_sequences)),
        blocks=number(memory.blocks),
        block_tokens=number(memory.block_tokens),
        state_blocks=number(memory.state_blocks),
        window_tokens=number(memory.window),
        draft_length=number(grid["draft_length"]),
        acceptance=number(grid["acceptance"]),
        request_host=number(fact("request_host")),
        token_host=number(fact("token_host")),
        output_host=number(fact("output_host")),
        prefill_layout=np.where(apart, prefill_layout + prefill_shift, -1),
        prefill_ranks=number(prefill_workers * pool["attention_data_parallel"]),
        prefill_stages=number(np.where(apart, pool["pipeline_parallel"], 1)),
        prefill_token_budget=number(
            grid["token_budget"] / np.where(divided, pool["attention_data_parallel"], 1)
        ),
        prefill_max_sequences=number(np.minimum(grid["max_sequences"], fact("prefill_sequences"))),
        prefill_lockstep_ranks=number(pool["attention_data_parallel"] if experts else 1),
        transfer_latency=number(latency),
        transfer_time=number(per_token),
    )


CLIENT_BYTES = 6000
CLIENT_SECONDS = 1.2e-5


def check_clients(concurrency: NDArray[Any], deployments: int) -> None:
    """Refuse, before it is begun, a recursion over more clients than memory holds, or for minutes.

    Raises
    ------
    DataError
        As of `perfmodel.base.memory.check_memory` and `check_amount`.
    """
    most, hint = float(concurrency.max()), "name a lower --concurrency, or leave --exact out"
    check_memory(f"{most:,.0f} clients one by one", CLIENT_BYTES * most, hint)
    every = float(concurrency.sum()) * deployments
    check_amount(f"{every:,.0f} clients one by one", hint, seconds=CLIENT_SECONDS * every)


def close(
    tables: PassTables,
    deployments: Deployments,
    loads: LoadGrid,
    out: Floats,
    method: str = "closed",
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    runs: Floats | None = None,
) -> NDArray[np.int8]:
    """Fill the variables of all points, shape (rows, deployments, loads), chunk by chunk.

    Parameters
    ----------
    tables, deployments, loads, out, threads, progress
        As of `project_points`.
    method : str
    runs : ndarray of float64, shape (deployments, loads), optional
        Requests of points that are run pass by pass, as far as it goes; 0 for others.

    Returns
    -------
    ndarray of int8, shape (deployments, loads)
        Codes of `perfmodel.serving.methods.FOUND_BY`.
    """
    from perfmodel.kernels.work import compiling, expect

    asked = loads.kernel_columns()
    count = len(loads)
    total = deployments.layout.size
    piece = max(CHUNK // max(count, 1), 1)
    bounded = method != "recursion"
    named = "closed" if method == "auto" else method
    found_by = np.full((total, count), FOUND_BY.index(named), np.int8)
    if runs is None and not bounded:
        runs = np.full((total, count), RECURSION_REQUESTS)

    def run(start: int) -> None:
        rows = slice(start, min(start + piece, total))
        chunk = _taken(deployments, rows)
        alone = start == 0 and rows.stop == total
        found = out if alone else np.empty((out.shape[0], rows.stop - start, count))
        if bounded:
            _close(tables, chunk, asked, found, method)
        else:
            found[:] = np.nan
        if runs is not None:
            ran = _run_passes(tables, chunk, asked, found, runs[rows], bounded)
            found_by[rows][ran] = FOUND_BY.index("recursion")
        if not alone:
            out[:, rows] = found
        if progress:
            progress((rows.stop - start) * count)

    if method == "recursion":
        check_clients(loads["concurrency"], total)
    expect(**{_kind(method): total * count})
    starts = range(0, total, piece)
    workers = min(threads or os.cpu_count() or 1, len(starts))
    if workers <= 1 or not compiling():
        for start in starts:
            run(start)
        return found_by
    run(0)  # compiles once, before threads share the compiled code
    with ThreadPoolExecutor(workers) as crew:
        list(crew.map(run, starts[1:]))
    return found_by


def _kind(method: str) -> str:
    if method in PHASES:
        return "phases"
    return "recursions" if method == "recursion" else "operating_points"


def _close(
    tables: PassTables, deployments: Deployments, asked: Loads, out: Floats, method: str
) -> None:
    """Fill points in closed form, or phases of batches."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import steady
    from perfmodel.kernels.work import kernel_work

    with kernel_work(**{_kind(method): out.shape[1] * out.shape[2]}):
        arguments = [*map(plain, (tables, deployments, asked))]
        if method in PHASES:
            steady.close_phase(*arguments, method == "decode", out)
        else:
            steady.close_points(*arguments, out)


def _run_passes(
    tables: PassTables,
    deployments: Deployments,
    asked: Loads,
    out: Floats,
    runs: Floats,
    bounded: bool,
) -> Flags:
    """Fill points pass by pass; return which, shape (deployments, loads)."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import recursion
    from perfmodel.kernels.work import kernel_work

    chosen = runs > 0.0
    if not chosen.any():
        return chosen
    with kernel_work(recursions=float(runs.sum()) / RECURSION_REQUESTS):
        arguments = [*map(plain, (tables, deployments, asked))]
        recursion.recurse_chosen(*arguments, out, *recursion.no_log(), chosen, bounded)
    return chosen


def _taken(deployments: Deployments, index: Integers | slice) -> Deployments:
    columns: Any = deployments
    return type(deployments)(*(column[index] for column in columns))


def _stacked(first: PassTables, second: PassTables) -> PassTables:
    """Return the layouts of two tables as those of one."""
    knots = ("tokens", "sequences", "batches", "contexts", "chunks", "before")
    return type(first)(
        **{
            name: getattr(first, name)
            if name in knots
            else np.concatenate((getattr(first, name), getattr(second, name)))
            for name in first._fields
        }
    )
