"""The layout of layers over stages with which a step takes least time; ways to recompute them.

Ways come to the same where one recomputes more layers of a chunk than it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers, distinct_keys
from perfmodel.base.pipelines import BIDIRECTIONAL, schedule_facts
from perfmodel.base.strategy_fields import RECOMPUTE_METHODS
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.parts import model_parts
from perfmodel.strategy.factors import Space
from perfmodel.training.layout import stage_layout
from perfmodel.training.schedule import chunk_stages

BEST = "best"
"""What asks for such a layout in place of a stated one."""
SEARCHED = 4000
"""Beginnings of layouts that are looked at."""
SAME = 1e-12
"""Differences that are roundings, relative."""
Cost = Callable[[Sequence[int]], tuple[tuple[float, float], int]]
"""Borders between chunks -> what is minimised, first and among equals, and the slowest stage."""


def best_splits(
    model: ModelSpec,
    pipelines: Sequence[tuple[int, int, str]],
    parts: np.recarray[Any, Any],
) -> list[str]:
    """Return the best layout of each of some pipelines, as `stage_layout` reads it.

    Parameters
    ----------
    model : ModelSpec
    pipelines : sequence of tuples
        Stages, chunks of each, and where they lie (`perfmodel.base.pipelines`).
    parts : record array of `perfmodel.kernels.step.tables.PART`, shape (pipelines, parts)
        What each part of the model takes.
    """
    from perfmodel.kernels.step.stages import BUSY

    names = [part.kind for part in model_parts(model)]
    position = {
        part.layer: i for i, part in enumerate(model_parts(model)) if part.layer is not None
    }
    found: dict[tuple[Any, ...], str] = {}
    splits = []
    for kind, row in zip(pipelines, parts, strict=True):
        busy = sum(row[name] for name in BUSY)
        times = tuple(float(busy[position[layer]]) for layer in model.layers)
        last = float(busy[names.index("output")]) * (1 + len(model.mtp_layers))
        for layer in model.mtp_layers:
            last += float(busy[position[layer]] + busy[names.index("mtp")])
        ends = float(busy[names.index("embedding")]), last
        asked = (kind, times, ends)
        if asked not in found:
            pipeline, virtual, placement = kind
            stages = chunk_stages(placement, pipeline, virtual)
            if placement == BIDIRECTIONAL:  # mirrored stages hold the same two chunks
                stages = [min(stage, pipeline - 1 - stage) for stage in stages]
            sizes = best_layout(times, ends, stages)
            found[asked] = ",".join(map(str, sizes))
        splits.append(found[asked])
    return splits


def best_layout(
    layers: Sequence[float], ends: tuple[float, float], stages: Sequence[int]
) -> list[int]:
    """Return the layers of each chunk with which the slowest stage takes least.

    Parameters
    ----------
    layers : sequence of float
        Time of each layer, both passes of a micro-batch [s].
    ends : tuple of two floats
        Of what the first chunk holds beside layers, and of what the last one does [s].
    stages : sequence of int
        Stage of each chunk, in the order in which layers run.

    Returns
    -------
    list of int
        As many as chunks; they add up to the number of layers.

    Notes
    -----
    Times t of the stages add up to the same in any layout, so that the work of the slowest stage
    and the bubble of schedules that fill and drain once, ``m max t + (sum t - max t) / v``, are
    least where max t is. Among equals the sum of squares of t decides, as far as it is looked at.

    Exact with one chunk a stage (bisection), with equal layers (each goes where least is), and
    where the slowest stage takes no longer than `least_slowest`. Otherwise layers leave the
    slowest stage one by one while that gains anything, from chunks that are even and from those of
    which the longest is as short as can be; then all layouts are gone through that might be
    better, which proves the best of them unless there are more than `SEARCHED`.
    """
    count = max(stages) + 1
    if len(set(layers)) == 1:
        return _levelled(layers[0], len(layers), ends, stages)
    times = np.asarray(layers, np.float64)
    cumulated = np.concatenate(([0.0], np.cumsum(times)))

    def cost(borders: Sequence[int]) -> tuple[tuple[float, float], int]:
        chunks = np.diff(cumulated[list(borders)])
        chunks[0] += ends[0]
        chunks[-1] += ends[1]
        busy = np.bincount(stages, weights=chunks, minlength=count)
        return (float(busy.max()), float(busy @ busy)), int(busy.argmax())

    even = [len(times) * i // len(stages) for i in range(len(stages) + 1)]
    starts = (_shortest_longest(times, ends, len(stages)), even)
    found = [_improved(start, cost, stages) for start in starts]
    best = min(found, key=lambda borders: cost(borders)[0])
    least = least_slowest(layers, ends, stages) * (1.0 + SAME)
    search = _Search(cumulated.tolist(), ends, stages)
    while len(stages) > count and cost(best)[0][0] > least:
        better = search.below(cost(best)[0][0] * (1.0 - SAME))
        if better is None:
            break
        best = _improved(better, cost, stages)
    return np.diff(best).tolist()


def least_slowest(
    layers: Sequence[float], ends: tuple[float, float], stages: Sequence[int]
) -> float:
    """Return a time that the slowest stage takes in any layout, at least [s].

    The mean of all stages; the longest layer; what the stages of the ends hold beside layers. With
    two kinds of layers, such as dense ones and experts, also the least with which so many of
    either kind find room, in whatever order they come.
    """
    beside: NDArray[np.float64] = np.zeros(max(stages) + 1)
    np.add.at(beside, [stages[0], stages[-1]], ends)
    least = max((sum(layers) + sum(ends)) / beside.size, max(layers), float(beside.max()))
    kinds = sorted(Counter(layers).items(), key=lambda kind: kind[1])
    if len(kinds) != 2:
        return least
    (one, few), (other, many) = kinds
    held = one * np.arange(few + 1)[:, None] + other * np.arange(many + 1)
    possible = np.unique(np.unique(beside)[:, None, None] + held)
    possible = possible[possible >= least * (1.0 - SAME)]
    first = bisect_left(
        range(possible.size), True, key=lambda i: _find_room(float(possible[i]), beside, kinds)
    )
    return float(possible[first])


def _find_room(
    limit: float, beside: NDArray[np.float64], kinds: Sequence[tuple[float, int]]
) -> bool:
    """Tell whether layers of two kinds (time, number) fit on stages that take no longer."""
    (one, few), (other, many) = kinds
    room = limit * (1.0 + SAME) - beside[:, None] - one * np.arange(few + 1)
    beside_them = np.where(room >= 0.0, np.floor(room / other), -np.inf)
    most = np.full(few + 1, -np.inf)  # of the second kind, by how many of the first are placed
    most[0] = 0.0
    for own in beside_them:
        most = np.array([(most[: n + 1] + own[n::-1]).max() for n in range(few + 1)])
    return bool(most[few] >= many)


def _levelled(
    time: float, layers: int, ends: tuple[float, float], stages: Sequence[int]
) -> list[int]:
    """Return the layers of each chunk where all are equal: each goes to the stage with least."""
    busy = np.bincount([stages[0], stages[-1]], weights=ends, minlength=max(stages) + 1)
    held = np.zeros(busy.size, np.int64)
    for _ in range(layers):
        stage = int(busy.argmin())
        busy[stage] += time
        held[stage] += 1
    sizes = []
    left = np.bincount(stages)  # chunks of each stage
    for stage in stages:
        sizes.append(int(held[stage] // left[stage]))
        held[stage] -= sizes[-1]
        left[stage] -= 1
    return sizes


class _Search:
    """Goes through layouts chunk by chunk, and leaves those that cannot be good enough."""

    def __init__(
        self, cumulated: list[float], ends: tuple[float, float], stages: Sequence[int]
    ) -> None:
        self.cumulated, self.ends, self.stages = cumulated, ends, stages
        self.after = [stages[chunk:] for chunk in range(len(stages) + 1)]
        self.left = SEARCHED

    def below(self, limit: float) -> list[int] | None:
        """Return borders with which no stage takes longer; None: there are none, or too many."""
        self.limit = limit
        self.failed: set[tuple[int, int, tuple[float, ...]]] = set()
        busy = [0.0] * (max(self.stages) + 1)
        busy[self.stages[0]] += self.ends[0]
        busy[self.stages[-1]] += self.ends[1]
        return self._continued([0], busy)

    def _continued(self, borders: list[int], busy: list[float]) -> list[int] | None:
        chunk, begin = len(borders) - 1, borders[-1]
        if chunk == len(self.stages):
            return borders if begin + 1 == len(self.cumulated) else None
        key = (chunk, begin, tuple(busy))
        room = sum(self.limit - busy[stage] for stage in set(self.after[chunk]))
        left = self.cumulated[-1] - self.cumulated[begin]
        if key in self.failed or left > room or self.left <= 0:
            return None
        self.left -= 1
        stage = self.stages[chunk]
        free = self.limit - busy[stage]
        share = self.cumulated[begin] + free / self.after[chunk].count(stage)
        sizes = range(begin, len(self.cumulated))
        possible = [end for end in sizes if self.cumulated[end] - self.cumulated[begin] <= free]
        for end in sorted(possible, key=lambda end: abs(self.cumulated[end] - share)):
            busy[stage] += self.cumulated[end] - self.cumulated[begin]
            found = self._continued([*borders, end], busy)
            busy[stage] = self.limit - free
            if found is not None:
                return found
        self.failed.add(key)
        return None


def _shortest_longest(
    times: NDArray[np.float64], ends: tuple[float, float], chunks: int
) -> list[int]:
    """Return borders between chunks of which the longest is as short as can be.

    Bisection over that length; chunks are filled from the front (the linear partition problem).
    """
    low, high = max(float(times.max(initial=0.0)), *ends), float(times.sum()) + sum(ends)
    if _filled(times, ends, chunks, low):
        high = low
    for _ in range(60):
        middle = (low + high) / 2.0
        if _filled(times, ends, chunks, middle) is None:
            low = middle
        else:
            high = middle
    return _filled(times, ends, chunks, high) or [0] * chunks + [len(times)]


def _filled(
    times: NDArray[np.float64], ends: tuple[float, float], chunks: int, longest: float
) -> list[int] | None:
    """Return borders where no chunk is longer than `longest`; None where there are none."""
    borders, spent = [0], ends[0]
    for layer, time in enumerate(times):
        while spent + time > longest and len(borders) < chunks:
            borders.append(layer)
            spent = 0.0
        spent += time
        if spent > longest:
            return None
    if len(borders) == chunks and spent + ends[1] > longest:
        return None
    # What is left over goes into the last chunk alone, which then holds no layer.
    return [*borders, *[len(times)] * (chunks + 1 - len(borders))]


def _improved(start: Sequence[int], cost: Cost, stages: Sequence[int]) -> list[int]:
    """Move layers from chunks of the slowest stage to others, one at a time, while that gains."""
    best = list(start)
    least, slowest = cost(best)
    moved = True
    while moved:
        moved = False
        sources = [i for i, stage in enumerate(stages) if stage == slowest]
        for source in (i for i in sources if best[i + 1] > best[i]):
            for target in (i for i in range(len(stages)) if i != source):
                step = 1 if target < source else -1
                tried = list(best)
                for border in range(min(source, target) + 1, max(source, target) + 1):
                    tried[border] += step
                found, other = cost(tried)
                if found < tuple(part * (1.0 - SAME) for part in least):
                    best, least, slowest, moved = tried, found, other, True
                    break
            if moved:
                break
    return best


class Ways(NamedTuple):
    """Distinct ways to recompute the layers of every layout of a space.

    Attributes
    ----------
    row : ndarray of int64, shape (ways,)
        Of `Space.layers`, the first one of each.
    members : list of ndarray
        Rows of all that are the same.
    single : ndarray of int64
        Ways of single layers, which every layout has.
    offset : ndarray of int64, shape (kinds + 1,)
        All others of layouts of kind k are ways ``offset[k]:offset[k + 1]``.
    kind : ndarray of int64, shape (layouts,)
        Of every layout.
    """

    row: Integers
    members: list[Integers]
    single: Integers
    offset: Integers
    kind: Integers

    @property
    def counts(self) -> Integers:
        """Rows for which every way stands."""
        return np.array([rows.size for rows in self.members], np.int64)


def distinct_ways(space: Space, split: str) -> Ways:
    """Return the ways to recompute that differ, where stages hold layers as `split` says."""
    names = ("pipeline_parallel", "virtual_pipeline", "pipeline_schedule")
    pipelines, pipeline = distinct_keys(space.layouts, names)
    rows = zip(*(column.tolist() for column in pipelines.values()), strict=True)
    placed = schedule_facts("placement").tolist()
    runs = [longest_runs(space.model, p, v, placed[s], split) for p, v, s in rows]
    kinds, kind = np.unique(np.array(runs).reshape(-1, 2), axis=0, return_inverse=True)
    ways = space.layers.columns(space.free, slice(None))
    method, layers = ways["recompute_method"], ways["recompute_num_layers"]
    found = [np.array([row]) for row in np.flatnonzero(method == 0)]
    single = np.arange(len(found))
    offset = [len(found)]
    several = np.flatnonzero(method)
    every = method[several] == RECOMPUTE_METHODS.index("every")
    for chunk, rank in kinds.tolist():
        most = np.where(every, rank + 1, max(chunk, 1))
        meant = np.stack([method[several], np.minimum(layers[several], most)])
        _, same = np.unique(meant, axis=1, return_inverse=True)
        order = np.argsort(same.reshape(-1), kind="stable")
        cuts = np.cumsum(np.bincount(same.reshape(-1)))[:-1]
        found += np.split(several[order], cuts) if several.size else []
        offset.append(len(found))
    first = np.array([rows[0] for rows in found], np.int64)
    return Ways(first, found, single, np.array(offset), kind.reshape(-1)[pipeline])


def longest_runs(
    model: ModelSpec, pipeline: int, virtual: int, placement: str, split: str
) -> tuple[int, int]:
    """Return the most layers of a chunk and of a rank, of which more cannot be recomputed.

    Parameters
    ----------
    model : ModelSpec
    pipeline, virtual : int
    placement : str
        As of `perfmodel.training.schedule.chunk_stages`.
    split : str
        As of `perfmodel.training.layout.stage_layout`; where it is still to be found, all layers.
    """
    if split == BEST:
        return model.num_layers, model.num_layers
    runs = 1 if placement == BIDIRECTIONAL else virtual
    sizes = stage_layout(model, pipeline, runs, split).layers
    ranks = [0] * pipeline
    for stage, size in zip(chunk_stages(placement, pipeline, runs), sizes, strict=True):
        ranks[stage] += size
    return max(sizes), max(ranks) * (2 if placement == BIDIRECTIONAL and pipeline > 1 else 1)
