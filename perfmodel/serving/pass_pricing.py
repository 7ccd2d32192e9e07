"""Prices of the operations of served passes by parts of a pass, and how far they may be off.

Shared experts may run beside routed ones, on a stream of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.collectives import COLLECTIVES
from perfmodel.base.columns import Floats
from perfmodel.base.precisions import FORMATS, QUANTISED
from perfmodel.base.regimes import regime_name
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.gemm import weight_only_times
from perfmodel.compute.stream import quantise_times, stream_times
from perfmodel.hwprofiles.rows import step_width
from perfmodel.kernels.serving.tables import (
    ATTENTION,
    COMMUNICATION,
    EXPERTS,
    MATRICES,
    OTHER,
    PARTS,
)
from perfmodel.operations.operations import Communication, Gemm, LayerKeys, Operation, Role, Stream
from perfmodel.operations.priced import column_of, distinct_rows, stack
from perfmodel.operations.served import operation_launches
from perfmodel.serving.communication import all_reduce_times
from perfmodel.serving.layouts import PLACE_OF, ProductFormat
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
        Bytes that passes go round where a cache holds them (`serving.memory`); default:
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


SHARED = (Role.SHARED, Role.SHARED_OUTPUT)


def hidden_parts(
    hardware: Hardware, engine: Engine, items: Sequence[Item], keys: LayerKeys, routed: Floats
) -> Floats:
    """Return what of a layer's shared experts hides beside its routed ones.

    Parameters
    ----------
    hardware : Hardware
    engine : Engine
    items : sequence of Item
        Of one layer.
    keys : LayerKeys
    routed : ndarray, shape (keys,)
        Time of the routed experts [s].

    Returns
    -------
    ndarray, shape (keys, parts)
        [s].

    Notes
    -----
    Two streams share bandwidth and matrix units, so that products still take what their bytes and
    FLOP ask for, ``max(bytes / bandwidth, FLOP / rate)`` each; starts, waits and small kernels
    beyond that run beside the others, as far as those last.
    """
    none = np.zeros((len(keys), len(PARTS)))
    mine = [item for item in items if item.operation.role in SHARED]
    if not mine or not engine.shared_stream_tokens or hardware.device.vendor != "NVIDIA":
        return none
    parts = price_items(hardware, engine, mine, keys).parts
    work = np.zeros(len(keys))
    for item in mine:
        operation = item.operation
        if isinstance(operation, Gemm):
            m, n, k = (column_of(x, len(keys)) for x in (operation.m, operation.n, operation.k))
            read = n * k * item.product.weight_bytes / hardware.device.memory.bandwidth
            work += np.maximum(read, 2.0 * m * n * k / hardware.device.peak(item.product.products))
    alone = parts[:, (MATRICES, OTHER)].sum(axis=1)
    hidden = np.clip(alone - work, 0.0, routed)
    hidden = np.where(keys.tokens <= engine.shared_stream_tokens, hidden, 0.0)
    share = np.divide(hidden, alone, out=np.zeros_like(alone), where=alone > 0.0)
    for part in (MATRICES, OTHER):
        none[:, part] = share * parts[:, part]
    return none


TYPICAL_SEQUENCES = 32.0
TYPICAL_CONTEXT = 2048.0
"""The pass whose band stands for all: tens of sequences of some thousands of tokens."""

LOOP_WIDTH = 0.115
"""What passes of a running server add, relative: schedulers, hosts, flags that nobody states. With
it 80 % of 1,620 measured times per output token lie within the bounds (InferenceX and NVIDIA)."""

CLASSES = {
    # part of a pass: kernel class, and what tells its regime in a typical pass
    MATRICES: ("gemm", TYPICAL_SEQUENCES),
    EXPERTS: ("moe", TYPICAL_SEQUENCES),
    ATTENTION: ("decode", TYPICAL_SEQUENCES * TYPICAL_CONTEXT * 2048.0),  # 8 heads of 128, twice
    COMMUNICATION: ("collective", TYPICAL_SEQUENCES * 16384.0),  # 8,192 numbers of a token
    OTHER: ("stream", TYPICAL_SEQUENCES * 32768.0),
}


def half_widths(hardware: Hardware, parts: Floats) -> Floats:
    """Return half the 10-90 % bands of passes, relative.

    Parameters
    ----------
    hardware : Hardware
    parts : ndarray, shape (layout, parts)
        Seconds of a typical pass (`TYPICAL_SEQUENCES`, `TYPICAL_CONTEXT`), by
        `perfmodel.kernels.serving.tables.PARTS`.

    Returns
    -------
    ndarray, shape (layout,)

    Notes
    -----
    Kernels of one class err together, classes independently of each other, and so does what no
    kernel explains, of which a pass has as large a share as a training step without experts
    (`perfmodel.operations.uncertainty`): loads of experts are priced here.
    """
    widths = np.zeros(parts.shape[-1])
    for part, (name, quantity) in CLASSES.items():
        widths[part] = hardware.uncertainty(name, regime_name(name, quantity))
    kernels = np.sqrt(((widths * parts) ** 2).sum(axis=-1)) / parts.sum(axis=-1)
    alone = np.hypot(kernels, step_width(hardware, experts=False))
    found: Floats = np.hypot(alone, LOOP_WIDTH)
    return found
