"""What strategies and deployments cost: money, energy, and time lost to failures.

Formulas of power, checkpoints and goodput come first, over arrays that broadcast against each
other; results have them from `add_cost`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.base.memory import check_memory
from perfmodel.base.provenance import record_of
from perfmodel.base.table import Column, Table
from perfmodel.kernels.serving.variables import TIME_COMPONENTS
from perfmodel.store.netcdf import or_single
from perfmodel.store.subject import SERVING, subject_of

if TYPE_CHECKING:
    import xarray as xr

Values = NDArray[np.float64]

WAITING_SHARE = 0.5
"""Power of a device that waits (exposed communication, bubble, host) over its power at work [1].

Prior: collectives keep a few units and the links busy. A step that computes for three quarters of
its time then draws 76 % of a DGX H100's rating, which is what Newkirk et al. 2025
(arXiv:2506.14551) measured under computationally intensive training."""

HOST_SHARE = (8.4e3 - 8 * 700.0) / (10.2e3 - 8 * 700.0)
"""What a node draws beside its devices over what its rating leaves for that [1].

Measured: 8.4 kW at most, with eight H100 near full utilisation, on a node rated at 10.2 kW
(Latif et al. 2025, IEEE Access 13:61740, arXiv:2412.08602); the devices are limited to 700 W."""

HOST_RATIO = 0.8
"""Rating of a node beside its devices over their power limits, where no datasheet is known [1].

Prior: 1.03, 0.82, 0.79 and 0.65 for DGX A100, H100, B200 and B300 (0.46 for DGX-1)."""

PUE = 1.09
"""Power of a data centre over that of its computers [1].

Average of Google's data centres in 2024 (google.com/about/datacenters/efficiency); the average of
all that answered Uptime Institute's survey of 2024 is 1.56."""

FAILURES_PER_DEVICE_HOUR = 419 / (54 * 24 * 16384)
"""Interruptions of a run per device and hour [1/h].

419 unexpected ones in 54 days on 16,384 H100 (Llama 3, arXiv:2407.21783, section 3.3.4)."""

STORAGE_BANDWIDTH = 2e12 / 16384
"""Bandwidth per device at which checkpoints are written [B/s].

2 TB/s sustained for 16,384 H100 (Llama 3, arXiv:2407.21783, section 3.3.1)."""

RESTART_TIME = 600.0
"""From a failure until the run continues from its checkpoint [s].

Prior: finding and diagnosing a failure takes less than 10 minutes on average (MegaScale,
arXiv:2402.15627, section 6.3)."""


def device_power(busy: ArrayLike, limit: ArrayLike) -> Values:
    """Return the average power of a device over a training step.

    Parameters
    ----------
    busy : array_like
        Share of the step in which the device computes [1].
    limit : array_like
        Power while it computes [W]: products as large as those of training hold devices at
        their board limit (see `perfmodel.compute.gemm`).

    Returns
    -------
    ndarray
        Power [W], of the broadcast shape.
    """
    busy = np.asarray(busy, np.float64)
    return np.asarray(limit, np.float64) * (busy + WAITING_SHARE * (1.0 - busy))


def checkpoint_interval(checkpoint_time: ArrayLike, failure_time: ArrayLike) -> Values:
    """Return the time between checkpoints that loses the least.

    Parameters
    ----------
    checkpoint_time : array_like
        Time in which the run waits for a checkpoint, > 0 [s].
    failure_time : array_like
        Mean time between failures of the run, > 0 [s].

    Returns
    -------
    ndarray
        Time from the end of one checkpoint to the beginning of the next [s].

    Notes
    -----
    With ``x = sqrt(d / (2 M))`` for checkpoints of ``d`` and failures every ``M``:
    ``sqrt(2 d M) (1 + x / 3 + x**2 / 9) - d`` where ``d < 2 M``, else ``M`` (Daly 2006, Future
    Generation Computer Systems 22:303, eq. 37). Its first term is Young's interval (Young 1974,
    CACM 17:530).
    """
    d, m = np.asarray(checkpoint_time, np.float64), np.asarray(failure_time, np.float64)
    x = np.sqrt(d / (2.0 * m))
    return np.where(d < 2.0 * m, np.sqrt(2.0 * d * m) * (1.0 + x / 3.0 + x * x / 9.0) - d, m)


