"""Memory of deployments: weights, activations, and the blocks of the cache that are left.

Letters: t, e, a, p degrees of tensor, expert, attention-data and pipeline parallelism; g heads
of keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.precisions import FORMATS
from perfmodel.compute.gemm import resident_capacity
from perfmodel.hwprofiles.rows import memory_width
from perfmodel.model.layers import LayerSpec
from perfmodel.model.pieces import Piece
from perfmodel.model.quantization import WIDE_BYTES, place_of
from perfmodel.serving.cache import (
    ACTIVATION_BYTES,
    TENSOR,
    WHOLE,
    Terms,
    cache_terms,
    charged,
    window_of,
)
from perfmodel.serving.defaults import device_class, device_fact, with_limits
from perfmodel.serving.grid import worker_devices
from perfmodel.serving.layouts import (
    AS_STATED,
    KV_FORMATS,
    WEIGHT_FORMATS,
    Layouts,
    ProductFormat,
    place_formats,
)
from perfmodel.serving.pass_pricing import TYPICAL_CONTEXT

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid

STREAMS_KEPT = 3.0
"""Tensors of the width of a residual stream that stand at once: the stream, what a norm makes of
it, and what a block adds [prior, from the operations of a layer]."""
PLANE, PADDED = -2, -3
"""Further divisors: t·a, and t·a of experts that kernels pad."""


@dataclass(frozen=True)
class LayoutMemory:
    """What a device holds, of every layout and stage; shape (layouts, stages).

    Attributes
    ----------
    weights : ndarray
        Weights with their scales [B].
    per_token : ndarray
        Cache that a token takes, windows that have filled left out [B].
    state : ndarray
        States that a sequence keeps whatever its length [B].
    beside : ndarray
        Cache that a token takes within windows beside layers that keep all [B].
    reach : float
        Tokens of those windows.
    passes : float
        Passes whose tokens are held beside that reach.
    printed : ndarray, shape (layouts,)
        Of `per_token`, what a token takes by the tokens that some releases print.
    page : ndarray, shape (layouts,)
        Tokens of a block that holds a state; 0 where states have no blocks.
    window : float
        Tokens of a sequence that are kept at most; inf where some layer keeps all.
    stage : ndarray of bool
        Which stages there are.
    """

    weights: Floats
    per_token: Floats
    state: Floats
    beside: Floats
    reach: float
    passes: float
    printed: Floats
    page: Floats
    window: float
    stage: NDArray[np.bool_]


def stage_starts(layers: int, stages: int) -> list[int]:
    """Return the first layer of each stage, and the number of layers.

    Notes
    -----
    As vLLM cuts them (``get_pp_indices``): equally, what is left over to stages from the last
    but one upwards.

    Examples
    --------
    >>> stage_starts(10, 4)
    [0, 2, 5, 8, 10]
    """
    counts = [layers // stages] * stages
    for i in range(layers % stages):
        counts[-2 - i] += 1
    return [0, *np.cumsum(counts).tolist()]


def layout_memory(model: ModelSpec, layouts: Layouts, hardware: Hardware) -> LayoutMemory:
    """Return what the devices of every layout hold.

    Parameters
    ----------
    model : ModelSpec
    layouts : Layouts
    hardware : Hardware
        Whose capacity does not count here, only what formats it knows.
    """
    columns = layouts.columns
    stages = int(columns["pipeline_parallel"].max())
    shape = (len(layouts), stages)
    weights, page, printed = np.zeros(shape), np.zeros(shape[0]), np.ones(shape[0])
    cache = np.zeros((3, *shape))
    reach, passes = 0.0, 1.0
    first, last, exists = _stages(model.num_layers, columns["pipeline_parallel"], stages)
    drafting = columns["draft_length"] > 0
    for speculates in np.unique(drafting):
        for code in np.unique(columns["weight_precision"][drafting == speculates]):
            rows = (columns["weight_precision"] == code) & (drafting == speculates)
            layers, ahead, behind = _weight_terms(
                model, WEIGHT_FORMATS[code], hardware, bool(speculates)
            )
            padding = _padding(model, layouts, hardware)
            weights[rows] = _sum_stages(layers, layouts, rows, first, last, padding)
            weights[rows, 0] += _sum_all(ahead, layouts, rows)
            end = columns["pipeline_parallel"][rows] - 1
            # A last stage of its own has a copy of a tied table.
            table = ahead[TENSOR] * ((end > 0) & model.tied_embeddings)
            table = table / columns["tensor_parallel"][rows]
            weights[np.flatnonzero(rows), end] += _sum_all(behind, layouts, rows) + table
    kinds = np.stack((columns["engine"], columns["kv_precision"], drafting), axis=1)
    for engine, code, speculates in np.unique(kinds, axis=0).tolist():
        rows = (kinds == (engine, code, speculates)).all(axis=1)
        kept = _layers(model, bool(speculates))
        terms = cache_terms(model, kept, KV_FORMATS[code], layouts.engines[engine])
        for into, numbers in zip(cache, (terms.tokens, terms.windows, terms.states), strict=True):
            into[rows] = _sum_stages(numbers, layouts, rows, first, last)
        page[rows] = terms.page(partial(_divided, layouts=layouts, rows=rows))
        printed[rows] = terms.printed if layouts.engines[engine].prints_groups else 1.0
        if terms.largest:
            held = _sum_stages(terms.held, layouts, rows, first, last)
            cache[2][rows] = page[rows, None] * held
        reach, passes = max(reach, terms.reach), max(passes, terms.passes)
    per_token, beside, state = cache
    return LayoutMemory(
        weights, per_token, state, beside, reach, passes, printed, page, window_of(model), exists
    )


def _padding(model: ModelSpec, layouts: Layouts, hardware: Hardware) -> Floats:
    """Return how many times as much padded experts take, of every layout."""
    blackwell = "sm10" in hardware.device.architecture
    hidden, width = layouts.by_engine("mxfp4_padding" + "_blackwell" * blackwell).T
    inner = np.maximum(layouts.rank_devices / layouts.columns["expert_parallel"], 1.0)
    found = np.ones(len(layouts))
    for part in {it for layer in model.layers for it in layer.mlps if it.kind == "moe"}:
        each = part.expert_intermediate_size / inner
        more = np.ceil(each / width) * width / each
        found = np.ceil(model.hidden_size / hidden) * hidden / model.hidden_size * more
    return found


def _stages(
    layers: int, degrees: Integers, stages: int
) -> tuple[Integers, Integers, NDArray[np.bool_]]:
    """Return the first layer of every stage and that behind it, shape (layouts, stages)."""
    first = np.full((degrees.size, stages), layers, np.int64)
    last = first.copy()
    for degree in np.unique(degrees).tolist():
        # Impossible degrees, more than there are layers, have empty stages.
        starts = stage_starts(layers, degree)
        rows = degrees == degree
        first[rows, :degree], last[rows, :degree] = starts[:-1], starts[1:]
    return first, last, np.arange(stages)[None, :] < degrees[:, None]


def _divided(
    by: int, layouts: Layouts, rows: NDArray[np.bool_], padding: Floats | None = None
) -> Floats:
    """Return how many devices share a number, shape (rows,)."""
    tensor_parallel = layouts.columns["tensor_parallel"][rows].astype(np.float64)
    if by == WHOLE:
        return np.ones(tensor_parallel.shape)
    if by == TENSOR:
        return tensor_parallel
    if by in (PLANE, PADDED):
        plane = tensor_parallel * layouts.columns["attention_data_parallel"][rows]
        return plane / padding[rows] if by == PADDED and padding is not None else plane
    return np.minimum(tensor_parallel, by)


def _sum_stages(
    terms: Terms,
    layouts: Layouts,
    rows: NDArray[np.bool_],
    first: Integers,
    last: Integers,
    padding: Floats | None = None,
) -> Floats:
    """Sum numbers of layers over stages on one device; drafting modules are in the last one."""
    total = np.zeros((int(rows.sum()), first.shape[1]))
    layers = int(last.max())
    for by, numbers in terms.items():
        sums = np.concatenate(([0.0], np.cumsum(numbers)))
        found = sums[last[rows]] - sums[first[rows]]
        if numbers.size > layers:
            end = layouts.columns["pipeline_parallel"][rows] - 1
            found[np.arange(end.size), end] += sums[-1] - sums[layers]
        total += found / _divided(by, layouts, rows, padding)[:, None]
    return total


def _sum_all(terms: Mapping[int, float], layouts: Layouts, rows: NDArray[np.bool_]) -> Floats:
    total = np.zeros(int(rows.sum()))
    for by, number in terms.items():
        total += number / _divided(by, layouts, rows)
    return total


def _layers(model: ModelSpec, speculates: bool) -> tuple[LayerSpec, ...]:
    return (*model.layers, *model.mtp_layers) if speculates else model.layers


def _weight_terms(
    model: ModelSpec, precision: str, hardware: Hardware, speculates: bool
) -> tuple[Terms, dict[int, float], dict[int, float]]:
    """Bytes of the weights of every layer, of what is ahead of them, and of what is behind."""
    layers = _layers(model, speculates)
    found: Terms = {}
    known: dict[object, list[tuple[int, float]]] = {}
    for index, layer in enumerate(layers):
        formats = place_formats(model, index, precision, AS_STATED, hardware)
        key = (id(layer), tuple(formats.items()))
        if key not in known:
            known[key] = list(_layer_weights(model, layer, formats))
        for by, size in known[key]:
            found.setdefault(by, np.zeros(len(layers)))[index] += size
        if index >= model.num_layers:
            found.setdefault(TENSOR, np.zeros(len(layers)))[index] += WIDE_BYTES * model.mtp_extra(
                layer
            )
    formats = place_formats(model, 0, precision, AS_STATED, hardware)
    ahead = {TENSOR: formats["embedding"].weight_bytes * model.embedding_parameters()}
    ahead[TENSOR] += WIDE_BYTES * sum(tower.parameter_count() for tower in model.encoders)
    ahead[WHOLE] = WIDE_BYTES * model.edge_parameters()
    behind = {TENSOR: formats["output"].weight_bytes * model.output_parameters()}
    behind[WHOLE] = WIDE_BYTES * model.final_norm_parameters()
    return found, ahead, behind


def _layer_weights(
    model: ModelSpec, layer: LayerSpec, formats: Mapping[str, ProductFormat]
) -> Iterator[tuple[int, float]]:
    """Yield bytes of a layer's pieces with what divides them."""
    for where, piece in layer.pieces(model.hidden_size):
        place = place_of(where, piece)
        narrow = piece.kind == "matrix" and place in formats
        each = formats[place].weight_bytes if narrow else WIDE_BYTES
        size = piece.parameters * each
        if where == "experts":
            padded = narrow and each == FORMATS["mxfp4"].bytes
            yield (PADDED if padded else PLANE), size
            continue
        cut = size * piece.sharded / piece.parameters
        yield _divisor(layer, piece), cut
        yield WHOLE, size - cut


