"""Keys that queries see in sparse attention, counted one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.compute.sparse_keys import sparse_keys


def seen_keys(position, selected, window, compression, block):
    """Keys that the query at a position sees, by the words of the definition."""
    visible = position + 1
    found = min(window, visible)
    if compression == selected == 0:
        return found
    stored = visible // max(1, compression)  # keys whose last token is not later than the query
    if selected == 0 or (stored <= selected // block * block and block == 1):
        return found + stored
    if block == 1:
        return found + selected
    blocks = [range(start, min(start + block, visible)) for start in range(0, visible, block)]
    kept = blocks[-(selected // block) :]  # which whole blocks are chosen does not matter
    return found + sum(len(keys) for keys in kept)


@given(
    st.integers(1, 400),
    st.integers(0, 300),
    st.integers(0, 12),
    st.sampled_from([0, 1, 13, 128]),
    st.sampled_from([(0, 1), (1, 1), (4, 1), (128, 1), (1, 8), (1, 16)]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_keys_are_those_counted_query_by_query(queries, cached, chosen, window, kind):
    compression, block = kind
    selected = chosen * block * (1 if block > 1 else 7)
    keys = queries + cached
    expected = sum(
        seen_keys(position, selected, window, compression, block)
        for position in range(cached, keys)
    )
    found = sparse_keys(
        queries, keys, selected=selected, window=window, compression=compression, block=block
    )
    assert found.pairs == expected
    last = seen_keys(keys - 1, selected, window, compression, block)
    assert max(1, last) <= found.places < max(1, last) + block
    assert found.gathered == queries * found.places


@pytest.mark.parametrize(
    ("arguments", "mean"),
    # k (1 - k / 2S) + k / 2S: the causal triangle has its diagonal
    [
        ({"selected": 2048}, 2048 * (1 - 2048 / 8192) + 0.25),
        ({"window": 128}, 128 * (1 - 128 / 8192) + 128 / 8192),
        # DeepSeek-V4-Pro keeps 1,024 of 4,096 / 4 compressed keys: all that a query sees, S/8
        ({"selected": 1024, "compression": 4}, 4096 / 8 - 3 / 8 + 1024 / 4096 - 0.125),
        ({"compression": 128}, 4096 / 256 - 127 / 256 + 32 / 4096 - 1 / 256),
    ],
)
def test_means_of_published_layers(arguments, mean):
    assert sparse_keys(4096, 4096, **arguments).pairs / 4096 == pytest.approx(mean, rel=1e-3)


def test_all_keys_chosen_is_dense_causal_attention():
    dense = 1000 * 1001 / 2
    for arguments in (
        {"compression": 1},
        {"selected": 1000},
        {"selected": 4096},
        {"selected": 1024, "block": 128},
    ):
        assert sparse_keys(1000, 1000, **arguments).pairs == dense


def test_rows_are_counted_as_alone():
    selected = np.array([0, 512, 2048])
    together = sparse_keys(4096, 8192, selected=selected, window=128, compression=4)
    for row, chosen in enumerate(selected):
        alone = sparse_keys(4096, 8192, selected=chosen, window=128, compression=4)
        assert [column[row] for column in together] == list(alone)


def test_a_decoded_token_touches_its_own_list_only():
    one = sparse_keys(1, 32768, selected=2048)
    assert (one.pairs, one.places, one.gathered, one.distinct) == (2048, 2048, 2048, 2048)
    short = sparse_keys(1, 100, selected=2048)
    assert short.pairs == short.places == 100
