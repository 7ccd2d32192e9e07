"""Caches on one row or on all, against what is measured, and attention over them."""

from __future__ import annotations

import pytest

from perfmodel.kernels.mesh import attention, reduce

CORE = (2.0, 1.68, 16.0, 8.0, 16.0)
LINKS = (2.0, 1.0, 20.0, 2.0)
GRID = (360.0, 360.0)


def decode(layout: int, context: float, rows: float = 420.0) -> tuple[float, float]:
    sizes = (rows, 420.0, context, 4096.0, 1024.0)
    return attention.decode_attention_cycles(layout, *sizes, reduce.TWO_LEVEL, *CORE, *LINKS)


def test_capacity_is_that_of_waferllm() -> None:
    """LLaMA3-8B on 360 x 360: regions of 6 layers, 382 and 137,548 tokens (OSDI 2025, table 5)."""
    square, slim, tall = 12 * 12, 12 * 3, 12 * 40  # tiles of 4096 / 360, 1024 / 360, 14336 / 360
    weights = 6 * 2 * (2 * square + 2 * slim + 3 * tall)
    free = 48 * 1024 - weights
    found = attention.cache_tokens(attention.ROW, *GRID, free, 1024.0, 6.0, 2.0)
    assert found == 382
    found = attention.cache_tokens(attention.SHIFTED, *GRID, free, 1024.0, 6.0, 2.0)
    assert found == pytest.approx(137_548, rel=0.002)


@pytest.mark.parametrize("layout", range(len(attention.LAYOUTS)))
def test_what_fits_is_what_is_held(layout: int) -> None:
    free = 9000.0
    tokens = attention.cache_tokens(layout, *GRID, free, 1024.0, 4.0, 2.0)
    assert 4 * attention.cache_bytes(layout, *GRID, tokens, 1024.0, 2.0) <= free + 48
    assert 4 * attention.cache_bytes(layout, *GRID, tokens + 360, 1024.0, 2.0) > free
    assert attention.cache_tokens(layout, *GRID, -1.0, 1024.0, 4.0, 2.0) == 0


def test_one_row_does_the_work_of_all() -> None:
    on_all = decode(attention.SHIFTED, 4096.0)
    on_one = decode(attention.ROW, 4096.0)
    assert on_one[0] > 100 * on_all[0]
    assert on_one[1] > on_all[1]
    longer = decode(attention.SHIFTED, 8192.0)
    assert longer[0] > 1.9 * on_all[0] - 400
    assert longer[1] > on_all[1]


def test_a_new_token_goes_to_its_row() -> None:
    """Six numbers to the middle of 360 rows; all rows then hand one on."""
    one = attention.append_cycles(attention.ROW, *GRID, 1024.0, *LINKS)
    assert one == 3 + 180 + 25
    both = attention.append_cycles(attention.SHIFTED, *GRID, 1024.0, *LINKS)
    assert both == one + 3 + 1 + 25
    assert attention.append_cycles(attention.SHIFTED, 1.0, 360.0, 1024.0, *LINKS) == 0
