"""Grids of memory-bound operations, mixture-of-experts layers and grouped products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.columns import Floats
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.grouped_gemm import GROUPED_BOUNDS, even_loads, grouped_gemm_times
from perfmodel.compute.moe import MOE_BOUNDS, moe_times
from perfmodel.compute.routing import parse_routing
from perfmodel.compute.stream import STREAM_BOUNDS, stream_times, work_times
from perfmodel.compute.stream_catalogue import (
    ELEMENTWISE,
    StreamWork,
    cross_entropy,
    elementwise,
    embedding,
    norm,
    softmax,
)
from perfmodel.compute.stream_quantise import QUANTISATIONS, quantise
from perfmodel.hwprofiles import Hardware
from perfmodel.sweeps.grid_dataset import Axis
from perfmodel.sweeps.grids import Columns, evaluate_grid, result_columns

if TYPE_CHECKING:
    import xarray as xr

Work = Callable[[Floats, Floats, float], StreamWork]
"""(rows, columns, bytes of an element) -> what the operation moves."""


def _elementwise(name: str) -> Work:
    return lambda r, c, s: elementwise(name, r * c, s)


def _quantise(name: str) -> Work:
    return lambda r, c, s: quantise(name, r, c, s)


STREAM_KERNELS: Mapping[str, Work] = {
    **{name: _elementwise(name) for name in ELEMENTWISE},
    "rms_norm": norm,
    "rms_norm_residual": lambda r, c, s: norm(r, c, s, residual=True),
    "rms_norm_backward": lambda r, c, s: norm(r, c, s, backward=True),
    "layer_norm": lambda r, c, s: norm(r, c, s, mean=True),
    "layer_norm_backward": lambda r, c, s: norm(r, c, s, mean=True, backward=True),
    "softmax": softmax,
    "softmax_backward": lambda r, c, s: softmax(r, c, s, backward=True),
    "cross_entropy": lambda r, c, s: cross_entropy(r, c, element_bytes=s),
    "cross_entropy_backward": lambda r, c, s: cross_entropy(r, c, backward=True, element_bytes=s),
    "embedding": embedding,
    "embedding_backward": lambda r, c, s: embedding(r, c, s, backward=True),
    **{f"quantise_{name}": _quantise(name) for name in QUANTISATIONS},
}
"""Operations on a tensor of rows x columns elements."""


def stream_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    cached: float = 0.5,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time memory-bound operations on tensors of every combination of sizes.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``operation`` (of `STREAM_KERNELS`), ``dtype`` (of `STREAM_PRECISIONS`), ``rows``,
        ``columns``.
    cached : float
        Share of the bytes that the cache holds if the tensors fit, 0 to 1.
    swept : mapping of str to sequence of float, optional

    Returns
    -------
    xarray.Dataset
        See `perfmodel.sweeps.grid_dataset`.

    Raises
    ------
    DataError
        Unknown operation, sizes out of range, or too many combinations.
    """
    for name in axes["operation"]:
        if name not in STREAM_KERNELS:
            raise DataError(f"unknown operation '{name}'{did_you_mean(name, STREAM_KERNELS)}")

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        operation, dtype = same
        sizes = (part["rows"].astype(float), part["columns"].astype(float))
        work = STREAM_KERNELS[operation](*sizes, OPERAND_BYTES[dtype])
        found = work_times(hardware, work, cached)
        count = found.time.size
        return {
            "time": found.time,
            "flops": np.broadcast_to(work.flops, count),
            "memory_traffic": np.broadcast_to(work.bytes_read + work.bytes_written, count),
            "bound": found.bound,
        }

    grid = [
        Axis("operation", axes["operation"], "1", "what is done"),
        Axis("dtype", axes["dtype"], "1", "number format of the tensor"),
        Axis("rows", axes["rows"], "1", "rows of the tensor (tokens)"),
        Axis("columns", axes["columns"], "1", "columns of the tensor (width)"),
    ]
    return evaluate_grid(
        "stream", rows, grid, ["operation", "dtype"], evaluate, STREAM_BOUNDS, swept
    )


