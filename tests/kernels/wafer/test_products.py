"""Products on squares of cores: what is counted by hand, limits, and order of algorithms."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.wafer import products, reduce, routes
from perfmodel.wafer.collectives import Flow, simulated_cycles

CORE = (2.0, 4.0, 16.0, 8.0)  # fp16, peak and ports of a WSE-2 core
LINKS = (2.0, 1.0, 20.0, 2.0)  # elements a wavelet, hop, stage, ramp
TREE = reduce.TWO_LEVEL


def product(algorithm: int, side: float = 480.0, issue: float = 74.0, size: float = 4096.0):
    return products.mesh_gemm_cycles(
        algorithm, size, size, size, side, 2.0, 1.68, 16.0, 8.0, issue, *LINKS
    )


def test_core_of_a_wse_2_reads_as_fast_as_it_multiplies() -> None:
    """Four multiply-adds of fp16 read 16 B and write 8 B: both ports are full."""
    assert products.tile_cycles(1.0, 100.0, 3.0, *CORE, 0.0) == 75
    assert products.core_cycles(0.0, 160.0, 0.0, 0.0, 4.0, 16.0, 8.0, 9.0) == 10
    assert products.core_cycles(0.0, 0.0, 80.0, 2.0, 4.0, 16.0, 8.0, 9.0) == 28


def test_vector_times_matrix() -> None:
    """The fused gate and up projection of LLaMA3-8B on 420 x 420 cores."""
    compute, network = products.gemv_cycles(
        4096.0, 28672.0, 420.0, 420.0, TREE, *CORE, 16.0, *LINKS
    )
    rows, columns = 10, 69
    assert compute == rows * columns / 4 + rows * 16
    assert network == reduce.all_reduce_cycles(TREE, 420.0, columns, *LINKS)


def test_steps_of_a_product_are_counted() -> None:
    compute, exposed = product(products.MESH_GEMM)
    step = 9**3 / 1.68 + 9 * 74
    assert compute == pytest.approx(480 * step)
    shift = 41 + 41 + 2 + 25  # both tiles of 81 elements, two hops, ramps and stage
    assert exposed == 240 * shift  # before the first step; the others hide behind compute


@pytest.mark.parametrize("algorithm", range(len(products.PRODUCTS)))
def test_one_core_sends_nothing(algorithm: int) -> None:
    compute, exposed = product(algorithm, side=1.0, size=64.0)
    assert exposed == 0.0
    assert compute == pytest.approx(64**3 / 1.68 + 64 * 74)


@pytest.mark.parametrize("algorithm", range(len(products.PRODUCTS)))
def test_compute_is_the_same_and_exposed_never_negative(algorithm: int) -> None:
    for side in (2.0, 16.0, 720.0):
        for issue in (0.0, 74.0):
            compute, exposed = product(algorithm, side, issue)
            assert compute == product(products.SUMMA, side, issue)[0]
            assert exposed >= 0.0


def test_two_hops_beat_the_way_around_on_long_rows() -> None:
    """With next to no compute, MeshGEMM's steps do not grow with the row, Cannon's do."""
    times = {
        name: sum(product(code, side=720.0, issue=0.0, size=720.0))
        for code, name in enumerate(products.PRODUCTS)
    }
    assert times["mesh_gemm"] < times["cannon"]
    assert times["mesh_gemm"] < times["summa"] < times["distance_blind"]


def test_maps_without_distance_worsen_with_more_cores() -> None:
    times = [sum(product(products.DISTANCE_BLIND, side)) for side in (480.0, 600.0, 720.0)]
    best = [sum(product(products.MESH_GEMM, side)) for side in (480.0, 600.0, 720.0)]
    assert times[0] < times[1] < times[2]
    assert best[0] > best[1] > best[2]


def test_few_routes_make_cores_relay() -> None:
    """Far slower than tiles that only shift, and worse with more cores (He et al., table 3)."""
    size = (4096.0,) * 3
    ratios = []
    for side in (480.0, 600.0, 720.0):
        rest = (side, 2.0, 1.68, 16.0, 8.0, 74.0, *LINKS)
        blind = sum(products.mesh_gemm_cycles(products.DISTANCE_BLIND, *size, *rest, 24.0))
        ratios.append(blind / sum(product(products.MESH_GEMM, side)))
        assert blind > sum(product(products.DISTANCE_BLIND, side))
    assert 30 < ratios[0] < ratios[1] < ratios[2]


def test_random_fetches_load_the_middle_as_counted() -> None:
    """N / 4 messages over the busiest link of random permutations, N through its router."""
    random = np.random.default_rng(2)
    side = 24
    loads = np.zeros((routes.WAYS, side * side))
    draws = 12
    for _ in range(draws):
        target = random.permutation(side * side)
        one = np.ones(target.size)
        alone = np.full(target.size, routes.ALONE)
        loads += routes.flow_loads(side, side, np.arange(target.size), target, one, alone)[0]
    middle = loads[: routes.UP].reshape(4, side, side)[:, side // 2 - 2 : side // 2 + 2] / draws
    middle = middle[:, :, side // 2 - 2 : side // 2 + 2].mean(axis=(1, 2))
    assert middle == pytest.approx(side / 4, rel=0.1)


def test_scores_need_no_transpose() -> None:
    arguments = (4096.0, 4096.0, 4096.0, 480.0, 2.0, 1.68, 16.0, 8.0, 74.0, *LINKS)
    compute, exposed = products.transposed_product_cycles(TREE, *arguments)
    assert compute == product(products.MESH_GEMM)[0]
    assert exposed == reduce.all_reduce_cycles(TREE, 480.0, 81.0, *LINKS)  # its wavelets hide


def step_flows(algorithm: int, side: int, first: int, second: int) -> list[Flow]:
    """One step's messages of a product: tiles of one factor along rows, then of the other."""
    folded = [*range(0, side, 2), *range(1, side, 2)[::-1]]
    if algorithm == products.SUMMA:  # the last of every line copies its tile to all
        pairs = [(side - 1, tuple(range(side - 1)))]
    elif algorithm == products.MESH_GEMM:
        pairs = [(folded[at], (folded[(at + 1) % side],)) for at in range(side)]
    else:
        pairs = [(at, ((at - 1) % side,)) for at in range(side)]
    lines = range(side)
    rows = [
        Flow(line * side + source, tuple(line * side + one for one in targets), first)
        for line in lines
        for source, targets in pairs
    ]
    return rows + [
        Flow(source * side + line, tuple(one * side + line for one in targets), second)
        for line in lines
        for source, targets in pairs
    ]