def _divisor(layer: LayerSpec, piece: Piece) -> int:
    """Return what divides a piece: keys and values are repeated where t exceeds their heads."""
    if piece.name in ("key", "value") and layer.attentions:
        return layer.attentions[0].key_value_heads
    return TENSOR


@dataclass(frozen=True)
class DeploymentMemory:
    """Memory of deployments on one device type, shape (deployments,).

    Attributes
    ----------
    weights, activations, workspace, cache, total : ndarray
        On the fullest device of a worker [B]; `cache` are the blocks there.
    blocks : ndarray
        Blocks of the cache of an attention rank, whole ones; 0 where nothing is left.
    bytes_per_token, state_bytes : ndarray
        What a token and a sequence take on the device with the fewest blocks [B].
    tokens, concurrency : ndarray
        Tokens of the cache as the engine prints them, and how many requests of the longest context
        it holds; NaN where no context is stated.
    longest : ndarray
        Tokens of the longest context; 0 where neither a deployment nor the model states one.
    admitted : ndarray
        Such requests for which the check of a stated context finds room.
    refused, starved : ndarray of bool
        The engine does not start: no room for one request of the stated context, or for a state of
        each sequence that may run.
    most_sequences : ndarray
        Sequences for which there are slots of states; inf where states take blocks.
    block_tokens : ndarray
        Tokens of a block; where tokens take nothing, more than any sequence has.
    state_blocks : ndarray
        Blocks of `state_bytes`.
    window : float
        Tokens of a sequence that are kept at most.
    fits : ndarray of bool
        There is a cache, and all finds room on the device.
    sure_blocks : ndarray
        Blocks that are left where weights, activations and workspace take more by the measured
        error of memory.
    """

    weights: Floats
    activations: Floats
    workspace: Floats
    cache: Floats
    total: Floats
    blocks: Floats
    bytes_per_token: Floats
    state_bytes: Floats
    block_tokens: Floats
    state_blocks: Floats
    window: float
    fits: NDArray[np.bool_]
    sure_blocks: Floats
    tokens: Floats
    concurrency: Floats
    admitted: Floats
    longest: Floats
    refused: NDArray[np.bool_]
    starved: NDArray[np.bool_]
    most_sequences: Floats

    def tight(self, tokens: Floats) -> NDArray[np.bool_]:
        """Return whether no request of so many tokens would be sure of its room.

        Parameters
        ----------
        tokens : ndarray
            Shape (deployments, loads) or (deployments, 1).
        """
        kept = np.minimum(tokens, self.window)
        need = np.ceil(kept / self.block_tokens[:, None]) + self.state_blocks[:, None]
        return self.fits[:, None] & (self.sure_blocks[:, None] < np.maximum(need, 1.0))


