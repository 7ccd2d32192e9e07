"""Times of streaming operations on a hardware profile; see `perfmodel.kernels.stream`.

Quantisation of activations is streaming work, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import broadcast
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.precisions import FORMATS, OPERANDS
from perfmodel.compute.stream_catalogue import StreamWork
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.hwprofiles.hardware import once

if TYPE_CHECKING:
    from perfmodel.kernels.stream import StreamDevice


def check_reuse(kernel: str, resident: float, **copies: float) -> None:
    """Refuse what cannot be said of data in a cache.

    Parameters
    ----------
    kernel : str
        Whose data, for the message.
    resident : float
        All bytes that are in use from call to call, other kernels' too [B]; 0: not stated.
    **copies : float
        Calls until the same data come up again, by name; 0: they come from memory.

    Raises
    ------
    DataError
        A number below these, NaN, or infinite.
    """
    for name, count in copies.items():
        if not (1.0 <= count < math.inf or count == 0.0):
            raise DataError(
                f"{name} of {kernel} is at least 1, or 0 for data that come from memory, "
                f"not {count!r}"
            )
    if not 0.0 <= resident < math.inf:
        raise DataError(
            f"resident of {kernel} is a number of bytes, or 0 where none is stated, "
            f"not {resident!r}"
        )


class Quantisation(NamedTuple):
    """How activations become a low-precision operand.

    Attributes
    ----------
    element_bytes : float
        One quantised element [B].
    group : int
        Elements that share a scale; 0: a row, -1: the whole tensor.
    scale_bytes : float
        One scale [B].
    """

    element_bytes: float
    group: int
    scale_bytes: float


QUANTISATIONS: Mapping[str, Quantisation] = {
    "fp8_static": Quantisation(1.0, -1, 0.0),  # the scale is known beforehand
    "fp8_tensor": Quantisation(1.0, -1, 4.0),  # two launches: maximum, then cast
    "fp8_token": Quantisation(1.0, 0, 4.0),  # one scale per row
    "int8_token": Quantisation(1.0, 0, 4.0),
    **{
        name: Quantisation(item.element_bytes, item.group, item.scale_bytes)
        for name, item in FORMATS.items()
        if item.group and name in OPERANDS
    },
}

PRODUCT_QUANTISATION: Mapping[str, str] = {
    "fp8": "fp8_token",
    "int8": "int8_token",
    **{name: name for name in OPERANDS if FORMATS[name].group},
}
"""Scheme with which a serving library quantises the input of a product of a precision
(SGLang, vLLM: per token for fp8 and int8)."""


def quantise(
    scheme: str, rows: ArrayLike, columns: ArrayLike, source_bytes: float = 2.0
) -> StreamWork:
    """Return the work of quantising a (rows x columns) tensor.

    ===========  =====  ========  =====================================  ========
    scheme       reads  re-reads  writes per element                     launches
    ===========  =====  ========  =====================================  ========
    fp8_static   s      0         1                                      1
    fp8_tensor   s      s         1                                      2
    fp8_token    s      s         1 + 4 / C                              1
    int8_token   s      s         1 + 4 / C                              1
    fp8_block    s      0         1 + 4 / 128                            1
    mxfp8        s      0         1 + 1 / 32                             1
    nvfp4        s      0         1 / 2 + 1 / 16                         1
    mxfp4        s      0         1 / 2 + 1 / 32                         1
    ===========  =====  ========  =====================================  ========

    A group's maximum is found in registers; that of a row or tensor needs a second
    read (SGLang ``per_token_quant_fp8.cu``: a block walks a row twice, and one warp does
    where there are many rows).

    Parameters
    ----------
    scheme : str
        One of `QUANTISATIONS`.
    rows, columns : array_like
        Shape.
    source_bytes : float
        Bytes of one source element s [B].

    Raises
    ------
    DataError
        Unknown scheme.
    """
    if scheme not in QUANTISATIONS:
        raise DataError(f"unknown quantisation '{scheme}'{did_you_mean(scheme, QUANTISATIONS)}")
    kind = QUANTISATIONS[scheme]
    r, c = np.asarray(rows, np.float64), np.asarray(columns, np.float64)
    elements = r * c
    by_row, by_tensor = kind.group == 0, kind.group == -1
    scales = r if by_row else (1.0 if by_tensor else elements / max(kind.group, 1))
    dynamic = kind.scale_bytes > 0.0
    return StreamWork(
        bytes_read=elements * source_bytes,
        bytes_written=elements * kind.element_bytes + scales * kind.scale_bytes,
        flops=elements * (5.0 if dynamic else 3.0),
        launches=2.0 if by_tensor and dynamic else 1.0,
        bytes_reread=elements * source_bytes * (dynamic and kind.group <= 0),
        rows=r if by_row else 0.0,
        row_bytes=c * source_bytes if by_row else 0.0,
        threads=np.where(r >= MANY_ROWS, 32.0, 256.0) if by_row else 256.0,
        walks=2.0 if by_row else 1.0,
        reductions=1.0 if by_row else 0.0,
    )


MANY_ROWS = 2112.0
"""Rows from which on a warp instead of a block walks each row: 16 per compute unit of
132 (SGLang ``per_token_quant_fp8.cu``)."""

CONVERSION_OPERATIONS = 70.0
"""Operations per element of PyTorch's kernels that mix number formats: they load element
by element and look up the format at run time. From the two such kernels of SGLang's
quantisation with a known scale (aiconfigurator 095f58a), fitted to H100 and B200."""


def quantise_unfused(elements: ArrayLike, source_bytes: float = 2.0) -> tuple[StreamWork, ...]:
    """Return the four PyTorch kernels of ``(x / scale).clamp(...).to(fp8)`` and a copy.

    The scale is an fp32 tensor, so that the quotient is one: s read and 4 written, 4 and
    4, 4 and 1, 1 and 1 bytes per element.
    """
    n = np.asarray(elements, np.float64)
    return (
        StreamWork(n * source_bytes, n * 4.0, n * CONVERSION_OPERATIONS),
        StreamWork(n * 4.0, n * 4.0, n * 2.0),
        StreamWork(n * 4.0, n * 1.0, n * CONVERSION_OPERATIONS),
        StreamWork(n * 1.0, n * 1.0),
    )


STREAM_BOUNDS = ("memory", "cache", "compute", "latency")
"""Meaning of the codes in `StreamTimes.bound`."""

DEFAULT_CACHED = 0.5
"""Inside a step, what an operation reads was often just written, and what it
writes need not reach the memory: half of the bytes of small tensors hit. An
assumption between cold (0) and replayed (1) kernels."""


DISPATCHES = ("graph", "eager", "compiled")
"""How kernels reach the device: replayed from a graph or queued ahead; one by one from
Python, waited for (``calibration.stream.eager_latency``); or so through the guards of a
just-in-time compiler (``compiled_latency``)."""

UNIT_BYTES_IN_FLIGHT = 65536.0
"""Bytes that the 2048 threads of a compute unit have on the way, two 16-byte loads each."""


BLOCK_THREADS = 64.0
"""Threads from which on a row has a block of its own; warps of shorter ones share one."""

PASSING = 0.75
"""Share of the rows in flight that comes between two reads of a row: blocks are at
different places of theirs. From softmax of V100 (NeuSight 6945927), whose second reads
miss from rows of 20 KB on."""


class StreamTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    bound: np.ndarray  # uint8, index into STREAM_BOUNDS


def cached_share(hardware: Hardware, size: ArrayLike, copies: ArrayLike = 1.0) -> np.ndarray:
    """Return the share of an operation's bytes that the cache holds when they come up again.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    size : array_like
        Bytes read and written by one call [B].
    copies : array_like
        Calls until the same tensors come up again, >= 1.

    Returns
    -------
    ndarray of float64
        Relative to tensors that come up at every call: what `stream_times` calls ``cached``.
    """
    from perfmodel.kernels.stream import CACHE_SHARPNESS

    fill = np.asarray(size, np.float64) / max(hardware.device.memory.l2_capacity, 1.0)
    held = 1.0 - np.minimum(fill, 1.0) ** CACHE_SHARPNESS
    rotating = 1.0 - np.minimum(fill * np.asarray(copies, np.float64), 1.0) ** CACHE_SHARPNESS
    return rotating / np.where(held > 0.0, held, 1.0)


@once
def stream_device(hardware: Hardware) -> StreamDevice:
    """Return what the streaming kernels need to know of a device.

    Parameters
    ----------
    hardware : Hardware
        Profile with a ``[calibration.stream]`` table.

    Returns
    -------
    StreamDevice
        Sustained rates.

    Raises
    ------
    HardwareError
        A calibration key is missing.
    """
    from perfmodel.kernels.stream import StreamDevice

    memory = hardware.device.memory
    bandwidth = memory.bandwidth * hardware.calibrated("stream", "memory_efficiency")
    cache_bandwidth = memory.l2_bandwidth * hardware.calibrated("stream", "cache_efficiency")
    vector_rate = hardware.device.vector_flops * hardware.calibrated("stream", "vector_efficiency")
    return StreamDevice(
        bandwidth=float(bandwidth),
        cache_bandwidth=float(max(bandwidth, cache_bandwidth)),
        cache_capacity=float(memory.l2_capacity),
        vector_rate=float(vector_rate),
        launch_latency=float(hardware.calibrated("stream", "launch_latency")),
        round_trip_latency=float(hardware.calibrated("stream", "round_trip_latency")),
    )


def stream_times(
    hardware: Hardware | str,
    bytes_read: ArrayLike,
    bytes_written: ArrayLike,
    flops: ArrayLike = 0.0,
    launches: ArrayLike = 1.0,
    cached: ArrayLike = DEFAULT_CACHED,
    bytes_reread: ArrayLike = 0.0,
    reread_distance: ArrayLike = 0.0,
    chain: ArrayLike = 0.0,
) -> StreamTimes:
    """Return the times of streaming operations.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    bytes_read, bytes_written : array_like
        Traffic of each operation [B], >= 0.
    flops : array_like
        Operations on the general cores [FLOP], >= 0.
    launches : array_like
        Kernels that share the traffic evenly, >= 0; with 0 the operation is
        fused into a neighbour and costs nothing.
    cached : array_like
        Share of the bytes that the cache holds if the tensors fit, 0 to 1.
    bytes_reread : array_like
        Bytes that are read a second time [B].
    reread_distance : array_like
        Bytes touched between the two reads [B].
    chain : array_like
        Dependent steps that overlap with the traffic [s].

    Returns
    -------
    StreamTimes
        One row per broadcast operation; device time only, without the time
        that the host needs to launch.

    Raises
    ------
    DataError
        Shapes that don't broadcast, negative or not finite numbers.
    HardwareError
        The profile lacks a calibration key.
    """
    hardware = load_hardware(hardware)
    from perfmodel.kernels import stream as kernel
    from perfmodel.kernels.work import kernel_work

    given = {
        "bytes_read": bytes_read,
        "bytes_written": bytes_written,
        "flops": flops,
        "launches": launches,
        "cached": cached,
        "bytes_reread": bytes_reread,
        "reread_distance": reread_distance,
        "chain": chain,
    }
    columns = broadcast("stream_times", given)
    for name, column in columns.items():
        _check(name, column)
    device = stream_device(hardware)
    with kernel_work(streams=columns["flops"].size) as run:
        return StreamTimes(*run(kernel.stream_times)(device, *columns.values()))


def work_times(
    hardware: Hardware,
    work: StreamWork,
    cached: ArrayLike = DEFAULT_CACHED,
    dispatch: str = "graph",
) -> StreamTimes:
    """Return the times of operations of the catalogue (`perfmodel.compute.stream_catalogue`).

    Parameters
    ----------
    hardware : Hardware
        Profile.
    work : StreamWork
        What the operations move; numbers or columns that broadcast.
    cached : array_like
        Share of the bytes that the cache holds if the tensors fit, 0 to 1.
    dispatch : {"graph", "eager", "compiled"}
        Whether the host's time to issue an operation that is waited for counts.

    Returns
    -------
    StreamTimes

    Raises
    ------
    DataError
        Unknown dispatch, or numbers that are negative or not finite.
    HardwareError
        The profile lacks a calibration key.

    Notes
    -----
    Where blocks or warps walk rows, a compute unit holds ``2048 / threads`` of them. A
    row takes ``walks`` times its round trips of ``round_trip_latency``; rows beyond those
    in flight wait for a place (Little's law), all beside the traffic.
    ``reductions`` times a row's threads wait for ``reduction_latency``. The device starts
    a block per ``block_start``. Between two reads of a row, `PASSING` of what the rows in
    flight read and write passes through the cache.
    """
    from perfmodel.compute.stream_catalogue import UNIT_THREADS

    def constant(key: str) -> float:
        return hardware.calibrated("stream", key)

    if dispatch not in DISPATCHES:
        raise DataError(f"unknown dispatch '{dispatch}'{did_you_mean(dispatch, DISPATCHES)}")
    rows, row_bytes = np.asarray(work.rows, np.float64), np.asarray(work.row_bytes, np.float64)
    threads = np.asarray(work.threads, np.float64)
    trip = constant("round_trip_latency")
    places = float(hardware.device.compute_units) * UNIT_THREADS / threads
    turns = np.maximum(rows / places, 1.0)
    trips = np.ceil(row_bytes / (UNIT_BYTES_IN_FLIGHT * threads / UNIT_THREADS)) * work.walks
    stall = turns * work.reductions * constant("reduction_latency")
    starts = rows * np.minimum(threads / BLOCK_THREADS, 1.0) * constant("block_start")
    size = np.asarray(work.bytes_read, np.float64) + work.bytes_written
    passing = PASSING * size * np.minimum(places / np.maximum(rows, 1.0), 1.0)
    times = stream_times(
        hardware,
        work.bytes_read,
        work.bytes_written,
        work.flops + work.specials * constant("special_operations"),
        work.launches,
        cached,
        work.bytes_reread,
        np.where(rows > 0.0, passing, size),
        np.maximum(turns * trips * trip, starts),
    )
    issue = 0.0 if dispatch == "graph" else constant(f"{dispatch}_latency")
    return StreamTimes(times.time + stall + issue, times.bound)


def quantise_times(
    hardware: Hardware,
    scheme: str,
    rows: ArrayLike,
    columns: ArrayLike,
    cached: ArrayLike = 1.0,
) -> StreamTimes:
    """Return the times of quantising activations ahead of a matrix product.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    scheme : str
        One of `perfmodel.compute.stream.QUANTISATIONS`, or a precision of products
        (``fp8``, ``int8``), which takes the scheme of serving libraries: per token.
    rows, columns : array_like
        Shape of the activations, of 2 bytes each.
    cached : array_like
        Share of the bytes that the cache holds if the tensors fit; 1 for kernels that
        are replayed on the same tensors, 0 where other tensors pushed these out.

    Returns
    -------
    StreamTimes
        Device time of all launches of the quantisation.

    Raises
    ------
    DataError
        Unknown scheme, or sizes that are negative or not finite.
    """

    named = PRODUCT_QUANTISATION.get(scheme, scheme)
    return work_times(hardware, quantise(named, rows, columns), cached)


def _check(name: str, column: np.ndarray) -> None:
    """Refuse what is not finite, negative, or a share above 1."""
    limit = 1.0 if name == "cached" else np.inf
    wrong = ~np.isfinite(column) | (column < 0.0) | (column > limit)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = "0 to 1" if name == "cached" else "finite and not negative"
        raise DataError(f"stream_times: {name}[{row}] = {column[row]:g}; it must be {expected}")
