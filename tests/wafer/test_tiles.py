"""Tiles of products on the cores of a node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.tiles import ProductTiles, best_tiles, hops, lines_of

# Products of one node of the wafer generator's example: DeepSeek-V3 on 7 x 8 nodes of 6 x 6 cores.
EXAMPLE = [
    (1, 147, 7168, 576),
    (1, 147, 7168, 1536),
    (1, 147, 1536, 6144),
    (32, 147, 128, 512),
    (32, 147, 512, 128),
    (1, 147, 4096, 7168),
    (1, 147, 7168, 256),
    (1, 256, 7168, 2048),
    (1, 256, 2048, 7168),
    (1, 20, 7168, 2048),
    (1, 1, 2048, 7168),
]


def tiles_of(sizes: tuple[int, int, int, int], grid: tuple[int, int] = (6, 6)) -> ProductTiles:
    return best_tiles(*sizes[1:], grid, groups=sizes[0])


@pytest.mark.parametrize("sizes", EXAMPLE)
def test_the_example_keeps_its_cores_busy(sizes: tuple[int, int, int, int]) -> None:
    """Powers of two, the generator's, leave 4 of 36 cores idle: 0.89."""
    tiles = tiles_of(sizes)
    assert tiles.occupancy > 0.97
    load = np.zeros(36)
    lengths = np.ix_(*(np.diff(one) for one in tiles.bounds))
    np.add.at(load, tiles.cores, np.prod(np.broadcast_arrays(*lengths), axis=0))
    assert load.sum() == np.prod(sizes)
    assert load.sum() / (36 * load.max()) == pytest.approx(tiles.occupancy, rel=1e-12)


@pytest.mark.parametrize("sizes", EXAMPLE)
def test_traffic_is_that_of_its_transfers(sizes: tuple[int, int, int, int]) -> None:
    """Every read and write written out, two bytes an element."""
    tiles = tiles_of(sizes)
    moved = far = 0

    def transfer(core: int, bank: int, elements: int) -> None:
        nonlocal moved, far
        moved += 2 * elements
        far += 2 * elements * int(hops(np.array(core), np.array(bank), tiles.grid))

    g, m, k, n = (np.diff(one) for one in tiles.bounds)
    for a, b, c, d in itertools.product(*map(range, tiles.parts)):
        core = int(tiles.cores[a, b, c, d])
        transfer(core, int(tiles.input_banks[a, b, c]), g[a] * m[b] * k[c])
        transfer(core, int(tiles.weight_banks[a, c, d]), g[a] * k[c] * n[d])
        parent = tiles.parents[a, b, c, d]
        transfer(core, core, g[a] * m[b] * n[d])
        if parent >= 0:
            transfer(int(tiles.cores[a, b, parent, d]), core, g[a] * m[b] * n[d])
        else:
            assert core == tiles.output_banks[a, b, d]
    assert (moved, far) == (tiles.traffic, tiles.traffic_hops)


def test_sums_pass_neighbours_and_end_in_one_core() -> None:
    tiles = tiles_of((1, 147, 7168, 256))
    assert tiles.parts[2] == 36
    seen: set[int] = set()
    for part in tiles.sum_order:
        parent = int(tiles.parents[0, 0, part, 0])
        assert parent not in seen
        seen.add(int(part))
        if parent >= 0:
            pair = tiles.cores[0, 0, part, 0], tiles.cores[0, 0, parent, 0]
            assert hops(*pair, tiles.grid) == 1
    assert (tiles.parents[0, 0, :, 0] < 0).sum() == 1


def test_the_best_is_the_least_of_all_mappings() -> None:
    """All mappings of a small grid, their traffic as the finished tiles have it."""
    sizes, grid = (2, 9, 40, 24), (2, 3)
    from perfmodel.wafer import tiles as source

    costs = []
    rows, columns = lines_of(grid[0]), lines_of(grid[1])
    for r, c in itertools.product(range(len(rows.factors)), range(len(columns.factors))):
        if (rows.factors[r] * columns.factors[c] > sizes).any():
            continue
        row = rows.factors[r], rows.strides[r]
        column = columns.factors[c], columns.strides[c]
        one = source._placed(sizes, grid, row, column, (2.0,) * 4)
        if one.occupancy >= 0.97:
            costs.append(one.traffic_hops + one.traffic)
    best = tiles_of(sizes, grid)
    # Pieces of one axis differ by one at most; the search takes them as equal.
    assert best.traffic_hops + best.traffic == pytest.approx(min(costs), rel=0.03)


def test_a_product_smaller_than_the_grid_leaves_cores_idle() -> None:
    tiles = best_tiles(1, 2, 3, (6, 6))
    assert tiles.occupancy == pytest.approx(6 / 36)
    assert len(np.unique(tiles.cores)) == tiles.cores.size == 6


def test_less_memory_makes_other_tiles_or_none() -> None:
    tight = best_tiles(4096, 64, 64, (4, 4), memory=75_000)
    assert tight.parts == (1, 16, 1, 1)  # 32 kB of inputs, 8 of weights, 32 of outputs
    assert best_tiles(4096, 64, 64, (4, 4)).traffic_hops <= tight.traffic_hops
    with pytest.raises(StrategyError, match=r"key 'memory'.*hold no tiles of 4096 x 64 x 64"):
        best_tiles(4096, 64, 64, (4, 4), memory=1000)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1, 1, (2, 2)), "'m'"),
        ((1, -4, 1, (2, 2)), "'k'"),
        ((1, 1, 2.5, (2, 2)), "'n'"),
        ((1, 1, 2**40, (2, 2)), "'n'"),
        ((1, 1, 1, (0, 2)), "'core_grid'"),
        ((1, 1, 1, (2, 5000)), "'core_grid'"),
    ],
)
def test_bad_sizes_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(StrategyError, match=named):
        best_tiles(*arguments)


@pytest.mark.parametrize("keywords", [{"memory": float("nan")}, {"element_bytes": (2, 2, 2, -1)}])
def test_bad_bytes_are_named(keywords: dict) -> None:
    with pytest.raises(StrategyError, match=next(iter(keywords))):
        best_tiles(4, 4, 4, (2, 2), **keywords)
