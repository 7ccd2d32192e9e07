"""Searched mappings: both ways find the same, and what is refused."""

from __future__ import annotations

import itertools
from math import inf

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.hwprofiles import load_mesh
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import DECODE, PHASES, PREFILL
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.wafer.project import phase_names, project_request, wafer_table
from perfmodel.wafer.search import (
    PRODUCT_ROUTES,
    SUM_ROUTES,
    FoundMapping,
    choices,
    longest_side,
    search_mapping,
    search_request,
    sides,
)
from tests.data import table_of


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
    assert phase_names(["prefill", "decode", "prefill"]) == ("prefill", "decode")
    assert (PHASES[DECODE], PHASES[PREFILL]) == ("decode", "prefill")
    with pytest.raises(StrategyError, match="unknown 'decod'; did you mean decode"):
        phase_names("decod")


def small_mesh(sram: float) -> MeshHardware:
    """A corner of a wafer, with cores large enough for a model."""
    values = {
        "mesh.rows": 5,
        "mesh.columns": 4,
        "mesh.sram_per_core": sram,
        "mesh.sram_reserved": 0,
    }
    return load_mesh("wse-2").with_values(values)


def both(**asked: object) -> tuple[FoundMapping, FoundMapping]:
    return tuple(
        search_mapping("llama-3-8b", exhaustive=way, **asked)  # type: ignore[arg-type]
        for way in (True, False)
    )


@pytest.mark.parametrize("sram", [1.5e9, 4e9])
@pytest.mark.parametrize(
    ("phase", "shape"),
    [("decode", "square"), ("decode", "rectangle"), ("prefill", "square")],
)
def test_bounded_branches_find_what_all_mappings_have(sram: float, phase: str, shape: str) -> None:
    asked = {"hardware": small_mesh(sram), "phase": phase, "shape": shape, "context": 64}
    if phase == "prefill":
        asked["collective"] = ("chain", "ring", "two_level")
    every, bounded = both(**asked)
    assert every.timed == every.mappings == bounded.mappings
    assert every.latency == bounded.latency
    assert (every.grid, every.regions) == (bounded.grid, bounded.regions)
    assert every.axes().keys() == bounded.axes().keys()


def test_the_best_is_the_least_of_a_sweep() -> None:
    """The same mappings as a sweep of the command line has them."""
    mesh = small_mesh(4e9)
    found = search_mapping("llama-3-8b", mesh, context=64, collective=("chain", "ring"))
    table = wafer_table(
        "llama-3-8b",
        mesh,
        grid=range(1, 5),
        regions=range(1, 33),
        context=64,
        collective=["chain", "ring"],
        cache_layout="all",
    )
    fits = table["fits"].values[:, 0, 0]
    assert found.latency == table["latency"].values[:, 0, 0][fits].min()


def test_a_found_mapping_is_projected_as_it_was_timed() -> None:
    found = search_mapping("llama-3-8b", "wse-2", grid=[300, 360, 420], context=2048)
    table = wafer_table("llama-3-8b", "wse-2", found.as_grid())
    assert table["latency"].values.item() == found.latency
    assert table["fits"].values.item()
    assert table["region_count"].values.item() == found.regions


def test_routes_rule_out_copies_along_long_rows() -> None:
    """SUMMA needs a route for each core of a row: 24 a router on a WSE-2."""
    for product in ("summa", "all_gather", "mesh_gemm"):
        asked = {"phase": "prefill", "context": 64, "product": (product,), "collective": ("chain",)}
        found = search_mapping("llama-3-8b", small_mesh(4e9), **asked)
        assert found.product == product
    asked["product"] = ("summa",)
    with pytest.raises(StrategyError, match="grid: rows of 300 cores need more than the 24 routes"):
        search_mapping("llama-3-8b", "wse-2", grid=[300], **asked)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        *table_of(__file__, "what_is_refused"),
        ({"context": 10**9}, "context"),
    ],
)
def test_what_is_refused(asked: dict, named: str) -> None:
    with pytest.raises(StrategyError, match=named):
        search_mapping("llama-3-8b", **({"hardware": "wse-2"} | asked))


def test_ties_go_to_fewer_cores() -> None:
    """Regions of one layer less than the others leave the latency as it is."""
    found = search_mapping("llama-3-8b", small_mesh(4e9), context=64, grid=[4])
    for regions, choice in itertools.product(range(1, found.regions), ("shifted", "row")):
        axes = found.axes() | {"regions": regions, "cache_layout": choice}
        assert not wafer_table("llama-3-8b", small_mesh(4e9), **axes)["fits"].values.item()


LENGTHS = {"input_length": 1024, "output_length": 32}


def test_no_request_on_the_same_grids_is_faster() -> None:
    found = search_request("llama-3-8b", "wse-2", grid=[300, 360, 420], **LENGTHS)
    assert found.request.fits
    assert found.decode.context == 1056
    assert found.request.request_time == pytest.approx(
        found.request.time_to_first_token + 32 * found.request.time_per_output_token, rel=1e-12
    )
    assert found.request.prefill["latency"].values.item() == found.prefill.latency
    for side in (300, 360, 420):
        plain = project_request(
            "llama-3-8b", "wse-2", prefill_grid=side, decode_grid=side, **LENGTHS
        )
        if plain.fits:
            assert found.request.request_time <= plain.request_time


def test_what_is_refused_request() -> None:
    with pytest.raises(StrategyError, match="context"):
        search_request("llama-3-8b", "wse-2", grid=[300], input_length=8000, output_length=8000)
