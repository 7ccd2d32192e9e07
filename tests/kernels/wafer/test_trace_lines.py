"""Instructions of tiles and what they wait for."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.wafer import trace_lines
from perfmodel.wafer import core_trace
from perfmodel.wafer.core_trace import Instruction, format_instruction, format_pieces
from perfmodel.wafer.cores import instructions
from perfmodel.wafer.cores.instructions import ADD, BACK, GEMM, OPCODE, OPCODES, READ, WRITE
from perfmodel.wafer.twin.core_lines import Traffic, products, reductions, single
from tests.wafer.test_core_trace import PIECES, whole


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
        assert getattr(trace_lines, name) == getattr(instructions, name)
    assert trace_lines.COLUMNS == instructions.COLUMNS
    assert trace_lines.MOST_ARGUMENTS == instructions.MOST_ARGUMENTS


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


def lines_of(task: list[int], chunk: int) -> tuple[np.ndarray, np.ndarray]:
    tasks = np.array([task])
    count = trace_lines.count_attention_lines(tasks, chunk)
    lines, arguments = np.zeros((count, 6), np.int64), np.zeros((count, 4), np.int64)
    assert trace_lines.attention_lines(tasks, chunk, lines, arguments) == count
    return lines, arguments


def test_latent_attention_rescales_from_the_second_chunk_on() -> None:
    lines, arguments = lines_of([3, 1, 32, 576, 1100, 512, 999, 1152, 0, 777, 1], 512)
    names = [OPCODES[code] for code in lines[:, OPCODE]]
    chunk = ["READ", "GEMM", "ADD", "GEMM"]
    assert names == ["READ", *chunk, *chunk, "ADD", *chunk, "ADD", "ADD", "WRITE"]
    products = arguments[lines[:, OPCODE] == GEMM, :3]
    assert products[::2].tolist() == [[32, 576, 512], [32, 576, 512], [32, 576, 76]]
    assert products[1::2].tolist() == [[32, 512, 512], [32, 512, 512], [32, 76, 512]]
    assert arguments[lines[:, OPCODE] == READ, 1].tolist() == [
        999,
        *(1152 * np.array([512, 512, 76])),
    ]
    # The first product waits for queries and keys, the others for keys.
    assert lines[lines[:, OPCODE] == GEMM, BACK].tolist() == [2, 1, 1, 1, 1, 1]


def test_values_of_their_own_are_read_for_every_head() -> None:
    lines, arguments = lines_of([0, 2, 4, 128, 100, 128, 1024, 256, 256, 1040, 0], 512)
    code = lines[:, OPCODE]
    assert (code == READ).sum() == 2 * 3
    assert (code == WRITE).sum() == 2
    assert (code == ADD).sum() == 2  # no division by the sum: keys lie elsewhere, too
    read = arguments[code == READ, 1].reshape(2, 3)
    assert (read == [1024, 25600, 25600]).all()


def test_text_is_that_of_each_line():
    texts = whole(PIECES, cores=3)
    assert texts[0] == "".join(
        format_instruction(line) + "\n"
        for line in (
            Instruction(0, "READ", (7, 1234567890123), (), "a_b_0_12"),
            Instruction(1, "GEMM", (8, 1, 10), (0,), "a_b_0_12"),
            Instruction(2, "COPY", (0, 1, 0), (), "c"),
            Instruction(3, "MULTICAST", (5, 6, 7, 8), (), "d_3"),
            Instruction(4, "BARRIER", (0x00000001FFFFFFFF,), (), "e"),
        )
    )
    assert texts[2] == "0 ADD 1 2 3 4\t\t;a_b_4_5\n1 BARRIER 00000001ffffffff\t\t;e\n"
    assert texts[1] == ""


def test_small_parts_are_the_same_text(monkeypatch):
    expected = whole(PIECES, cores=3)
    monkeypatch.setattr(core_trace, "ROOM", 1)
    parts = list(format_pieces(PIECES, np.zeros(3, np.int64)))
    assert len(parts) > 3
    for core, text in expected.items():
        assert b"".join(part for place, part in parts if place == core).decode() == text
