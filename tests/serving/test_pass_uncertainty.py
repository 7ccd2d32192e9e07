"""Bands of passes from those of kernels."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware
from perfmodel.kernels.serving.tables import ATTENTION, MATRICES, PARTS
from perfmodel.operations.uncertainty import step_width
from perfmodel.serving.pass_uncertainty import LOOP_WIDTH, half_widths


def test_classes_err_apart_and_each_as_its_kernels():
    h100 = load_hardware("dgx-h100")
    parts = np.zeros((3, len(PARTS)))
    parts[0, MATRICES] = parts[1, ATTENTION] = 1.0
    parts[2, [MATRICES, ATTENTION]] = 0.5
    found = half_widths(h100, parts)
    rest = np.hypot(step_width(h100, experts=False), LOOP_WIDTH)
    products, attention = h100.uncertainty("gemm", "small"), h100.uncertainty("decode", "middle")
    assert found[0] == pytest.approx(np.hypot(products, rest))
    assert found[1] == pytest.approx(np.hypot(attention, rest))
    both = 0.5 * np.hypot(products, attention)
    assert found[2] == pytest.approx(np.hypot(both, rest))
    assert np.array_equal(half_widths(h100, 7.0 * parts), found)
