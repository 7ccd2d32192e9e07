"""Spaces of strategies that are too large to be listed, as factors that multiply.

`perfmodel.strategy.enumerate` lists the layouts (degrees, batches, sequence, schedule) that are
possible, and multiplies each by the free axes. Here the latter stay apart, in groups that no rule
joins: how layers are recomputed; how parameters are sharded, and where ranks lie; what waits
elsewhere; and precision, documents and padding. So strategies are counted, and parts of the space
listed, without listing all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.axes import axis_values
from perfmodel.base.columns import Flags, Integers, distinct_keys
from perfmodel.base.pipelines import CODES, PLAIN
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS, MAPPING_AXES, MAPPINGS, OFFLOAD_TO
from perfmodel.model.spec import ModelSpec
from perfmodel.strategy.defaults import Defaults, defaults_of
from perfmodel.strategy.enumerate import (
    FREE_AXES,
    enumerate_strategies,
    free_axes,
    may_break_late,
    sensible_zero,
)
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.rules import LATE_RULES, PAIRED_STAGE, STATUS_NAMES, strategy_status

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.software.framework import Framework

LAYERS = ("recompute", "recompute_method", "recompute_num_layers")
SHARDING = ("zero_stage", "shard_group", "mapping")
AWAY = tuple(name for pair in OFFLOAD_TO.items() for name in pair)
OUTER = ("precision", "document_length", "padding")
DEGREES = (
    *("tensor_parallel", "context_parallel", "data_parallel", "pipeline_parallel"),
    *("expert_parallel", "expert_tensor_parallel"),
)
TOGETHER = 1 << 18
"""Combinations that rules look at in one call."""


@dataclass(frozen=True, slots=True)
class Factor:
    """Combinations of some free axes.

    Attributes
    ----------
    names : tuple of str
        Those axes.
    index : ndarray of int64, shape (combinations, names)
        Positions in the values of each.
    """

    names: tuple[str, ...]
    index: Integers

    def __len__(self) -> int:
        return len(self.index)

    def columns(self, free: Mapping[str, NDArray[Any]], rows: Any) -> dict[str, NDArray[Any]]:
        """Return the values of some combinations."""
        return {name: free[name][self.index[rows, place]] for place, name in enumerate(self.names)}


@dataclass(frozen=True, slots=True)
class Shardings:
    """Possible combinations of `SHARDING`, one list for each kind of layout, none twice.

    Orders of the axes that differ in the place of an axis of one rank alone are the same mapping.

    Attributes
    ----------
    factor : Factor
        The first one of all that are the same; all lists, one after another.
    offset : ndarray of int64, shape (kinds + 1,)
        List k is ``offset[k]:offset[k + 1]``.
    kind : ndarray of int64, shape (layouts,)
        Of every layout.
    members : ndarray of int64, shape (all combinations, names)
        Positions of all of them, the same ones together.
    start : ndarray of int64, shape (combinations + 1,)
        Those that are the same as combination i are ``start[i]:start[i + 1]``.
    """

    factor: Factor
    offset: Integers
    kind: Integers
    members: Integers
    start: Integers

    @property
    def counts(self) -> Integers:
        """All combinations of every layout."""
        return (self.start[self.offset[1:]] - self.start[self.offset[:-1]])[self.kind]


@dataclass(frozen=True, slots=True)
class Away:
    """What may wait elsewhere, where no two combinations are the same.

    Attributes
    ----------
    factor : Factor
        Distinct combinations: where nothing waits, nobody asks where.
    members : list of ndarray
        Of each, the positions of all combinations of the axes that are the same.
    nothing : int
        The one in which nothing waits elsewhere; -1 without.
    """

    factor: Factor
    members: list[Integers]
    nothing: int

    @property
    def counts(self) -> Integers:
        """Combinations of the axes that every distinct one stands for."""
        return np.array([len(them) for them in self.members], np.int64)


DRAWN = 1000


@dataclass(frozen=True, slots=True)
class Space:
    """All strategies of a model on a number of devices.

    Attributes
    ----------
    model : ModelSpec
    devices : int
    layouts : mapping of str to ndarray, shape (layouts,)
        Columns of `StrategyGrid`; those of free axes hold one value.
    free : mapping of str to ndarray
        Values of every free axis.
    layers : Factor
        How layers are recomputed.
    sharding : Shardings
        ZeRO stage, shard sets and the mapping.
    away : tuple of two Away
        What waits elsewhere where nothing may wait on a paired stage, and where it may.
    documents : ndarray of bool, shape (layouts, document lengths)
        Whether they are possible.
    precisions : ndarray of bool, shape (precisions,)
        The same.
    rejected : mapping of str to int
        Impossible strategies by the name of the rule that they break.
    """

    model: ModelSpec
    devices: int
    layouts: Mapping[str, NDArray[Any]]
    free: Mapping[str, NDArray[Any]]
    layers: Factor
    sharding: Shardings
    away: tuple[Away, Away]
    documents: Flags
    precisions: Flags
    rejected: Mapping[str, int]

    @property
    def paired(self) -> Integers:
        """Return which of `away` holds for every layout, shape (layouts,)."""
        return pairs(self.layouts).astype(np.int64)

    @property
    def weights(self) -> Integers:
        """Return what every layout's ways to recompute, outer axes and paddings multiply."""
        away = np.array([int(it.counts.sum()) for it in self.away])
        return self.sharding.counts * away[self.paired]

    @property
    def possible(self) -> int:
        """Number of possible strategies."""
        several = int((self.weights * self.documents.sum(axis=1)).sum())
        return several * len(self.layers) * int(self.precisions.sum()) * self.free["padding"].size

    def grid(self, layout: Integers, **columns: NDArray[Any]) -> StrategyGrid:
        """Return strategies of some layouts with these values of free axes, else defaults."""
        found = {
            spec.name: columns.get(spec.name, self.layouts[spec.name][layout]) for spec in FIELDS
        }
        return StrategyGrid(self.devices, found, np.zeros(layout.size, np.uint8))

    def drawn(self) -> StrategyGrid:
        """Return possible strategies among some that are drawn, always the same."""
        layouts, draw = len(self.layouts["tensor_parallel"]), np.random.default_rng(0)
        count = DRAWN if layouts else 0
        free = {name: draw.choice(values, count) for name, values in self.free.items()}
        grid = self.grid(draw.integers(0, max(layouts, 1), count), **free)
        status = strategy_status(grid.columns, self.model, self.devices)
        return grid.take(status == VALID)


