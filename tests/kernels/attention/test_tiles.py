"""Tiles of an attention mask, counted, and their schedule over the units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels.attention.tiles import (
    floor_sum,
    list_schedule_time,
    longest_key_block,
    longest_query_block,
    visited_tiles,
)
from tests.kernels.attention.calls import lengths

tiles = st.integers(1, 9)
windows = st.sampled_from([0, 0, 1, 2, 5, 17])


def seen_keys(queries, keys, causal, window, query):
    """Keys that a query sees, by the definition of the mask."""
    position = query + keys - queries
    return [
        key
        for key in range(keys)
        if not (causal and key > position) and not (window and abs(position - key) >= window)
    ]


def counted_by_hand(queries, keys, query_tile, key_tile, causal, window):
    """Distinct key tiles of each query tile."""
    blocks = []
    for first in range(0, queries, query_tile):
        rows = range(first, min(first + query_tile, queries))
        blocks.append(
            len({k // key_tile for i in rows for k in seen_keys(queries, keys, causal, window, i)})
        )
    return blocks


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_floor_sum_equals_the_loop(n, m, a, b):
    assert floor_sum(n, m, a, b) == sum((a * t + b) // m for t in range(n))


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_visited_tiles_equal_enumeration(queries, keys, query_tile, key_tile, causal, window):
    by_hand = counted_by_hand(queries, keys, query_tile, key_tile, causal, window)
    assert visited_tiles(queries, keys, query_tile, key_tile, causal, window) == sum(by_hand)
    assert max(by_hand) <= longest_query_block(queries, keys, query_tile, key_tile, causal, window)


@given(lengths, lengths, tiles, tiles, st.booleans(), windows)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_longest_key_block_bounds_enumeration(queries, keys, query_tile, key_tile, causal, window):
    visits = np.zeros((keys - 1) // key_tile + 1, dtype=int)
    for first in range(0, queries, query_tile):
        rows = range(first, min(first + query_tile, queries))
        seen = {k // key_tile for i in rows for k in seen_keys(queries, keys, causal, window, i)}
        for tile in seen:
            visits[tile] += 1
    bound = longest_key_block(queries, keys, query_tile, key_tile, causal, window)
    assert visits.max() <= bound


def test_causal_square_has_s_times_s_plus_1_half_pairs():
    for length in (1, 7, 4096, 131072, 1 << 20):
        assert visited_tiles(length, length, 1, 1, True, 0) == length * (length + 1) // 2


def test_schedule_between_grahams_bounds():
    assert list_schedule_time(264.0, 264.0, 1.0, 132.0, 1.0) == 2.0  # two full waves
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 1.0) == 2.0  # one block more than a wave
    assert list_schedule_time(133.0, 133.0, 1.0, 132.0, 0.0) == pytest.approx(133 / 132)
    assert list_schedule_time(3.0, 3.0, 1.5, 132.0, 1.0) == 1.5  # the longest block
