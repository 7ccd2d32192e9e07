"""Grouped matrix products: the labelled pair of `perfmodel.kernels.matmul.grouped`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Floats, Integers, broadcast, check_least
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times
from perfmodel.compute.moe_device import grouped_device, moe_kernel, tile_candidates
from perfmodel.hwprofiles import Hardware

GROUPED_BOUNDS = GEMM_BOUNDS
STAGES = ("fwd", "bwd_grad_act", "bwd_grad_w")
LAUNCHES = ("one", "each")


class Loads(NamedTuple):
    """Rows of the groups of products, compressed to distinct sizes.

    Attributes
    ----------
    tokens : ndarray, shape (load,)
        Tokens behind the rows: a token has a row in each group that it goes to.
    offsets : ndarray of int64, shape (load + 1,)
        Where each load begins in `sizes` and `counts`.
    sizes, counts : ndarray, shape (size,)
        Rows of a group, and how many groups have as many.
    """

    tokens: Floats
    offsets: Integers
    sizes: Floats
    counts: Floats


def pack_loads(loads: Sequence[tuple[float, ArrayLike]]) -> Loads:
    """Pack loads into columns.

    Parameters
    ----------
    loads : sequence of (float, array_like)
        Tokens, and rows of each group.
    """
    distinct = [np.unique(np.asarray(each, np.float64), return_counts=True) for _, each in loads]
    return Loads(
        tokens=np.array([tokens for tokens, _ in loads], np.float64),
        offsets=np.cumsum([0, *(sizes.size for sizes, _ in distinct)]),
        sizes=np.concatenate([sizes for sizes, _ in distinct]),
        counts=np.concatenate([counts for _, counts in distinct]).astype(np.float64),
    )


def even_loads(groups: ArrayLike, rows: ArrayLike) -> Loads:
    """Return loads whose groups all have the same rows.

    Parameters
    ----------
    groups, rows : array_like, shape (product,)
        Groups of each product, and rows of each group.
    """
    counts, sizes = broadcast("grouped product", {"groups": groups, "rows": rows}).values()
    return Loads(
        tokens=np.zeros(sizes.size),
        offsets=np.arange(sizes.size + 1),
        sizes=sizes,
        counts=counts,
    )


@dataclass(frozen=True)
class GroupedGemmTimes:
    """What `grouped_gemm_times` returns; every array has shape (product,).

    Attributes
    ----------
    time : ndarray of float64
        All groups of a product [s].
    flops : ndarray of float64
        ``2 n k`` for each row of each group [FLOP].
    memory_traffic : ndarray of float64
        Bytes from and to the device memory [B].
    bound : ndarray of uint8
        Index into `GROUPED_BOUNDS`.
    """

    time: Floats
    flops: Floats
    memory_traffic: Floats
    bound: NDArray[np.uint8]


def grouped_gemm_times(
    hardware: Hardware,
    precision: str,
    rows: Sequence[ArrayLike] | Loads,
    n: ArrayLike,
    k: ArrayLike,
    *,
    stage: str = "fwd",
    launches: str = "one",
    kernel: str = "cutlass",
    steady: bool = False,
) -> GroupedGemmTimes:
    """Time grouped products, each with its own groups.

    Parameters
    ----------
    hardware : Hardware
    precision : str
        One of `perfmodel.base.precisions.FORMATS`.
    rows : sequence of array_like, or Loads
        For each product: rows of each of its groups, >= 0.
    n, k : array_like, shape (product,)
        Columns of C and inner size of the forward product, >= 1.
    stage : str
        ``fwd``: ``C_g[m_g, n] = A_g[m_g, k] B_g[k, n]``; ``bwd_grad_act``: n and k change
        places; ``bwd_grad_w``: each group's weight gradient [n, k], summed over its
        rows and added to main gradients in fp32.
    launches : str
        ``one`` for all groups; ``each`` group its own dense product, one after the other.
    kernel : str
        For ``one``: see `perfmodel.compute.moe_device.KERNELS`.
    steady : bool
        For ``each``: see `perfmodel.compute.gemm.gemm_device`.

    Returns
    -------
    GroupedGemmTimes

    Raises
    ------
    DataError
        Sizes out of range or of different lengths; unknown stage or launches.
    HardwareError
        See `perfmodel.compute.moe_device.grouped_device`.

    Notes
    -----
    In one launch of ``bwd_grad_w`` groups differ in depth, not in tiles; each distinct
    size counts as a product of its own, without its start.
    """
    for name, value, known in (("stage", stage, STAGES), ("launches", launches, LAUNCHES)):
        if value not in known:
            hint = did_you_mean(value, known)
            raise DataError(f"grouped product: unknown {name} '{value}'{hint}")
    loads = rows if isinstance(rows, Loads) else pack_loads([(0.0, each) for each in rows])
    wide, deep = _columns(loads, n, k)
    product = np.repeat(np.arange(wide.size), np.diff(loads.offsets))
    flops = 2.0 * wide * deep * _sum(product, loads.sizes * loads.counts, wide.size)
    if launches == "each":
        return _one_by_one(hardware, precision, loads, product, wide, deep, flops, stage, steady)
    if stage == "bwd_grad_act":
        wide, deep = deep, wide
    if stage != "bwd_grad_w":
        time, traffic, bound = _evaluate(hardware, precision, kernel, loads, wide, deep, 2.0)
        return GroupedGemmTimes(time, flops, traffic, bound)
    used = np.flatnonzero(loads.sizes > 0.0)
    each = Loads(
        tokens=np.zeros(used.size),
        offsets=np.arange(used.size + 1),
        sizes=wide[product[used]],
        counts=loads.counts[used],
    )
    time, traffic, bound = _evaluate(
        hardware, precision, kernel, each, deep[product[used]], loads.sizes[used], 8.0
    )
    start = grouped_device(hardware, precision, kernel).launch_latency
    number = _sum(product[used], np.ones(used.size), wide.size)
    total = _sum(product[used], time, wide.size) - np.maximum(number - 1.0, 0.0) * start
    longest = np.zeros(wide.size, np.uint8)
    longest[product[used]] = bound
    return GroupedGemmTimes(total, flops, _sum(product[used], traffic, wide.size), longest)


def _columns(loads: Loads, n: ArrayLike, k: ArrayLike) -> tuple[Floats, Floats]:
    columns = broadcast("grouped product", {"products": loads.tokens, "n": n, "k": k})
    wide, deep = columns["n"], columns["k"]
    if wide.size != loads.tokens.size:
        raise DataError(
            f"grouped product: {wide.size} sizes for {loads.tokens.size} products; there should be "
            "one for each, or one for all"
        )
    check_least("grouped product", {"n": wide, "k": deep}, 1.0)
    check_least("grouped product", {"rows": loads.sizes}, 0.0)
    check_least("grouped product", {"groups": loads.counts}, 1.0)
    return wide, deep


def _evaluate(
    hardware: Hardware, precision: str, kernel: str,
    loads: Loads, wide: Floats, deep: Floats, output_bytes: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Return time [s], traffic [B] and bound of one launch per load."""
    from perfmodel.kernels.matmul import grouped
    from perfmodel.kernels.work import kernel_work

    device = grouped_device(hardware, precision, kernel)
    groups = np.add.reduceat(loads.counts, loads.offsets[:-1])
    tiles, first, last = tile_candidates(
        moe_kernel(kernel), device.operand_bytes, np.full(wide.size, np.inf), groups
    )
    with kernel_work(grouped_gemms=wide.size):
        time, traffic, _, bound = grouped.grouped_gemm_times(
            np.arange(wide.size), *loads[1:], np.ascontiguousarray(wide),
            np.ascontiguousarray(deep), np.full(wide.size, output_bytes), np.zeros(wide.size),
            device, tiles, first, last,
        )  # fmt: skip
    return time, traffic, bound


def _one_by_one(
    hardware: Hardware, precision: str, loads: Loads, product: Integers, wide: Floats,
    deep: Floats, flops: Floats, stage: str, steady: bool,
) -> GroupedGemmTimes:  # fmt: skip
    used = np.flatnonzero(loads.sizes > 0.0)
    m, n, k = loads.sizes[used], wide[product[used]], deep[product[used]]
    output, add = (4.0, True) if stage == "bwd_grad_w" else (2.0, False)
    if stage == "bwd_grad_act":
        n, k = k, n
    elif stage == "bwd_grad_w":
        m, n, k = n, k, m
    found = gemm_times(hardware, precision, m, n, k, 1, output, add, steady=steady)
    counts = loads.counts[used]
    bound = np.zeros(wide.size, np.uint8)
    bound[product[used]] = found.bound
    return GroupedGemmTimes(
        time=_sum(product[used], found.time * counts, wide.size),
        flops=flops,
        memory_traffic=_sum(product[used], found.memory_traffic * counts, wide.size),
        bound=bound,
    )


def _sum(product: Integers, values: Floats, products: int) -> Floats:
    return np.asarray(np.bincount(product, weights=values, minlength=products), np.float64)
