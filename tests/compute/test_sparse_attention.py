"""Sparse attention on hardware profiles."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.compute.attention import attention_times
from perfmodel.compute.sparse_attention import SPARSE_PHASES, sparse_attention_times

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
