"""What a search may choose: routes, sides, names."""

from __future__ import annotations

from math import inf

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer.columns import DECODE, PREFILL
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.wafer.search.space import (
    PRODUCT_ROUTES,
    SUM_ROUTES,
    choices,
    longest_side,
    phase_code,
    sides,
)


def test_every_algorithm_has_its_routes() -> None:
    assert set(SUM_ROUTES) == set(ALGORITHMS)
    assert set(PRODUCT_ROUTES) == set(PRODUCTS) - {"distance_blind"}


def test_routes_limit_what_grows_with_the_row() -> None:
    """A router of a WSE-2 holds 24 routes; packets with an address (0) need none."""
    assert longest_side(24, "two_level", "mesh_gemm") == inf
    assert longest_side(24, "star") == 23
    assert longest_side(24, "chain", "summa") == 10
    assert longest_side(4, "two_level") == 0
    assert longest_side(0, "star", "all_gather") == inf


def test_decode_chooses_no_products() -> None:
    mesh = load_mesh("wse-2")
    assert len(choices(mesh, DECODE)) == 2 * len(ALGORITHMS)
    assert len(choices(mesh, PREFILL)) == 2 * len(ALGORITHMS) * len(PRODUCT_ROUTES)
    some = choices(mesh, PREFILL, collective=("chain",), cache_layout=("row",))
    assert len(some) == len(PRODUCT_ROUTES)
    assert len(set(some.collective)) == len(set(some.cache_layout)) == 1


def test_routes_may_be_too_few_for_anything() -> None:
    mesh = load_mesh("wse-2").with_values({"mesh.routes": 2})
    with pytest.raises(StrategyError, match="has 2 routes a router"):
        choices(mesh, DECODE, collective=("two_level",))


def test_sides_are_those_of_the_mesh() -> None:
    mesh = load_mesh("wse-2")
    short, long = sorted((mesh.rows, mesh.columns))
    assert sides(mesh, "square", None) == list(range(1, short + 1))
    assert sides(mesh, "rectangle", None)[-1] == long
    assert sides(mesh, "square", [4, 2, 4]) == [2, 4]
    with pytest.raises(StrategyError, match=f"sides of 1 to {short} cores"):
        sides(mesh, "square", [long])


def test_phases_are_named() -> None:
    assert (phase_code("decode"), phase_code("prefill")) == (DECODE, PREFILL)
    with pytest.raises(StrategyError, match="unknown 'decod'; did you mean decode"):
        phase_code("decod")
