"""The indexer on hardware profiles: logits and choice."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.compute.indexer import indexer_times
from perfmodel.compute.sparse_attention import SPARSE_PHASES
from perfmodel.hwprofiles import load_hardware

V32 = {"heads": 64, "head_dim": 128, "top_k": 2048}
M3 = {"heads": 4, "head_dim": 128, "top_k": 2048, "block": 128}
V4 = {"heads": 64, "head_dim": 128, "top_k": 512, "compression": 4}


def priced(device, queries, keys, phase="forward", batch=1, **indexer):
    return indexer_times(
        device, batch=batch, query_length=queries, key_length=keys, phase=phase, **indexer
    )


@pytest.mark.parametrize("indexer", [V32, M3, V4], ids=["V3.2", "M3", "V4"])
@pytest.mark.parametrize("device", ["dgx-h100", "mi355x-server", "dgx-a100"])
def test_no_faster_than_peak_and_memory(device, indexer):
    chip = load_hardware(device).device
    peak = max(chip.peak_flops["bf16"], chip.peak_flops.get("fp8", 0.0))
    for phase in SPARSE_PHASES:
        queries = 1 if phase == "decode" else 4096
        found = priced(device, queries, 16384, phase, batch=[1, 4, 32], **indexer)
        assert (found.time > found.flops / peak).all()
        assert (found.time - found.choice_time > 0).all()


def test_logits_run_in_8_bits_where_the_device_has_them():
    found = priced("dgx-h100", 4096, 32768, **V32)
    wide = priced("dgx-h100", 4096, 32768, precision="bf16", **V32)
    assert found.flops == wide.flops == 2 * 64 * 128 * (4096 * 28672 + 4096 * 4097 / 2)
    assert wide.time - wide.choice_time > 1.2 * (found.time - found.choice_time)


def test_nothing_is_chosen_where_all_keys_are_kept():
    short, long = (priced("dgx-h100", 2048, keys, **V32).choice_time for keys in (2048, 4096))
    assert long > 3 * short


def test_blocks_choose_among_fewer_numbers():
    tokens = priced("dgx-h100", 4096, 32768, **(M3 | {"block": 1}))
    blocks = priced("dgx-h100", 4096, 32768, **M3)
    assert blocks.choice_time < tokens.choice_time
    assert blocks.memory_traffic < tokens.memory_traffic


def test_a_loss_over_all_keys_is_that_of_the_warm_up():
    sparse = priced("dgx-h100", 4096, 4096, "backward", **V32)
    dense = priced("dgx-h100", 4096, 4096, "backward", **(V32 | {"top_k": 4096}))
    assert dense.flops == 3 * 2 * 64 * 128 * 4096 * 4097 / 2
    assert dense.time > sparse.time
    assert sparse.choice_time == 0


@pytest.mark.parametrize("phase", SPARSE_PHASES)
def test_rows_are_priced_as_alone(phase):
    keys = np.array([2048, 8192, 65536])
    together = priced("dgx-b200", 2, keys, phase, **V32)
    for row in range(3):
        alone = priced("dgx-b200", 2, keys[row], phase, **V32)
        assert [column[row] for column in together] == [column[0] for column in alone]


@pytest.mark.parametrize("phase", SPARSE_PHASES)
def test_longer_contexts_take_no_less(phase):
    time = priced("dgx-h100", 1, 2 ** np.arange(4, 18), phase, batch=8, **V32).time
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
def test_bad_input_is_one_line(changes, message):
    with pytest.raises(DataError, match=message):
        indexer_times("dgx-h100", batch=1, query_length=8, key_length=8, **V32 | changes)
