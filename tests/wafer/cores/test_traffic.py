"""What instructions come to."""

import numpy as np

from perfmodel.wafer.cores.instructions import ADD, COPY, GEMM, READ, build, joined, multicasts
from perfmodel.wafer.cores.traffic import bank_places, bytes_times_links, core_totals
from perfmodel.wafer.system import WaferSystem

SYSTEM = WaferSystem(4, (2, 2), (2, 3), data_parallel=4, expert_parallel=4)


def test_nodes_lie_row_by_row() -> None:
    rows, columns = bank_places(SYSTEM)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[6], columns[6]) == (0, 3)
    assert (rows[23], columns[23]) == (3, 5)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == 24


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