def goodput(
    interval: ArrayLike,
    checkpoint_time: ArrayLike,
    restart_time: ArrayLike,
    failure_time: ArrayLike,
) -> Values:
    """Return the share of the time in which a run gets ahead.

    Parameters
    ----------
    interval : array_like
        Time between checkpoints, > 0 [s].
    checkpoint_time : array_like
        Time in which the run waits for a checkpoint [s].
    restart_time : array_like
        From a failure until the run continues [s].
    failure_time : array_like
        Mean time between failures of the run, > 0 [s].

    Returns
    -------
    ndarray
        Share [1]; what is computed again after a failure counts as lost.

    Notes
    -----
    ``t / (M exp(R / M) (exp((t + d) / M) - 1))`` for an interval ``t``, checkpoints of ``d``,
    restarts of ``R`` and failures every ``M``: failures come at any time alike, also during
    checkpoints and restarts (the complete cost function of Daly 2006, Future Generation Computer
    Systems 22:303).
    """
    m = np.asarray(failure_time, np.float64)
    t = np.asarray(interval, np.float64)
    segment = (t + np.asarray(checkpoint_time, np.float64)) / m
    # Written without growing exponentials, which would overflow on hopeless runs.
    decay = np.exp(-segment - np.asarray(restart_time, np.float64) / m)
    return t / m * decay / -np.expm1(-segment)


Results = TypeVar("Results", "Table", "xr.Dataset")

HOUR = 3600.0
WORKING = ("forward_time", "backward_time", "recompute_time", "optimizer_time")
"""Components of the step in which the devices compute; in the others they wait."""
SERVING_WAITS = ("communication_time", "host_time")
"""Parts of a pass in which they wait; in the others they compute."""
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
PARAMETER_BYTES = 2.0  # a 16-bit copy of every parameter stands in a checkpoint