def bytes_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    cached: float = 0.5,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time operations that are known by their bytes.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``bytes_read``, ``bytes_written``.
    cached : float
        Share of the bytes that the cache holds if the tensors fit, 0 to 1.
    swept : mapping of str to sequence of float, optional

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    DataError
        Sizes out of range, or too many combinations.
    """

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        read, written = part["bytes_read"].astype(float), part["bytes_written"].astype(float)
        found = stream_times(hardware, read, written, cached=cached)
        return {"time": found.time, "memory_traffic": read + written, "bound": found.bound}

    grid = [
        Axis("bytes_read", axes["bytes_read"], "B", "bytes read"),
        Axis("bytes_written", axes["bytes_written"], "B", "bytes written"),
    ]
    return evaluate_grid("stream", rows, grid, [], evaluate, STREAM_BOUNDS, swept)


def moe_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    gated: bool = True,
    kernel: str | None = None,
    seed: int = 0,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time mixture-of-experts layers on their busiest rank.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``routing`` (as `perfmodel.compute.routing.parse_routing` reads it), ``precision``,
        ``tokens``, ``hidden``, ``intermediate``, ``experts``, ``top_k``,
        ``tensor_parallel``, ``expert_parallel``.
    gated : bool
        Three matrices (gate, up, down) or two.
    kernel : str, optional
        How a library runs the layer, one of `perfmodel.compute.moe_device.KERNELS`; default:
        what serving libraries run on the device.
    seed : int
        Of random routings.
    swept : mapping of str to sequence of float, optional

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    DataError
        Unknown routing, sizes out of range, or too many combinations.
    HardwareError
        No device has any of the precisions.
    """
    sizes = {
        "tokens": "tokens of all expert-parallel ranks together",
        "hidden": "width of a token",
        "intermediate": "width of one whole expert",
        "experts": "experts of the layer",
        "top_k": "experts per token",
        "tensor_parallel": "ranks that share each expert's width",
        "expert_parallel": "ranks that share the experts",
    }
    routings = {text: parse_routing(text, seed) for text in axes["routing"]}

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        routing, precision = same
        found = moe_times(
            hardware,
            precision,
            part["tokens"],
            part["hidden"],
            part["intermediate"],
            part["experts"],
            part["top_k"],
            gated=gated,
            tensor_parallel=part["tensor_parallel"],
            expert_parallel=part["expert_parallel"],
            routing=routings[routing],
            kernel=kernel,
        )
        return result_columns(found, "active_experts", "largest_load", "tile_m", "tile_n")

    grid = [
        Axis("routing", axes["routing"], "1", "distribution of tokens over experts"),
        Axis("precision", axes["precision"], "1", "number format of the products"),
        *(Axis(name, axes[name], "1", text) for name, text in sizes.items()),
    ]
    return evaluate_grid("moe", rows, grid, ["routing", "precision"], evaluate, MOE_BOUNDS, swept)


def grouped_gemm_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time grouped products, all groups of a product with equal rows.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``precision``, ``launches`` (``one``, or ``each`` group its own), ``groups``, ``m``
        (rows of each group), ``n``, ``k``.
    swept : mapping of str to sequence of float, optional

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    DataError
        Sizes out of range, or too many combinations.
    HardwareError
        No device has any of the precisions.
    """

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        precision, launches = same
        loads = even_loads(part["groups"], part["m"])
        found = grouped_gemm_times(
            hardware, precision, loads, part["n"], part["k"], launches=launches
        )
        return result_columns(found)

    grid = [
        Axis("precision", axes["precision"], "1", "number format of A and B"),
        Axis("launches", axes["launches"], "1", "one launch, or one of each group"),
        Axis("groups", axes["groups"], "1", "groups, each with its own B"),
        Axis("m", axes["m"], "1", "rows of A and C of each group"),
        Axis("n", axes["n"], "1", "columns of B and C"),
        Axis("k", axes["k"], "1", "inner size"),
    ]
    apart = ["precision", "launches"]
    return evaluate_grid("grouped gemm", rows, grid, apart, evaluate, GROUPED_BOUNDS, swept)