ENDLESS = 2.0**40
"""Tokens of a block that holds a state: more than any sequence has."""


def deployment_memory(
    grid: DeploymentGrid, layouts: Layouts, layout: Integers, hardware: Hardware
) -> DeploymentMemory:
    """Return the memory of deployments.

    Parameters
    ----------
    grid : DeploymentGrid
    layouts : Layouts
    layout : ndarray of int64, shape (deployments,)
        Which layout each has (`DeploymentGrid.layouts`).
    hardware : Hardware

    Returns
    -------
    DeploymentMemory

    Notes
    -----
    With u the share of the memory M that an engine takes, weights W, activations A of a pass of
    `token_budget` tokens and workspace X, there are for the cache ``u M - W - A - X`` bytes where
    the share is of the device (vLLM), ``u (M - W - A - X)`` where it is of what is free
    (TensorRT-LLM), and ``u (M - X) - W`` where it is of weights and cache (SGLang, whose passes
    use what is left). The stage with the fewest blocks counts.
    """
    grid = with_limits(grid, [hardware])
    held = layout_memory(grid.model, layouts, hardware)
    capacity = float(hardware.device.memory.capacity)
    engine = grid["engine"]
    workspace = _workspace(grid, hardware)
    logits = np.array([item.logit_bytes for item in grid.engines])[engine]
    activations = _activations(grid, layouts, layout, logits)
    weights = held.weights[layout]

    def left(more: NDArray[np.float64]) -> NDArray[np.float64]:
        """For the cache on each stage, where all else takes so many times as much [B]."""
        taken = more * activations[:, None], more * workspace[:, None]
        return _left(grid, capacity, more * weights, *taken)

    free = left(np.ones((len(grid), 1)))
    cut = _cut(grid, held, layout, free)
    count = np.floor(np.maximum(cut.free, 0.0) / np.where(cut.block > 0, cut.block, 1e-30))
    count[(cut.block == 0) | ~held.stage[layout]] = np.inf
    stated = grid["cache_blocks"][:, None]
    count = np.where((stated > 0) & (count > 0) & np.isfinite(count), stated, count)
    least = np.argmin(count, axis=1)
    at = np.arange(len(grid)), least
    blocks = np.where(np.isfinite(count[at]), count[at], 0.0)
    # Every stage has as many blocks as the one with the fewest.
    caches = blocks[:, None] * cut.block + cut.slots
    fullest = np.argmax(np.where(held.stage[layout], weights + caches, -1.0), axis=1)
    there = np.arange(len(grid)), fullest
    cache = caches[there]
    total = weights[there] + activations + workspace + cache
    wide = [math.exp(memory_width(hardware, item.name)) for item in grid.engines]
    sure = np.maximum(left(np.array(wide)[engine][:, None])[at] - cut.slots[at], 0.0)
    sure = np.where(cut.block[at] > 0.0, sure / np.maximum(cut.block[at], 1e-30), 0.0)
    concurrency = _concurrency(grid, held, layout, cut, blocks, at)
    admitted = _admitted(grid, held, layout, concurrency, at)
    longest = _longest(grid)
    printed = held.printed[layout]
    by_length = np.isfinite(concurrency) & cut.grouped & (printed == 1.0)
    tokens = np.where(by_length, concurrency * longest, blocks * cut.tokens / printed)
    fits = (blocks >= 1) & (total <= capacity)
    return DeploymentMemory(
        weights=weights[there],
        activations=activations,
        workspace=workspace,
        cache=cache,
        total=total,
        blocks=blocks,
        bytes_per_token=held.per_token[layout][at],
        state_bytes=(held.state[layout] + cut.windows)[at],
        block_tokens=cut.tokens,
        state_blocks=np.where(
            cut.bare, 0.0, (cut.states + cut.windows)[at] / np.maximum(cut.block[at], 1e-30)
        ),
        window=held.window,
        fits=fits,
        sure_blocks=np.floor(sure),
        tokens=np.where(cut.bare, 0.0, np.floor(tokens)),
        concurrency=concurrency,
        admitted=admitted,
        longest=longest,
        refused=fits & (grid["context_length"] > 0) & (admitted < 1.0),
        starved=fits & cut.paged & (grid["max_sequences"] > blocks),
        most_sequences=cut.most_sequences[at],
    )