def add_cost(
    results: Results,
    *,
    tokens: float | None = None,
    price: float | Mapping[str, float] | None = None,
    pue: float = PUE,
    goodput: bool = False,
    failures_per_device_hour: float | None = None,
    checkpoint_time: float | None = None,
    storage_bandwidth: float | None = None,
    restart_time: float | None = None,
) -> Results:
    """Return the results of a sweep with what every strategy costs.

    Parameters
    ----------
    results : xarray.Dataset or Table
        Of `perfmodel.sweep` or `perfmodel.serve`, fresh or stored. Tokens of served models are
        those of answers; only `price` and `pue` count for them.
    tokens : float, optional
        Tokens to train on; with them the whole training has a time and a cost.
    price : float or mapping of str to float, optional
        Price of one device [USD/h], or one for each profile by name or alias, which may be more
        profiles than the results have. Where none is given, that of the profile counts.
    pue : float
        Power of the data centre over that of its computers, >= 1; its source stands at
        `PUE`.
    goodput : bool
        Count the time that checkpoints and failures take; so does any of the following.
    failures_per_device_hour : float, optional
        Interruptions of the run [1/h], > 0; default `FAILURES_PER_DEVICE_HOUR` there.
    checkpoint_time : float, optional
        Time in which the run waits for a checkpoint, > 0 [s]; default: parameters and optimizer
        state over `storage_bandwidth`.
    storage_bandwidth : float, optional
        At which all devices together write a checkpoint, > 0 [B/s]; default
        `STORAGE_BANDWIDTH` there, for each device.
    restart_time : float, optional
        From a failure until the run continues [s]; default `RESTART_TIME` there.

    Returns
    -------
    xarray.Dataset or Table
        As was given, with the variables of `perfmodel.kernels.variables.COST_VARIABLES` that were
        asked for, over the dimensions of the results; NaN where a price or a power is not known.
        The attribute ``cost`` holds, as JSON, what was assumed (see `assumptions`).

    Raises
    ------
    DataError
        A number out of its limits, prices for none of its hardware or for an unknown name,
        results that do not say what hardware they are for, or more of them than memory holds.

    Examples
    --------
    >>> costed = add_cost(results, tokens=15e12, price={"h100": 2.5, "b200": 4.0})
    >>> best(costed, by="training_cost")
    """
    failing = {
        "failures_per_device_hour": failures_per_device_hour,
        "checkpoint_time": checkpoint_time,
        "storage_bandwidth": storage_bandwidth,
    }
    for name, value in {"tokens": tokens, **failing}.items():
        _check(name, value, above=True)
    _check("restart_time", restart_time)
    _check("pue", pue, least=1.0)
    goodput = goodput or restart_time is not None or any(v is not None for v in failing.values())
    subject = subject_of(results)
    served = subject is SERVING
    if not subject.costs:
        raise DataError("meshes of cores have no prices: their projections cost nothing here")
    if served and (goodput or tokens is not None):
        raise DataError("tokens to train on and goodput cost nothing where a model is served")
    count = math.prod(results.sizes[dim] for dim in subject.dims)
    check_memory(
        f"what {count:,} {'operating points' if served else 'strategies'} cost",
        count * len(subject.costs) * results[subject.answer].values.itemsize,
        f"take fewer of them{or_single(results[subject.answer].values.dtype)}",
    )
    profiles = _provenance(results)["hardware"]
    prices = _prices(profiles, price)
    devices = np.ones(1) if served else _devices(results)
    known = {name: value for name, value in prices.items() if math.isfinite(value)}
    assumed: dict[str, Any] = {"tokens": tokens, "price": known, "pue": pue, "goodput": goodput}
    with np.errstate(all="ignore"):  # a run that never gets ahead costs without bound
        columns: dict[str, Values] = {}
        if goodput:
            rates = {
                "failures_per_device_hour": _given(
                    failures_per_device_hour, FAILURES_PER_DEVICE_HOUR
                ),
                "restart_time": _given(restart_time, RESTART_TIME),
            }
            if checkpoint_time is None:
                bandwidth = _given(storage_bandwidth, STORAGE_BANDWIDTH * devices)
                checkpoint: Any = checkpoint_size(results) / bandwidth
            else:
                checkpoint = checkpoint_time
            columns = _failures(checkpoint, devices, **rates)
            assumed |= rates
            assumed |= {"checkpoint_time": checkpoint_time, "storage_bandwidth": storage_bandwidth}
        rate = _array(results, "tokens_per_second_per_device") * columns.get("goodput", 1.0)
        power = pue * _power(results, profiles)
        per_second = _along(results, [prices[name] for name in profiles]) / HOUR
        columns["power_per_device"] = power
        columns["energy_per_token"] = power / rate
        columns["cost_per_token"] = per_second / rate
        if tokens is not None:
            columns["device_time"] = tokens / rate
            columns["training_time"] = columns["device_time"] / devices
            columns["training_energy"] = tokens * columns["energy_per_token"]
            columns["training_cost"] = tokens * columns["cost_per_token"]
    return _with_columns(results, columns, json.dumps(assumed))


def assumptions(results: Table | xr.Dataset) -> dict[str, Any]:
    """Return the arguments with which `add_cost` made the costs of results; empty without any.

    Raises
    ------
    DataError
        A damaged file says something else there.
    """
    try:
        return dict(json.loads(results.attrs.get("cost", "{}")))
    except (RecursionError, TypeError, ValueError):
        raise DataError(
            "these results are damaged: their 'cost' is not what was asked for"
        ) from None


