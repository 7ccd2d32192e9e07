"""Price operations: each distinct shape once per device, gathered back to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES
from perfmodel.base.columns import Column
from perfmodel.base.precisions import PRECISIONS, wide_format
from perfmodel.hwprofiles.rows import supported_precisions
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    Indexer,
    LayerKeys,
    Operation,
    Recurrence,
    SparseAttention,
    Stream,
    TokenExchange,
)
from perfmodel.operations.priced import (
    Priced,
    column_of,
    distinct_rows,
    stack,
    unstack,
    wide_formats,
)
from perfmodel.operations.uncertainty import relative_width
from perfmodel.software.framework import Framework

if TYPE_CHECKING:
    from perfmodel.compute.network import StepTables
    from perfmodel.hwprofiles import Hardware

WIDE_FORMATS = ("bf16", "fp16")
COPIED = 2e9  # bytes of a copy so long that its rate is that of the memory


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
    from perfmodel.compute.sparse_attention import INDEXER_BOUNDS, indexer_times

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
    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, recurrence_times
    from perfmodel.compute.recurrence_counts import RECURRENCES

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


def price_operations(
    hardware: Hardware,
    operations: Sequence[Operation],
    keys: LayerKeys,
    framework: Framework,
    slowdown: float = 1.0,
) -> list[Priced]:
    """Price every operation of a part for every layer key on one device.

    `slowdown` multiplies what the device computes, not what it sends: it is that of the
    slowest device, for which the others wait.

    Keys whose precision the device lacks get NaN.
    """

    def those(kind: type) -> list[Any]:
        return [item for item in operations if type(item) is kind]

    priced = {
        Gemm: _price_gemms(hardware, those(Gemm), keys),
        Attention: price_attention(hardware, those(Attention), keys, framework),
        SparseAttention: price_sparse_attention(hardware, those(SparseAttention), keys, framework),
        Indexer: price_indexers(hardware, those(Indexer), keys),
        Recurrence: price_recurrences(hardware, those(Recurrence), keys),
        Stream: _price_streams(hardware, those(Stream), keys),
        Communication: _price_communication(hardware, those(Communication), keys),
        TokenExchange: _price_exchanges(hardware, those(TokenExchange), keys),
    }
    waiting = {kind: iter(items) for kind, items in priced.items()}
    ordered = [next(waiting[type(item)]) for item in operations]
    for item in ordered:
        if not isinstance(item.operation, Communication):
            item.time[:] *= slowdown
            item.exposed[:] *= slowdown
        calls = np.maximum(column_of(item.operation.count, len(keys)), 1e-30)
        width = relative_width(hardware, item.operation, item.flops / calls)
        item.half_width[:] = width * item.time
    return _expose(hardware, ordered, keys)


def _gemm_formats(operations: Sequence[Gemm], keys: LayerKeys) -> NDArray[np.int64]:
    """Code in `PRECISIONS` of the format in which each product runs on each key."""
    codes = keys.columns["precision"]
    wide = np.array([PRECISIONS.index(wide_format(name)) for name in PRECISIONS])
    return np.concatenate([codes if item.quantised else wide[codes] for item in operations])


def _price_gemms(hardware: Hardware, operations: Sequence[Gemm], keys: LayerKeys) -> list[Priced]:
    from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times

    if not operations:
        return []
    size = len(keys)
    m, n, k, batch, count = stack(operations, ("m", "n", "k", "batch", "count"), size)
    formats = _gemm_formats(operations, keys)
    outputs = np.repeat([item.output_bytes for item in operations], size)
    accumulate = np.repeat([float(item.accumulate) for item in operations], size)
    usable = supported_precisions(hardware)[formats] & (count > 0)
    time = np.where(count > 0, np.nan, 0.0)
    traffic, bound = np.zeros(time.size), np.zeros(time.size, np.uint8)
    shapes = [np.ceil(np.maximum(x, 1.0) - 1e-9) for x in (m, n, k, batch)]
    variants, which = distinct_rows([formats.astype(np.float64), outputs, accumulate])
    for i, (code, output_bytes, adds) in enumerate(zip(*variants, strict=True)):
        rows = np.flatnonzero((which == i) & usable)
        if not rows.size:
            continue
        distinct, inverse = distinct_rows([column[rows] for column in shapes])
        result = gemm_times(
            hardware,
            PRECISIONS[int(code)],
            distinct[0],
            distinct[1],
            distinct[2],
            distinct[3],
            output_bytes=float(output_bytes),
            accumulate=bool(adds),
            steady=True,  # a training run lasts hours, at the board's limit
        )
        time[rows] = result.time[inverse] * count[rows]
        traffic[rows] = result.memory_traffic[inverse] * count[rows]
        bound[rows] = result.bound[inverse]
    flops = 2.0 * m * n * k * batch * count
    return unstack(operations, size, time, flops, traffic, bound, GEMM_BOUNDS)


def kernel_tables(hardware: Hardware) -> StepTables:
    """Return what the kernels of a step read of a device."""
    from perfmodel.compute.network import StepTables, network_table
    from perfmodel.compute.stream import stream_device

    return StepTables(stream_device(hardware), network_table(hardware))


def copy_time(hardware: Hardware) -> float:
    """Return what a byte of a long copy takes, read and written [s/B]."""
    from perfmodel.compute.stream import stream_times

    time: float = stream_times(hardware, COPIED / 2, COPIED / 2).time[0] / COPIED
    return time


def _price_streams(
    hardware: Hardware, operations: Sequence[Stream], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_times

    if not operations:
        return []
    size = len(keys)
    names = ("bytes_read", "bytes_written", "flops", "launches")
    columns = stack(operations, names, size)
    (count,) = stack(operations, ("count",), size)
    distinct, inverse = distinct_rows(columns)
    result = stream_times(
        hardware, distinct[0], distinct[1], flops=distinct[2], launches=distinct[3]
    )
    traffic = (columns[0] + columns[1]) * count
    time = result.time[inverse] * count
    return unstack(
        operations, size, time, np.zeros(time.size), traffic, result.bound[inverse], STREAM_BOUNDS
    )


def _price_communication(
    hardware: Hardware, operations: Sequence[Communication], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.collectives import collective_times

    if not operations:
        return []
    size = len(keys)
    columns = stack(operations, ("size", "members", "stride"), size)
    (count,) = stack(operations, ("count",), size)
    codes = np.repeat([COLLECTIVES.index(item.collective) for item in operations], size)
    named = [item.algorithm for item in operations]
    ways = np.repeat([-1 if it == "auto" else ALGORITHMS.index(it) for it in named], size)
    distinct, inverse = distinct_rows([codes.astype(np.float64), *columns, ways.astype(np.float64)])
    time = collective_times(
        hardware,
        distinct[0].astype(np.int64),
        distinct[1],
        np.maximum(distinct[2], 1.0).astype(np.int64),
        np.maximum(distinct[3], 1.0).astype(np.int64),
        distinct[4].astype(np.int64),
    )[inverse]
    bound = np.zeros(time.size, np.uint8)
    traffic = columns[0] * count
    none = np.zeros(time.size)
    return unstack(operations, size, time * count, none, traffic, bound, ("network",))


def _price_exchanges(
    hardware: Hardware, operations: Sequence[TokenExchange], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.expert_exchange import moe_exchange_times

    size = len(keys)
    if not operations:
        return []
    times = []
    for item in operations:
        members, stride = (column_of(x, size) for x in (item.members, item.stride))
        times.append(
            moe_exchange_times(
                hardware,
                item.kind,
                "normal",
                column_of(item.tokens, size),
                1.0,
                item.top_k,
                item.experts,
                np.clip(members, 1.0, item.experts),
                np.maximum(stride, 1.0),
                item.units,
                element_bytes=item.token_bytes,
                share=item.share,
                groups=item.groups,
            )
        )
    sent, count = stack(operations, ("size", "count"), size)
    time = np.concatenate(times) * count
    bound = np.zeros(time.size, np.uint8)
    return unstack(operations, size, time, np.zeros(time.size), sent * count, bound, ("network",))


def _expose(hardware: Hardware, priced: list[Priced], keys: LayerKeys) -> list[Priced]:
    """Hide each communication behind the operations that run beside it.

    The exposed part is what outlasts them, or the piece that nothing can hide, plus
    what the hidden part costs the compute that it runs beside. Its half-width is half
    the difference between a slow and a fast communication beside the same compute.
    """
    from perfmodel.compute.collectives import overlap_compute_tax

    size = len(keys)
    beside: dict[tuple[str, str], Column] = {}
    for item in priced:
        if not isinstance(item.operation, Communication):
            own = item.operation.name
            block = "mlp.*" if ".mlp." in f".{own}" else "mixer.*"
            for name in (own, block):
                slot = (name, item.operation.phase)
                beside[slot] = beside.get(slot, np.zeros(size)) + item.time
    for item in priced:
        operation = item.operation
        if not isinstance(operation, Communication) or not np.any(operation.hides):
            continue
        available = sum((beside.get(slot, 0.0) for slot in operation.hidden_by), np.zeros(size))
        available = available * column_of(operation.hides, size)
        tax = overlap_compute_tax(
            hardware,
            np.maximum(column_of(operation.members, size), 1.0).astype(np.int64),
            np.maximum(column_of(operation.stride, size), 1.0).astype(np.int64),
        )
        tail = column_of(operation.tail, size)
        slow = _exposed(item.time + item.half_width, available, tail, tax)
        fast = _exposed(np.maximum(item.time - item.half_width, 0.0), available, tail, tax)
        item.half_width[:] = 0.5 * (slow - fast)
        item.exposed[:] = _exposed(item.time, available, tail, tax)
    return priced


def _exposed(time: Column, available: Column, tail: Column, tax: Column) -> Column:
    """Return what a communication adds to the step beside `available` seconds of compute."""
    exposed = np.maximum(time - available, np.minimum(tail * time, time))
    return np.minimum(exposed + tax * (time - exposed), time)