def _workspace(grid: DeploymentGrid, hardware: Hardware) -> Floats:
    """Bytes of libraries, communicators and graphs that an engine counts, of each deployment."""
    devices = worker_devices(grid.columns)
    layers = np.ceil(grid.model.num_layers / grid["pipeline_parallel"])
    found: Floats = np.zeros(len(grid))
    for place, item in enumerate(grid.engines):
        small = bool(device_class(item, hardware)) and item.communicator_bytes > 0.0
        more = (0.0 if small else item.communicator_bytes) * (devices > 1)
        size = device_fact(item, hardware, "workspace_bytes") + more + item.graph_bytes * layers
        found = np.where(grid["engine"] == place, size, found)
    return found


def _left(
    grid: DeploymentGrid, capacity: float, weights: Floats, activations: Floats, workspace: Floats
) -> Floats:
    """Return what an engine leaves for the cache on each stage [B], or what is stated."""
    kinds = np.array([item.memory_of for item in grid.engines])[grid["engine"]][:, None]
    share = grid["memory_share"][:, None]
    found = np.select(
        [kinds == "free", kinds == "static"],
        [
            share * (capacity - weights - activations - workspace),
            share * (capacity - workspace) - weights,
        ],
        share * capacity - weights - activations - workspace,
    )
    stated = grid["cache_bytes"][:, None]
    return np.where(stated > 0.0, stated, found)


