"""Grids of kernels: every combination of the axes, one call per device and format.

Here are matrix products and attention; `perfmodel.sweeps.grids_other` has the rest. Each
function takes a mapping of axes to lists of values and returns the dataset of
`perfmodel.sweeps.grid_dataset`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.precisions import QUANTISED
from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times
from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times, quantised_gemm_times
from perfmodel.hwprofiles import Hardware
from perfmodel.sweeps.grid_dataset import Axis, cartesian, kernel_dataset

if TYPE_CHECKING:
    import xarray as xr

Columns = Mapping[str, NDArray[Any]]
Evaluate = Callable[[Hardware, Sequence[Any], Columns], Mapping[str, NDArray[Any]]]
"""(device, what is the same for all rows of a call, their columns) -> result columns."""


RESULTS = ("time", "flops", "memory_traffic", "bound")
"""Columns that the times of every kernel have."""


def result_columns(found: object, *more: str) -> dict[str, NDArray[Any]]:
    """Return the columns of a kernel's times that `RESULTS` and `more` name."""
    return {name: getattr(found, name) for name in (*RESULTS, *more)}


def evaluate_grid(
    kernel: str,
    rows: Sequence[Hardware],
    axes: Sequence[Axis],
    apart: Sequence[str],
    evaluate: Evaluate,
    bounds: Sequence[str],
    swept: Mapping[str, Sequence[float]] | None,
) -> xr.Dataset:
    """Evaluate a grid, with one call per device and combination of the axes in `apart`.

    Parameters
    ----------
    kernel : str
        For the title.
    rows : sequence of Hardware
    axes : sequence of Axis
    apart : sequence of str
        Axes that a call has one value of.
    evaluate : callable
        See `Evaluate`; a `HardwareError` means that the device has no such kernel.
    bounds : sequence of str
        What the codes of ``bound`` mean.
    swept : mapping of str to sequence of float, optional
        Values of swept paths of the profile, one per row of hardware.

    Raises
    ------
    HardwareError
        No device has any of the kernels.
    """
    columns = cartesian(axes, len(rows))
    size = next(iter(columns.values())).size
    results: dict[str, NDArray[Any]] = {}
    codes = np.zeros(size, np.int64)
    for name in apart:
        _, inverse = np.unique(columns[name], return_inverse=True)
        codes = codes * (int(inverse.max()) + 1) + inverse
    calls = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    refusals: list[HardwareError] = []
    for index, hardware in enumerate(rows):
        for places in calls:
            same = [columns[name][places[0]].item() for name in apart]
            part = {name: column[places] for name, column in columns.items()}
            try:
                found = evaluate(hardware, same, part)
            except HardwareError as error:
                refusals.append(error)
                continue
            for name, values in found.items():
                if name not in results:
                    empty = -1 if name == "bound" else 0 if values.dtype.kind in "iu" else np.nan
                    results[name] = np.full((len(rows), size), empty)
                results[name][index, places] = values
    if not results:
        raise refusals[0]
    return kernel_dataset(kernel, rows, axes, columns, results, bounds, swept)


