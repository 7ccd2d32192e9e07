"""Instructions as columns."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer.routes import flow_loads
from perfmodel.wafer.cores import instructions as columns
from perfmodel.wafer.cores.instructions import (
    ADD,
    COPY,
    GEMM,
    READ,
    build,
    bytes_times_links,
    core_totals,
    joined,
    multicasts,
    route_links,
    tree_links,
)
from perfmodel.wafer.system import WaferSystem


def test_multicasts_keep_their_destinations_when_joined():
    first = columns.multicasts(np.array([0]), np.array([8]), np.array([1, 2]), np.array([2]))
    second = columns.multicasts(np.array([3]), np.array([8]), np.array([4, 5]), np.array([2]))
    both = columns.joined((first, second)).moved(36)
    for row, wanted in ((0, [37, 38]), (1, [40, 41])):
        at, count = both.arguments[row, 2:4]
        assert both.destinations[at : at + count].tolist() == wanted
    assert both.lines[:, columns.CORE].tolist() == [36, 39]
    assert both.arguments[:, 0].tolist() == [36, 39]


def test_moved_cores_keep_sizes_of_products():
    product = columns.build(columns.GEMM, np.arange(2), (4, 5, 6), back=2)
    moved = product.moved(10)
    assert moved.arguments[:, :3].tolist() == [[4, 5, 6]] * 2
    assert moved.lines[:, columns.WAITS].tolist() == [2, 2]
    assert product.lines[:, columns.CORE].tolist() == [0, 1]


def test_barriers_are_called_after_operation_label_and_node():
    one, other = (columns.barrier(name, np.arange(3)).called("wo") for name in ("a", "b"))
    names = {
        tuple(each.arguments[0, :2].tolist())
        for each in (one, other, one.called("wqa"), one.moved(36), other.moved(36))
    }
    assert len(names) == 5
    assert (one.arguments == one.arguments[0]).all()
    shared = columns.barrier("a", np.arange(3), shared=True)
    assert (shared.moved(36).arguments == shared.arguments).all()


def test_nothing_joined_is_nothing():
    assert columns.joined(()).lines.shape == (0, columns.COLUMNS)


SYSTEM = WaferSystem(4, (2, 2), (2, 3), data_parallel=4, expert_parallel=4)


def test_totals_and_links() -> None:
    core = np.array([0, 5])
    made = joined(
        [
            build(READ, core, (np.array([0, 3]), 100)),
            build(GEMM, core, (np.array([2, 5]), 3, 4), back=1),
            build(ADD, core, (7, 2)),
            build(COPY, np.array([0]), (np.array([0]), np.array([23]), 10)),
            multicasts(np.array([0]), np.array([8]), np.array([2, 5, 6]), np.array([3])),
        ]
    )
    totals = core_totals(made)
    assert totals.counts.tolist() == [2, 0, 2, 2, 1, 1, 0]
    assert totals.moved.tolist() == [200, 0, 0, 0, 10, 8, 0]
    assert (totals.macs, totals.busiest_macs, totals.cores) == (2 * 12 + 5 * 12, 60, 2)
    # A read over two columns; a copy across the wafer; a tree of three columns and one row more.
    assert bytes_times_links(made, SYSTEM) == 2 * 100 + 10 * 8 + 8 * 4


def test_links_are_those_that_routes_load() -> None:
    random = np.random.default_rng(3)
    for _ in range(40):
        rows, across, count = random.integers(1, 7, 3)
        counts = random.integers(1, 6, count)
        tree = np.repeat(np.arange(count), counts)
        source = random.integers(0, rows * across, count)
        targets = random.integers(0, rows * across, tree.size)
        size = random.integers(1, 9, count)
        flows = rows, across, source[tree], targets, size[tree].astype(float)
        links = tree_links(across, source, targets, tree)
        assert flow_loads(*flows, tree)[2] == (size * links).sum()
        alone = route_links(across, source[tree], targets)
        assert flow_loads(*flows, np.full_like(tree, -1))[2] == (size[tree] * alone).sum()
