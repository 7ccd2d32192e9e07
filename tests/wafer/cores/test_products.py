"""Products on cores: what arrives is what is read, sums are complete, results lie once."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.wafer.cores.instructions import (
    ADD,
    BARRIER,
    COPY,
    CORE,
    GEMM,
    MULTICAST,
    OPCODE,
    READ,
    WRITE,
    Instructions,
    core_totals,
)
from perfmodel.wafer.cores.layout import even_layout, overlaps
from perfmodel.wafer.cores.products import product
from tests.wafer.cores.examples import assert_sound, operations

GRID = (2, 3)
BYTES = (2.0, 2.0, 2.0, 2.0)
CASES = {
    "one row": (1, 1, 64, 60),
    "wide": (1, 8, 32, 600),
    "deep": (1, 8, 6000, 6),
    "tall": (1, 900, 16, 12),
    "groups": (12, 5, 16, 24),
    "few groups": (4, 9, 24, 30),
}


def arrived(made: Instructions, cores: int) -> np.ndarray:
    """Return the bytes that reach each core's bank before the first barrier [B]."""
    lines, arguments, destinations = made
    to = np.zeros(cores, np.int64)
    for line, argument in zip(lines, arguments, strict=True):
        if line[OPCODE] == COPY:
            to[argument[1]] += argument[2]
        elif line[OPCODE] == MULTICAST:
            to[destinations[argument[2] : argument[2] + argument[3]]] += argument[1]
        else:
            break
    return to


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_done_once_and_its_result_lies_once(name: str) -> None:
    groups, m, k, n = CASES[name]
    source = even_layout(m, groups * k, GRID)
    made, result = product(source, CASES[name], GRID, BYTES)
    assert_sound(made)
    totals = core_totals(made)
    assert totals.macs == groups * m * k * n
    assert result.shape == (m, groups * n)
    assert result.elements(6).sum() == m * groups * n
    code = made.lines[:, OPCODE]
    # The last writes are the result; partial sums come before.
    written = made.arguments[code == WRITE, 1]
    parts = result.elements(6)
    assert written[-np.count_nonzero(parts) :].sum() == 2 * m * groups * n


@pytest.mark.parametrize("name", CASES)
def test_inputs_and_weights_come_from_somewhere(name: str) -> None:
    groups, m, k, n = CASES[name]
    source = even_layout(m, groups * k, GRID)
    made, _ = product(source, CASES[name], GRID, BYTES)
    code, core = made.lines[:, OPCODE], made.lines[:, CORE]
    gemm = np.flatnonzero(code == GEMM)
    read = np.zeros(6, np.int64)
    first = np.flatnonzero((code == READ) & (np.arange(len(code)) < gemm[0]))
    np.add.at(read, core[first], made.arguments[first, 1])
    own = overlaps(source, np.array([[0, 0, m, 0, groups * k]]), 1, 6)[:, 0] * 2
    # Nothing is read that is neither stored here, nor a weight's home, nor sent here.
    weights = groups * k * n * 2
    assert read.sum() <= own.sum() + weights + arrived(made, 6).sum()
    assert read.sum() >= m * k * groups * 2 + weights


def test_sums_over_depth_add_every_part() -> None:
    made, result = product(even_layout(8, 6000, GRID), CASES["deep"], GRID, BYTES)
    code = made.lines[:, OPCODE]
    added = made.arguments[code == ADD, :2].prod(axis=1).sum()
    # A sum of p parts has p - 1 additions an element.
    parts = made.arguments[code == GEMM]
    depth = int(6000 // parts[0, 1])
    assert depth > 1
    assert added == (depth - 1) * 8 * 6
    copied = made.arguments[code == COPY]
    assert result.elements(6).max() - result.elements(6).min() <= 8
    assert copied[:, 2].sum() >= (depth - 1) * 8 * 6 * 2


def test_columns_of_groups_may_lie_apart() -> None:
    source = even_layout(4, 6 * 10, GRID)
    made, _ = product(source, (6, 4, 7, 8), GRID, BYTES, (0, 10, 7))
    assert core_totals(made).macs == 6 * 4 * 7 * 8
    assert_sound(made)


def test_operations_end_where_all_cores_of_a_node_meet() -> None:
    ends = set()
    for node, several in operations("dense").items():
        for operation in several:
            lines, arguments, _ = operation.instructions
            assert (lines[-6:, OPCODE] == BARRIER).all()
            assert sorted(lines[-6:, CORE].tolist()) == [node * 6 + core for core in range(6)]
            assert len({tuple(row) for row in arguments[-6:, :2].tolist()}) == 1
            if operation.kind != "AllReduce":
                assert tuple(arguments[-1, :2].tolist()) not in ends
                ends.add(tuple(arguments[-1, :2].tolist()))
