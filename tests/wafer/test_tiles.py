"""Tiles of products on the cores of a node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.kernels.wafer import routes
from perfmodel.wafer import tiles as source
from perfmodel.wafer.tiles import ProductTiles, best_tiles, lines_of

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


def links(tiles: ProductTiles, axis: int) -> float:
    """Links of the trees by which cores that differ in one axis copy something, over all trees."""
    groups = np.moveaxis(tiles.cores, axis, -1).reshape(-1, tiles.parts[axis])
    total = 0.0
    for members in groups:
        count = len(members)
        _, _, hops, _ = routes.flow_loads(
            *tiles.grid,
            np.repeat(members[:1], count),
            members,
            np.ones(count),
            np.zeros(count, int),
        )
        total += hops
    return total


def counted(tiles: ProductTiles) -> float:
    """Bytes times hops of all copies and sums, two bytes an element."""
    g, m, k, n = (size / part for size, part in zip(tiles.sizes, tiles.parts, strict=True))
    rows, columns = np.divmod(
        np.moveaxis(tiles.cores, 2, -1).reshape(-1, tiles.parts[2]), tiles.grid[1]
    )
    far = abs(rows[:, :, None] - rows[:, None, :]) + abs(columns[:, :, None] - columns[:, None, :])
    copied = g * m * k * links(tiles, 3) + g * k * n * links(tiles, 1)
    return 2 * (copied + g * m * n / tiles.parts[2] * float(far.sum()))


@pytest.mark.parametrize("sizes", EXAMPLE)
def test_bytes_times_hops_are_those_of_routes(sizes: tuple[int, int, int, int]) -> None:
    tiles = tiles_of(sizes)
    assert tiles.byte_hops == pytest.approx(counted(tiles), rel=1e-12)


def test_the_best_is_the_least_of_all_mappings() -> None:
    """All mappings of a small grid whose cores are busy; the memory costs nothing."""
    sizes, grid = (2, 9, 40, 24), (2, 3)
    rows, columns = lines_of(grid[0]), lines_of(grid[1])
    best = best_tiles(*sizes[1:], grid, groups=sizes[0], access_hops=0.0)
    found = []
    for r, c in itertools.product(range(len(rows.factors)), range(len(columns.factors))):
        parts = tuple(int(one) for one in rows.factors[r] * columns.factors[c])
        if any(part > size for part, size in zip(parts, sizes, strict=True)):
            continue
        halves = ((one.factors[at], one.strides[at]) for one, at in ((rows, r), (columns, c)))
        one = ProductTiles(grid, sizes, parts, source._placed(grid, *halves), 0.0)
        if one.occupancy >= 0.97:
            found.append(counted(one))
    assert best.byte_hops == pytest.approx(min(found), rel=1e-12)


def test_a_product_smaller_than_the_grid_leaves_cores_idle() -> None:
    tiles = best_tiles(1, 2, 3, (6, 6))
    assert tiles.occupancy == pytest.approx(6 / 36)
    assert len(np.unique(tiles.cores)) == tiles.cores.size == 6


def test_less_memory_makes_other_tiles_or_none() -> None:
    tight = best_tiles(4096, 64, 64, (4, 4), memory=75_000)
    assert tight.parts == (1, 16, 1, 1)  # 32 kB of inputs, 8 of weights, 32 of outputs
    assert best_tiles(4096, 64, 64, (4, 4)).byte_hops <= tight.byte_hops
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
        ((1, 1, 1, (2,)), "'core_grid'"),
    ],
)
def test_bad_sizes_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(StrategyError, match=named):
        best_tiles(*arguments)


@pytest.mark.parametrize("keywords", [{"memory": float("nan")}, {"element_bytes": (2, 2, 2, -1)}])
def test_bad_bytes_are_named(keywords: dict) -> None:
    with pytest.raises(StrategyError, match=next(iter(keywords))):
        best_tiles(4, 4, 4, (2, 2), **keywords)
