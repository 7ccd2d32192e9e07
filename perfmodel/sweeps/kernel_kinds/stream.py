"""Memory-bound operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, STREAM_PRECISIONS
from perfmodel.sweeps.kernel_kinds.kind import Grid, GridAxis, Kernel, Setting, Values, check_names

if TYPE_CHECKING:
    from perfmodel.compute.stream_catalogue import StreamWork
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated

    Work = Callable[[Any, Any, float], StreamWork]


def stream_kernels() -> Mapping[str, Work]:
    """Return the operations on a tensor: (rows, columns, bytes of an element) -> its work."""
    from perfmodel.compute.stream import QUANTISATIONS, quantise
    from perfmodel.compute.stream_catalogue import (
        ELEMENTWISE,
        cross_entropy,
        elementwise,
        embedding,
        norm,
        softmax,
    )

    def each(name: str) -> Work:
        return lambda r, c, s: elementwise(name, r * c, s)

    def narrowed(name: str) -> Work:
        return lambda r, c, s: quantise(name, r, c, s)

    return {
        **{name: each(name) for name in ELEMENTWISE},
        "rms_norm": norm,
        "rms_norm_residual": lambda r, c, s: norm(r, c, s, residual=True),
        "rms_norm_backward": lambda r, c, s: norm(r, c, s, backward=True),
        "layer_norm": lambda r, c, s: norm(r, c, s, mean=True),
        "layer_norm_backward": lambda r, c, s: norm(r, c, s, mean=True, backward=True),
        "softmax": softmax,
        "softmax_backward": lambda r, c, s: softmax(r, c, s, backward=True),
        "cross_entropy": lambda r, c, s: cross_entropy(r, c, element_bytes=s),
        "cross_entropy_backward": lambda r, c, s: cross_entropy(
            r, c, backward=True, element_bytes=s
        ),
        "embedding": embedding,
        "embedding_backward": lambda r, c, s: embedding(r, c, s, backward=True),
        **{f"quantise_{name}": narrowed(name) for name in QUANTISATIONS},
    }


def _stream(
    hardware: Hardware, part: Columns, operation: str, dtype: str, cached: float
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.stream import STREAM_BOUNDS, work_times

    known = stream_kernels()
    check_names([operation], known, "unknown operation")
    sizes = (part["rows"].astype(float), part["columns"].astype(float))
    work = known[operation](*sizes, OPERAND_BYTES[dtype])
    found = work_times(hardware, work, cached)
    count = found.time.size
    return {
        "time": found.time,
        "flops": np.broadcast_to(work.flops, count),
        "memory_traffic": np.broadcast_to(work.bytes_read + work.bytes_written, count),
        "bound": found.bound,
    }, STREAM_BOUNDS


def _bytes(hardware: Hardware, part: Columns, cached: float) -> Evaluated:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_times

    read, written = part["bytes_read"].astype(float), part["bytes_written"].astype(float)
    found = stream_times(hardware, read, written, cached=cached)
    columns = {"time": found.time, "memory_traffic": read + written, "bound": found.bound}
    return columns, STREAM_BOUNDS


def _choose_stream(axes: Values) -> Grid:
    moved = axes["bytes_read"] != [0] or axes["bytes_written"] != [0]
    if moved == bool(axes["operation"]):
        raise DataError("name either an OPERATION, or --bytes-read and --bytes-written")
    if moved:
        return Grid("stream", (), ("bytes_read", "bytes_written"), _bytes)
    return Grid("stream", ("operation", "dtype"), ("rows", "columns"), _stream)


STREAM = Kernel(
    "stream",
    "Memory-bound operations.",
    (
        GridAxis("operation", "what is done", default="", words=True, option="-"),
        GridAxis("rows", "rows of the tensor (tokens)", default=4096),
        GridAxis("columns", "columns of the tensor (width)", default=4096),
        GridAxis(
            "dtype",
            "number format of the tensor",
            "Number formats of the tensor",
            "bf16",
            STREAM_PRECISIONS,
        ),
        GridAxis("bytes_read", "bytes read", "In place of OPERATION: bytes read", 0, units="B"),
        GridAxis(
            "bytes_written", "bytes written", "In place of OPERATION: bytes written", 0, units="B"
        ),
    ),
    (
        Setting(
            "cached",
            "Share of the bytes that the cache holds if the tensors fit: 1 for a kernel that "
            "runs again and again on the same tensors, 0 after others pushed these out.",
            0.5,
            least=0.0,
            most=1.0,
            metavar="SHARE",
        ),
    ),
    _choose_stream,
)
