"""Matrix products on a device: the labelled pair of `perfmodel.kernels.matmul.gemm`.

Weights may be stored in fewer bits than they are multiplied in (`weight_only_times`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Column, Floats, broadcast, check_least
from perfmodel.base.errors import DataError, HardwareError, did_you_mean
from perfmodel.base.precisions import FORMATS, OPERAND_BYTES, OPERANDS, QUANTISED
from perfmodel.compute.stream import check_reuse
from perfmodel.hwprofiles import load_hardware

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.matmul import gemm

GEMM_BOUNDS = ("compute", "l2", "memory", "latency")  # kernels.matmul.candidates.BOUNDS

# Word {library} in the names of constants (constants.toml).
LIBRARY_SUFFIX = {"serving": "", "training": "_training"}


@dataclass(frozen=True)
class GemmTimes:
    """What `gemm_times` returns; every array has shape (shape,).

    Attributes
    ----------
    time : ndarray of float64
        Launch to completion on the device [s].
    flops : ndarray of float64
        ``2 m n k batch`` [FLOP].
    memory_traffic : ndarray of float64
        Bytes from and to the device memory [B].
    tile_m, tile_n, split_k : ndarray of int64
        Candidate that was fastest.
    bound : ndarray of uint8
        Index into `GEMM_BOUNDS`: what the time is mostly spent on.
    """

    time: np.ndarray
    flops: np.ndarray
    memory_traffic: np.ndarray
    tile_m: np.ndarray
    tile_n: np.ndarray
    split_k: np.ndarray
    bound: np.ndarray


def gemm_device(
    hardware: Hardware,
    precision: str,
    *,
    steady: bool = False,
    alone: bool = False,
    library: str | None = None,
    weight_copies: float = 0.0,
    activation_copies: float = 0.0,
    resident: float = 0.0,
) -> gemm.GemmDevice:
    """Return what the kernel needs to know of a device at one precision.

    Parameters
    ----------
    hardware : Hardware
        Profile; its datasheet facts set rates, bandwidths, capacities and power.
    precision : str
        One of `perfmodel.base.precisions.FORMATS`; the device must have a matrix rate for it.
    steady : bool
        True inside a training step, which lasts: the power limit is felt at once, and is
        shared with all else that runs. False for a benchmark of a few milliseconds.
    alone : bool
        Of a steady load: nothing else runs, as in a benchmark that lasts.
    library : {"serving", "training"}, optional
        Whose kernels multiply quantised operands: those of serving libraries (SGLang,
        DeepGEMM) or of training ones (Transformer Engine over cuBLASLt). Default:
        training for a steady load, else serving. 16-bit products are the same.
    weight_copies, activation_copies : float
        Calls until the same B, and the same A and C, come up again: what a large cache
        keeps from call to call. Benchmarks cycle a few copies of the weights over one
        input. 0: they come from memory, as inside a model.
    resident : float
        In their place: all bytes that are in use from call to call, those of other kernels
        too, as a small model's weights from one generated token to the next [B].

    Returns
    -------
    GemmDevice

    Raises
    ------
    HardwareError
        Unknown precision, or one that the device lacks, or a missing constant.

    Notes
    -----
    The board limit holds a long product to the fraction
    ``(tdp / (energy_per_flop peak)) ** power_exponent`` of the peak rate: power falls
    with rate more than linearly because voltage falls with clock. `energy_per_flop`
    is that of 16 bits at full clock; another precision draws the same power at its own
    peak rate, but per FLOP no more than its share of 16 bits, unless the table holds
    ``energy_per_flop_<precision>``. Inside a training
    step a product draws `steady_energy_ratio` times as much: the board feeds memory, links
    and other kernels too.

    A cache of several partitions, each of which copies what its own units read, keeps
    nothing that counts from call to call: products of A100, H100 and B200 that are replayed
    over six weights take as long as from memory at every size, those of L40S do not
    (docs/kernels.md). Which of the profile's
    constants count: `perfmodel.hwprofiles.constants.Lookup`.
    """
    if precision not in OPERANDS:
        raise HardwareError(
            f"unknown precision '{precision}' of a matrix product"
            f"{did_you_mean(precision, OPERANDS)}"
        )
    if library is None:
        library = "training" if steady else "serving"
    if library not in LIBRARY_SUFFIX:
        raise DataError(
            f"unknown library '{library}' of matrix products; it is serving or training"
        )
    check_reuse(
        "a matrix product",
        resident,
        weight_copies=weight_copies,
        activation_copies=activation_copies,
    )
    from perfmodel.kernels.matmul import gemm

    device = hardware.device
    peak = device.peak(precision)
    constant = hardware.lookup("gemm", precision=precision, library=LIBRARY_SUFFIX[library])
    reference = peak  # 16-bit rate of equal power
    if OPERAND_BYTES[precision] != 2.0 and not constant.apart("energy_per_flop"):
        reference = device.peak_flops.get("bf16") or device.peak_flops.get("fp16") or peak
        if precision in QUANTISED:  # units that multiply 16 bits faster draw no more for fewer
            reference = min(reference, peak * FORMATS[precision].element_bytes / 2.0)
    full_power = constant("energy_per_flop") * reference  # [W]
    if steady and not alone:
        full_power *= constant("steady_energy_ratio")
    issue = constant("issue_efficiency")
    fraction = issue
    if device.tdp > 0.0 and full_power > 0.0:
        fraction = min(issue, (device.tdp / full_power) ** constant("power_exponent"))
    units = float(device.compute_units)
    array_side = constant("array_side")
    operand_bytes = OPERAND_BYTES[precision]
    memory = device.memory
    l2_bandwidth = memory.l2_bandwidth * constant("l2_efficiency")
    return gemm.GemmDevice(
        units=units,
        unit_rate=peak * issue / units,
        power_rate=peak * fraction,
        heat_time=0.0 if steady else constant("heat_time"),
        l2_bandwidth=l2_bandwidth,
        unit_bandwidth=l2_bandwidth / units * constant("unit_port_ratio"),
        memory_bandwidth=memory.bandwidth * constant("memory_efficiency"),
        cache_capacity=memory.last_capacity,
        operand_bytes=operand_bytes,
        max_tile_area=constant("accumulator_elements"),
        tile_half=constant("tile_half"),
        k_step=array_side if array_side > 0.0 else constant("step_bytes") / operand_bytes,
        cluster=constant("cluster_units"),
        fine_tiles=constant("fine_tiles"),
        array_side=array_side,
        launch_latency=constant("launch_latency"),
        tile_latency=constant("tile_latency"),
        split_latency=constant("split_latency"),
        load_latency=constant("load_latency"),
        scratchpad=memory.shared_memory_per_unit,
        pipeline_stages=constant("pipeline_stages"),
        matrix_side=constant("matrix_side"),
        narrow_side=constant("narrow_side"),
        largest_split=constant("largest_split"),
        overlap_loss=constant("overlap_loss"),
        store_loss=constant("store_loss"),
        resident_bandwidth=memory.last_level_cache_bandwidth or l2_bandwidth,
        resident_capacity=resident_capacity(hardware),
        weight_copies=float(weight_copies),
        activation_copies=float(activation_copies),
        resident=float(resident),
    )


def resident_capacity(hardware: Hardware) -> float:
    """Return the cache that keeps operands of products from call to call [B]; 0 for none.

    Notes
    -----
    See `gemm_device` for why a cache of several partitions is none.
    """
    memory = hardware.device.memory
    return memory.last_capacity if memory.l2_partitions == 1 else 0.0


def gemm_times(
    hardware: Hardware | str,
    precision: str,
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1,
    output_bytes: Any = 2.0,
    accumulate: Any = False,
    *,
    steady: bool = False,
    alone: bool = False,
    library: str | None = None,
    weight_copies: float = 0.0,
    activation_copies: float = 0.0,
    resident: float = 0.0,
) -> GemmTimes:
    """Time matrix products ``C[m,n] (+)= A[m,k] B[k,n]``, one per entry.

    Parameters
    ----------
    hardware, precision, steady, alone, library, weight_copies, activation_copies, resident
        See `gemm_device`. A quantised precision means the product alone; the pass
        that quantises A is a streaming operation of its own.
    m, n, k : array_like of float, shape (shape,)
        Sizes, at least 1. All array arguments broadcast together.
    batch : array_like of float
        Independent products in one launch (also the groups of a grouped product).
    output_bytes : array_like of float
        One element of C [B].
    accumulate : array_like of bool
        C is read and added to, as main gradients are.

    Returns
    -------
    GemmTimes
        Arrays of shape (shape,); a scalar call gives shape (1,).

    Raises
    ------
    DataError
        A size is NaN, infinite or below 1, or the shapes don't broadcast.
    HardwareError
        See `gemm_device`.
    """
    hardware = load_hardware(hardware)
    from perfmodel.kernels.matmul import at_once
    from perfmodel.kernels.matmul.tiles import PANELS, SPLITS, TILES
    from perfmodel.kernels.work import kernel_work

    device = gemm_device(
        hardware,
        precision,
        steady=steady,
        alone=alone,
        library=library,
        weight_copies=weight_copies,
        activation_copies=activation_copies,
        resident=resident,
    )
    sizes = {"m": m, "n": n, "k": k, "batch": batch}
    given = {**sizes, "output_bytes": output_bytes, "accumulate": accumulate}
    rows, cols, depth, copies, width, adds = broadcast("matrix product", given).values()
    place = "matrix product {row}"
    check_least(place, dict(zip(sizes, (rows, cols, depth, copies), strict=True)), 1.0)
    check_least(place, {"output_bytes": width}, 0.0)
    tiles = PANELS if device.array_side > 0.0 else TILES
    with kernel_work(gemms=rows.size):
        time, traffic, tile, split, bound = at_once.gemm_times(
            rows, cols, depth, copies, width, adds != 0.0, device, tiles, SPLITS
        )
    tile_rows, tile_columns = tiles.astype(np.int64).T.copy()
    return GemmTimes(
        time=time,
        flops=2.0 * rows * cols * depth * copies,
        memory_traffic=traffic,
        tile_m=tile_rows.take(tile),
        tile_n=tile_columns.take(tile),
        split_k=split,
        bound=bound,
    )


def quantised_gemm_times(
    hardware: Hardware,
    precision: str,
    m: Any,
    n: Any,
    k: Any,
    batch: Any = 1,
    **options: Any,
) -> tuple[GemmTimes, np.ndarray]:
    """Time products whose A is quantised on the fly, as serving libraries do.

    Parameters
    ----------
    hardware, precision, m, n, k, batch, options
        See `gemm_times`.

    Returns
    -------
    products : GemmTimes
        The products alone.
    quantise_time : ndarray of float64, shape (shape,)
        The pass over A ahead of them [s]; A is in the cache if it fits there.

    Notes
    -----
    ``scale_launches_<precision>`` of the profile counts further small kernels that bring
    the scales into the layout that the matrix instruction wants.
    """
    from perfmodel.compute.stream import quantise_times

    products = gemm_times(hardware, precision, m, n, k, batch, **options)
    rows = np.asarray(m, np.float64) * np.asarray(batch, np.float64)
    rows, columns = np.broadcast_arrays(rows, np.asarray(k, np.float64))
    passes = quantise_times(hardware, precision, np.atleast_1d(rows), np.atleast_1d(columns))
    constant = hardware.lookup("gemm", precision=precision, library=LIBRARY_SUFFIX["serving"])
    launches = constant("scale_launches", 0.0)
    extra = launches * hardware.calibrated("stream", "launch_latency")
    return products, np.broadcast_to(passes.time + extra, products.time.shape)


TRAINING_LIBRARY = ("bf16", "fp16", "fp8")
"""Formats whose products are those of training's library: cuBLASLt in TensorRT-LLM, CUTLASS of
the same rate in vLLM and SGLang. First tokens behind prompts of 7,400 take 1.0 PFLOP of
Llama-3.1-70B in 1.16 s on an H200 in fp8 and in 0.59 s on a B200 (InferenceX, TensorRT-LLM),
which the slower kernels of the serving tables do not reach."""

CLOSE = 0.95
"""Weights of that share of an operand's bytes count as just as wide: scales apart."""