def unknown_costs(results: Table | xr.Dataset) -> list[str]:
    """Say for which hardware price or power is not known, and how it is given; one line each."""
    found = []
    possible = np.isfinite(_array(results, subject_of(results).answer))
    others = tuple(axis for axis in range(possible.ndim) if axis != 1)
    for variable, what, remedy in (
        ("cost_per_token", "no price is known for", "--price USD (per device-hour) gives one"),
        ("power_per_device", "no power limit is known for", "--set device.tdp=WATT gives one"),
    ):
        found_some = np.isfinite(_array(results, variable)).any(axis=others)
        lacking = possible.any(axis=others) & ~found_some
        if names := [str(name) for name in results["hardware"].values[lacking]]:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            found.append(f"{what} {', '.join(names[:3])}{more}; {remedy}")
    return found


def checkpoint_size(results: Table | xr.Dataset) -> Any:
    """Bytes of a checkpoint: every parameter in 16 bits and its optimizer state [B].

    Of several models or frameworks one number for every strategy, shape (strategy, 1).

    Raises
    ------
    DataError
        The results do not say for what model and software they are.
    """
    from perfmodel.model.presets import model_from_record
    from perfmodel.store.results import as_table

    found = _provenance(results)

    def size(model: str | None = None, framework: str | None = None) -> float:
        parameters = model_from_record(record_of(found, "model", model))
        software = record_of(found, "framework", framework)
        per_parameter = PARAMETER_BYTES + float(software["optimizer_bytes"])
        return per_parameter * parameters.parameter_count()

    table = as_table(results)
    if "model" not in table:
        return size()
    pairs = list(
        zip(*(table[name].labelled().tolist() for name in ("model", "framework")), strict=True)
    )
    sizes = {pair: size(*pair) for pair in dict.fromkeys(pairs)}
    return np.array([sizes[pair] for pair in pairs])[:, None]


def _failures(
    checkpoint: Any, devices: Values, failures_per_device_hour: float, restart_time: float
) -> dict[str, Values]:
    failure = HOUR / (failures_per_device_hour * devices)
    interval = checkpoint_interval(checkpoint, failure)
    return {
        "goodput": goodput(interval, checkpoint, restart_time, failure),
        "checkpoint_time": np.asarray(checkpoint, np.float64),
        "checkpoint_interval": interval,
        "failure_interval": failure,
    }


def _power(results: Table | xr.Dataset, profiles: Mapping[str, Any]) -> Values:
    """Power of a device with its part of the node, for every row [W]."""
    if subject_of(results) is SERVING:
        parts = {name: _array(results, name) for name in TIME_COMPONENTS}
        waits = sum(parts[name] for name in SERVING_WAITS) / sum(parts.values())
        busy = _array(results, "utilization") * (1.0 - waits)
    else:
        busy = sum(_array(results, name) for name in WORKING) / _array(results, "step_time")
    limits, hosts = [], []
    for profile in profiles.values():
        limit = float(profile["device"]["tdp"]) or math.nan
        rating = float(profile["system"].get("host_power", 0.0)) or HOST_RATIO * limit
        limits.append(min(limit, _full_power(profile)))
        hosts.append(HOST_SHARE * rating)
    return device_power(busy, _along(results, limits)) + _along(results, hosts)


def _along(results: Table | xr.Dataset, numbers: list[float]) -> Values:
    """Return a number per row of hardware so that it meets the results' dimensions."""
    behind = len(subject_of(results).dims) - 2
    return np.array(numbers, np.float64).reshape(-1, *(1,) * behind)


def _full_power(profile: Mapping[str, Any]) -> float:
    """Power of long products that no limit slows [W], as `perfmodel.compute.gemm` has it."""
    peaks = profile["device"]["peak_flops"]
    peak = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
    gemm = profile["calibration"].get("gemm", {})
    energy = math.prod(
        float(gemm[key]["value"]) if key in gemm else 1.0
        for key in ("energy_per_flop", "steady_energy_ratio")
    )
    return energy * peak or math.inf


