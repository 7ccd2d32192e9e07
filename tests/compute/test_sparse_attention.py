"""Sparse attention on hardware profiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DataError
from perfmodel.compute.attention import attention_times
from perfmodel.compute.sparse_attention import (
    SPARSE_PHASES,
    indexer_times,
    sparse_attention_times,
    sparse_keys,
)
from perfmodel.hwprofiles import load_hardware
from tests.amount import cases


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
@settings(max_examples=cases(300), deadline=None, derandomize=True)
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


MLA = {"heads": 128, "head_dim_qk": 576, "head_dim_v": 512, "selected": 2048}
V4 = {"heads": 64, "head_dim_qk": 512, "head_dim_v": 512, "window": 128}
BLOCKS = {"heads": 64, "key_value_heads": 4, "head_dim_qk": 128, "head_dim_v": 128}
BLOCKS |= {"selected": 2048, "block": 128, "shared_key_value": False}
LAYERS = {
    "sparse MLA": MLA,
    "block-sparse": BLOCKS,
    "CSA": V4 | {"compression": 4, "selected": 512},
    "HCA": V4 | {"compression": 128},
    "window": V4,
}


def priced(device, queries, keys, phase="forward", batch=1, **layer):
    return sparse_attention_times(
        device, "bf16", batch=batch, query_length=queries, key_length=keys, phase=phase, **layer
    )


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("device", ["dgx-h100", "dgx-b200", "mi355x-server", "dgx-a100"])
def test_no_faster_than_peak_and_memory(device, layer):
    from perfmodel.hwprofiles import load_hardware

    chip = load_hardware(device).device
    for phase in SPARSE_PHASES:
        queries = 1 if phase == "decode" else 4096
        found = priced(device, queries, 16384, phase, batch=[1, 4, 32], **LAYERS[layer])
        assert (found.time > found.flops / chip.peak("bf16")).all()
        assert (found.time > found.memory_traffic / chip.memory.bandwidth).all()


@pytest.mark.parametrize("phase", SPARSE_PHASES)
def test_rows_are_priced_as_alone(phase):
    selected, compression = np.array([2048, 512, 0]), np.array([1, 4, 128])
    sizes = {"heads": 64, "head_dim_qk": 512, "head_dim_v": 512, "window": 128}
    together = priced(
        "dgx-h100", 2, 8192, phase, selected=selected, compression=compression, **sizes
    )
    for row in range(3):
        parts = {"selected": selected[row], "compression": compression[row]}
        alone = priced("dgx-h100", 2, 8192, phase, **parts, **sizes)
        assert [column[row] for column in together] == [column[0] for column in alone]


def test_all_keys_chosen_do_the_work_of_dense_attention():
    whole = MLA | {"selected": 0, "compression": 1}
    sparse = priced("dgx-h100", 4096, 4096, **whole)
    shape = (1, 4096, 4096, 128, 1, 576, 512)
    dense = attention_times("dgx-h100", "bf16", *shape, latent=True, prefill=True)
    assert sparse.flops == dense.flops
    assert sparse.memory_traffic == dense.memory_traffic
    assert sparse.time > dense.time  # one tile of heads per query: no triangle is skipped
    backward = attention_times("dgx-h100", "bf16", *shape, backward=True)
    assert priced("dgx-h100", 4096, 4096, "backward", **whole).flops == backward.flops


def test_long_sequences_cost_by_the_list_and_not_by_the_length():
    times = priced("dgx-h100", 4096, [8192, 32768], **MLA).time
    assert times[1] == pytest.approx(times[0], rel=0.02)  # both fit the cache
    dense = attention_times("dgx-h100", "bf16", 1, 4096, 32768, 128, 1, 576, 512, latent=True).time
    assert dense > 5 * times[1]


def test_of_deepseek_v4_windows_cost_least_and_chosen_keys_most():
    for phase in ("forward", "backward"):
        time = {
            name: priced("mi355x-server", 4096, 4096, phase, **LAYERS[name]).time[0]
            for name in ("window", "HCA", "CSA")
        }
        assert time["window"] < time["HCA"] < time["CSA"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3, "key_value_heads": 2}, "multiple of key_value_heads"),
        ({"selected": 100, "block": 128}, "multiple of block"),
        ({"block": 128, "compression": 4}, "exclude each other"),
        ({"selected": 0}, "would see no keys"),
        ({"head_dim_v": 600}, "head_dim_v exceeds head_dim_qk"),
        ({"query_length": 9000}, "more queries than keys"),
        ({"heads": 0}, "heads is 0; it must be a whole number of at least 1"),
        ({"heads": 2.5}, "heads is 2.5; it must be a whole number"),
        ({"batch": 2**40}, "batch must be at most"),
        ({"phase": "backwards"}, "unknown phase 'backwards'"),
    ],
)
def test_bad_input_is_one_line(changes, message):
    call = MLA | {"batch": 1, "query_length": 4096, "key_length": 8192} | changes
    with pytest.raises(DataError, match=message) as raised:
        sparse_attention_times("dgx-h100", "bf16", **call)
    assert "\n" not in str(raised.value)


V32 = {"heads": 64, "head_dim": 128, "top_k": 2048}
M3 = {"heads": 4, "head_dim": 128, "top_k": 2048, "block": 128}
INDEXER_V4 = {"heads": 64, "head_dim": 128, "top_k": 512, "compression": 4}


def indexed(device, queries, keys, phase="forward", batch=1, **indexer):
    return indexer_times(
        device, batch=batch, query_length=queries, key_length=keys, phase=phase, **indexer
    )


@pytest.mark.parametrize("indexer", [V32, M3, INDEXER_V4], ids=["V3.2", "M3", "V4"])
@pytest.mark.parametrize("device", ["dgx-h100", "mi355x-server", "dgx-a100"])
def test_an_indexer_is_no_faster_than_peak_and_memory(device, indexer):
    chip = load_hardware(device).device
    peak = max(chip.peak_flops["bf16"], chip.peak_flops.get("fp8", 0.0))
    for phase in SPARSE_PHASES:
        queries = 1 if phase == "decode" else 4096
        found = indexed(device, queries, 16384, phase, batch=[1, 4, 32], **indexer)
        assert (found.time > found.flops / peak).all()
        assert (found.time - found.choice_time > 0).all()


def test_logits_run_in_8_bits_where_the_device_has_them():
    found = indexed("dgx-h100", 4096, 32768, **V32)
    wide = indexed("dgx-h100", 4096, 32768, precision="bf16", **V32)
    assert found.flops == wide.flops == 2 * 64 * 128 * (4096 * 28672 + 4096 * 4097 / 2)
    assert wide.time - wide.choice_time > 1.2 * (found.time - found.choice_time)


def test_nothing_is_chosen_where_all_keys_are_kept():
    short, long = (indexed("dgx-h100", 2048, keys, **V32).choice_time for keys in (2048, 4096))
    assert long > 3 * short


def test_blocks_choose_among_fewer_numbers():
    tokens = indexed("dgx-h100", 4096, 32768, **(M3 | {"block": 1}))
    blocks = indexed("dgx-h100", 4096, 32768, **M3)
    assert blocks.choice_time < tokens.choice_time
    assert blocks.memory_traffic < tokens.memory_traffic


def test_a_loss_over_all_keys_is_that_of_the_warm_up():
    sparse = indexed("dgx-h100", 4096, 4096, "backward", **V32)
    dense = indexed("dgx-h100", 4096, 4096, "backward", **(V32 | {"top_k": 4096}))
    assert dense.flops == 3 * 2 * 64 * 128 * 4096 * 4097 / 2
    assert dense.time > sparse.time
    assert sparse.choice_time == 0


@pytest.mark.parametrize("phase", SPARSE_PHASES)
def test_indexed_rows_are_priced_as_alone(phase):
    keys = np.array([2048, 8192, 65536])
    together = indexed("dgx-b200", 2, keys, phase, **V32)
    for row in range(3):
        alone = indexed("dgx-b200", 2, keys[row], phase, **V32)
        assert [column[row] for column in together] == [column[0] for column in alone]


@pytest.mark.parametrize("phase", SPARSE_PHASES)
def test_longer_contexts_take_no_less(phase):
    time = indexed("dgx-h100", 1, 2 ** np.arange(4, 18), phase, batch=8, **V32).time
    assert (np.diff(time) >= 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 0}, "selected is 0"),
        ({"top_k": 100, "block": 128}, "multiple of block"),
        ({"compression": 4, "block": 128}, "exclude each other"),
        ({"phase": "train"}, "unknown phase 'train'"),
    ],
)
def test_bad_input_of_an_indexer_is_one_line(changes, message):
    with pytest.raises(DataError, match=message):
        indexer_times("dgx-h100", batch=1, query_length=8, key_length=8, **V32 | changes)
