"""Pipelines: passes that have no partner."""

from __future__ import annotations

import pytest

from perfmodel.kernels.step.pipeline import alone_share


def test_without_a_pipeline_the_first_forward_and_the_last_backward_are_alone():
    assert alone_share(8, 1, 1) == 1 / 8
    assert alone_share(1, 1, 1) == 1.0


@pytest.mark.parametrize(("m", "p", "v"), [(16, 4, 1), (64, 8, 1), (16, 4, 3), (128, 8, 4)])
def test_warm_up_is_alone_on_the_mean_of_all_ranks(m, p, v):
    """Megatron-Core, schedules.py: 2 (p - r - 1) + (v - 1) p chunks, or p - r - 1, and one."""
    chunks = [(2 * (p - r - 1) + (v - 1) * p if v > 1 else p - r - 1) + 1 for r in range(p)]
    assert alone_share(m, p, v) == pytest.approx(sum(chunks) / p / (m * v))


def test_never_more_than_all_and_less_with_more_micro_batches():
    assert alone_share(1, 16, 1) == 1.0
    shares = [alone_share(m, 8, 2) for m in (8, 16, 64, 256)]
    assert shares == sorted(shares, reverse=True)
