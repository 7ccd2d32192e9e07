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
from perfmodel.model.state import STATE_BYTES, CachePart, cache_parts, recurrent_bytes

if TYPE_CHECKING:
    from perfmodel.model.layers import LayerSpec
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.engine import Engine

ACTIVATION_BYTES = 2.0
WHOLE, TENSOR = 0, -1
"""What a number is divided by on a device: nothing, or t; a positive one: at most g."""
Terms = dict[int, Floats]
"""Divisor -> numbers of every layer, shape (layers,)."""
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
    largest : float
        State of a layer, the largest, where it has a page of a block; else 0.
    each : float
        What a token of such a page takes [B].
    held : Terms
        The same, of every layer that has a state.
    """

    tokens: Terms
    windows: Terms
    states: Terms
    reach: float
    largest: float
    each: float
    held: Terms

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
    reach = 0.0
    for index, layer in enumerate(layers):
        if shared and any(spec.compression is not None for spec in layer.attentions):
            _add_compressed(found, index, layer, element)
            reach = max(reach, *(spec.window for spec in layer.attentions))
            continue
        for part in parts[index]:
            by = part.heads if part.heads > 1 else WHOLE
            in_window = bool(part.most) and apart
            reach = max(reach, part.most * in_window)
            found.add(found.windows if in_window else found.tokens, by, index, part.per_token)
        # What convolutions keep has the format of activations.
        size = sum(recurrent_bytes(it, ACTIVATION_BYTES, engine.state_bytes) for it in layer.mixers)
        found.add(found.states, TENSOR, index, size)
    largest, each, held = _state_pages(found) if shared else (0.0, 0.0, {})
    if shared:
        _pad(found, held)
    return CacheTerms(found.tokens, found.windows, found.states, reach, largest, each, held)


def _add_compressed(found: _Layers, index: int, layer: LayerSpec, element: float) -> None:
    """Add a layer that compresses keys: all its pages are as large as one of 64 entries.

    Notes
    -----
    A page covers 256 tokens of compressed keys, of an indexer's too, 64 of the window, and as many
    of what a compressor has in hand, in single precision, as find room: key and gate of one entry,
    or of two that overlap. These are kept as a window is. vLLM's pages of DeepSeek-V4 (issue 51041)
    """
    for spec in layer.attentions:
        entry = spec.head_dim * element
        found.add(found.windows, WHOLE, index, entry)
        if spec.compression is None:
            continue
        kinds = 1 + (spec.indexer is not None and spec.indexer.compressed)
        found.add(found.tokens, WHOLE, index, kinds * entry * 64 / 256)
        state = 2.0 * STATE_BYTES * spec.head_dim * (1 + spec.compression.overlap)
        page = 64 * entry
        held = 2.0 ** max(math.floor(math.log2(page / state)), 0)
        found.add(found.windows, WHOLE, index, kinds * page / held)


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
    return float(state.max()), each, {by: each * (state > 0.0)}


def _pad(found: _Layers, held: Terms) -> None:
    """Count layers that fill up groups: all groups have as many layers."""
    kinds = (found.tokens, found.windows, held)
    counts = [int(np.count_nonzero(_sums(terms))) for terms in kinds]
    some = [count for count in counts if count]
    if len(some) < 2:
        return
    size = max(some) if max(some) < 1.25 * min(some) else min(some)
    for terms, count in zip(kinds, counts, strict=True):
        for by in terms if count else ():
            terms[by] = terms[by] * (size * math.ceil(count / size) / count)


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
