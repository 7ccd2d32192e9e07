"""Pipeline stages: which parts of a model each stage of a schedule holds, recomputed or kept.

Layers that are kept, and layers recomputed in groups, are parts of a model of their own: a stage
holds some number of each. Stages with the same composition share one row, so that the closing pass
looks at a handful of rows per strategy however many stages there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.pipelines import BIDIRECTIONAL, LOOP, WAVE
from perfmodel.base.strategy_fields import RECOMPUTE_METHODS
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.parts import Part, model_parts
from perfmodel.training.layout import Layout, stage_layout


class Recomputed(NamedTuple):
    """Which layers are recomputed whole.

    Attributes
    ----------
    method : str
        Of `perfmodel.base.strategy_fields.RECOMPUTE_METHODS`: ``single``, all one by one;
        ``uniform``, so many together; ``block``, the first so many of every chunk; ``every``,
        every so many-th.
    layers : int
        How many.
    """

    method: str = "single"
    layers: int = 0


ALL = Recomputed()


def recomputed_of(method: int = 0, layers: int = 0) -> Recomputed:
    """Return the choice of a strategy, from its columns; one layer a group is all of them."""
    name = RECOMPUTE_METHODS[method]
    if name == "single" or (name in ("uniform", "every") and layers == 1):
        return ALL
    return Recomputed(name, layers)


def chunk_parts(
    model: ModelSpec, layout: Layout, stages: Sequence[int], chosen: Recomputed = ALL
) -> list[list[Part]]:
    """Return what every chunk holds, as layers run: layers first, then what stands beside them.

    ``every`` counts the layers of a rank through its chunks (torchtitan,
    distributed/activation_checkpoint.py, ``_apply_layer_sac``: one counter of its process).

    Parameters
    ----------
    model : ModelSpec
    layout : Layout
    stages : sequence of int
        Stage of every chunk.
    chosen : Recomputed
    """
    parts = model_parts(model)
    kinds = {part.layer: part for part in parts if part.layer is not None}
    # By object, as hashes of layers take their time.
    objects = {id(layer): layer for layer in (*model.layers, *model.mtp_layers)}
    of_layer = {key: kinds[layer] for key, layer in objects.items()}
    kept = {id(part): kept_part(part) for part in kinds.values()}
    edges = {part.kind: part for part in parts if part.layer is None}
    passed = [0] * (max(stages) + 1)  # layers of a rank so far
    chunks, first = [], 0
    for stage, size in zip(stages, layout.layers, strict=True):
        own = [of_layer[id(layer)] for layer in model.layers[first : first + size]]
        chunks.append(_treated(own, [kept[id(part)] for part in own], passed[stage], chosen))
        passed[stage] += size
        first += size
    chunks[layout.embedding].append(edges["embedding"])
    chunks[layout.output].append(edges["output"])
    for layer in model.mtp_layers:
        module = [edges["mtp"], of_layer[id(layer)]]
        if chosen.method == "block":
            # Megatron-Core recomputes them whole or, where it goes by blocks, not at all
            # (multi_token_prediction.py, ``_checkpointed_forward``).
            module = [kept_part(part) for part in module]
        chunks[layout.modules] += [*module, edges["output"]]
    return chunks


def _treated(
    layers: Sequence[Part], kept: Sequence[Part], passed: int, chosen: Recomputed
) -> list[Part]:
    """Return the layers of one chunk as they are treated, ahead of which a rank has `passed`.

    `kept` are the same layers without recomputation.
    """
    if chosen.method == "block":
        first = chosen.layers
        return [*layers[:first], *kept[first:]]
    if chosen.method == "every":
        numbered = enumerate(zip(layers, kept, strict=True), passed + 1)
        return [again if n % chosen.layers == 0 else once for n, (again, once) in numbered]
    if chosen.method == "uniform":
        starts = range(0, len(layers), chosen.layers)
        parts = {id(part): part for part in layers}
        grouped = {
            key: replace(part, name=f"{part.name}.grouped", grouped=True)
            for key, part in parts.items()
        }
        return [
            *(grouped[id(part)] for part in layers),
            *(_group(layers[start : start + chosen.layers]) for start in starts),
        ]
    return list(layers)


def kept_part(part: Part) -> Part:
    """Return the same part without recomputation."""
    return replace(part, name=f"{part.name}.kept", kept=True)


def _group(layers: Sequence[Part]) -> Part:
    members = tuple(part.layer for part in layers if part.layer is not None)
    return Part("+".join(part.name for part in layers), "group", members=members)


def parts_with(model: ModelSpec, chunks: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """Return the parts of a model, and behind them what else these chunks hold."""
    held = (part for chunk in chunks for part in chunk)
    return tuple(dict.fromkeys((*model_parts(model), *held)))


class StageTable(NamedTuple):
    """Distinct stage compositions of every pipeline.

    Attributes
    ----------
    offset : ndarray of int64, shape (pipelines + 1,)
        Rows of pipeline i are ``offset[i]:offset[i + 1]``.
    counts : ndarray of float64, shape (rows, parts)
        How many of each part one stage of this composition holds.
    first_stage : ndarray of float64, shape (rows,)
        Earliest stage with this composition, which keeps most micro-batches in flight.
    stages : ndarray of float64, shape (rows,)
        Number of stages with this composition.
    pair : ndarray of int64, shape (rows,)
        Row, from the pipeline's first, of the stage that is the mirror image of `first_stage`.
    stage_offset : ndarray of int64, shape (pipelines + 1,)
        Stages of pipeline i are ``stage_offset[i]:stage_offset[i + 1]``.
    stage_row : ndarray of int64, shape (stages of all pipelines,)
        Row of each stage's composition, counted from the pipeline's first.
    chunk_offset : ndarray of int64, shape (pipelines + 1,)
        Distinct chunks of pipeline i are rows ``chunk_offset[i]:chunk_offset[i + 1]``.
    chunk_counts : ndarray of float64, shape (distinct chunks, parts)
        How many of each part such a chunk holds.
    place_offset : ndarray of int64, shape (pipelines + 1,)
        Chunks of pipeline i are ``place_offset[i]:place_offset[i + 1]``, as layers run.
    chunk_row : ndarray of int64, shape (chunks of all pipelines,)
        Row of each chunk in `chunk_counts`.
    chunk_stage : ndarray of int64, shape (chunks of all pipelines,)
        Stage on which it runs (the first copy of two).
    """

    offset: Integers
    counts: NDArray[np.float64]
    first_stage: NDArray[np.float64]
    stages: NDArray[np.float64]
    pair: Integers
    stage_offset: Integers
    stage_row: Integers
    chunk_offset: Integers
    chunk_counts: NDArray[np.float64]
    place_offset: Integers
    chunk_row: Integers
    chunk_stage: Integers


def chunk_stages(placement: str, pipeline: int, virtual: int) -> list[int]:
    """Return the stage of each chunk, in the order in which layers run.

    Chunk c of a loop runs on stage ``c mod p`` (Narayanan et al. 2021, arXiv:2104.04473, section
    2.2); waves go up and down the stages in turn (arXiv:2308.15762; one wave is the V of
    arXiv:2405.15362). Of two copies of the model the second one is the mirror image (DualPipe,
    arXiv:2412.19437, section 3.2.1): it is left to the caller. A placement of its own lists the
    stages: "0,1,1,0".
    """
    if placement not in (LOOP, WAVE, BIDIRECTIONAL):
        return [int(stage) for stage in placement.split(",")]
    if placement == BIDIRECTIONAL:
        virtual = 1
    up = list(range(pipeline))
    runs = (up[::-1] if placement == WAVE and run % 2 else up for run in range(virtual))
    return [stage for run in runs for stage in run]


def chunk_counts(chunks: Sequence[Sequence[Part]], parts: Sequence[Part]) -> NDArray[np.float64]:
    """Count the parts of every chunk, shape (chunks, parts)."""
    position = {part: i for i, part in enumerate(parts)}
    counts = np.zeros((len(chunks), len(parts)))
    for row, chunk in zip(counts, chunks, strict=True):
        for part, times in Counter(chunk).items():
            row[position[part]] += times
    return counts


def chunk_compositions(
    model: ModelSpec,
    pipeline: int,
    virtual: int,
    split: str = "even",
    placement: str = LOOP,
    chosen: Recomputed = ALL,
    parts: Sequence[Part] = (),
) -> NDArray[np.float64]:
    """Count the parts of every chunk as layers run, shape (pipeline × virtual, parts).

    Parameters
    ----------
    model : ModelSpec
    pipeline, virtual : int
    split : str
        As of `perfmodel.training.layout.stage_layout`.
    placement : str
        As of `chunk_stages`.
    chosen : Recomputed
    parts : sequence of Part
        Those of the model and what else chunks hold; empty: the first alone.
    """
    layout = stage_layout(model, pipeline, virtual, split)
    stages = chunk_stages(placement, pipeline, virtual)
    return chunk_counts(chunk_parts(model, layout, stages, chosen), parts or model_parts(model))


def stage_compositions(
    model: ModelSpec,
    pipeline_parallel: int,
    virtual_pipeline: int,
    split: str = "even",
    placement: str = LOOP,
    chosen: Recomputed = ALL,
    parts: Sequence[Part] = (),
) -> NDArray[np.float64]:
    """Count the parts on every stage, shape (pipeline_parallel, parts)."""
    virtual = 1 if placement == BIDIRECTIONAL else virtual_pipeline
    chunks = chunk_compositions(model, pipeline_parallel, virtual, split, placement, chosen, parts)
    return _on_stages(chunks, pipeline_parallel, virtual, placement)


def _on_stages(
    chunks: NDArray[np.float64], pipeline: int, virtual: int, placement: str
) -> NDArray[np.float64]:
    counts = np.zeros((pipeline, chunks.shape[1]))
    np.add.at(counts, chunk_stages(placement, pipeline, virtual), chunks)
    return counts + counts[::-1] if placement == BIDIRECTIONAL and pipeline > 1 else counts


def held_parts(
    model: ModelSpec, pipelines: Sequence[tuple[int, int, str, str, Recomputed]]
) -> tuple[Part, ...]:
    """Return the parts of a model, and what else chunks of these pipelines hold."""
    chunks: list[list[Part]] = []
    for pipeline, virtual, placement, split, chosen in pipelines:
        if chosen != ALL:
            runs = 1 if placement == BIDIRECTIONAL else virtual
            layout = stage_layout(model, pipeline, runs, split)
            chunks += chunk_parts(model, layout, chunk_stages(placement, pipeline, runs), chosen)
    return parts_with(model, chunks)


def stage_table(
    model: ModelSpec,
    pipelines: Sequence[tuple[int, int, str, str, Recomputed]],
    parts: Sequence[Part] = (),
) -> StageTable:
    """Build the rows of every distinct (pipeline, virtual, placement, split, recomputed layers)."""
    parts = parts or model_parts(model)
    counts, first, stages = [np.zeros((0, len(parts)))], [np.zeros(0)], [np.zeros(0)]
    pair = [np.zeros(0, np.int64)]
    stage_row, held_by = [np.zeros(0, np.int64)], [np.zeros((0, len(parts)))]
    chunk_row, chunk_stage = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for pipeline, virtual, placement, split, chosen in pipelines:
        runs = 1 if placement == BIDIRECTIONAL else virtual
        chunks = chunk_compositions(model, pipeline, runs, split, placement, chosen, parts)
        held = _on_stages(chunks, pipeline, runs, placement)
        rows, index, inverse, times = np.unique(
            held, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        counts.append(rows)
        first.append(index.astype(np.float64))
        stages.append(times.astype(np.float64))
        stage_row.append(inverse.reshape(-1).astype(np.int64))
        pair.append(stage_row[-1][::-1][index])
        rows, inverse = np.unique(chunks, axis=0, return_inverse=True)
        chunk_row.append(inverse.reshape(-1) + sum(map(len, held_by)))
        held_by.append(rows)
        chunk_stage.append(np.array(chunk_stages(placement, pipeline, runs), np.int64))
    return StageTable(
        _offsets(counts),
        np.concatenate(counts),
        np.concatenate(first),
        np.concatenate(stages),
        np.concatenate(pair),
        _offsets(stage_row),
        np.concatenate(stage_row),
        _offsets(held_by),
        np.concatenate(held_by),
        _offsets(chunk_row),
        np.concatenate(chunk_row),
        np.concatenate(chunk_stage),
    )


def _offsets(tables: Sequence[NDArray[Any]]) -> Integers:
    """Return where each table begins once all are joined; the first of them is empty."""
    return np.cumsum([len(table) for table in tables], dtype=np.int64)