def weight_only_times(
    hardware: Hardware,
    precision: str,
    weight_bytes: float,
    m: Column,
    n: Column,
    k: Column,
    batch: Column,
    *,
    resident: float = 0.0,
) -> Floats:
    """Time products ``C[m,n] = A[m,k] B[k,n]`` of served models, one per entry.

    Parameters
    ----------
    hardware : Hardware
    precision : str
        Of the products (`perfmodel.compute.gemm.gemm_device`).
    weight_bytes : float
        One stored number of B, its part of a scale included [B].
    m, n, k, batch : ndarray, shape (shape,)
        Sizes, at least 1.
    resident : float
        See `perfmodel.compute.gemm.gemm_device`.

    Returns
    -------
    ndarray, shape (shape,)
        [s].

    Notes
    -----
    Narrower weights become operands inside the kernel (Marlin, arXiv:2408.11743, section 3: at
    no cost beside the loads). Their product takes as long as one whose B is as wide as A, less
    the time of the bytes that are not there, and no less than if memory were free; they pass
    through the cache as they lie. Prompts are bursts between passes that wait for memory: the
    device is not at its power limit for minutes (`gemm_device`, ``steady``).
    """
    from perfmodel.kernels.matmul import at_once
    from perfmodel.kernels.matmul.tiles import PANELS, SPLITS, TILES
    from perfmodel.kernels.work import kernel_work

    library = "training" if precision in TRAINING_LIBRARY else "serving"
    device = gemm_device(hardware, precision, steady=False, library=library, resident=resident)
    tiles = PANELS if device.array_side > 0.0 else TILES
    output, adds = np.full(m.size, 2.0), np.zeros(m.size, np.bool_)
    narrow = weight_bytes < CLOSE * device.operand_bytes
    with kernel_work(gemms=m.size * (1 + narrow)):
        wide = at_once.gemm_times(m, n, k, batch, output, adds, device, tiles, SPLITS)[0]
        if not narrow:
            return wide
        ratio = device.operand_bytes / weight_bytes
        free = device._replace(
            memory_bandwidth=np.inf,
            l2_bandwidth=device.l2_bandwidth * ratio,
            unit_bandwidth=device.unit_bandwidth * ratio,
        )
        least = at_once.gemm_times(m, n, k, batch, output, adds, free, tiles, SPLITS)[0]
    absent = n * k * batch * (device.operand_bytes - weight_bytes)
    return np.maximum(wide - absent / device.memory_bandwidth, least)
