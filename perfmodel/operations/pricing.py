"""Price operations: each distinct shape once per device, gathered back to its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import COLLECTIVES
from perfmodel.base.columns import Column
from perfmodel.base.errors import HardwareError
from perfmodel.base.precisions import PRECISIONS, wide_format
from perfmodel.operations.operations import (
    Attention,
    Communication,
    Gemm,
    LayerKeys,
    Operation,
    Size,
    Stream,
)
from perfmodel.operations.uncertainty import relative_width
from perfmodel.software.framework import Framework

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


@dataclass(frozen=True, slots=True)
class Priced:
    """An operation with its price per layer key.

    Attributes
    ----------
    operation : Operation
    time : ndarray, shape (keys,)
        Of all `count` repetitions per micro-batch [s].
    flops : ndarray, shape (keys,)
        Matrix FLOP executed in them.
    traffic : ndarray, shape (keys,)
        Bytes to and from memory, or on the wire for a communication [B].
    bound : tuple of str
        What limits one repetition, per key.
    exposed : ndarray, shape (keys,)
        The part of `time` that delays the step; all of it unless a communication hides.
    half_width : ndarray, shape (keys,)
        Half the 10-90 % band of `exposed` [s] (`perfmodel.operations.uncertainty`).
    """

    operation: Operation
    time: Column
    flops: Column
    traffic: Column
    bound: tuple[str, ...]
    exposed: Column
    half_width: Column


def distinct_rows(columns: Sequence[Column]) -> tuple[list[Column], NDArray[np.intp]]:
    """Reduce aligned columns to their distinct rows and say where each row went."""
    rows, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return [np.ascontiguousarray(column) for column in rows.T], inverse.reshape(-1)


def column_of(value: Size, size: int) -> Column:
    """Spread a number or a column over all keys."""
    return np.broadcast_to(np.asarray(value, np.float64), (size,))


def supported_precisions(hardware: Hardware) -> NDArray[np.bool_]:
    """Tell for each entry of `PRECISIONS` whether the device has a matrix rate for it."""
    return ~np.isnan(matrix_rates(hardware))


def matrix_rates(hardware: Hardware) -> NDArray[np.float64]:
    """Rate of each entry of `PRECISIONS` [FLOP/s]; NaN where the device has none."""

    def rate(precision: str) -> float:
        try:
            return hardware.device.peak(precision)
        except HardwareError:
            return np.nan

    return np.array([rate(precision) for precision in PRECISIONS])


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
    gemms = [item for item in operations if isinstance(item, Gemm)]
    attention = [item for item in operations if isinstance(item, Attention)]
    streams = [item for item in operations if isinstance(item, Stream)]
    communication = [item for item in operations if isinstance(item, Communication)]
    priced = {
        Gemm: iter(_price_gemms(hardware, gemms, keys)),
        Attention: iter(_price_attention(hardware, attention, keys, framework)),
        Stream: iter(_price_streams(hardware, streams, keys)),
        Communication: iter(_price_communication(hardware, communication, keys)),
    }
    ordered = [next(priced[type(item)]) for item in operations]
    for item in ordered:
        if not isinstance(item.operation, Communication):
            item.time[:] *= slowdown
            item.exposed[:] *= slowdown
        calls = np.maximum(column_of(item.operation.count, len(keys)), 1e-30)
        width = relative_width(hardware, item.operation, item.flops / calls)
        item.half_width[:] = width * item.time
    return _expose(hardware, ordered, keys)


def _stack(operations: Sequence[Any], names: Iterable[str], size: int) -> list[Column]:
    """Stack one field of many operations over all keys into flat columns."""
    return [
        np.concatenate([column_of(getattr(item, name), size) for item in operations])
        for name in names
    ]


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
    m, n, k, batch, count = _stack(operations, ("m", "n", "k", "batch", "count"), size)
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
            steady=True,  # a training run lasts hours: the device is as warm as it gets
        )
        time[rows] = result.time[inverse] * count[rows]
        traffic[rows] = result.memory_traffic[inverse] * count[rows]
        bound[rows] = result.bound[inverse]
    flops = 2.0 * m * n * k * batch * count
    return _unstack(operations, size, time, flops, traffic, bound, GEMM_BOUNDS)


def _price_attention(
    hardware: Hardware, operations: Sequence[Attention], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times
    from perfmodel.compute.attention_device import generation_slowdown

    if not operations:
        return []
    size = len(keys)
    names = (
        "batch",
        "query_length",
        "key_length",
        "heads",
        "key_value_heads",
        "head_dim_qk",
        "head_dim_v",
        "causal",
        "window",
        "backward",
    )
    columns = _stack(operations, names, size)
    (count,) = _stack(operations, ("count",), size)
    for i in range(5):
        columns[i] = np.ceil(np.maximum(columns[i], 1.0) - 1e-9)
    rows_format = np.tile(_attention_formats(hardware, keys), len(operations))
    time, flops, traffic = (np.full(rows_format.size, np.nan) for _ in range(3))
    bound = np.zeros(rows_format.size, np.uint8)
    slowdown = generation_slowdown(hardware, framework.attention_generation)
    for precision in ("bf16", "fp16"):
        rows = np.flatnonzero(rows_format == precision)
        if not rows.size:
            continue
        distinct, inverse = distinct_rows([column[rows] for column in columns])
        result = attention_times(
            hardware,
            precision,
            batch=distinct[0],
            query_length=distinct[1],
            key_length=distinct[2],
            heads=distinct[3],
            key_value_heads=distinct[4],
            head_dim_qk=distinct[5],
            head_dim_v=distinct[6],
            causal=distinct[7] > 0,
            window=distinct[8],
            backward=distinct[9] > 0,
            steady=True,
        )
        time[rows] = result.time[inverse] * count[rows] * slowdown
        flops[rows] = result.flops[inverse] * count[rows]
        traffic[rows] = result.memory_traffic[inverse] * count[rows]
        bound[rows] = result.bound[inverse]
    return _unstack(operations, size, time, flops, traffic, bound, ATTENTION_BOUNDS)


def _attention_formats(hardware: Hardware, keys: LayerKeys) -> NDArray[np.str_]:
    """Format of fused attention for each key: 16 bits, "" where the device has none.

    fp16 strategies use fp16, all others bf16.
    """
    has = dict(zip(PRECISIONS, supported_precisions(hardware), strict=True))
    formats = []
    for name in PRECISIONS:
        wanted = wide_format(name)
        formats.append(wanted if has[wanted] else "")
    return np.array(formats)[keys.columns["precision"]]


def _price_streams(
    hardware: Hardware, operations: Sequence[Stream], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_times

    if not operations:
        return []
    size = len(keys)
    names = ("bytes_read", "bytes_written", "flops", "launches")
    columns = _stack(operations, names, size)
    (count,) = _stack(operations, ("count",), size)
    distinct, inverse = distinct_rows(columns)
    result = stream_times(
        hardware, distinct[0], distinct[1], flops=distinct[2], launches=distinct[3]
    )
    traffic = (columns[0] + columns[1]) * count
    time = result.time[inverse] * count
    return _unstack(
        operations, size, time, np.zeros(time.size), traffic, result.bound[inverse], STREAM_BOUNDS
    )


def _price_communication(
    hardware: Hardware, operations: Sequence[Communication], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.network.collectives import collective_times

    if not operations:
        return []
    size = len(keys)
    columns = _stack(operations, ("size", "members", "stride"), size)
    (count,) = _stack(operations, ("count",), size)
    codes = np.repeat([COLLECTIVES.index(item.collective) for item in operations], size)
    distinct, inverse = distinct_rows([codes.astype(np.float64), *columns])
    time = collective_times(
        hardware,
        distinct[0].astype(np.int64),
        distinct[1],
        np.maximum(distinct[2], 1.0).astype(np.int64),
        np.maximum(distinct[3], 1.0).astype(np.int64),
    )[inverse]
    bound = np.zeros(time.size, np.uint8)
    traffic = columns[0] * count
    none = np.zeros(time.size)
    return _unstack(operations, size, time * count, none, traffic, bound, ("network",))


def _unstack(
    operations: Sequence[Operation],
    size: int,
    time: Column,
    flops: Column,
    traffic: Column,
    bound: NDArray[np.uint8],
    names: Sequence[str],
) -> list[Priced]:
    priced = []
    for i, item in enumerate(operations):
        rows = slice(i * size, (i + 1) * size)
        labels = tuple(names[code] for code in bound[rows])
        mine, exposed, half_width = time[rows], time[rows].copy(), np.zeros(size)
        priced.append(Priced(item, mine, flops[rows], traffic[rows], labels, exposed, half_width))
    return priced


def _expose(hardware: Hardware, priced: list[Priced], keys: LayerKeys) -> list[Priced]:
    """Hide each communication behind the operations that run beside it.

    The exposed part is what outlasts them, or the piece that nothing can hide, plus
    what the hidden part costs the compute that it runs beside. Its half-width is half
    the difference between a slow and a fast communication beside the same compute.
    """
    from perfmodel.network.collectives import overlap_compute_tax

    size = len(keys)
    beside: dict[tuple[str, str], Column] = {}
    for item in priced:
        if not isinstance(item.operation, Communication):
            for name in (item.operation.name, "*"):  # "*" stands for everything of a phase
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