@pytest.mark.parametrize("algorithm", [products.MESH_GEMM, products.CANNON, products.SUMMA])
@pytest.mark.parametrize("side", [4, 7])
def test_steps_take_as_long_as_on_the_simulated_mesh(algorithm: int, side: int) -> None:
    flows = step_flows(algorithm, side, 9, 6)
    found = simulated_cycles(flows, side, side, stage_cycles=3).max()
    form = products.shift_cycles(algorithm, float(side), 15.0, 1.0, 8.0)
    assert form == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize(("first", "second"), [(9, 6), (1, 30)])
def test_cannons_skew_against_the_simulated_mesh(first: int, second: int) -> None:
    """Row r by r, column c by c, those beyond the edge back along the line."""
    side = 8
    cores = [(row, column) for row in range(side) for column in range(side)]
    flows = [Flow(r * side + c, (r * side + (c - r) % side,), first) for r, c in cores if r] + [
        Flow(r * side + c, ((r - c) % side * side + c,), second) for r, c in cores if c
    ]
    found = simulated_cycles(flows, side, side).max()
    arguments = (float(side), float(first), float(second), 1.0, 5.0)
    form = products.product_prologue_cycles(products.CANNON, *arguments)
    assert form == pytest.approx(found, rel=0.2)


def test_random_fetches_against_the_simulated_mesh() -> None:
    """The form has the mean load of the middle; a draw's busiest link carries half as much more."""
    random = np.random.default_rng(3)
    side, wavelets = 8, 12
    found = []
    for _ in range(2):
        target = random.permutation(side * side)
        flows = [Flow(a, (int(b),), wavelets) for a, b in enumerate(target) if a != b]
        found.append(simulated_cycles(flows, side, side).max())
    form = products.blind_fetch_cycles(float(side), float(wavelets), 1.0, 5.0, 0.0)
    assert 0.5 * max(found) < form < min(found)
