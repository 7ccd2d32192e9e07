"""The fewest devices that serve a rate within limits: layouts, workers, one pool or two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Flags, Floats, Integers
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.kernels.serving.variables import ALIASES, ROW_VARIABLES, VARIABLES
from perfmodel.model.presets import load_model
from perfmodel.serving.enumerate import load_grid, serving_grid
from perfmodel.serving.grid import DeploymentGrid, LoadGrid, worker_devices
from perfmodel.serving.project import Prepared, close, context_too_long, prepare
from perfmodel.store.results import LARGER_IS_BETTER, Ranked, rows
from perfmodel.sweeps.serving import serve_table
from perfmodel.sweeps.sweep import hardware_rows

if TYPE_CHECKING:
    from perfmodel.base.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec

MOST_DEVICES = 1024
POOLS = ("one", "two", "both")


def size_deployment(
    model: ModelSpec | str,
    hardware: Hardware | str | Sequence[Hardware | str],
    *,
    rate: float,
    limits: Mapping[str, float],
    loads: Mapping[str, Any] | None = None,
    deployments: Mapping[str, Any] | None = None,
    pools: str = "one",
    max_devices: int = MOST_DEVICES,
    top: int = 3,
    routing: Routing | None = None,
) -> Ranked:
    """Return the deployments with the fewest devices that serve a rate within limits.

    Parameters
    ----------
    model : ModelSpec or str
        As of `serve`.
    hardware : Hardware or str, or sequence of them
        Profiles or their names; each is answered for itself.
    rate : float
        Requests per second that arrive [1/s].
    limits : mapping of str to float
        Variables and what they may be at most, rates at least: ``{"ttft_p95": 2, "tpot_p95":
        0.03}`` [SI units]; short names as in filters.
    loads : mapping, optional
        Other fields of the load, such as ``{"input_length": 4096, "output_length": 512}``.
    deployments : mapping, optional
        What `serving_grid` takes, workers apart; layouts that it names nothing of are tried as
        there, and those of experts spread over a node too.
    pools : {"one", "two", "both"}
        Whether workers do both, or prompts and answers have workers of their own.
    max_devices : int
        Devices of a deployment at most.
    top : int
        Deployments of each hardware.
    routing : Routing, optional
        As of `serve`.

    Returns
    -------
    Ranked
        The fewest devices first; dictionaries as of `best`. Of as many devices those come first
        whose worst variable is farthest from its limit.

    Raises
    ------
    StrategyError
        An unknown variable, a limit or rate that is no positive number, or no deployment on any
        hardware that keeps the limits; the message says how near the best one comes.

    Notes
    -----
    More workers share a rate and are each less loaded, so that limits are kept from some number of
    workers on, which doubling and halving find for all layouts at once. Workers of two pools are
    matched by `perfmodel.serving.limits`.

    Examples
    --------
    >>> found = size_deployment("llama-3.1-70b", "dgx-h200", rate=10,
    ...                         limits={"ttft_p95": 2, "tpot_p95": 0.05},
    ...                         loads={"input_length": 2048, "output_length": 256})
    """
    kept = _checked_limits(limits)
    if not math.isfinite(rate) or rate <= 0:
        raise StrategyError(f"rate: {rate:g} is not a positive number of requests per second")
    if pools not in POOLS:
        raise StrategyError(f"pools: '{pools}' is not one of {', '.join(POOLS)}")
    if max_devices < 1 or top < 1:
        raise StrategyError("max_devices and top are positive whole numbers")
    spec = load_model(model, mtp="stated")
    load = load_grid(**{**(loads or {}), "arrival_rate": rate})
    if len(load) != 1:
        raise StrategyError("a deployment is sized for one load; give single values")
    if context_too_long(serving_grid(spec, tensor_parallel=1), load).any():
        raise StrategyError(f"prompt and answer exceed the context of {spec.name}")
    found, nearest = Ranked(), []
    for device in hardware_rows(hardware):
        answers = Ranked()
        for apart in {"one": (False,), "two": (True,), "both": (False, True)}[pools]:
            grid = _candidates(spec, device, deployments or {}, apart, max_devices)
            ready = prepare(grid, device, routing=routing)
            if ready.deployments is None:
                nearest.append(f"{device.name} has no memory for the model on {max_devices:,}")
                continue
            chosen, said = (_matched if apart else _fewest)(grid, ready, load, kept, max_devices)
            if said:
                nearest.append(f"{device.name}: {said}")
            if len(chosen):
                table = serve_table(spec, chosen, load, device, routing=routing)
                answers += rows(table, np.arange(len(chosen)))
        answers.sort(key=lambda row: (row["devices"], _worst(row, kept)))
        found += answers[:top]
    if not found:
        raise StrategyError(
            f"no deployment on up to {max_devices:,} devices serves {rate:g} requests/s within "
            f"the limits; {'; '.join(dict.fromkeys(nearest))}"
        )
    return Ranked(sorted(found, key=lambda row: row["devices"]))


def _checked_limits(limits: Mapping[str, float]) -> dict[str, float]:
    """Return limits by full names."""
    known = {item.name for item in ROW_VARIABLES}
    found = {}
    for name, value in limits.items():
        full = ALIASES.get(name, name)
        if full not in known:
            raise StrategyError(f"unknown limit '{name}'{did_you_mean(name, {*known, *ALIASES})}")
        if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise StrategyError(f"{name}: {value!r} is not a positive number")
        found[full] = float(value)
    return found


def _candidates(
    model: ModelSpec,
    hardware: Hardware,
    given: Mapping[str, Any],
    apart: bool,
    max_devices: int,
) -> DeploymentGrid:
    """Return the layouts that are tried, of one worker in each pool."""
    axes = {name: value for name, value in given.items() if name not in ("workers", "devices")}
    node = hardware.system.devices_per_node
    if model.has_experts:
        axes.setdefault("attention_data_parallel", sorted({1, node}))
        axes.setdefault("expert_parallel", sorted({1, node}))
    axes = {**axes, "workers": 1, "prefill_workers": int(apart)}
    grid = serving_grid(model, hardware, **axes)
    if apart and "prefill_tensor_parallel" not in axes:
        degrees = np.unique(grid["tensor_parallel"]).tolist()
        grid = serving_grid(model, hardware, **{**axes, "prefill_tensor_parallel": degrees})
    small = grid.devices <= max_devices
    if not small.any():
        raise StrategyError(f"no worker of {model.name} has at most {max_devices:,} devices")
    return grid.take(small)


def _fewest(
    grid: DeploymentGrid,
    ready: Prepared,
    load: LoadGrid,
    limits: Mapping[str, float],
    max_devices: int,
) -> tuple[DeploymentGrid, str]:
    """Return deployments of one pool with as few workers as limits allow, and what is nearest."""
    assert ready.deployments is not None
    devices = ready.deployments.devices
    most = np.floor(max_devices / devices).astype(np.int64)
    low, high = np.zeros(most.size, np.int64), np.ones(most.size, np.int64)
    open_ends = np.ones(most.size, bool)
    while open_ends.any():
        at = np.flatnonzero(open_ends)
        values = _values(ready, at, high[at], load)
        good = _keeps(values, limits)
        low[at[~good]] = high[at[~good]]
        open_ends[at[good]] = False
        open_ends &= high < most
        high[open_ends] = np.minimum(2 * high[open_ends], most[open_ends])
    solved = low < high
    if not solved.any():
        values = _values(ready, np.arange(most.size), most, load)
        return grid.take(np.zeros(0, np.int64)), _nearest(values, limits)
    while (active := np.flatnonzero(solved & (high - low > 1))).size:
        middle = (low[active] + high[active]) // 2
        good = _keeps(_values(ready, active, middle, load), limits)
        high[active[good]] = middle[good]
        low[active[~good]] = middle[~good]
    chosen = grid.take(ready.possible[solved])
    return replace(chosen, columns={**chosen.columns, "workers": high[solved]}), ""


def _matched(
    grid: DeploymentGrid,
    ready: Prepared,
    load: LoadGrid,
    limits: Mapping[str, float],
    max_devices: int,
) -> tuple[DeploymentGrid, str]:
    """Return deployments of two pools, matched, and why there is none."""
    from perfmodel.serving.limits import matched_workers

    assert ready.tables is not None
    assert ready.deployments is not None
    asked = load.kernel_columns()
    decode = worker_devices(grid.columns)[ready.possible]
    prefill = grid.devices[ready.possible] - decode
    places, workers, reason = [], [], ""
    for at in range(ready.possible.size):
        one: Any = ready.deployments
        alone = type(ready.deployments)(*(column[at : at + 1] for column in one))
        try:
            pair = matched_workers(
                ready.tables, alone, asked, float(prefill[at]), float(decode[at]), limits
            )
        except StrategyError as error:
            reason = reason or str(error)
            continue
        if pair.devices <= max_devices:
            places.append(at)
            workers.append((pair.prefill_workers, pair.decode_workers))
    chosen = grid.take(ready.possible[places])
    pairs = np.array(workers, np.int64).reshape(-1, 2)
    columns = {**chosen.columns, "prefill_workers": pairs[:, 0], "workers": pairs[:, 1]}
    return replace(chosen, columns=columns), "" if places else f"two pools: {reason}"


def _values(ready: Prepared, at: Integers, workers: Integers, load: LoadGrid) -> Floats:
    """Return variables of some deployments with so many workers, shape (rows, deployments)."""
    from perfmodel.kernels.serving.tables import ROWS

    assert ready.tables is not None
    assert ready.deployments is not None
    columns: Any = ready.deployments
    some = type(ready.deployments)(*(column[at] for column in columns))
    some = some._replace(ranks=some.ranks * workers, devices=some.devices * workers)
    out = np.empty((len(ROWS), at.size, 1))
    close(ready.tables, some, load, out)
    return out[:, :, 0]


def _keeps(values: Floats, limits: Mapping[str, float]) -> Flags:
    """Which deployments have a steady state within the limits."""
    from perfmodel.kernels.serving.tables import ROWS, STABLE

    good = values[ROWS.status] == STABLE
    for name, limit in limits.items():
        good &= _ratio(values[getattr(ROWS, name)], name, limit) <= 1.0
    return np.asarray(good)


def _ratio(values: Any, name: str, limit: float) -> Any:
    """How much of a limit values take; NaN takes more than all of it."""
    with np.errstate(over="ignore", divide="ignore"):
        found = limit / values if name in LARGER_IS_BETTER else values / limit
    return np.where(np.isfinite(found), found, np.inf)


def _worst(row: Mapping[str, Any], limits: Mapping[str, float]) -> float:
    return max((float(_ratio(row[name], name, it)) for name, it in limits.items()), default=0.0)


def _nearest(values: Floats, limits: Mapping[str, float]) -> str:
    """Say how near the best deployment comes to the limit that it misses the most."""
    from perfmodel.kernels.serving.tables import ROWS, STABLE

    if not (values[ROWS.status] == STABLE).any():
        return "none has a steady state"
    ratios = {
        name: _ratio(values[getattr(ROWS, name)], name, limit) for name, limit in limits.items()
    }
    best = int(np.argmin(np.max(list(ratios.values()), axis=0)))
    name = max(ratios, key=lambda key: float(ratios[key][best]))
    found = float(values[getattr(ROWS, name), best])
    return f"the nearest has {name} {found:.3g} {VARIABLES[name].units}, limit {limits[name]:g}"
