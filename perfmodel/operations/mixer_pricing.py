"""Prices of attention, of its sparse kinds and of recurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.operations.operations import (
    Attention,
    Indexer,
    LayerKeys,
    Recurrence,
    SparseAttention,
)
from perfmodel.operations.priced import Priced, distinct_rows, stack, unstack, wide_formats
from perfmodel.software.framework import Framework

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

WIDE_FORMATS = ("bf16", "fp16")


def price_attention(
    hardware: Hardware, operations: Sequence[Attention], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    """Price fused attention."""
    from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times
    from perfmodel.compute.attention_device import generation_slowdown

    def times(precision: str, columns: dict[str, Any]) -> Any:
        columns |= {name: columns[name] > 0 for name in ("causal", "backward")}
        return attention_times(
            hardware,
            precision,
            **columns,
            steady=True,
            deterministic=framework.deterministic_attention,
        )

    names = ("batch", "query_length", "key_length", "heads", "key_value_heads")
    more = ("head_dim_qk", "head_dim_v", "causal", "window", "backward")
    slowdown = [
        generation_slowdown(hardware, _generation(operation, framework), operation.backward)
        for operation in operations
    ]
    return _price(hardware, operations, keys, names, more, times, ATTENTION_BOUNDS, slowdown)


def _generation(operation: Attention, framework: Framework) -> int:
    """Return the generation of the kernel that runs a call: the best one may not take it."""
    differ = operation.head_dim_qk != operation.head_dim_v
    refused = framework.best_attention_is_plain and framework.dropout
    refused = refused or (framework.best_attention_one_width and differ)
    return framework.attention_generation or (2 if refused else 0)


def price_sparse_attention(
    hardware: Hardware, operations: Sequence[SparseAttention], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    """Price attention to chosen or compressed keys."""
    from perfmodel.compute.attention import ATTENTION_BOUNDS
    from perfmodel.compute.attention_device import generation_slowdown
    from perfmodel.compute.sparse_attention import sparse_attention_times

    def times(precision: str, columns: dict[str, Any]) -> Any:
        backward = columns.pop("backward") > 0
        columns["shared_key_value"] = columns["shared_key_value"] > 0

        def phase(name: str, part: dict[str, Any]) -> Any:
            return sparse_attention_times(hardware, precision, **part, phase=name, steady=True)

        return _by_phase(phase, columns, backward)

    names = ("batch", "query_length", "key_length", "heads", "key_value_heads")
    shape = ("head_dim_qk", "head_dim_v", "selected", "window", "compression", "block")
    more = (*shape, "shared_key_value", "backward")
    slowdown = [generation_slowdown(hardware, framework.attention_generation)] * len(operations)
    return _price(hardware, operations, keys, names, more, times, ATTENTION_BOUNDS, slowdown)


def price_indexers(
    hardware: Hardware, operations: Sequence[Indexer], keys: LayerKeys
) -> list[Priced]:
    """Price scores of an indexer and the choice of the best."""
    from perfmodel.compute.indexer import INDEXER_BOUNDS, indexer_times

    def times(precision: str, columns: dict[str, Any]) -> Any:
        backward = columns.pop("backward") > 0

        def phase(name: str, part: dict[str, Any]) -> Any:
            return indexer_times(hardware, **part, phase=name, steady=True)

        return _by_phase(phase, columns, backward)

    names = ("batch", "query_length", "key_length", "heads")
    more = ("head_dim", "top_k", "compression", "block", "backward")
    return _price(hardware, operations, keys, names, more, times, INDEXER_BOUNDS)


def price_recurrences(
    hardware: Hardware, operations: Sequence[Recurrence], keys: LayerKeys
) -> list[Priced]:
    """Price chains of kernels of recurrences."""
    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, RECURRENCES, recurrence_times

    if not operations:
        return []
    kinds = np.repeat([RECURRENCES.index(item.kind) for item in operations], len(keys))

    def times(precision: str, columns: dict[str, Any]) -> Any:
        kind = np.array(RECURRENCES)[columns.pop("kind").astype(np.int64)]
        phase = np.where(columns.pop("backward") > 0, "backward", "forward")
        return recurrence_times(hardware, precision, kind=kind, phase=phase, **columns)

    names = ("batch", "length", "heads", "key_heads")
    more = ("key_dim", "value_dim", "chunk", "backward")
    return _price(
        hardware,
        operations,
        keys,
        names,
        more,
        times,
        RECURRENCE_BOUNDS,
        extra={"kind": kinds.astype(np.float64)},
    )


def _price(
    hardware: Hardware,
    operations: Sequence[Any],
    keys: LayerKeys,
    counted: Iterable[str],
    others: Iterable[str],
    times: Callable[[str, dict[str, Any]], Any],
    bounds: Sequence[str],
    slowdown: Sequence[float] = (),
    extra: dict[str, Any] | None = None,
) -> list[Priced]:
    """Price each distinct call once in each format of 16 bits.

    Parameters
    ----------
    counted, others : iterable of str
        Fields of the operations: whole numbers of at least 1, and any.
    times : callable
        Takes a format and columns by field; returns columns `time`, `flops`,
        `memory_traffic`, `bound`.
    bounds : sequence of str
        Meaning of the codes in `bound`.
    slowdown : sequence of float, optional
        Factor on the times of each operation.
    extra : dict of str to ndarray, optional
        Columns that are no fields.
    """
    if not operations:
        return []
    size = len(keys)
    counted = tuple(counted)
    columns = stack(operations, (*counted, *others), size)
    names = [*counted, *others, *(extra or {})]
    columns += (extra or {}).values()
    (count,) = stack(operations, ("count",), size)
    for i in range(len(counted)):
        columns[i] = np.ceil(np.maximum(columns[i], 1.0) - 1e-9)
    factor = np.repeat(slowdown or [1.0] * len(operations), size)
    formats = np.tile(wide_formats(hardware, keys), len(operations))
    time, flops, traffic = (np.full(formats.size, np.nan) for _ in range(3))
    bound = np.zeros(formats.size, np.uint8)
    for precision in WIDE_FORMATS:
        rows = np.flatnonzero(formats == precision)
        if not rows.size:
            continue
        distinct, inverse = distinct_rows([column[rows] for column in columns])
        result = times(precision, dict(zip(names, distinct, strict=True)))
        time[rows] = result.time[inverse] * count[rows] * factor[rows]
        flops[rows] = result.flops[inverse] * count[rows]
        traffic[rows] = result.memory_traffic[inverse] * count[rows]
        bound[rows] = result.bound[inverse]
    return unstack(operations, size, time, flops, traffic, bound, bounds)


class _Found:
    """Columns that calls of several phases fill."""

    def __init__(self, size: int) -> None:
        self.time, self.flops, self.memory_traffic = (np.zeros(size) for _ in range(3))
        self.bound = np.zeros(size, np.uint8)


def _by_phase(
    times: Callable[[str, dict[str, Any]], Any],
    columns: dict[str, Any],
    backward: np.ndarray,
) -> _Found:
    """Price forward and backward calls apart."""
    found = _Found(backward.size)
    for name, rows in (("forward", ~backward), ("backward", backward)):
        if not rows.any():
            continue
        result = times(name, {key: column[rows] for key, column in columns.items()})
        for key in ("time", "flops", "memory_traffic", "bound"):
            getattr(found, key)[rows] = getattr(result, key)
    return found
