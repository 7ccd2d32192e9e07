"""Instructions of tiles and what they wait for."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer import trace_steps
from perfmodel.wafer.cores import instructions
from perfmodel.wafer.twin.core_lines import Traffic, products, reductions, single


def described(piece):
    """Return name, core, arguments and numbers waited for of each line."""
    lines, arguments, _ = piece.instructions
    found = []
    for at, (opcode, core, _, count, back, waits) in enumerate(lines.tolist()):
        name = instructions.OPCODES[opcode]
        waited = list(range(at - back, at - back + waits))
        found.append((name, core, arguments[at, :count].tolist(), waited))
    return found


def test_numbers_are_those_of_instructions():
    for name in (*instructions.OPCODES, "OPCODE", "CORE", "TILE", "ARGUMENTS", "BACK", "WAITS"):
        assert getattr(trace_steps, name) == getattr(instructions, name)
    assert trace_steps.COLUMNS == instructions.COLUMNS
    assert trace_steps.MOST_ARGUMENTS == instructions.MOST_ARGUMENTS


def test_products_wait_for_reads_and_writes_for_products():
    reads = Traffic(np.array([0, 2]), np.array([4, 5]), np.array([10, 20]))
    writes = single(np.array([7]), np.array([30]))
    sides = np.array([[1, 2, 3, 4, 5, 6]])
    one = np.array([2])
    piece = products("x", np.zeros((1, 0), np.int64), reads, writes, one, one, sides)
    assert described(piece) == [
        ("READ", 2, [4, 10], []),
        ("READ", 2, [5, 20], []),
        ("GEMM", 2, [1, 2, 3], [0, 1]),
        ("GEMM", 2, [1, 2, 3], [0, 1]),
        ("GEMM", 2, [4, 5, 6], [0, 1, 2, 3]),
        ("GEMM", 2, [4, 5, 6], [0, 1, 2, 3]),
        ("WRITE", 2, [7, 30], [4, 5]),
    ]


def test_sums_wait_for_the_sum_so_far():
    reads = Traffic(np.array([0, 2, 3, 4]), np.arange(4), np.full(4, 8))
    writes = Traffic(np.array([0, 1, 2]), np.array([9, 8]), np.array([8, 8]))
    sides = np.array([[3, 4], [5, 6]])
    parts = np.array([0, 2, 3])
    numbers = np.zeros((2, 0), np.int64)
    piece = reductions("x", numbers, parts, reads, writes, np.array([0, 1]), sides)
    assert described(piece) == [
        ("READ", 0, [0, 8], []),
        ("READ", 0, [1, 8], []),
        ("READ", 0, [2, 8], []),
        ("ADD", 0, [3, 4], [0, 1, 2]),
        ("WRITE", 0, [9, 8], [3]),
        ("READ", 1, [3, 8], []),
        ("WRITE", 1, [8, 8], [5]),  # one part: no addition
    ]