def pairs(columns: Mapping[str, NDArray[Any]]) -> Flags:
    """Tell which layouts have stages on which activations of others may wait."""
    plain = CODES[PLAIN]
    return (columns["pipeline_schedule"] == plain) & (columns["pipeline_parallel"] > 1)


def strategy_space(
    model: ModelSpec,
    devices: int,
    axes: Mapping[str, Any],
    *,
    hardware: Hardware | str | Sequence[Hardware | str] = (),
    framework: str | Framework | None = None,
) -> Space:
    """Return the strategies that `enumerate_strategies` would list, without listing them.

    Raises
    ------
    StrategyError
        As of `enumerate_strategies`; only layouts have to find room in memory.
    """
    given = {
        name: axis_values(name, values, FIELD_BY_NAME)
        for name, values in axes.items()
        if values is not None
    }
    free = free_axes(given)
    rest = {name: FIELD_BY_NAME[name].default for name in FREE_AXES if name != "zero_stage"}
    named = {name: value for name, value in axes.items() if name not in FREE_AXES}
    stages = {"zero_stage": 0} if "zero_stage" in given else {}
    found = enumerate_strategies(
        model, devices, {**named, **rest, **stages}, hardware=hardware, framework=framework
    )
    grid = found.grid.take(found.grid["zero_stage"] == 0)
    factor = math.prod(values.size for name, values in free.items() if name != "zero_stage")
    factor *= free["zero_stage"].size if stages else 1
    rejected = {name: count * factor for name, count in found.rejected.items()}
    rules = LATE_RULES if may_break_late(free, model) else ()

    def broken(names: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        of = [rule for rule in rules if rule.name in _RULES_OF[tuple(names)]]
        return strategy_status(columns, model, devices, tuple(of))

    sensible = None if "zero_stage" in given else defaults_of(framework, model)
    sharding, lost, left = _shardings(grid, free, sensible, broken)
    plain = int(np.prod([free[n].size for n in (*LAYERS, *AWAY, *OUTER)], dtype=object))
    _add(rejected, lost, plain)
    # Rules come one after the other, each for what those before have left.
    documents = free["document_length"]
    lengths = {
        name: np.repeat(grid[name], documents.size)
        for name in ("sequence_length", "context_parallel")
    }
    lengths["document_length"] = np.tile(documents, len(grid))
    lengths["tensor_parallel"] = lengths["context_parallel"]
    status = broken(("document_length",), lengths).reshape(len(grid), documents.size)
    plain //= documents.size
    for code in np.unique(status[status != VALID]):
        times = int((left * (status == code).sum(axis=1)).sum())
        _add(rejected, {STATUS_NAMES[int(code)]: times}, plain)
    left = left * (status == VALID).sum(axis=1)
    formats = free["precision"]
    lacking = broken(("precision",), {"precision": formats, "tensor_parallel": formats})
    plain //= formats.size
    _add(rejected, _named(lacking, int(left.sum())), plain)
    left = left * int((lacking == VALID).sum())
    index = _product([free[name].size for name in LAYERS])
    ways = {name: free[name][index[:, place]] for place, name in enumerate(LAYERS)}
    wrong = broken(LAYERS, {**ways, "tensor_parallel": ways["recompute"]})
    plain //= len(index)
    _add(rejected, _named(wrong, int(left.sum())), plain)
    left = left * int((wrong == VALID).sum())
    away = tuple(_away(free, paired) for paired in (False, True))
    unpaired = plain // free["padding"].size - int(away[0].counts.sum())
    if rules and unpaired:
        without = int(left[~pairs(grid.columns)].sum()) * free["padding"].size
        _add(rejected, {"no_paired_stage": without}, unpaired)
    return Space(
        model,
        devices,
        grid.columns,
        free,
        Factor(LAYERS, index[wrong == VALID]),
        sharding,
        (away[0], away[1]),
        status == VALID,
        lacking == VALID,
        {name: count for name, count in rejected.items() if count},
    )


_RULES_OF: Mapping[tuple[str, ...], tuple[str, ...]] = {
    SHARDING: (
        *("unknown_zero_stage", "shard_group_mismatch", "expert_group_spread"),
        "shard_group_spread",
    ),
    ("document_length",): ("document_length_mismatch",),
    ("precision",): ("frozen_needs_wide_products",),
    LAYERS: ("recomputed_layers_mismatch",),
}
"""Late rules by the axes that they are about; what may wait on a paired stage is in `_away`."""


def _shardings(
    grid: StrategyGrid, free: Mapping[str, NDArray[Any]], sensible: Defaults | None, broken: Any
) -> tuple[Shardings, dict[str, int], Integers]:
    """Return possible `SHARDING`, what rules reject of it, and what they leave of each layout."""
    kinds, kind = distinct_keys(grid.columns, DEGREES)
    count = kinds["tensor_parallel"].size
    often = np.bincount(kind, minlength=count)
    index = _product([free[name].size for name in SHARDING])
    orders = _orders(free["mapping"])
    lost: dict[str, int] = {}
    counts, left = np.zeros(count, np.int64), np.zeros(count, np.int64)
    firsts, sizes, members = [], [], []
    step = max(1, TOGETHER // len(index))
    for begin in range(0, count, step):
        some = np.arange(begin, min(begin + step, count))
        columns = {name: np.repeat(kinds[name][some], len(index)) for name in DEGREES}
        tiled = np.tile(index, (some.size, 1))
        columns |= {name: free[name][tiled[:, place]] for place, name in enumerate(SHARDING)}
        status = broken(SHARDING, columns).reshape(some.size, -1)
        for code in np.unique(status[status != VALID]):
            times = int(((status == code).sum(axis=1) * often[some]).sum())
            lost[STATUS_NAMES[int(code)]] = lost.get(STATUS_NAMES[int(code)], 0) + times
        keep = status == VALID
        left[some] = keep.sum(axis=1)
        if sensible is not None:
            keep &= sensible_zero(columns, sensible).reshape(keep.shape)
        rows = np.flatnonzero(keep)
        several = [columns[f"{axis}_parallel"][rows] > 1 for axis in MAPPING_AXES]
        order = orders[np.stack(several).T @ (1 << np.arange(4)), tiled[rows, 2]]
        meant = np.column_stack((rows // len(index), tiled[rows, :2], order))
        _, first, same = np.unique(meant, axis=0, return_index=True, return_inverse=True)
        same = np.argsort(np.argsort(first))[same.reshape(-1)]  # in the order of their first ones
        first = np.sort(first)
        counts[some] = np.bincount(rows[first] // len(index), minlength=some.size)
        firsts.append(tiled[rows[first]])
        sizes.append(np.bincount(same, minlength=first.size))
        members.append(tiled[rows[np.argsort(same, kind="stable")]])
    blank = np.zeros((0, len(SHARDING)), np.int64)
    return (
        Shardings(
            Factor(SHARDING, np.concatenate((blank, *firsts))),
            _offsets(counts),
            kind,
            np.concatenate((blank, *members)),
            _offsets(np.concatenate((blank[:, 0], *sizes))),
        ),
        lost,
        left[kind],
    )


def _orders(mappings: Integers) -> Integers:
    """Return a number for what every mapping comes to, by which axes have several ranks.

    Shape (16, mappings): bit i of the first position is axis i of `MAPPING_AXES`.
    """
    found = np.zeros((16, mappings.size), np.int64)
    for axes in range(16):
        known: dict[tuple[str, ...], int] = {}
        several = [axis for bit, axis in enumerate(MAPPING_AXES) if axes >> bit & 1]
        for place, mapping in enumerate(mappings.tolist()):
            order = tuple(axis for axis in MAPPINGS[mapping].split("-") if axis in several)
            found[axes, place] = known.setdefault(order, len(known))
    return found


def _away(free: Mapping[str, NDArray[Any]], paired: bool) -> Away:
    """Return what may wait elsewhere, with or without paired stages."""
    index = _product([free[name].size for name in AWAY])
    distinct = index.copy()
    for place in range(0, len(AWAY), 2):
        nothing = free[AWAY[place]][index[:, place]] == 0.0
        distinct[nothing, place + 1] = 0
    shares, to = free[AWAY[0]][index[:, 0]], free[AWAY[1]][index[:, 1]]
    possible = np.full(len(index), True)
    if not paired:
        possible = (shares == 0.0) | (to != PAIRED_STAGE)
    rows = np.flatnonzero(possible)
    kept, key = np.unique(distinct[rows], axis=0, return_inverse=True)
    order = np.argsort(key.reshape(-1), kind="stable")
    cuts = np.cumsum(np.bincount(key.reshape(-1), minlength=len(kept)))[:-1]
    members = [index[rows[some]] for some in np.split(order, cuts)] if rows.size else []
    held = sum(free[name][kept[:, place]] for place, name in enumerate(AWAY) if place % 2 == 0)
    none = np.flatnonzero(held == 0.0)
    return Away(Factor(AWAY, kept), members, int(none[0]) if none.size else -1)


def _product(sizes: Sequence[int]) -> Integers:
    """Return all combinations of positions, the last one varying fastest, shape (n, axes)."""
    return np.indices(sizes).reshape(len(sizes), -1).T.astype(np.int64)


def _offsets(counts: Integers) -> Integers:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _named(status: NDArray[np.uint8], times: int) -> dict[str, int]:
    return {
        STATUS_NAMES[int(code)]: int((status == code).sum()) * times
        for code in np.unique(status[status != VALID])
    }


def _add(rejected: dict[str, int], lost: Mapping[str, int], times: int) -> None:
    for name, count in lost.items():
        rejected[name] = rejected.get(name, 0) + count * times
