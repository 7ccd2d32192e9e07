"""Prices of operations, and columns of many operations stacked to be priced at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column
from perfmodel.base.precisions import PRECISIONS, wide_format
from perfmodel.hwprofiles.rows import supported_precisions
from perfmodel.operations.operations import Communication, LayerKeys, Operation, Size

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
    bound : ndarray of uint8, shape (keys,)
        What limits one repetition, per key: codes of `bounds`.
    bounds : tuple of str
        Meaning of the codes.
    exposed : ndarray, shape (keys,)
        The part of `time` that delays the step; all of it unless a communication hides.
    half_width : ndarray, shape (keys,)
        Half the 10-90 % band of `exposed` [s] (`perfmodel.operations.uncertainty`).
    """

    operation: Operation
    time: Column
    flops: Column
    traffic: Column
    bound: NDArray[np.uint8]
    bounds: tuple[str, ...]
    exposed: Column
    half_width: Column

    def bound_of(self, key: int) -> str:
        """Return what limits one repetition on a key."""
        return self.bounds[self.bound[key]]


_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of a multiplicative hash: 2^64 / golden ratio (Knuth, volume 3, section 6.4)."""


FEW_KEYS = 64


def distinct_rows(columns: Sequence[Column]) -> tuple[list[Column], NDArray[np.intp]]:
    """Reduce aligned columns to their distinct rows and say where each row went.

    Rows are told apart by a hash, which sorts ten times as fast as they do; where two rows
    share one, by themselves.
    """
    code = np.zeros(columns[0].size, np.uint64)
    for column in columns:
        code = (code ^ (column + 0.0).view(np.uint64)) * _ODD  # + 0.0: of two zeros one
        code ^= code >> np.uint64(32)
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    found = [column[first] for column in columns]
    if all(
        np.array_equal(row[inverse], column) for row, column in zip(found, columns, strict=True)
    ):
        return found, inverse
    rows, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return [np.ascontiguousarray(column) for column in rows.T], inverse.reshape(-1)


def column_of(value: Size, size: int) -> Column:
    """Spread a number or a column over all keys."""
    column = np.asarray(value, np.float64)
    if column.shape == (size,):
        return column
    # A view of many keys takes no memory; of a few it takes ten times as long as they do.
    return np.full(size, column) if size < FEW_KEYS else np.broadcast_to(column, (size,))


def stack(operations: Sequence[Any], names: Iterable[str], size: int) -> list[Column]:
    """Stack one field of many operations over all keys into flat columns."""
    return [
        np.concatenate([column_of(getattr(item, name), size) for item in operations])
        for name in names
    ]


def unstack(
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
        mine, exposed = time[rows], time[rows].copy()
        limits = bound[rows], tuple(names)
        priced.append(
            Priced(item, mine, flops[rows], traffic[rows], *limits, exposed, np.zeros(size))
        )
    return priced


def wide_formats(hardware: Hardware, keys: LayerKeys) -> NDArray[np.str_]:
    """Format of what runs in 16 bits on each key, "" where the device has none.

    fp16 strategies use fp16, all others bf16.
    """
    has = dict(zip(PRECISIONS, supported_precisions(hardware), strict=True))
    formats = []
    for name in PRECISIONS:
        wanted = wide_format(name)
        formats.append(wanted if has[wanted] else "")
    return np.array(formats)[keys.columns["precision"]]


def crossed_level(communication: Communication, hardware: Hardware) -> str:
    """Return the name of the outermost network level that a communication crosses."""
    from perfmodel.compute.collectives import outermost_level

    members, stride = (
        int(np.asarray(value).reshape(-1)[0])
        for value in (communication.members, communication.stride)
    )
    return hardware.system.network[int(outermost_level(hardware, members, stride)[0])].name
