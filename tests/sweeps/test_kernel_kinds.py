"""Kernels by kind: what may be left out of a grid, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import DataError
from perfmodel.hwprofiles import Hardware
from perfmodel.sweeps.grids import KERNELS, kernel_grid

# Smallest grids that are complete, for both ways to evaluate products and streams.
COMPLETE: list[tuple[str, dict[str, list[Any]]]] = [
    ("gemm", {"m": [16], "n": [64], "k": [64]}),
    ("gemm", {"m": [16], "n": [64], "k": [64], "groups": [2, 4]}),
    ("attention", {"heads": [4], "kv_len": [64]}),
    ("scan", {"heads": [4]}),
    ("scan", {"heads": [64], "key_dim": [16], "kind": ["mamba1"], "phase": ["decode"]}),
    ("convolution", {"channels": [64]}),
    ("stream", {"operation": ["copy"]}),
    ("stream", {"bytes_read": [1000]}),
    (
        "moe",
        {
            **{"tokens": [8], "hidden": [64], "intermediate": [64], "experts": [4], "top_k": [2]},
            "routing": ["balanced"],
        },
    ),
]


@pytest.mark.parametrize(("name", "axes"), COMPLETE)
def test_axes_that_have_a_default_may_be_missing(
    h100: Hardware, name: str, axes: dict[str, list[Any]]
) -> None:
    kernel = KERNELS[name]
    grid, values = kernel.grid(axes)
    implicit = kernel_grid(name, [h100], axes)
    explicit = kernel_grid(name, [h100], {axis: given for axis, given in values.items() if given})
    assert (implicit["time"].values == explicit["time"].values).all()
    about = {"shape", "hardware", "kernel_class"}
    assert set(implicit.coords) - about == {*grid.apart, *grid.axes}


@pytest.mark.parametrize(
    ("name", "axes", "message"),
    [
        ("gem", {}, "unknown kernel 'gem'; did you mean gemm?"),
        ("gemm", {"m": [1], "n": [1]}, "a grid of gemm needs values of 'k'"),
        ("gemm", {"m": [], "n": [1], "k": [1]}, "a grid of gemm needs values of 'm'"),
        ("gemm", {"rows": [1]}, "a grid of gemm has no axis 'rows'"),
        ("gemm", {"m": [1], "n": [1], "k": [1], "precision": ["fb16"]}, "unknown precision 'fb16'"),
        ("gemm", {"m": [1], "n": [1], "k": [1], "groups": [0, 4]}, "--groups of 1 and more"),
        ("attention", {"heads": [1], "phase": ["sideways"]}, "unknown phase 'sideways'; known:"),
        ("attention", {"heads": [1]}, "neither q_len nor kv_len is given"),
        ("scan", {"heads": [4], "kind": ["mamba3"]}, "unknown kind 'mamba3'; did you mean"),
        ("scan", {"heads": [4], "key_heads": [3]}, "4 is not a multiple of key_heads"),
        ("stream", {}, "name either an OPERATION, or --bytes-read and --bytes-written"),
        ("stream", {"operation": ["copy"], "dtype": ["fp8"]}, "unknown dtype 'fp8'"),
    ],
)
def test_wrong_grids_are_refused(
    h100: Hardware, name: str, axes: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(DataError) as error:
        kernel_grid(name, [h100], axes)
    assert message in str(error.value)


def test_whole_numbers_begin_where_their_default_says() -> None:
    axes = {axis.name: axis.minimum for axis in KERNELS["attention"].axes}
    assert (axes["heads"], axes["head_dim"], axes["window"], axes["kv_len"]) == (1, 1, 0, 0)
