"""Instructions put together of pieces: the text that the kernel writes."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels import _jit
from perfmodel.wafer.core_trace import TracePiece
from perfmodel.wafer.cores.instructions import GEMM, build
from tests.wafer.test_core_trace import PIECES, whole


def test_text_is_that_of_the_kernel(monkeypatch):
    waits = build(GEMM, np.zeros(6, np.int64), (1, 2, 3), back=[0, 1, 2, 2, 3, 5])
    numbers = np.array([[10, -1, 7]])
    pieces = [*PIECES, TracePiece(waits, "é", numbers), *PIECES]
    expected = whole(pieces, cores=4)
    assert " [5 6]\t" in expected[0]
    assert ";é_10\n" in expected[0]
    monkeypatch.setattr(_jit, "compiling", lambda: False)
    assert whole(pieces, cores=4) == expected
