"""Kernels by kind: what may be left out of a grid, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.base.errors import DataError
from perfmodel.hwprofiles import Hardware
from perfmodel.sweeps.grids import KERNELS, kernel_grid
from tests.data import table_of

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
    table_of(__file__, "wrong_grids_are_refused"),
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
