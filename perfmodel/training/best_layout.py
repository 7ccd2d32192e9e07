"""The layout of layers over pipeline stages with which a step takes least time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.model.build import ModelSpec
from perfmodel.operations.parts import model_parts
from perfmodel.training.schedule import chunk_stages

BEST = "best"
"""What asks for such a layout in place of a stated one."""
Cost = Callable[[Sequence[int]], tuple[tuple[float, float], int]]
"""Borders between chunks -> what is minimised, first and among equals, and the slowest stage."""


def best_splits(
    model: ModelSpec,
    pipelines: Sequence[tuple[int, int, str]],
    parts: np.recarray[Any, Any],
    passes: Sequence[float],
) -> list[str]:
    """Return the best layout of each of some pipelines, as `stage_layout` reads it.

    Parameters
    ----------
    model : ModelSpec
    pipelines : sequence of tuples
        Stages, chunks of each, and where they lie (`perfmodel.base.pipelines`).
    parts : record array of `perfmodel.kernels.step.tables.PART`, shape (pipelines, parts)
        What each part of the model takes.
    passes : sequence of float
        Micro-batches.
    """
    from perfmodel.kernels.step.stages import BUSY

    names = [part.kind for part in model_parts(model)]
    position = {
        part.layer: i for i, part in enumerate(model_parts(model)) if part.layer is not None
    }
    found: dict[tuple[Any, ...], str] = {}
    splits = []
    for kind, row, count in zip(pipelines, parts, passes, strict=True):
        busy = sum(row[name] for name in BUSY)
        times = tuple(float(busy[position[layer]]) for layer in model.layers)
        last = float(busy[names.index("output")]) * (1 + len(model.mtp_layers))
        for layer in model.mtp_layers:
            last += float(busy[position[layer]] + busy[names.index("mtp")])
        ends = float(busy[names.index("embedding")]), last
        asked = (kind, times, ends, int(count))
        if asked not in found:
            pipeline, virtual, placement = kind
            stages = chunk_stages(placement, pipeline, virtual)
            sizes = best_layout(times, ends, stages, float(count))
            found[asked] = ",".join(map(str, sizes))
        splits.append(found[asked])
    return splits


def best_layout(
    layers: Sequence[float], ends: tuple[float, float], stages: Sequence[int], passes: float
) -> list[int]:
    """Return the layers of each chunk with which the slowest stage and the bubble take least.

    Parameters
    ----------
    layers : sequence of float
        Time of each layer, both passes of a micro-batch [s].
    ends : tuple of two floats
        Of what the first chunk holds beside layers, and of what the last one does [s].
    stages : sequence of int
        Stage of each chunk, in the order in which layers run.
    passes : float
        Micro-batches.

    Returns
    -------
    list of int
        As many as chunks; they add up to the number of layers.

    Notes
    -----
    Minimised is ``m max t + (sum t - max t) / v`` of the times t of the stages: the work of the
    slowest stage, and the bubble of schedules that fill and drain once; among equals the sum of
    squares of t, so that stages which share the maximum can lose it one after the other. From
    chunks that are even, and from those of which the longest is as short as can be, layers leave
    the slowest stage one by one while that gains anything. With one chunk a stage nothing is
    better; with several, of unequal layers, something may be.
    """
    times = np.asarray(layers, np.float64)
    cumulated = np.concatenate(([0.0], np.cumsum(times)))
    pipeline = max(stages) + 1
    virtual = len(stages) / pipeline

    def cost(borders: Sequence[int]) -> tuple[tuple[float, float], int]:
        chunks = np.diff(cumulated[list(borders)])
        chunks[0] += ends[0]
        chunks[-1] += ends[1]
        busy = np.bincount(stages, weights=chunks, minlength=pipeline)
        slowest = float(busy.max())
        step = passes * slowest + (float(busy.sum()) - slowest) / virtual
        return (step, float(busy @ busy)), int(busy.argmax())

    even = [len(times) * i // len(stages) for i in range(len(stages) + 1)]
    starts = (_shortest_longest(times, ends, len(stages)), even)
    found = (_improved(start, cost, stages) for start in starts)
    return np.diff(min(found, key=lambda borders: cost(borders)[0])).tolist()


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
                if found < tuple(part * (1.0 - 1e-12) for part in least):
                    best, least, slowest, moved = tried, found, other, True
                    break
            if moved:
                break
    return best
