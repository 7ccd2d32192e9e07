"""What is kept of every block of a sweep: counts, and the strategies that a summary shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.table import Column, Table
from perfmodel.base.variables import RATE
from perfmodel.store.scaling import GROUPS
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_NAMES
from perfmodel.sweeps.ranking import RankedSweep

MOST_KEPT = 2**14  # strategies, before they are winnowed


@dataclass(frozen=True)
class Tally:
    """Counts of a sweep, for every row of hardware.

    Attributes
    ----------
    fitting : list of int
        Strategies that fit in memory.
    lacking : list of int
        Those whose precision the device lacks.
    possible : list of int
        Those that have a step time.
    least_memory : list of float
        Of those [B]; infinite without any.
    """

    fitting: list[int]
    lacking: list[int]
    possible: list[int]
    least_memory: list[float]

    def __add__(self, other: Tally) -> Tally:
        """Return the counts of both."""
        return Tally(
            _sums(self.fitting, other.fitting),
            _sums(self.lacking, other.lacking),
            _sums(self.possible, other.possible),
            [min(pair) for pair in zip(self.least_memory, other.least_memory, strict=True)],
        )


def _sums(some: list[int], others: list[int]) -> list[int]:
    return [a + b for a, b in zip(some, others, strict=True)]


def tally(table: Table) -> Tally:
    """Count the strategies of a table."""
    finite = np.isfinite(table["step_time"].values)
    memory = np.where(finite, table["memory_total"].values, np.inf)
    status = table["status"]
    code = (status.labels or ()).index(STATUS_NAMES[PRECISION_UNSUPPORTED])
    return Tally(
        table["fits"].values.sum(axis=0).tolist(),
        (status.values == code).sum(axis=0).tolist(),
        finite.sum(axis=0).tolist(),
        memory.min(axis=0, initial=np.inf).tolist(),
    )


def ranked_tally(ranked: RankedSweep) -> Tally:
    """Return the counts of a sweep of which the best were kept alone."""
    kept = tally(ranked.table)
    return Tally(
        [one.fitting for one in ranked.counts],
        [one.lacking for one in ranked.counts],
        [one.strategies - one.lacking for one in ranked.counts],
        kept.least_memory,
    )


def winners(table: Table, top: int) -> Table:
    """Return what has to be kept of a table, so that others than these need not be asked.

    That is: the `top` best; of every problem and row of hardware the best, the first that fits and
    the first that is possible; where the devices differ, also the best on every number of them, of
    every curve that `perfmodel.store.scaling` draws. Winners of the winners of parts are those
    of the whole.
    """
    rate = table[RATE].values.reshape(-1)
    good = np.isfinite(table["step_time"].values).reshape(-1)
    fits = good & table["fits"].values.reshape(-1)
    codes = _codes(table, ("model", "framework", "devices", "hardware"))
    found = [_first_of_each(codes, np.flatnonzero(it)) for it in (good, fits)]
    chosen = np.flatnonzero(fits)
    chosen = chosen[np.argsort(-rate[chosen], kind="stable")]
    found += [chosen[:top], _first_of_each(codes, chosen)]
    if "scaling" in table.attrs:
        curves = _codes(table, ("devices", "global_batch_size", *GROUPS))
        found += [_first_of_each(curves, it) for it in (chosen, np.sort(chosen))]
    strategies = np.unique(np.concatenate(found) // table.sizes["hardware"])
    return table.isel(strategy=strategies)


def _codes(table: Table, names: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for every combination of columns, one per strategy and device."""
    codes = np.zeros((table.sizes["strategy"], table.sizes["hardware"]), np.int64)
    for name in names:
        if name == "hardware":
            codes = codes * table.sizes["hardware"] + np.arange(table.sizes["hardware"])
        elif name in table:
            known, at = np.unique(table[name].values, return_inverse=True)
            codes = codes * known.size + at.reshape(-1, 1)
    return codes.reshape(-1)


def _first_of_each(codes: NDArray[np.int64], chosen: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the first of the chosen rows of every code."""
    return chosen[np.unique(codes[chosen], return_index=True)[1]]


def joined(tables: Sequence[Table]) -> Table:
    """Return tables one after another along ``strategy``."""
    first = tables[0]

    def column_of(name: str, like: Column) -> Column:
        if "strategy" not in like.dims:
            return like
        return Column(like.dims, np.concatenate([it[name].values for it in tables]), like.attrs)

    count = sum(it.sizes["strategy"] for it in tables)
    return Table(
        {name: column_of(name, it) for name, it in first.data_vars.items()},
        {name: column_of(name, it) for name, it in first.coords.items()},
        first.attrs,
        {**first.sizes, "strategy": count},
    )


@dataclass(frozen=True)
class BlockResult:
    """What is known of a block that is done."""

    number: int
    tally: Tally
    winners: Table

    def to_json(self) -> str:
        """Return it as one line; `from_json` has every digit back."""
        columns = {
            name: column.values.tolist()
            for name, column in self.winners.variables.items()
            if "strategy" in column.dims
        }
        return json.dumps({"block": self.number, "tally": asdict(self.tally), "winners": columns})

    @staticmethod
    def from_json(document: Mapping[str, Any], like: Table) -> BlockResult:
        """Return what `to_json` wrote, with the attributes of a table of the same sweep."""
        columns = document["winners"]

        def column_of(name: str, old: Column) -> Column:
            if name not in columns:
                return old
            values = np.array(columns[name], old.values.dtype)
            return Column(old.dims, values.reshape(-1, *old.values.shape[1:]), old.attrs)

        kept = Table(
            {name: column_of(name, it) for name, it in like.data_vars.items()},
            {name: column_of(name, it) for name, it in like.coords.items()},
            like.attrs,
            {**like.sizes, "strategy": len(columns["strategy"])},
        )
        return BlockResult(document["block"], Tally(**document["tally"]), kept)


class Summary:
    """The counts and winners of all blocks that are done, in whatever order they come."""

    def __init__(self, top: int) -> None:
        self.top = top
        self._tally: Tally | None = None
        self._kept: list[Table] = []

    def add(self, done: BlockResult) -> None:
        """Count a block."""
        self._tally = done.tally if self._tally is None else self._tally + done.tally
        self._kept.append(done.winners)
        if sum(it.sizes["strategy"] for it in self._kept) > MOST_KEPT:
            self._kept = [self.table()]

    @property
    def counts(self) -> Tally:
        """Counts of the blocks so far, of which there is one."""
        assert self._tally is not None
        return self._tally

    def table(self) -> Table:
        """Return the winners, in the order of the sweep."""
        every = joined(self._kept)
        order = np.argsort(every["strategy"].values, kind="stable")
        return winners(every.isel(strategy=order), self.top)
