"""Grouped matrix products: the labelled pair of `perfmodel.kernels.matmul.grouped`.

How libraries run a mixture-of-experts layer, and what a device is to them, stands here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.columns import Floats, Integers, broadcast, check_least
from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_device, gemm_times
from perfmodel.compute.library import MoeKernel, library_facts
from perfmodel.compute.stream import check_reuse
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import Lookup

if TYPE_CHECKING:
    from perfmodel.kernels.matmul.grouped import GroupedDevice

FULL_RATE_ROWS: Mapping[str, float] = {"tcgen05": 128.0}
"""Instruction class -> rows from which on an instruction keeps the matrix unit busy: accumulators
of 64 rows take half of tensor memory's 128 lanes (PTX ISA, tcgen05.mma); Triton's tiles of fewer
rows run as mma.sync, no faster. Others: any number."""
KERNELS: Mapping[str, MoeKernel] = library_facts("moe")
"""Libraries that run the layer, by name (``compute/libraries/*.toml``)."""


def moe_kernel(name: str) -> MoeKernel:
    """Return a kernel by its name.

    Raises
    ------
    HardwareError
        There is no such kernel.
    """
    if name not in KERNELS:
        raise HardwareError(f"unknown kernel '{name}' of a MoE layer{did_you_mean(name, KERNELS)}")
    return KERNELS[name]


def default_kernel(hardware: Hardware) -> str:
    """Return the kernel that serving libraries run on a device: generated ones where its family
    has constants of theirs (docs/routing.md), else the plain Triton kernel. Systolic arrays have
    no tiles of a library: a compiler walks the panels of dense products, the loop that `cutlass`
    shares."""
    if hardware.lookup("gemm")("array_side", 0.0) > 0.0:
        return "cutlass"
    if hardware.device.vendor == "AMD":
        return "aiter"
    if "moe" not in hardware.calibration:
        return "triton"
    generated = hardware.lookup("moe", kernel="trtllm").apart("main_loop_efficiency")
    return "trtllm" if generated else "triton"


def moe_constants(hardware: Hardware, precision: str, kernel: str) -> Lookup:
    """Return the constants of a kernel at a precision; tuned tiles change nothing else.

    Raises
    ------
    HardwareError
        The profile has no ``[calibration.moe]``.
    """
    return hardware.lookup("moe", precision=precision, kernel=kernel.removesuffix("_tuned"))


def grouped_device(
    hardware: Hardware,
    precision: str,
    kernel: str,
    *,
    copies: float = 0.0,
    resident: float = 0.0,
    idle_data: bool = False,
) -> GroupedDevice:
    """Return what the grouped kernel needs to know of a device.

    Parameters
    ----------
    hardware : Hardware
    precision : str
        Of both operands, one of `perfmodel.base.precisions.FORMATS`.
    kernel : str
        One of `KERNELS`.
    copies : float
        Calls until the same layer comes up again: 1 where one layer is repeated; 0: its
        weights come from memory, as in a model, whose layers follow one another.
    resident : float
        In its place: all bytes that are in use from call to call [B].
    idle_data : bool
        Weights are all zeros, as in some benchmarks: the power limit is never felt.

    Raises
    ------
    HardwareError
        Unknown precision or kernel, a precision that the device lacks, or a missing
        constant.
    DataError
        Copies below 1, or a negative number of bytes.

    Notes
    -----
    Peak rates, capacities and bandwidths are datasheet facts; the power limit is that of
    dense products (`perfmodel.compute.gemm.gemm_device`).
    """
    from perfmodel.kernels.matmul.grouped import GroupedDevice

    check_reuse("a MoE layer", resident, copies=copies)
    style = moe_kernel(kernel)
    constant = moe_constants(hardware, precision, kernel)
    dense = gemm_device(hardware, precision)
    device = hardware.device
    memory = device.memory
    peak = device.peak(precision)
    rows = style.instruction_rows
    if precision == "fp8_block":
        rows = style.block_instruction_rows or rows
    common = {
        "units": dense.units,
        "power_rate": peak if idle_data else dense.power_rate,
        "heat_time": dense.heat_time,
        "cache_capacity": memory.l2_capacity * constant("cache_fraction"),
        "copies": float(copies),
        "resident": float(resident),
        "operand_bytes": dense.operand_bytes,
        "weight_bytes": dense.operand_bytes,
        "resident_bytes": float(memory.shared_memory_per_unit or 1 << 17),
        "resident_elements": float(memory.register_file_per_unit or 1 << 18) / 8.0,
        "stages": style.stages,
        "instruction_rows": rows,
        "full_rate_rows": FULL_RATE_ROWS.get(device.instruction_class, 0.0),
        "swept_tiles": style.swept_tiles,
        "cache_latency": constant("cache_latency"),
    }
    if style.dense_loop:
        return GroupedDevice(
            unit_rate=dense.unit_rate,
            tile_half=dense.tile_half,
            l2_bandwidth=dense.l2_bandwidth,
            unit_bandwidth=dense.unit_bandwidth,
            memory_bandwidth=dense.memory_bandwidth,
            launch_latency=dense.launch_latency,
            tile_latency=dense.tile_latency,
            memory_latency=dense.load_latency,
            overlap_loss=dense.overlap_loss,
            **common,
        )
    l2_bandwidth = memory.l2_bandwidth * constant("l2_efficiency")
    return GroupedDevice(
        unit_rate=peak * constant("main_loop_efficiency") / dense.units,
        tile_half=constant("tile_half"),
        l2_bandwidth=l2_bandwidth,
        unit_bandwidth=2.0 * l2_bandwidth / dense.units,
        memory_bandwidth=memory.bandwidth * constant("memory_efficiency"),
        launch_latency=constant("kernel_latency"),
        tile_latency=constant("tile_latency"),
        memory_latency=constant("memory_latency"),
        overlap_loss=constant("overlap_loss"),
        **common,
    )


def tile_candidates(
    style: MoeKernel, operand_bytes: float, tokens: Floats, local_experts: Floats
) -> tuple[Floats, Integers, Integers]:
    """Return the tiles of a kernel [elements], and which of them each case may take.

    Returns
    -------
    tiles : ndarray, shape (tile, 3)
    first, last : ndarray of int64, shape (case,)
        A case may take ``tiles[first:last]``.
    """
    if 1.0 <= operand_bytes < 2.0:
        large = small = style.block_tiles or style.tiles
    else:
        large, small = style.tiles, style.small_tiles or style.tiles
    table = np.array([*large, *small], np.float64)
    # Depth in whole elements: 16 is the shortest of a matrix instruction.
    table[:, 2] = np.maximum(16.0, 16.0 * np.round(table[:, 2] / operand_bytes / 16.0))
    few = tokens <= local_experts
    first = np.where(few, len(large), 0).astype(np.int64)
    last = np.where(few, table.shape[0], len(large)).astype(np.int64)
    return table, first, last


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
        For ``one``: see `perfmodel.compute.grouped_gemm.KERNELS`.
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
        See `perfmodel.compute.grouped_gemm.grouped_device`.

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
    with kernel_work(grouped_gemms=wide.size) as run:
        time, traffic, _, bound = run(grouped.grouped_gemm_times)(
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
