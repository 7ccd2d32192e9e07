"""Grids of kernels as datasets: axes, labels, rates, round trip through netCDF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base import memory
from perfmodel.base.errors import DataError, HardwareError
from perfmodel.base.precisions import STREAM_PRECISIONS
from perfmodel.base.table import Axis, cartesian
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.trust import KERNELS
from perfmodel.store.files import save_results
from perfmodel.store.netcdf import read_netcdf
from perfmodel.store.results import TRUST
from perfmodel.sweeps.grid_dataset import KERNEL_VARIABLES, kernel_rows
from perfmodel.sweeps.grids import kernel_grid
from perfmodel.sweeps.kernel_kinds.evaluations import stream_kernels
from tests.data import DOCS

GEMM = {"precision": ["bf16"], "m": [1, 4096], "n": [4096, 8192], "k": [4096], "batch": [1]}
ATTENTION = {
    "phase": ["forward"],
    "precision": ["bf16"],
    "kv_precision": ["same"],
    "batch": [2],
    "heads": [32],
    "kv_heads": [8],
    "head_dim": [128],
    "head_dim_v": [0],
    "q_len": [0],
    "kv_len": [4096],
    "window": [0],
}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_cartesian_is_the_product_in_the_order_of_the_axes(sizes: list[int]) -> None:
    import itertools

    axes = [Axis(f"a{i}", list(range(size)), "1", "") for i, size in enumerate(sizes)]
    columns = cartesian(axes)
    expected = list(itertools.product(*(axis.values for axis in axes)))
    assert list(zip(*(columns[axis.name].tolist() for axis in axes), strict=True)) == expected


def test_too_large_grids_are_refused() -> None:
    axes = [Axis(name, list(range(1000)), "1", "") for name in "abc"]
    with pytest.raises(DataError, match="1,000,000,000 kernels on 2 rows"):
        cartesian(axes, devices=2)


def test_grid_equals_single_calls(h100: Hardware, a100: Hardware) -> None:
    found = kernel_grid("gemm", [h100, a100], GEMM, quantise=False)
    assert dict(found.sizes) == {"hardware": 2, "shape": 4, "kernel_class": len(KERNELS)}
    for i, hardware in enumerate((h100, a100)):
        for j in range(4):
            sizes = [int(found[name].values[j]) for name in ("m", "n", "k")]
            alone = gemm_times(hardware, "bf16", *sizes)
            assert float(found["time"].values[i, j]) == alone.time[0]
            assert int(found["tile_m"].values[i, j]) == alone.tile_m[0]
    assert found["hardware"].values.tolist() == ["dgx-h100", "dgx-a100"]


def test_rates_follow_from_time_and_work(h100: Hardware) -> None:
    found = kernel_grid("gemm", [h100], GEMM)
    flops = 2.0 * found["m"].values * found["n"].values * found["k"].values
    assert found["flops"].values[0] == pytest.approx(flops)
    rate = found["flops_per_second"]
    assert rate.values == pytest.approx(found["flops"].values / found["time"].values)
    assert found["peak_share"].values == pytest.approx(rate.values / h100.device.peak("bf16"))
    assert (found["peak_share"].values <= 1.0).all()
    assert found["bandwidth_share"].values == pytest.approx(
        found["bytes_per_second"].values / h100.device.memory.bandwidth
    )


def test_quantisation_is_a_part_of_the_time(h100: Hardware) -> None:
    axes = GEMM | {"precision": ["bf16", "fp8"]}
    with_pass, alone = (kernel_grid("gemm", [h100], axes, quantise=flag) for flag in (True, False))
    extra = with_pass["quantise_time"].values
    assert with_pass["time"].values == pytest.approx(alone["time"].values + extra)
    narrow = with_pass["precision"].values == "fp8"
    assert (extra[:, narrow] > 0.0).all()
    assert (extra[:, ~narrow] == 0.0).all()
    assert "quantise_time" not in alone


def test_a_missing_precision_is_unsupported_not_an_error(h100: Hardware, a100: Hardware) -> None:
    found = kernel_grid("gemm", [a100, h100], GEMM | {"precision": ["fp8"]})
    rows = kernel_rows(found)
    assert [row["bound"] == "unsupported" for row in rows] == [True] * 4 + [False] * 4
    assert np.isnan(found["time"].values[0]).all()
    with pytest.raises(HardwareError, match="no matrix rate for precision 'fp8'"):
        kernel_grid("gemm", [a100], GEMM | {"precision": ["fp8"]})


def test_every_variable_has_units_and_a_long_name(h100: Hardware) -> None:
    grids = [
        kernel_grid("gemm", [h100], GEMM),
        kernel_grid("attention", [h100], ATTENTION),
        kernel_grid("stream", [h100], {"bytes_read": [10**6], "bytes_written": [0]}),
    ]
    for found in grids:
        assert found.attrs["Conventions"].startswith("CF-")
        assert "dgx-h100" in json.loads(found.attrs["provenance"])["hardware"]
        for name, variable in found.variables.items():
            assert variable.attrs["units"], name
            assert variable.attrs["long_name"], name
        for name in {*found.data_vars} - {TRUST}:
            assert found[name].attrs["units"] == KERNEL_VARIABLES[str(name)].units


def test_datasets_read_back_as_they_were_written(h100: Hardware, tmp_path: Path) -> None:
    rows = [h100.with_values({"device.tdp": value}) for value in (500.0, 700.0)]
    found = kernel_grid("gemm", rows, GEMM, swept={"device.tdp": [500.0, 700.0]})
    path = tmp_path / "gemm.nc"
    save_results(found, path)
    again = read_netcdf(path)
    xr.testing.assert_identical(found.to_xarray(), again.to_xarray())
    assert again["bound"].labels == found["bound"].labels
    assert found["device.tdp"].attrs["units"] == "W"
    assert found["hardware"].values.tolist()[0] == "dgx-h100[device.tdp=500]"


def test_rows_are_plain_and_in_order(h100: Hardware, a100: Hardware) -> None:
    found = kernel_grid("gemm", [h100, a100], GEMM)
    rows = kernel_rows(found)
    assert json.loads(json.dumps(rows)) == rows
    assert [(row["hardware"], row["m"], row["n"]) for row in rows[:5]] == [
        ("dgx-h100", 1, 4096),
        ("dgx-h100", 1, 8192),
        ("dgx-h100", 4096, 4096),
        ("dgx-h100", 4096, 8192),
        ("dgx-a100", 1, 4096),
    ]
    assert kernel_rows(found, 3) == rows[:3]


def test_attention_axes_have_their_defaults(h100: Hardware) -> None:
    implicit = kernel_grid("attention", [h100], ATTENTION)
    explicit = kernel_grid("attention", [h100], ATTENTION | {"head_dim_v": [128], "q_len": [4096]})
    assert implicit["time"].values == pytest.approx(explicit["time"].values)
    # 4 FLOP per unmasked pair and element; half of the pairs and the diagonal are unmasked.
    pairs = 4096 * 4097 / 2
    assert implicit["flops"].values[0, 0] == pytest.approx(4 * 2 * 32 * 128 * pairs, rel=1e-6)
    full = kernel_grid("attention", [h100], ATTENTION, causal=False)
    assert full["flops"].values[0, 0] == pytest.approx(4 * 2 * 32 * 128 * 4096**2, rel=1e-6)
    alone = kernel_grid("attention", [h100], ATTENTION | {"kv_heads": [0]})
    assert alone["memory_traffic"].values[0, 0] > implicit["memory_traffic"].values[0, 0]


def test_backward_takes_longer_and_decode_has_one_query(h100: Hardware) -> None:
    found = kernel_grid(
        "attention", [h100], ATTENTION | {"phase": ["forward", "backward", "decode"]}
    )
    forward, backward, decode = found["time"].values[0]
    assert decode < forward < backward
    assert found["flops"].values[0, 2] == pytest.approx(4 * 2 * 32 * 128 * 4096, rel=1e-6)


def test_a_grid_of_bytes_equals_stream_times(h100: Hardware) -> None:
    axes = {"bytes_read": [10**4, 10**9], "bytes_written": [0, 10**8]}
    found = kernel_grid("stream", [h100], axes, cached=1.0)
    read_and_written = (found[name].values for name in ("bytes_read", "bytes_written"))
    alone = stream_times(h100, *read_and_written, cached=1.0)
    assert found["time"].values[0] == pytest.approx(alone.time)
    assert (np.diff(found["time"].values[0][[0, 2]]) > 0).all()


@pytest.mark.parametrize("operation", sorted(stream_kernels()))
def test_every_operation_of_the_catalogue_takes_time_and_grows(
    h100: Hardware, operation: str
) -> None:
    axes = {"operation": [operation], "dtype": list(STREAM_PRECISIONS), "rows": [128, 8192]}
    found = kernel_grid("stream", [h100], axes | {"columns": [4096]})
    time = found["time"].values.reshape(3, 2)
    assert (time > 0.0).all()
    assert (time[:, 1] > time[:, 0]).all()
    assert (found["bandwidth_share"].values <= 1.5).all()  # above 1: small tensors from the cache


def test_unknown_operations_are_named(h100: Hardware) -> None:
    axes = {"operation": ["rmsnorm"], "dtype": ["bf16"], "rows": [1], "columns": [1]}
    with pytest.raises(DataError, match=r"unknown operation 'rmsnorm'; did you mean rms_norm"):
        kernel_grid("stream", [h100], axes)


def test_documents_name_every_variable_with_its_units() -> None:
    page = DOCS / "cli.md"
    if not page.exists():
        pytest.skip("an installed package has no docs folder")
    text = page.read_text(encoding="utf-8")
    for variable in KERNEL_VARIABLES.values():
        assert f"| `{variable.name}` | {variable.units} | {variable.long_name} |" in text


def test_kernels_beyond_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    axis = Axis("m", range(1000), "1", "rows")
    assert cartesian([axis, axis])["m"].size == 1_000_000
    monkeypatch.setattr(memory, "memory_limit", lambda: 10**8)
    with pytest.raises(DataError, match=r"^1,000,000 kernels on 1 rows of hardware need about"):
        cartesian([axis, axis], results=len(KERNEL_VARIABLES))