class _Cut(NamedTuple):
    """How a cache is cut into blocks, per deployment and stage; lengths per deployment.

    `states` and `windows` are what a sequence keeps in blocks, `slots` what states have apart.
    """

    free: Floats
    block: Floats
    states: Floats
    windows: Floats
    slots: Floats
    most_sequences: Floats
    tokens: Floats
    bare: NDArray[np.bool_]
    grouped: NDArray[np.bool_]
    paged: NDArray[np.bool_]


def _cut(grid: DeploymentGrid, held: LayoutMemory, layout: Integers, free: Floats) -> _Cut:
    """Cut the memory that is left into blocks, and slots of states where those are apart."""
    engines = grid["engine"]
    per_token, state = held.per_token[layout], held.state[layout]
    tokens = np.maximum(grid["block_tokens"].astype(np.float64), held.page[layout])
    # A window that has filled has a block more, of which its first token lies anywhere.
    grouped = np.array([item.cache_groups in ("alike", "all") for item in grid.engines])[engines]
    reach = held.reach + np.where(grouped, tokens, 0.0)[:, None]
    windows = held.beside[layout] * reach
    # A device whose layers keep nothing per token counts its states, or nothing at all.
    bare = ~np.any(per_token > 0, axis=1)
    block = np.where(per_token > 0, per_token * tokens[:, None], 0.0)
    block[bare] = state[bare]
    ratio = np.array([item.state_share for item in grid.engines])[engines][:, None]
    each = np.array([item.state_slots for item in grid.engines])[engines][:, None]
    apart = (ratio > 0.0) & (state > 0.0) & ~bare[:, None]
    slots = np.where(apart, np.maximum(free, 0.0) * ratio / (1.0 + ratio), 0.0)
    count = np.floor(slots / np.where(apart, state, 1.0) / each)
    most = np.where(apart, np.maximum(count, 1.0), np.inf)
    return _Cut(
        free - slots,
        block,
        np.where(apart | bare[:, None], 0.0, state),
        windows,
        slots,
        most,
        np.where(bare, ENDLESS, tokens),
        bare,
        grouped & ((state > 0.0) | (held.beside[layout] > 0.0)).any(axis=1),
        held.page[layout] > 0.0,
    )


def _longest(grid: DeploymentGrid) -> Floats:
    """Return the tokens of the longest request, stated or the model's; 0 where neither is."""
    stated = grid["context_length"].astype(np.float64)
    return np.where(stated > 0, stated, float(grid.model.max_positions))


