"""Pipeline stages: which parts of a model each stage of a schedule holds.

Stages with the same composition share one row, so that the closing pass looks at
a handful of rows per strategy however many stages there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.model.build import ModelSpec
from perfmodel.model.layers import layer_parameters
from perfmodel.operations.parts import model_parts


class StageTable(NamedTuple):
    """Distinct stage compositions of every (pipeline, virtual) pair.

    Attributes
    ----------
    offset : ndarray of int64, shape (pairs + 1,)
        Rows of pair i are ``offset[i]:offset[i + 1]``.
    counts : ndarray of float64, shape (rows, parts)
        How many of each part one stage of this composition holds.
    first_stage : ndarray of float64, shape (rows,)
        Earliest stage with this composition, which keeps most micro-batches in flight.
    stages : ndarray of float64, shape (rows,)
        Number of stages with this composition.
    warm_up : ndarray of float64, shape (rows,)
        Layers of the chunk passes of its warm-up, over those of as many mean chunks [1].
    """

    offset: NDArray[np.int64]
    counts: NDArray[np.float64]
    first_stage: NDArray[np.float64]
    stages: NDArray[np.float64]
    warm_up: NDArray[np.float64]


def chunk_sizes(layers: int, chunks: int, *, heavy_end: bool = False) -> list[int]:
    """Layers of each model chunk, first to last.

    Even where it divides. Otherwise embedding and output count as one layer each, as
    frameworks do that place models such as Llama 3.1 405B (126 layers in 128 places)
    or BLOOM (70 in 72), and what then is left over goes to the chunks in the middle,
    one layer each. A model whose end is heavy (multi-token prediction: a layer and a
    second head) fills its chunks from the front, and the last takes what is left, as
    Megatron-Bridge lays out DeepSeek-V3 (61 layers on 16 stages: 15 times 4, and 1).
    """
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    if heavy_end:
        size = -(-layers // chunks)
        full = min(layers // size, chunks)
        sizes = [size] * full + [0] * (chunks - full)
        if full < chunks:
            sizes[full] = layers - size * full
        return sizes
    places, extra = divmod(layers + 2, chunks)
    sizes = [places] * chunks
    start = (chunks - extra) // 2
    for i in range(start, start + extra):
        sizes[i] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    # A model with fewer layers than places would leave an edge chunk negative.
    for i in (0, chunks - 1):
        if sizes[i] < 0:
            sizes[i] += 1
            sizes[sizes.index(max(sizes))] -= 1
    return sizes


def chunks_by_cost(model: ModelSpec, chunks: int) -> list[int]:
    """Layers of each model chunk where layers and output matrix are spread by their products.

    The parameters of matrices stand for the cost of a layer, vocabulary times hidden size for
    that of the output. A chunk takes layers until the cost so far exceeds its share of the whole
    (nanotron, ``build_model`` in src/nanotron/models/base.py).
    """
    costs = [float(layer_parameters(layer, model.hidden_size).total) for layer in model.layers]
    head = float(model.vocab_size * model.table_width)
    share = (sum(costs) + head) / chunks
    sizes, chunk, spent = [0] * chunks, 0, 0.0
    for cost in costs:
        sizes[chunk] += 1
        spent += cost
        if spent > share * (chunk + 1) and chunk + 1 < chunks:
            chunk += 1
    return sizes


def layers_of_chunks(model: ModelSpec, chunks: int, split: str) -> list[int]:
    """Return the layers of each chunk as software spreads them: "even" or "by_cost"."""
    if split == "by_cost":
        return chunks_by_cost(model, chunks)
    return chunk_sizes(model.num_layers, chunks, heavy_end=bool(model.mtp_layers))


def stage_compositions(
    model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int, split: str = "even"
) -> NDArray[np.float64]:
    """Count the parts on every stage, shape (pipeline_parallel, parts).

    Chunk c of an interleaved schedule runs on stage ``c % pipeline_parallel``
    (Narayanan et al. 2021, section 2.2).
    """
    parts = model_parts(model)
    position = {part.layer: i for i, part in enumerate(parts) if part.layer is not None}
    kinds = [part.kind for part in parts]
    counts = np.zeros((pipeline_parallel, len(parts)))
    layer = 0
    chunks = layers_of_chunks(model, pipeline_parallel * virtual_pipeline, split)
    for chunk, size in enumerate(chunks):
        for spec in model.layers[layer : layer + size]:
            counts[chunk % pipeline_parallel, position[spec]] += 1
        layer += size
    counts[0, kinds.index("embedding")] += 1
    counts[-1, kinds.index("output")] += 1 + len(model.mtp_layers)
    for spec in model.mtp_layers:
        counts[-1, position[spec]] += 1
        counts[-1, kinds.index("mtp")] += 1
    return counts


def warm_up_share(stage: int, sizes: Sequence[int], pipeline: int) -> float:
    """Return the layers of a stage's warm-up over those of as many chunks of its mean size.

    Interleaved 1F1B runs ``2 (p - s - 1) + (v - 1) p + 1`` chunks ahead of the first backward, p
    micro-batches of one chunk and then of the next, after the last the first again: where the
    first is light, as it holds the embedding too, less is kept.

    Parameters
    ----------
    stage : int
    sizes : sequence of int
        Layers of its chunks.
    pipeline : int
        Number of stages p.
    """
    layers = np.asarray(sizes, np.float64)
    if not layers.any():
        return 1.0
    passes = 2 * (pipeline - stage - 1) + (layers.size - 1) * pipeline + 1
    rounds, rest = divmod(passes, layers.size * pipeline)
    ahead = rest - pipeline * np.arange(layers.size)
    times = rounds * pipeline + ahead.clip(0, pipeline)
    return float(times @ layers / (passes * layers.mean()))


def stage_table(
    model: ModelSpec, pairs: Sequence[tuple[int, int]], split: str = "even"
) -> StageTable:
    """Build the rows of every distinct (pipeline_parallel, virtual_pipeline) pair."""
    empty = np.zeros(0)
    offset, counts, first, stages = [0], [np.zeros((0, len(model_parts(model))))], [empty], [empty]
    warm_up = [empty]
    for pipeline, virtual in pairs:
        rows, index, times = np.unique(
            stage_compositions(model, pipeline, virtual, split),
            axis=0,
            return_index=True,
            return_counts=True,
        )
        counts.append(rows)
        first.append(index.astype(np.float64))
        stages.append(times.astype(np.float64))
        sizes = layers_of_chunks(model, pipeline * virtual, split)
        shares = [warm_up_share(it, sizes[it::pipeline], pipeline) for it in index.tolist()]
        warm_up.append(np.asarray(shares, np.float64))
        offset.append(offset[-1] + len(rows))
    return StageTable(
        np.asarray(offset, np.int64),
        np.concatenate(counts),
        np.concatenate(first),
        np.concatenate(stages),
        np.concatenate(warm_up),
    )
