"""The cache as engines make it: bytes of layers, groups that share blocks, charges of requests.

vLLM puts layers of one kind (all keys, a window of them, a state) into groups of as many layers. A
block holds a page of each layer of one group, and all groups take blocks from one pool
(``vllm/v1/core/kv_cache_utils.py``). Others keep windows and states per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.precisions import FORMATS
from perfmodel.model.state import INDEX_FORMAT, CachePart, cache_parts, recurrent_bytes

if TYPE_CHECKING:
    from perfmodel.model.layers import LayerSpec
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.engine import Engine

ACTIVATION_BYTES = 2.0
WHOLE, TENSOR = 0, -1
"""What a number is divided by on a device: nothing, or t; a positive one: at most g."""
Terms = dict[int, Floats]
"""Divisor -> numbers of every layer, shape (layers,)."""
COVERED = 256
"""Tokens that a block of compressed entries covers."""
PACKED = 72.0
"""Of an entry in fp8 [B]: 64 rotated numbers in 16 bits and eight scales (fp8_ds_mla)."""
PAGE_STEP = 16
"""Tokens of which a block that holds a state is a multiple (kernels' blocks)."""


class CacheTerms(NamedTuple):
    """Bytes of every layer of a model in one format.

    Attributes
    ----------
    tokens : Terms
        That a token adds.
    windows : Terms
        That a token adds within a window beside layers that keep all.
    states : Terms
        Of states of a sequence.
    reach : float
        Tokens of those windows, the widest.
    passes : float
        Passes whose tokens windows hold beside that: two where compressors are prepared ahead
        (asynchronous scheduling, vllm-project/vllm pull request 52495).
    largest : float
        State of a layer, the largest, where it has a page of a block; else 0.
    each : float
        What a token of such a page takes [B].
    held : Terms
        The same, of every layer that has a state.
    printed : float
        Bytes of a token where all groups have the largest page, over those of `tokens`.
    """

    tokens: Terms
    windows: Terms
    states: Terms
    reach: float
    passes: float
    largest: float
    each: float
    held: Terms
    printed: float

    def page(self, divided: Callable[[int], Floats]) -> Floats:
        """Return the tokens of a block such that a layer's page holds a state; 0 without pages.

        Parameters
        ----------
        divided : callable
            Divisor -> devices that share a number, of every layout.
        """
        if not self.largest:
            return np.zeros_like(divided(WHOLE))
        ((by, _),) = self.held.items()
        kept = self.each / divided(by)
        return PAGE_STEP * np.ceil(self.largest / divided(TENSOR) / kept / PAGE_STEP)


@dataclass
class _Layers:
    """Bytes of layers of each kind while they are collected."""

    count: int

    def __post_init__(self) -> None:
        self.tokens: Terms = {WHOLE: np.zeros(self.count)}
        self.windows: Terms = {WHOLE: np.zeros(self.count)}
        self.states: Terms = {WHOLE: np.zeros(self.count)}

    def add(self, terms: Terms, by: int, index: int, size: float) -> None:
        terms.setdefault(by, np.zeros(self.count))[index] += size


def window_of(model: ModelSpec) -> float:
    """Tokens that are kept of a sequence at most; inf where a layer keeps all, or none any."""
    parts = [part for layer in dict.fromkeys(model.layers) for part in cache_parts(layer, 1.0)]
    every = parts and all(part.most for part in parts)
    return float(max(part.most for part in parts)) if every else np.inf


def cache_terms(
    model: ModelSpec, layers: tuple[LayerSpec, ...], precision: str, engine: Engine
) -> CacheTerms:
    """Return what every layer keeps of tokens and sequences.

    Parameters
    ----------
    model : ModelSpec
    layers : tuple of LayerSpec
        Those of the model, with modules that draft where they do.
    precision : str
        Format of keys and values.
    engine : Engine
    """
    element = FORMATS[precision].bytes
    found = _Layers(len(layers))
    rule = engine.cache_groups
    parts = [tuple(cache_parts(layer, element)) for layer in layers]
    shared = rule in ("alike", "all")
    apart = not np.isfinite(window_of(model)) and _has_groups(rule, parts)
    specs = [spec for layer in layers for spec in layer.attentions]
    compressed = shared and any(spec.compression is not None for spec in specs)
    reach = 0.0
    if compressed:
        _add_compressed(found, layers, element)
        reach = float(max(spec.window for spec in specs))
    for index, layer in enumerate(layers):
        for part in () if compressed else parts[index]:
            by = part.heads if part.heads > 1 else WHOLE
            in_window = bool(part.most) and apart
            reach = max(reach, part.most * in_window)
            found.add(found.windows if in_window else found.tokens, by, index, part.per_token)
        # What convolutions keep has the format of activations.
        size = sum(recurrent_bytes(it, ACTIVATION_BYTES, engine.state_bytes) for it in layer.mixers)
        found.add(found.states, TENSOR, index, size)
    largest, each, held = _state_pages(found) if shared else (0.0, 0.0, {})
    printed = _pad(found, held) if shared and not compressed else 1.0
    passes = 2.0 if compressed else 1.0
    return CacheTerms(
        found.tokens, found.windows, found.states, reach, passes, largest, each, held, printed
    )


def _add_compressed(found: _Layers, layers: tuple[LayerSpec, ...], element: float) -> None:
    """Add layers that compress keys, whose groups all take blocks as large as that of the entries.

    Notes
    -----
    A block holds the entries of 256 tokens of all layers, and of their indexers; or 64 tokens of
    the windows of half the layers; or 4 and 8 tokens of what compressors of neighbouring and of
    single groups have in hand (vllm-project/vllm issues 51041 and 54703, DeepSeek-V4).
    """
    specs = [spec for layer in layers for spec in layer.attentions]
    packed = PACKED if element == 1.0 else 0.0
    block = 0.0
    for spec in specs:
        if spec.compression is not None:
            block += COVERED // spec.compression.ratio * (spec.head_dim * element + packed)
        if spec.indexer is not None and spec.indexer.compressed and spec.compression is not None:
            index_bytes = spec.indexer.head_dim * FORMATS[INDEX_FORMAT].bytes
            block += COVERED // spec.compression.ratio * index_bytes
    found.tokens[WHOLE] += block / COVERED / found.count
    kinds = {spec.compression.overlap for spec in specs if spec.compression is not None}
    beside = 2.0 / 64 + sum(1.0 / 4 if overlaps else 1.0 / 8 for overlaps in kinds)
    found.windows[WHOLE] += block * beside / found.count


def _has_groups(rule: str, parts: list[tuple[CachePart, ...]]) -> bool:
    """Whether layers with windows are kept otherwise than those without."""
    if rule == "alike":
        return len({part.per_token for some in parts for part in some}) <= 1
    return rule != "full"


def _sums(terms: Terms) -> Floats:
    return np.asarray(sum(terms.values(), np.zeros(1)))


def _state_pages(found: _Layers) -> tuple[float, float, Terms]:
    """Return the largest state, the bytes of a token of its page, of layers with states."""
    state = found.states.get(TENSOR, np.zeros(found.count))
    by = max(found.tokens, key=lambda key: float(found.tokens[key].max()))
    each = float(found.tokens[by].max())
    if not state.any() or not each:
        return 0.0, 0.0, {}
    return float(state.max()), each, {by: np.where(state > 0.0, each, 0.0)}


def _pad(found: _Layers, held: Terms) -> float:
    """Count layers that fill up groups, which have as many layers each; return what is printed."""
    kinds = (found.tokens, found.windows, held)
    counts = [int(np.count_nonzero(_sums(terms))) for terms in kinds]
    some = [count for count in counts if count]
    if len(some) < 2:
        return 1.0
    widest = max(float(_sums(terms).max()) for terms in kinds)
    size = max(some) if max(some) < 1.25 * min(some) else min(some)
    for terms, count in zip(kinds, counts, strict=True):
        for by in terms if count else ():
            terms[by] = terms[by] * (size * math.ceil(count / size) / count)
    groups = sum(math.ceil(count / size) for count in counts)
    kept = float(_sums(found.tokens).sum())
    return groups * size * widest / kept if kept else 1.0


def charged(
    tokens: Floats, budget: Floats, block: Floats, per_token: Floats, window: Floats, reach: float
) -> Floats:
    """Return the bytes that a request is charged before it may begin, its states left out.

    Parameters
    ----------
    tokens : ndarray
        Of the request at most.
    budget : ndarray
        Tokens of a pass at most, which windows must hold beside what they reach.
    block : ndarray
        Tokens of a block.
    per_token, window : ndarray
        Bytes of a token in layers that keep all, and in layers with windows [B].
    reach : float
        Tokens of a window.
    """
    whole = np.ceil(tokens / block) * block * per_token
    inside = np.minimum(reach - 1.0 + budget, tokens)
    return whole + np.where(window > 0.0, (np.ceil(inside / block) + 1.0) * block * window, 0.0)
