"""Price operations: each distinct shape once per device, gathered back to its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES
from perfmodel.base.columns import Column
from perfmodel.base.precisions import PRECISIONS, wide_format
from perfmodel.hwprofiles.rows import matrix_rates, supported_precisions
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
    machine_of,
)
from perfmodel.operations.priced import (
    Priced,
    column_of,
    distinct_rows,
    stack,
    unstack,
    wide_formats,
)
from perfmodel.operations.uncertainty import class_widths, relative_width
from perfmodel.software.framework import Framework

if TYPE_CHECKING:
    from perfmodel.compute.network import StepTables
    from perfmodel.hwprofiles import Hardware

WIDE_FORMATS = ("bf16", "fp16")
COPIED = 2e9  # bytes of a copy so long that its rate is that of the memory


Rows = Sequence["Hardware"]
"""Rows of hardware that differ in numbers only: operations, formats and levels are the same."""


def price_attention(
    rows: Rows, operations: Sequence[Attention], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    """Price fused attention."""
    from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times
    from perfmodel.compute.attention_device import (
        attention_device,
        deterministic_slowdown,
        generation_slowdown,
    )

    if not operations:
        return []
    ordered = framework.deterministic_attention

    def times(hardware: Hardware, precision: str, columns: dict[str, Any]) -> Any:
        columns |= {name: columns[name] > 0 for name in ("causal", "backward")}
        return attention_times(hardware, precision, **columns, steady=True, deterministic=ordered)

    def device(hardware: Hardware, precision: str) -> Any:
        found = attention_device(hardware, precision, steady=True)
        return found, ordered and deterministic_slowdown(hardware)

    names = ("batch", "query_length", "key_length", "heads", "key_value_heads")
    more = ("head_dim_qk", "head_dim_v", "causal", "window", "backward")
    kinds = [(_generation(item, framework), item.backward) for item in operations]
    slowdown = [[generation_slowdown(hardware, *kind) for kind in kinds] for hardware in rows]
    found = Question(operations, keys, names, more, ATTENTION_BOUNDS, np.array(slowdown))
    return _price(rows, found, times, device)


def _generation(operation: Attention, framework: Framework) -> int:
    """Return the generation of the kernel that runs a call: the best one may not take it."""
    differ = operation.head_dim_qk != operation.head_dim_v
    refused = framework.best_attention_is_plain and framework.dropout
    refused = refused or (framework.best_attention_one_width and differ)
    return framework.attention_generation or (2 if refused else 0)


def price_sparse_attention(
    rows: Rows, operations: Sequence[SparseAttention], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    """Price attention to chosen or compressed keys."""
    from perfmodel.compute.attention import ATTENTION_BOUNDS
    from perfmodel.compute.attention_device import generation_slowdown
    from perfmodel.compute.sparse_attention import sparse_attention_times

    if not operations:
        return []

    def times(hardware: Hardware, precision: str, columns: dict[str, Any]) -> Any:
        backward = columns.pop("backward") > 0
        columns["shared_key_value"] = columns["shared_key_value"] > 0

        def phase(name: str, part: dict[str, Any]) -> Any:
            return sparse_attention_times(hardware, precision, **part, phase=name, steady=True)

        return _by_phase(phase, columns, backward)

    names = ("batch", "query_length", "key_length", "heads", "key_value_heads")
    shape = ("head_dim_qk", "head_dim_v", "selected", "window", "compression", "block")
    more = (*shape, "shared_key_value", "backward")
    slowdown = [[generation_slowdown(it, framework.attention_generation)] for it in rows]
    factor = np.repeat(slowdown, len(operations), axis=1)
    return _price(rows, Question(operations, keys, names, more, ATTENTION_BOUNDS, factor), times)


def price_indexers(rows: Rows, operations: Sequence[Indexer], keys: LayerKeys) -> list[Priced]:
    """Price scores of an indexer and the choice of the best."""
    from perfmodel.compute.sparse_attention import INDEXER_BOUNDS, indexer_times

    if not operations:
        return []

    def times(hardware: Hardware, precision: str, columns: dict[str, Any]) -> Any:
        backward = columns.pop("backward") > 0

        def phase(name: str, part: dict[str, Any]) -> Any:
            return indexer_times(hardware, **part, phase=name, steady=True)

        return _by_phase(phase, columns, backward)

    names = ("batch", "query_length", "key_length", "heads")
    more = ("head_dim", "top_k", "compression", "block", "backward")
    return _price(rows, Question(operations, keys, names, more, INDEXER_BOUNDS), times)


def price_recurrences(
    rows: Rows, operations: Sequence[Recurrence], keys: LayerKeys
) -> list[Priced]:
    """Price chains of kernels of recurrences."""
    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, recurrence_times
    from perfmodel.compute.recurrence_counts import RECURRENCES

    if not operations:
        return []
    kinds = np.repeat([RECURRENCES.index(item.kind) for item in operations], len(keys))

    def times(hardware: Hardware, precision: str, columns: dict[str, Any]) -> Any:
        kind = np.array(RECURRENCES)[columns.pop("kind").astype(np.int64)]
        phase = np.where(columns.pop("backward") > 0, "backward", "forward")
        return recurrence_times(hardware, precision, kind=kind, phase=phase, **columns)

    names = ("batch", "length", "heads", "key_heads")
    more = ("key_dim", "value_dim", "chunk", "backward")
    extra = {"kind": kinds.astype(np.float64)}
    found = Question(operations, keys, names, more, RECURRENCE_BOUNDS, extra=extra)
    return _price(rows, found, times)


class Question(NamedTuple):
    """Operations of one kind that run in 16 bits.

    Attributes
    ----------
    operations : sequence
    keys : LayerKeys
    counted, others : tuple of str
        Fields of the operations: whole numbers of at least 1, and any.
    bounds : sequence of str
        Meaning of the codes in `bound`.
    slowdown : ndarray, shape (rows, operations), optional
        Factor on the times of each operation.
    extra : dict of str to ndarray, optional
        Columns that are no fields.
    """

    operations: Sequence[Any]
    keys: LayerKeys
    counted: tuple[str, ...]
    others: tuple[str, ...]
    bounds: Sequence[str]
    slowdown: NDArray[np.float64] | None = None
    extra: Mapping[str, Column] = {}


def _price(
    rows: Rows,
    asked: Question,
    times: Callable[[Hardware, str, dict[str, Any]], Any],
    device: Callable[[Hardware, str], Any] = lambda hardware, _: id(hardware),
) -> list[Priced]:
    """Price each distinct call once in each format of 16 bits.

    Parameters
    ----------
    rows : sequence of Hardware
    asked : Question
    times : callable
        Takes hardware, a format and columns by field; returns columns `time`, `flops`,
        `memory_traffic`, `bound`.
    device : callable
        Returns what of the hardware the times depend on.
    """
    operations, keys, counted, others, bounds, slowdown, extra = asked
    size = len(keys)
    columns = [*stack(operations, (*counted, *others), size), *extra.values()]
    names = [*counted, *others, *extra]
    (count,) = stack(operations, ("count",), size)
    for i in range(len(counted)):
        columns[i] = np.ceil(np.maximum(columns[i], 1.0) - 1e-9)
    factor = np.ones((1, count.size)) if slowdown is None else np.repeat(slowdown, size, axis=1)
    formats = np.tile(wide_formats(rows[0], keys), len(operations))
    time, flops, traffic = np.full((3, len(rows), count.size), np.nan)
    bound = np.zeros(time.shape, np.uint8)
    for precision in WIDE_FORMATS:
        at = np.flatnonzero(formats == precision)
        if not at.size:
            continue
        distinct, inverse = distinct_rows([column[at] for column in columns])
        named = dict(zip(names, distinct, strict=True))

        def priced(row: Hardware, name: str = precision, own: dict[str, Any] = named) -> Any:
            return times(row, name, dict(own))

        def seen(row: Hardware, name: str = precision) -> Any:
            return device(row, name)

        found = _on_each(rows, seen, priced, distinct, *bounds, *names, precision)
        time[:, at] = found.column("time", inverse) * count[at] * factor[:, at]
        flops[:, at] = found.column("flops", inverse) * count[at]
        traffic[:, at] = found.column("memory_traffic", inverse) * count[at]
        bound[:, at] = found.column("bound", inverse)
    return unstack(operations, size, time, flops, traffic, bound, bounds)


class _OfRows(NamedTuple):
    """What rows of hardware give: those that are the same for kernels have one answer."""

    answers: list[Any]
    which: NDArray[np.intp]

    def column(self, name: str, inverse: NDArray[np.intp]) -> NDArray[Any]:
        """Return a column of all rows, shape (rows, inverse)."""
        stacked = np.stack([getattr(answer, name) for answer in self.answers])
        found: NDArray[Any] = stacked[self.which[:, None], inverse]
        return found


FEW = 64
"""Calls whose answers stay with a profile: other software asks for most of them again."""


def _on_each(
    rows: Rows,
    device: Callable[[Hardware], Any],
    price: Callable[[Hardware], Any],
    shapes: Sequence[Column],
    *kind: Any,
) -> _OfRows:
    """Price calls of these shapes on every row, once where `device` is equal."""
    few = shapes[0].size <= FEW
    asked = (*kind, *(column.tobytes() for column in shapes if few))
    known: dict[Any, int] = {}
    answers: list[Any] = []
    which = []
    for hardware in rows:
        own = device(hardware)
        if own not in known:
            known[own] = len(answers)
            make = partial(price, hardware)
            answers.append(hardware.kept((own, asked), make) if few else make())
        which.append(known[own])
    return _OfRows(answers, np.array(which))


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
    """Price every operation of a part for every layer key on one device; see `price_on_rows`."""
    (found,) = price_on_rows([hardware], [operations], keys, framework, [slowdown])
    return [item.on_row(0) for item in found]


def price_on_rows(
    rows: Rows,
    parts: Sequence[Sequence[Operation]],
    keys: LayerKeys,
    framework: Framework,
    slowdown: Sequence[float],
) -> list[list[Priced]]:
    """Price every operation of some parts for every layer key on rows of hardware.

    `slowdown` multiplies what the device computes, not what it sends: it is that of the
    slowest device of each row, for which the others wait.

    Keys whose precision the device lacks get NaN.
    """
    operations = [item for part in parts for item in part]

    def those(kind: type) -> list[Any]:
        return [item for item in operations if type(item) is kind]

    priced = {
        Gemm: _price_gemms(rows, those(Gemm), keys),
        Attention: price_attention(rows, those(Attention), keys, framework),
        SparseAttention: price_sparse_attention(rows, those(SparseAttention), keys, framework),
        Indexer: price_indexers(rows, those(Indexer), keys),
        Recurrence: price_recurrences(rows, those(Recurrence), keys),
        Stream: _price_streams(rows, those(Stream), keys),
        Communication: _price_communication(rows, those(Communication), keys),
        TokenExchange: _price_exchanges(rows, those(TokenExchange), keys),
    }
    waiting = {kind: iter(items) for kind, items in priced.items()}
    ordered = [next(waiting[type(item)]) for item in operations]
    factor, widths = np.array(slowdown)[:, None], class_widths(rows)
    for item in ordered:
        if not isinstance(item.operation, Communication):
            item.time[:] *= factor
            item.exposed[:] *= factor
        calls = np.maximum(column_of(item.operation.count, len(keys)), 1e-30)
        width = relative_width(widths, item.operation, item.flops / calls)
        item.half_width[:] = width * item.time
    of = iter(ordered)
    found = [[next(of) for _ in part] for part in parts]
    if framework.reserves_exchange_units:
        for part in found:
            _leave_units(rows, part, len(keys))
    return [_expose(rows, part, keys, framework) for part in found]


def _leave_units(rows: Rows, priced: Sequence[Priced], size: int) -> None:
    """Slow matrix kernels down where they leave the units of exchanges beside them free.

    Persistent kernels are launched on the units that are left, and keep to these as long as they
    run, whether or not tokens are on their way.
    """
    left = np.ones((len(rows), size))
    units = np.array([[float(hardware.device.compute_units)] for hardware in rows])
    for item in priced:
        asked = item.operation
        if isinstance(asked, TokenExchange) and asked.hidden_by:
            some = column_of(asked.members, size) > 1.0
            left = np.minimum(left, np.where(some, 1.0 - asked.units / units, 1.0))
    for item in priced:
        if isinstance(item.operation, Gemm | Attention):
            item.time[:] /= left
            item.exposed[:] /= left


def _gemm_formats(operations: Sequence[Gemm], keys: LayerKeys) -> NDArray[np.int64]:
    """Code in `PRECISIONS` of the format in which each product runs on each key."""
    codes = keys.columns["precision"]
    wide = np.array([PRECISIONS.index(wide_format(name)) for name in PRECISIONS])
    return np.concatenate([codes if item.quantised else wide[codes] for item in operations])


def _price_gemms(rows: Rows, operations: Sequence[Gemm], keys: LayerKeys) -> list[Priced]:
    from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_device, gemm_times

    if not operations:
        return []
    size = len(keys)
    m, n, k, batch, count = stack(operations, ("m", "n", "k", "batch", "count"), size)
    formats = _gemm_formats(operations, keys)
    usable = supported_precisions(rows[0])[formats] & (count > 0)
    time = np.repeat(np.where(count > 0, np.nan, 0.0)[None], len(rows), axis=0)
    traffic, bound = np.zeros(time.shape), np.zeros(time.shape, np.uint8)
    shapes = [np.ceil(np.maximum(x, 1.0) - 1e-9) for x in (m, n, k, batch)]
    shapes.append(np.repeat([item.output_bytes for item in operations], size))
    shapes.append(np.repeat([float(item.accumulate) for item in operations], size))
    for code in np.unique(formats[usable]).tolist():
        at = np.flatnonzero(usable & (formats == code))
        distinct, inverse = distinct_rows([column[at] for column in shapes])
        # A training run lasts hours, at the board's limit.
        named: dict[str, Any] = {"precision": PRECISIONS[code], "steady": True}
        times = partial(_shaped, gemm_times, shapes=distinct, **named)
        found = _on_each(rows, partial(gemm_device, **named), times, distinct, "gemm")
        time[:, at] = found.column("time", inverse) * count[at]
        traffic[:, at] = found.column("memory_traffic", inverse) * count[at]
        bound[:, at] = found.column("bound", inverse)
    flops = np.broadcast_to(2.0 * m * n * k * batch * count, time.shape)
    return unstack(operations, size, time, flops, traffic, bound, GEMM_BOUNDS)


def structure_of(hardware: Hardware) -> tuple[Any, ...]:
    """Return what rows of hardware that are priced together have in common; all else is numbers."""
    from perfmodel.compute.collectives import adapter_levels

    levels, rates = adapter_levels(hardware), np.isnan(matrix_rates(hardware))
    return machine_of(hardware), hardware.device.name, levels.tobytes(), rates.tobytes()


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


def _shaped(times: Any, hardware: Hardware, shapes: Sequence[Column], **named: Any) -> Any:
    m, n, k, batch, output_bytes, accumulate = shapes
    more = {"output_bytes": output_bytes, "accumulate": accumulate > 0.0}
    return times(hardware, m=m, n=n, k=k, batch=batch, **more, **named)


def _price_streams(rows: Rows, operations: Sequence[Stream], keys: LayerKeys) -> list[Priced]:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_device, stream_times

    if not operations:
        return []
    size = len(keys)
    names = ("bytes_read", "bytes_written", "flops", "launches")
    columns = stack(operations, names, size)
    (count,) = stack(operations, ("count",), size)
    distinct, inverse = distinct_rows(columns)

    def times(hardware: Hardware) -> Any:
        return stream_times(hardware, *distinct)

    found = _on_each(rows, stream_device, times, distinct, "stream")
    time = found.column("time", inverse) * count
    traffic = np.broadcast_to((columns[0] + columns[1]) * count, time.shape)
    bound = found.column("bound", inverse)
    return unstack(operations, size, time, np.zeros(time.shape), traffic, bound, STREAM_BOUNDS)


def _price_communication(
    rows: Rows, operations: Sequence[Communication], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.collectives import collective_choices
    from perfmodel.compute.network import network_table

    if not operations:
        return []
    size = len(keys)
    columns = stack(operations, ("size", "members", "stride"), size)
    (count,) = stack(operations, ("count",), size)
    codes = np.repeat([COLLECTIVES.index(item.collective) for item in operations], size)
    named = [item.algorithm for item in operations]
    ways = np.repeat([-1 if it == "auto" else ALGORITHMS.index(it) for it in named], size)
    distinct, inverse = distinct_rows([codes.astype(np.float64), *columns, ways.astype(np.float64)])
    groups = [np.maximum(column, 1.0).astype(np.int64) for column in distinct[2:4]]
    asked = distinct[0].astype(np.int64), distinct[1], *groups, distinct[4].astype(np.int64)
    found = _on_each(
        rows,
        lambda hardware: tuple(part.tobytes() for part in network_table(hardware)),
        lambda hardware: collective_choices(hardware, *asked),
        distinct,
        "collective",
    )
    time = found.column("time", inverse) * count
    traffic = np.broadcast_to(columns[0] * count, time.shape)
    bound = np.zeros(time.shape, np.uint8)
    return unstack(operations, size, time, np.zeros(time.shape), traffic, bound, ("network",))


def _price_exchanges(
    rows: Rows, operations: Sequence[TokenExchange], keys: LayerKeys
) -> list[Priced]:
    from perfmodel.compute.expert_exchange import moe_exchange_times

    size = len(keys)
    if not operations:
        return []
    times = []
    for item in operations:
        members, stride = (column_of(x, size) for x in (item.members, item.stride))
        asked = column_of(item.tokens, size), 1.0, item.top_k, item.experts
        groups = np.clip(members, 1.0, item.experts), np.maximum(stride, 1.0), item.units
        about = {"element_bytes": item.token_bytes, "share": item.share, "groups": item.groups}
        each = [
            moe_exchange_times(hardware, item.kind, "normal", *asked, *groups, **about)
            for hardware in rows
        ]
        times.append(np.stack(each))
    sent, count = stack(operations, ("size", "count"), size)
    time = np.concatenate(times, axis=1) * count
    bound = np.zeros(time.shape, np.uint8)
    traffic = np.broadcast_to(sent * count, time.shape)
    return unstack(operations, size, time, np.zeros(time.shape), traffic, bound, ("network",))


def _expose(
    rows: Rows, priced: list[Priced], keys: LayerKeys, framework: Framework
) -> list[Priced]:
    """Hide each communication behind the operations that run beside it.

    The exposed part is what outlasts them, or the piece that nothing can hide, plus
    what the hidden part costs the compute that it runs beside. Its half-width is half
    the difference between a slow and a fast communication beside the same compute.
    """
    from perfmodel.compute.collectives import overlap_compute_taxes

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
        tax = overlap_compute_taxes(
            rows,
            np.maximum(column_of(operation.members, size), 1.0).astype(np.int64),
            np.maximum(column_of(operation.stride, size), 1.0).astype(np.int64),
        )
        if framework.reserves_exchange_units and isinstance(operation, TokenExchange):
            tax = np.zeros_like(tax)  # its units are paid for already
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
