"""How libraries run a mixture-of-experts layer, and what a device is to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.compute.gemm import gemm_device
from perfmodel.compute.reuse import check_reuse
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import Lookup
from perfmodel.software.library import MoeKernel, library_facts

if TYPE_CHECKING:
    from perfmodel.kernels.matmul.grouped import GroupedDevice

FULL_RATE_ROWS: Mapping[str, float] = {"tcgen05": 128.0}
"""Instruction class -> rows from which on an instruction keeps the matrix unit busy: accumulators
of 64 rows take half of tensor memory's 128 lanes (PTX ISA, tcgen05.mma); Triton's tiles of fewer
rows run as mma.sync, no faster. Others: any number."""
KERNELS: Mapping[str, MoeKernel] = library_facts("moe")
"""Libraries that run the layer, by name (``software/libraries/*.toml``)."""


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
