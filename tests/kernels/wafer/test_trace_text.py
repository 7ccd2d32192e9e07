"""Text of instructions, against Python's own formatting; parts of any size are the same text."""

from __future__ import annotations

import numpy as np

from perfmodel.wafer.formats import core_trace
from perfmodel.wafer.formats.core_trace import Instruction, format_instruction, format_pieces
from tests.wafer.formats.test_core_trace import PIECES, whole


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