def gemm_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    quantise: bool = True,
    output_bytes: float = 2.0,
    steady: bool = False,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time every combination of precisions and sizes of matrix products.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``precision``, ``m``, ``n``, ``k``, ``batch``.
    quantise : bool
        Whether the time of a narrow precision holds the pass that quantises A.
    output_bytes : float
        One element of C [B].
    steady : bool
        A load that lasts minutes, on a warm device, in place of a short benchmark.
    swept : mapping of str to sequence of float, optional

    Returns
    -------
    xarray.Dataset
        See `perfmodel.sweeps.grid_dataset`.

    Raises
    ------
    DataError
        Sizes out of range, or too many combinations.
    HardwareError
        No device has any of the precisions.
    """
    names = {
        "precision": ("number format of A and B", "1"),
        "m": ("rows of A and C", "1"),
        "n": ("columns of B and C", "1"),
        "k": ("inner size", "1"),
        "batch": ("independent products", "1"),
    }

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        precision = str(same[0])
        m, n, k, batch = (part[name] for name in ("m", "n", "k", "batch"))
        options = {"output_bytes": output_bytes, "steady": steady}
        if quantise and precision in QUANTISED:
            found, passes = quantised_gemm_times(hardware, precision, m, n, k, batch, **options)
        else:
            found = gemm_times(hardware, precision, m, n, k, batch, output_bytes, steady=steady)
            passes = np.zeros(found.time.size)
        columns = result_columns(found, "tile_m", "tile_n", "split_k")
        columns["time"] = found.time + passes
        return columns | ({"quantise_time": passes} if quantise else {})

    grid = [Axis(name, axes[name], units, text) for name, (text, units) in names.items()]
    return evaluate_grid("gemm", rows, grid, ["precision"], evaluate, GEMM_BOUNDS, swept)


def attention_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    causal: bool = True,
    latent: bool = False,
    cached: bool = False,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> xr.Dataset:
    """Time every combination of attention calls.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``phase``, ``precision``, ``kv_precision`` (``same``: as the products),
        ``batch``, ``heads``, ``kv_heads`` (0: one per head), ``head_dim``,
        ``head_dim_v`` (0: as ``head_dim``), ``q_len`` (0: 1 for decode, else all of
        ``kv_len``), ``kv_len`` (0: as ``q_len``), ``window``.
    causal : bool
        Whether later keys are masked.
    latent : bool
        Values are the first elements of the keys (absorbed latent attention).
    cached : bool
        The last cache holds the data of the same call.
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
    names = {
        "phase": ("forward, whole backward, or decode with a cache", "1"),
        "precision": ("number format of the matrix products", "1"),
        "kv_precision": ("number format of stored keys and values", "1"),
        "batch": ("sequences", "1"),
        "heads": ("query heads on the device", "1"),
        "kv_heads": ("key and value heads on the device; 0: one per query head", "1"),
        "head_dim": ("width of a query and key", "1"),
        "head_dim_v": ("width of a value; 0: as that of a query", "1"),
        "q_len": ("queries of a sequence; 0: 1 for decode, else all keys", "1"),
        "kv_len": ("keys of a sequence, cached ones included; 0: as many as queries", "1"),
        "window": ("keys that a query sees, its own included; 0: all", "1"),
    }

    def evaluate(hardware: Hardware, same: Sequence[Any], part: Columns) -> Columns:
        phase, precision, stored = same
        keys = np.where(part["kv_len"] > 0, part["kv_len"], part["q_len"])
        if (keys == 0).any():
            raise DataError("neither q_len nor kv_len is given; one of them must be at least 1")
        queries = np.where(part["q_len"] > 0, part["q_len"], keys)
        if phase == "decode":
            queries = np.maximum(part["q_len"], 1)

        def everywhere(flag: bool) -> NDArray[np.bool_]:
            return np.full(queries.size, flag)

        found = attention_times(
            hardware,
            str(precision),
            batch=part["batch"],
            query_length=queries,
            key_length=keys,
            heads=part["heads"],
            key_value_heads=np.where(part["kv_heads"] > 0, part["kv_heads"], part["heads"]),
            head_dim_qk=part["head_dim"],
            head_dim_v=np.where(part["head_dim_v"] > 0, part["head_dim_v"], part["head_dim"]),
            window=part["window"],
            causal=everywhere(causal),
            latent=everywhere(latent),
            cached=everywhere(cached),
            prefill=everywhere(phase == "forward"),
            backward=everywhere(phase == "backward"),
            kv_precision=None if stored == "same" else str(stored),
        )
        return result_columns(found)

    grid = [Axis(name, axes[name], units, text) for name, (text, units) in names.items()]
    apart = ["phase", "precision", "kv_precision"]
    return evaluate_grid("attention", rows, grid, apart, evaluate, ATTENTION_BOUNDS, swept)
