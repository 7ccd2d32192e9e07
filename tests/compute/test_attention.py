"""Attention on hardware profiles: measured rows, and input that is refused."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.compute.attention import (
    ATTENTION_BOUNDS,
    Call,
    attention_times,
    small_kernels,
)
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.kernels.attention.tiles import visited_tiles
from perfmodel.measured.kinds.attention import unmasked_pairs
from tests.amount import cases
from tests.data import table_of

# profile, batch, queries and keys, heads, key-value heads, d_qk, d_v, backward, seconds, tolerance
LARGE_CALLS = table_of(__file__, "large_calls")


@pytest.mark.parametrize("call", LARGE_CALLS)
def test_attention_near_measured_large_calls(call):
    profile, batch, length, heads, kv_heads, width_qk, width_v, backward, seconds, tolerance = call
    times = attention_times(
        load_hardware(profile),
        "bf16",
        batch,
        length,
        length,
        heads,
        kv_heads,
        width_qk,
        width_v,
        True,
        0,
        backward,
    )
    assert times.time[0] == pytest.approx(seconds, rel=tolerance)


# Published rates of backward passes, none of which made a constant but the first two:
# profile, sequences, length, heads, width of keys, width of values, causal, TFLOP/s, tolerance
BACKWARD_RATES = [
    ("dgx-h200", 1, 8192, 64, 128, 128, True, 570, 0.05),  # cudnn-frontend 3929da2: 560-581
    ("dgx-h200", 1, 8192, 128, 192, 128, True, 407, 0.05),  # cudnn-frontend 3929da2
    ("dgx-h200", 1, 16384, 16, 256, 256, False, 480, 0.05),  # flash-attention pull request 2889
    ("dgx-h100", 2, 8192, 16, 128, 128, True, 574.7, 0.1),  # flash-attention pull request 1893
    ("dgx-h100", 1, 16384, 32, 64, 64, False, 474, 0.15),  # arXiv:2407.08608, figure 6
    ("dgx-h100", 1, 16384, 16, 128, 128, False, 561, 0.05),  # arXiv:2407.08608, figure 6
]


@pytest.mark.parametrize("call", BACKWARD_RATES)
def test_backward_near_published_rates(call):
    profile, batch, length, heads, width_qk, width_v, causal, rate, tolerance = call
    shape = (batch, length, length, heads, heads, width_qk, width_v, causal)
    found = attention_times(profile, "bf16", *shape, backward=True)
    assert found.flops[0] / found.time[0] == pytest.approx(rate * 1e12, rel=tolerance)


# flash-attention pull requests 1893, 2280 and 2270, causal, 8,192 tokens: published slowdowns
@pytest.mark.parametrize(
    ("profile", "slower", "tolerance"),
    [
        ("dgx-h100", 574.7 / 474.0, 0.01),
        ("dgx-b200", 2.945 / 2.459, 0.01),
        ("tpu-v5p-pod", 1.0, 0.0),
    ],
)
def test_deterministic_backward_passes_take_longer_and_nothing_else_does(
    profile, slower, tolerance
):
    shape = (profile, "bf16", 2, 8192, 8192, 16, 16, 128, 128)
    backward = [False, True]
    free = attention_times(*shape, backward=backward)
    ordered = attention_times(*shape, backward=backward, deterministic=True)
    assert ordered.time[0] == free.time[0]
    assert ordered.time[1] / free.time[1] == pytest.approx(slower, rel=tolerance)
    assert ordered.flops.tolist() == free.flops.tolist()


def test_fp8_attention_near_measured_call():
    # cudnn-frontend 9793df5, B200 cuDNN, 131072 tokens, 128 heads: 330.13 ms, 878.53 ms
    times = attention_times(
        load_hardware("dgx-b200"),
        "fp8",
        1,
        131072,
        131072,
        128,
        8,
        128,
        128,
        True,
        0,
        [False, True],
    )
    assert times.time == pytest.approx([330.13e-3, 878.53e-3], rel=0.2)


@pytest.mark.in_sample("attention-a100")
def test_median_error_of_large_prefill_on_a100(development_table):
    with development_table("measured/attention.csv").open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["hardware"], row["framework"], row["phase"]) == ("A100_SXM", "sglang", "fwd")
        ]

    def column(name):
        return np.array([int(row[name]) for row in rows])

    times = attention_times(
        load_hardware("dgx-a100"),
        "bf16",
        column("batch"),
        column("q_len"),
        column("kv_len"),
        column("heads"),
        column("kv_heads"),
        column("d_qk"),
        column("d_v"),
        np.array([row["causal"] == "True" for row in rows]),
        column("window"),
    )
    measured = np.array([float(row["time_us"]) for row in rows]) * 1e-6
    large = times.flops > 1e12
    assert large.sum() > 50
    assert np.median(np.abs(times.time[large] / measured[large] - 1.0)) < 0.05


def test_every_profile_prices_attention():
    for name in list_hardware():
        hardware = load_hardware(name)
        rates = hardware.device.peak_flops
        precision = next((p for p in ("bf16", "fp16") if p in rates), None)
        if precision:
            times = attention_times(
                hardware, precision, 2, 8192, 8192, 32, 8, 128, 128, True, 0, [False, True]
            )
            share = times.flops / times.time / hardware.device.peak(precision)
            assert ((share > 0.15) & (share <= 1.0)).all(), (name, share)


def test_rows_broadcast_and_do_not_depend_on_company():
    hardware = load_hardware("dgx-h100")
    lengths = np.array([128, 2048, 4096, 32768])
    together = attention_times(hardware, "bf16", 1, lengths, lengths, 32, 8, 128, 128)
    for row, length in enumerate(lengths):
        alone = attention_times(hardware, "bf16", 1, length, length, 32, 8, 128, 128)
        assert all(a[0] == b[row] for a, b in zip(alone, together, strict=True))
    assert set(ATTENTION_BOUNDS[code] for code in together.bound) <= set(ATTENTION_BOUNDS)


def test_more_bandwidth_or_compute_is_never_slower():
    slow = load_hardware("dgx-h100")

    def both_passes(hardware):
        return attention_times(
            hardware, "bf16", 4, 4096, 4096, 32, 8, 128, 128, backward=[False, True]
        ).time

    for path, value in (
        ("device.memory.bandwidth", 4.8e12),
        ("device.peak_flops.bf16", 2e15),
        ("device.special_function_rate", 8e12),
    ):
        fast = slow.with_values({path: value})
        assert (both_passes(fast) <= both_passes(slow)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, r"batch\[0\] = 0"),
        ({"query_length": -4}, r"query_length\[0\] = -4"),
        ({"key_length": float("nan")}, "key_length"),
        ({"heads": 30}, "not a multiple"),
        ({"heads": 2.5}, "whole number"),
        ({"head_dim_v": float("inf")}, "head_dim_v"),
        ({"window": -1}, "window"),
        ({"causal": 2}, "true or false"),
        ({"batch": "four"}, "must be numbers"),
        ({"batch": [1, 2], "heads": [8, 8, 8]}, "do not broadcast"),
    ],
)
def test_attention_refuses_bad_columns(change, message):
    call = {
        "batch": 1,
        "query_length": 128,
        "key_length": 128,
        "heads": 32,
        "key_value_heads": 8,
        "head_dim_qk": 128,
        "head_dim_v": 128,
    }
    with pytest.raises(DataError, match=message):
        attention_times(load_hardware("dgx-h100"), "bf16", **(call | change))


def test_attention_refuses_what_the_device_lacks():
    with pytest.raises(HardwareError, match="fp8"):
        attention_times(load_hardware("dgx-a100"), "fp8", 1, 128, 128, 8, 8, 128, 128)
    with pytest.raises(HardwareError, match="bf16"):
        attention_times(load_hardware("dgx-a100"), "bf61", 1, 128, 128, 8, 8, 128, 128)


def test_attention_refuses_values_wider_than_the_latent_row():
    with pytest.raises(DataError, match="holds the values"):
        attention_times(load_hardware("dgx-h100"), "bf16", 1, 1, 64, 8, 1, 512, 576, latent=True)


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-b200", "gb300-nvl72"])
def test_an_fp8_cache_is_never_slower_where_memory_bounds_decode(profile):
    hardware = load_hardware(profile)
    batch = np.array([16, 64, 256])
    call = (batch, 1, 32768, 32, 8, 128, 128)
    wide = attention_times(hardware, "bf16", *call)
    narrow = attention_times(hardware, "fp8", *call)
    assert all(ATTENTION_BOUNDS[code] == "memory" for code in wide.bound)
    assert (narrow.time <= wide.time).all()


@pytest.mark.parametrize(("heads", "groups"), [(64, 8), (32, 32), (8, 1), (16, 2)])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_an_nvfp4_cache_takes_no_longer_than_fp8_and_no_less_than_its_bytes(heads, groups, width):
    batch, keys = np.meshgrid([1, 4, 16, 64, 256], [64, 512, 4096, 32768])
    shape = (batch.ravel(), 1, keys.ravel(), heads, groups, width, width)
    wide, narrow = (
        attention_times("dgx-b200", "fp8", *shape, kv_precision=name) for name in ("fp8", "nvfp4")
    )
    assert (narrow.time <= wide.time * (1 + 1e-12)).all()
    assert (narrow.time >= 0.5625 * wide.time).all()
    assert (narrow.memory_traffic < wide.memory_traffic).all()
    # Kernels multiply in fp8, whatever is asked for.
    asked = attention_times("dgx-b200", "bf16", *shape, kv_precision="nvfp4")
    assert (asked.time == narrow.time).all()


def test_an_nvfp4_cache_is_refused_where_no_kernels_are():
    shape = (1, 1, 4096, 64, 1, 576, 512)
    for change, message in (
        ({"latent": True}, "latent attention"),
        ({"backward": True}, "backward passes"),
    ):
        with pytest.raises(HardwareError, match=f"{message}.* no kernels for a cache in nvfp4"):
            attention_times("dgx-b200", "bf16", *shape, kv_precision="nvfp4", **change)
    with pytest.raises(HardwareError, match=r"dgx-h100.* need tcgen05"):
        attention_times("dgx-h100", "fp8", *shape, kv_precision="nvfp4")


def test_a_steady_load_is_never_faster():
    hardware = load_hardware("dgx-h100")
    call = ("bf16", 8, 16384, 16384, 64, 8, 128, 128)
    cold = attention_times(hardware, *call).time
    alone = attention_times(hardware, *call, steady=True, alone=True).time
    assert (alone >= cold).all()
    assert (attention_times(hardware, *call, steady=True).time >= alone).all()


@given(
    st.integers(1, 60),
    st.integers(0, 60),
    st.sampled_from([0, 1, 5, 33, 200]),
)
@settings(max_examples=cases(200), deadline=None, derandomize=True)
def test_unmasked_pairs_of_causal_masks_are_exact(queries, cached, window):
    keys = queries + cached
    assert unmasked_pairs(queries, keys, True, window) == visited_tiles(
        queries, keys, 1, 1, True, window
    )
    assert unmasked_pairs(queries, keys, False, 0) == queries * keys


def test_kernels_beside_attention_follow_the_framework():
    call = Call("sglang", "fa3", "decode", "bf16", False, True, 4, 1, 32, 8, 128, 128)
    append = small_kernels(call)
    assert append == (1.0, 2 * 4 * 8 * 256 * 2)  # read and write keys and values of 4 tokens
    assert small_kernels(call._replace(width_qk=192)).launches == 5.0
    narrow = call._replace(kv_precision="fp8")
    assert small_kernels(narrow).launches == 3.0
    assert small_kernels(narrow._replace(kernel="trtllm_mha")).launches == 6.0
    assert small_kernels(narrow._replace(kernel="triton")).launches == 2.0
    assert small_kernels(call._replace(causal=False)) == (0.0, 0.0)


def test_only_flashinfers_prefill_for_blackwell_is_planned_on_the_device() -> None:
    call = Call("sglang", "flashinfer", "fwd", "bf16", False, True, 4, 64, 32, 8, 128, 128)
    assert small_kernels(call).launches == 1
    assert small_kernels(call._replace(planned=True)).launches == 4


def test_vllm_launches_more_beside_flashinfer_with_a_narrow_cache() -> None:
    call = Call(
        "vllm", "vllm_flashinfer_fidecode", "decode", "fp8", False, True, 4, 1, 8, 8, 128, 128
    )
    assert small_kernels(call).launches == 4
    trtllm = call._replace(kernel="vllm_flashinfer_trtllmdecode")
    assert small_kernels(trtllm).launches == 1
