"""A phase's formula at its limits."""

from __future__ import annotations

import pytest

from perfmodel.kernels.wafer import phases


def test_the_larger_of_contention_and_way() -> None:
    """max(C, E/N + L) + (2 T_R + 1) D (Luczynski et al., HPDC 2024)."""
    assert phases.phase_cycles(90.0, 100.0, 10.0, 20.0, 3.0, 2.0) == 90 + 15
    assert phases.phase_cycles(10.0, 100.0, 10.0, 20.0, 3.0, 2.0) == 30 + 15
    assert phases.phase_cycles(10.0, 100.0, 10.0, 20.0, 3.0, 2.0, 7.0) == 30 + 36
    assert phases.phase_cycles(0.0, 0.0, 0.0, 0.0, 0.0, 2.0) == 0.0


@pytest.mark.parametrize(
    ("elements", "width", "found"), [(1, 2, 1), (4, 2, 2), (5, 2, 3), (3, 1, 3)]
)
def test_wavelets_are_whole(elements: int, width: int, found: int) -> None:
    assert phases.wavelets_of(float(elements), float(width)) == found
