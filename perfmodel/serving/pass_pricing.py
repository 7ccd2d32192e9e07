"""Prices of the operations of served passes, summed up by parts of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.collectives import COLLECTIVES
from perfmodel.base.columns import Floats
from perfmodel.base.precisions import FORMATS, QUANTISED
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.gemm import weight_only_times
from perfmodel.compute.stream import quantise_times, stream_times
from perfmodel.kernels.serving.tables import ATTENTION, COMMUNICATION, MATRICES, OTHER, PARTS
from perfmodel.operations.operations import Communication, Gemm, LayerKeys, Operation, Role, Stream
from perfmodel.operations.priced import column_of, distinct_rows, stack
from perfmodel.operations.served import operation_launches
from perfmodel.serving.communication import all_reduce_times
from perfmodel.serving.weights import PLACE_OF, ProductFormat
from perfmodel.software.engine import Engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

WIDE = ProductFormat("bf16", 2.0)


@dataclass(frozen=True)
class Item:
    """An operation of a pass.

    Attributes
    ----------
    operation : Gemm, Stream or Communication
        Sizes are columns of shape (keys,) or numbers.
    times : float
        How often a pass has it.
    formats : dict of str to ProductFormat
        Of products, by place.
    """

    operation: Operation
    times: float
    formats: dict[str, ProductFormat]

    @property
    def product(self) -> ProductFormat:
        """The format of a product; 16 bits where it is never narrow."""
        operation = self.operation
        if not isinstance(operation, Gemm):
            return WIDE
        place = PLACE_OF.get(operation.role, "")
        if not operation.quantised and place != "output":
            return self.formats.get("router", WIDE)
        return self.formats.get(place, WIDE)


@dataclass(frozen=True)
class PassCost:
    """What the operations of a pass cost, by keys.

    Attributes
    ----------
    parts : ndarray, shape (keys, parts)
        Device seconds.
    launches : ndarray, shape (keys,)
        Kernels that an eager pass launches.
    """

    parts: Floats
    launches: Floats


def price_items(
    hardware: Hardware,
    engine: Engine,
    items: Sequence[Item],
    keys: LayerKeys,
    resident: Floats | None = None,
) -> PassCost:
    """Price operations of passes, each distinct shape once.

    Parameters
    ----------
    hardware : Hardware
    engine : Engine
        Says whose all-reduce runs, and where casts do.
    items : sequence of Item
    keys : LayerKeys
    resident : ndarray, shape (keys,), optional
        Bytes that passes go round where a cache holds them (`serving.resident`); default:
        weights come from memory.

    Returns
    -------
    PassCost
    """
    size = len(keys)
    parts = np.zeros((size, len(PARTS)))
    launches = np.zeros(size)
    for item in items:
        launches += item.times * column_of(operation_launches(item.operation), size)
    for product in dict.fromkeys(item.product for item in items if _is(item, Gemm)):
        mine = [item for item in items if _is(item, Gemm) and item.product == product]
        products, casts, passes = _products(hardware, engine, product, mine, size, resident)
        parts[:, MATRICES] += products
        parts[:, OTHER] += casts
        launches += passes
    mine = [item for item in items if _is(item, Stream)]
    for item, time in zip(mine, _streams(hardware, mine, size), strict=True):
        parts[:, ATTENTION if item.operation.role == Role.ATTENTION else OTHER] += time
    parts[:, COMMUNICATION] += _communication(
        hardware, engine, [item for item in items if _is(item, Communication)], size
    )
    return PassCost(parts, launches)


def _is(item: Item, kind: type) -> bool:
    return isinstance(item.operation, kind)


def _counts(items: Sequence[Item], size: int) -> Floats:
    """How often each operation runs in a pass, shape (item * keys,)."""
    return np.concatenate([item.times * column_of(item.operation.count, size) for item in items])


def _products(
    hardware: Hardware,
    engine: Engine,
    product: ProductFormat,
    items: Sequence[Item],
    size: int,
    resident: Floats | None,
) -> tuple[Floats, Floats, Floats]:
    """Return seconds of products and of the casts ahead of them, and launches of those."""
    columns = stack([item.operation for item in items], ("m", "n", "k", "batch"), size)
    sizes = [np.ceil(np.maximum(x, 1.0) - 1e-9) for x in columns]
    kept = np.zeros(size) if resident is None else resident
    rows, inverse = distinct_rows([*sizes, np.tile(kept, len(items))])
    m, n, k, batch, around = rows
    count = _counts(items, size)
    times = np.empty(m.size)
    for value in np.unique(around):  # nearly always 0 alone: few models fit a cache
        mine = around == value
        shapes = (x[mine] for x in (m, n, k, batch))
        times[mine] = weight_only_times(
            hardware, product.products, product.weight_bytes, *shapes, resident=float(value)
        )
    found = (times[inverse] * count).reshape(-1, size).sum(axis=0)
    none = np.zeros(size)
    fused = engine.fused_casts and not FORMATS[product.products].separate_cast
    if product.products not in QUANTISED or fused:
        return found, none, none
    casts = quantise_times(hardware, product.products, m * batch, k, cached=0.5).time
    summed = (casts[inverse] * count).reshape(-1, size).sum(axis=0)
    return found, summed, count.reshape(-1, size).sum(axis=0)


def _streams(hardware: Hardware, items: Sequence[Item], size: int) -> Floats:
    """Return the seconds of each streaming operation, shape (item, keys)."""
    if not items:
        return np.zeros((0, size))
    operations = [item.operation for item in items]
    names = ("bytes_read", "bytes_written", "flops", "launches")
    rows, inverse = distinct_rows(stack(operations, names, size))
    times = stream_times(hardware, rows[0], rows[1], flops=rows[2], launches=rows[3]).time
    return (times[inverse] * _counts(items, size)).reshape(-1, size)


def _communication(hardware: Hardware, engine: Engine, items: Sequence[Item], size: int) -> Floats:
    """Return the seconds of all collectives, shape (keys,)."""
    if not items:
        return np.zeros(size)
    operations = [item.operation for item in items]
    codes = np.repeat([COLLECTIVES.index(_collective(item)) for item in operations], size)
    columns = stack(operations, ("size", "members", "stride"), size)
    rows, inverse = distinct_rows([codes.astype(np.float64), *columns])
    kinds = rows[0].astype(np.int64)
    volume, members, stride = rows[1], np.maximum(rows[2], 1.0), np.maximum(rows[3], 1.0)
    groups = members.astype(np.int64), stride.astype(np.int64)
    times = np.zeros(volume.size)
    reduced = kinds == COLLECTIVES.index("all_reduce")
    if reduced.any():
        mine = (volume[reduced], *(x[reduced] for x in groups))
        times[reduced] = all_reduce_times(hardware, engine, *mine)
    if not reduced.all():
        rest = ~reduced
        mine = (volume[rest], *(x[rest] for x in groups))
        times[rest] = collective_times(hardware, kinds[rest], *mine)
    return (times[inverse] * _counts(items, size)).reshape(-1, size).sum(axis=0)


def _collective(item: Operation) -> str:
    assert isinstance(item, Communication)
    return item.collective