def _prices(
    profiles: Mapping[str, Any], price: float | Mapping[str, float] | None
) -> dict[str, float]:
    """Price of every row of hardware [USD/h]; NaN where none is known."""
    listed = {
        name: float(profile["system"].get("price", 0.0)) or math.nan
        for name, profile in profiles.items()
    }
    if price is None:
        return listed
    if not isinstance(price, Mapping):
        _check("price", price)
        return dict.fromkeys(listed, float(price))
    found: dict[str, float] = {}
    for wanted, value in price.items():
        _check(f"price of {wanted}", value)
        found |= dict.fromkeys(_rows_of(wanted, profiles), float(value))
    if price and not found:
        held = ", ".join(dict.fromkeys(profile["name"] for profile in profiles.values()))
        raise DataError(f"price: the results hold no hardware '{next(iter(price))}', only {held}")
    return listed | found


def _rows_of(wanted: str, profiles: Mapping[str, Any]) -> list[str]:
    """Rows of hardware that a name means: a row, a profile, or another name of it."""
    from perfmodel.hwprofiles import resolve_name

    rows = [row for row, profile in profiles.items() if wanted in (row, profile["name"])]
    if rows:  # a profile from a file has a name that no list knows
        return rows
    try:
        name, _ = resolve_name(wanted)
    except HardwareError:
        known = {profile["name"] for profile in profiles.values()}
        hint = did_you_mean(wanted, known)
        raise DataError(f"price: the results hold no hardware '{wanted}'{hint}") from None
    return [row for row, profile in profiles.items() if profile["name"] == name]


def _provenance(results: Table | xr.Dataset) -> dict[str, Any]:
    try:
        found = json.loads(results.attrs["provenance"])
    except (KeyError, RecursionError, TypeError, ValueError):
        found = {}
    software = "engine" if subject_of(results) is SERVING else "framework"
    if not isinstance(found, dict) or not {"hardware", "model", software} <= found.keys():
        raise DataError("these results do not say what hardware they are for (no 'provenance')")
    return found


def _devices(results: Table | xr.Dataset) -> Values:
    """Devices of every strategy, shape (strategy, 1)."""
    product: Any = math.prod(results[name].values.astype(np.float64) for name in DEGREES)
    return product[:, None]


def _array(results: Table | xr.Dataset, name: str) -> Values:
    return np.asarray(results[name].values, np.float64)


def _given(value: float | None, default: Any) -> Any:
    return default if value is None else value


def _check(name: str, value: float | None, *, least: float = 0.0, above: bool = False) -> None:
    if value is None:
        return
    if not math.isfinite(value) or value < least or (above and value == least):
        limit = f"above {least:g}" if above else f"of at least {least:g}"
        raise DataError(f"{name} should be a finite number {limit}, not {value:g}")


MEANT = "are --tokens, --price and what else costs count meant so?"


def _with_columns(results: Results, columns: Mapping[str, Values], assumed: str) -> Results:
    subject = subject_of(results)
    answer = results[subject.answer].values
    new = {}
    for name, values in columns.items():
        variable = subject.costs[name]
        attributes = {"units": variable.units, "long_name": variable.long_name}
        if variable.formula:
            attributes["formula"] = variable.formula
        found = np.where(np.isfinite(answer), values, np.nan)
        large = np.isfinite(found) & (np.abs(found) > np.finfo(answer.dtype).max)
        if large.any():
            raise DataError(f"{name}: {found[large][0]:.3g} is more than results hold; {MEANT}")
        found = found.astype(answer.dtype)
        new[name] = (subject.dims, found, attributes)
    if not isinstance(results, Table):
        former = [name for name in subject.costs if name in results]
        return results.drop_vars(former).assign(new).assign_attrs(cost=assumed)
    kept = {name: it for name, it in results.data_vars.items() if name not in subject.costs}
    data = kept | {name: Column(*column) for name, column in new.items()}
    return Table(data, results.coords, {**results.attrs, "cost": assumed}, results.sizes)
