"""What limits an operating point, up to which batch speculation pays, how many workers match."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Flags, Floats
from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.base.served_fields import is_closed_loop

if TYPE_CHECKING:
    from perfmodel.kernels.serving.tables import Deployments, Loads, PassTables

LIMITS: Mapping[str, str] = {
    "cache": "requests wait for room in the cache; more devices per worker, shorter requests or "
    "--kv-precision fp8 let more of them run",
    "max_sequences": "requests wait because the engine runs no more sequences (--max-sequences)",
    "load": "no request waits for room; more of them under way raise throughput, and times",
    "rate": "requests come by themselves; what is served is what arrives",
}
"""Word -> what it means."""


def limit_of(row: Mapping[str, Any]) -> str:
    """Return what holds a point back, one of `LIMITS`.

    Parameters
    ----------
    row : mapping of str to value
        Fields and results of one point, as `perfmodel.store.results.rows` returns them.

    Notes
    -----
    A rank's share of the requests under way against what its blocks hold, each request halfway
    through its answer, and against the sequences that it runs at most.
    """
    if not is_closed_loop(row):
        return "rate"
    ranks = row["workers"] * row["attention_data_parallel"]
    clients = row["concurrency"] / ranks
    spread = 0.5 * (1.0 + row["length_spread"])
    tokens = spread * (row["input_length"] + 0.5 * row["output_length"])
    each = math.ceil(tokens / row["kv_block_tokens"])
    room = row["kv_blocks"] / max(each, 1)
    if clients <= min(room, row["max_sequences"]):
        return "load"
    return "cache" if room < row["max_sequences"] else "max_sequences"


OF_PREFILL = "time_to_first_token"
"""What more prefill workers make shorter; decode workers do it for the other times."""


@dataclass(frozen=True)
class Matching:
    """Workers of both pools.

    Attributes
    ----------
    prefill_workers, decode_workers : int
        x and y.
    devices : float
        Of both pools.
    values : ndarray, shape (rows,)
        Variables, as in `perfmodel.kernels.serving.tables.ROWS`.
    """

    prefill_workers: int
    decode_workers: int
    devices: float
    values: Floats


def matched_workers(
    tables: PassTables,
    deployment: Deployments,
    load: Loads,
    prefill_devices: float,
    decode_devices: float,
    limits: Mapping[str, float],
    most: int = 1024,
) -> Matching:
    """Return the fewest workers that serve a rate within limits.

    Parameters
    ----------
    tables : PassTables
    deployment : Deployments
        One deployment, of one worker in each pool.
    load : Loads
        One load with a rate.
    prefill_devices, decode_devices : float
        Devices of a worker.
    limits : dict of str to float
        Largest values of variables, such as ``{"time_to_first_token_p95": 2.0}`` [s].
    most : int
        Workers of a pool at most.

    Raises
    ------
    StrategyError
        An unknown variable, or no number of workers that keeps the limits.

    Notes
    -----
    x mu_prefill >= lambda <= y mu_decode. In an open loop pools do not disturb each other: the
    fewest x that keep limits of the first token at many y, then the fewest y at that x, and where
    those wait for a place to decode, the next y.
    """
    from perfmodel.kernels.serving.tables import ROWS

    for name in limits:
        if name not in ROWS._fields:
            raise StrategyError(f"unknown variable '{name}'{did_you_mean(name, ROWS._fields)}")
    first = {name: at for name, at in limits.items() if name.startswith(OF_PREFILL)}
    numbers = np.unique(np.round(np.geomspace(1, most, 64)).astype(np.int64))

    def fewest(prefill: bool, other: int, asked: Mapping[str, float]) -> int:
        """The fewest workers of a pool that keep limits, with so many in the other one."""
        tried = numbers
        while True:
            ones = np.full(tried.size, other)
            pair = (tried, ones) if prefill else (ones, tried)
            kept = _kept(_closed(tables, deployment, load, *pair), asked)
            if not kept.any():
                raise StrategyError(
                    f"{load.request_rate[0]:g} requests/s within the limits need more than "
                    f"{most:,} {'prefill' if prefill else 'decode'} workers, or cannot be kept"
                )
            at = int(np.argmax(kept))
            if at == 0 or tried[at] == tried[at - 1] + 1:
                return int(tried[at])
            tried = np.arange(tried[at - 1] + 1, tried[at] + 1)

    x = fewest(True, most, first)
    y = fewest(False, x, limits)
    values = _closed(tables, deployment, load, np.array([x]), np.array([y]))[:, 0]
    return Matching(x, y, x * prefill_devices + y * decode_devices, values)


def _closed(
    tables: PassTables, deployment: Deployments, load: Loads, x: np.ndarray, y: np.ndarray
) -> Floats:
    """Variables of pools of x and y workers, shape (rows, pools)."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving.tables import ROWS
    from perfmodel.kernels.work import kernel_work

    one: Any = deployment
    pools = type(deployment)(*(np.repeat(column, x.size) for column in one))
    pools = pools._replace(
        prefill_ranks=pools.prefill_ranks * x,
        ranks=pools.ranks * y,
        devices=np.ones(x.size),  # throughput per device is not asked for
    )
    out = np.empty((len(ROWS), x.size, 1))
    with kernel_work(operating_points=x.size):
        from perfmodel.kernels.serving import steady

        steady.close_points(*map(plain, (tables, pools, load)), out)
    return out[:, :, 0]


def _kept(values: Floats, limits: Mapping[str, float]) -> Flags:
    """Which pools have a steady state within the limits."""
    from perfmodel.kernels.serving.tables import ROWS, STABLE

    kept = values[ROWS.status] == STABLE
    for name, most in limits.items():
        kept &= np.nan_to_num(values[getattr(ROWS, name)], nan=np.inf) <= most
    return np.asarray(kept)