def _concurrency(
    grid: DeploymentGrid,
    held: LayoutMemory,
    layout: Integers,
    cut: _Cut,
    blocks: Floats,
    at: tuple[Integers, Integers],
) -> Floats:
    """Return how many requests of the longest context a cache holds; NaN without one."""
    longest = np.minimum(_longest(grid), held.window)
    window = np.where(cut.grouped, held.beside[layout][at], 0.0)
    budget = held.passes * grid["token_budget"]
    tokens = np.where(cut.bare, 1.0, cut.tokens)
    per_token = held.per_token[layout][at]
    need = charged(longest, budget, tokens, per_token, window, held.reach)
    need = need + cut.states[at] + np.where(cut.grouped, 0.0, cut.windows[at])
    need = np.where(cut.bare, cut.block[at], need)
    whole = blocks * cut.block[at]
    return np.where(_longest(grid) > 0, whole / np.maximum(need, 1e-30), np.nan)


def _admitted(
    grid: DeploymentGrid, held: LayoutMemory, layout: Integers, concurrency: Floats, at: Any
) -> Floats:
    """Return the requests of the longest context for which the check of a context finds room.

    Notes
    -----
    Some count the layers of all stages against the memory of the smallest one
    (`Engine.checks_all_stages`).
    """
    every = np.where(held.stage[layout], held.per_token[layout], 0.0).sum(axis=1)
    own = held.per_token[layout][at]
    checks = np.array([item.checks_all_stages for item in grid.engines])[grid["engine"]]
    return np.where(
        checks & (every > 0.0), concurrency * own / np.maximum(every, 1e-30), concurrency
    )


def _activations(
    grid: DeploymentGrid, layouts: Layouts, layout: Integers, logit_bytes: np.ndarray
) -> Floats:
    """Bytes that stand at once while the largest pass runs.

    The widest block of a layer beside the residual stream, or the logits of all sequences with
    what sampling makes of them, which a trial run of the engine meets.
    """
    tokens = grid["token_budget"].astype(np.float64)
    columns = {name: column[layout] for name, column in layouts.columns.items()}
    tensor_parallel = columns["tensor_parallel"].astype(np.float64)
    plane = tensor_parallel * columns["attention_data_parallel"]
    widest = np.zeros(tokens.shape)
    model = grid.model
    for layer in model.layer_kinds()[0]:
        for spec in layer.attentions:
            heads = spec.heads * (2.0 * spec.head_dim + spec.value_head_dim)
            widest = np.maximum(widest, tokens * heads / tensor_parallel)
        for part in layer.mlps:
            if part.kind == "moe":
                rows = tokens * columns["attention_data_parallel"] * part.experts_per_token
                inner = np.maximum(plane / columns["expert_parallel"], 1.0)
                width = 3.0 * part.expert_intermediate_size / inner + model.hidden_size
                widest = np.maximum(widest, rows / columns["expert_parallel"] * width)
            else:
                widest = np.maximum(widest, tokens * 3.0 * part.intermediate_size / tensor_parallel)
    streams = STREAMS_KEPT * model.streams * model.hidden_size * tokens
    sequences = np.minimum(grid["max_sequences"], tokens)
    logits = sequences * model.vocab_size * logit_bytes
    return ACTIVATION_BYTES * streams + np.maximum(ACTIVATION_BYTES * widest, logits)


def resident_bytes(
    model: ModelSpec, layouts: Layouts, hardware: Hardware, tokens: Floats
) -> Floats:
    """Return the bytes that passes of a few tokens go round, where a cache holds them all.

    Parameters
    ----------
    model : ModelSpec
    layouts : Layouts
    hardware : Hardware
    tokens : ndarray, shape (tokens,)
        Of a pass, each of a sequence with `TYPICAL_CONTEXT` tokens in the key-value cache.

    Returns
    -------
    ndarray, shape (layout, tokens)
        Weights of the fullest stage and the key-value cache [B]; 0 where they come from memory.

    Notes
    -----
    Derived here; no measured server fits a cache. A model of 600 M parameters in 8 bits over
    eight L40S does.
    """
    capacity = resident_capacity(hardware)
    if capacity == 0.0:
        return np.zeros((len(layouts), tokens.size))
    held = layout_memory(model, layouts, hardware)
    of_token = held.per_token.max(axis=1) * min(TYPICAL_CONTEXT, held.window)
    of_token += held.state.max(axis=1)
    used = held.weights.max(axis=1)[:, None] + of_token[:, None] * tokens
    return np.where(used < capacity, used, 0.0)
