"""Recurrent mixers and causal convolutions on hardware profiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.compute.recurrence import (
    RECURRENCE_BOUNDS,
    convolution_bytes,
    convolution_flops,
    convolution_times,
    recurrence_device,
    recurrence_times,
)
from perfmodel.compute.recurrence_counts import RECURRENCE_PHASES, RECURRENCES, recurrence_flops
from perfmodel.hwprofiles import list_hardware, load_hardware
from tests.amount import cases

H100 = load_hardware("dgx-h100")
SHAPES = {
    "gated_delta": {"heads": 32, "key_heads": 16, "key_dim": 128, "value_dim": 128, "chunk": 64},
    "kimi_delta": {"heads": 32, "key_heads": 32, "key_dim": 128, "value_dim": 128, "chunk": 64},
    "mamba2": {"heads": 128, "key_heads": 8, "key_dim": 128, "value_dim": 64, "chunk": 128},
    "mamba1": {"heads": 8192, "key_heads": 1, "key_dim": 16, "value_dim": 1, "chunk": 64},
    "lightning": {"heads": 64, "key_heads": 64, "key_dim": 128, "value_dim": 128, "chunk": 256},
}
EVERY = [(kind, phase) for kind in SHAPES for phase in RECURRENCE_PHASES]


def one(kind, phase, hardware=H100, batch=2, length=4096, **changed):
    shape = SHAPES[kind] | changed
    found = recurrence_times(
        hardware, "bf16", kind=kind, phase=phase, batch=batch, length=length, **shape
    )
    return found


def test_kinds_are_those_of_this_file():
    assert tuple(SHAPES) == RECURRENCES


@pytest.mark.parametrize("profile", list_hardware())
def test_every_profile_has_a_time_for_every_kind_and_phase(profile):
    hardware = load_hardware(profile)
    precision = "bf16" if "bf16" in hardware.device.peak_flops else "fp16"
    for kind, phase in EVERY:
        found = recurrence_times(
            hardware, precision, kind=kind, phase=phase, batch=2, length=1000, **SHAPES[kind]
        )
        assert np.isfinite(found.time).all()
        assert (found.time > 0).all()


@pytest.mark.parametrize(("kind", "phase"), EVERY)
def test_no_faster_than_the_roofline(kind, phase):
    for profile in ("dgx-h100", "dgx-b200", "mi300x-server", "tpu-v5p-pod", "astra-system-1"):
        hardware = load_hardware(profile)
        found = one(kind, phase, hardware, batch=8)
        cache = hardware.device.memory.l2_capacity
        missed = max(0.0, found.memory_traffic[0] - 20 * cache)  # of up to 20 kernels
        assert found.time[0] >= (1 - 1e-9) * missed / hardware.device.memory.bandwidth
        rate = hardware.device.peak("bf16")
        rate += hardware.device.vector_flops  # elementwise kinds
        assert found.time[0] >= found.flops[0] / rate


@pytest.mark.parametrize(("kind", "phase"), EVERY)
@given(data=st.data())
@settings(max_examples=cases(15), deadline=None)
def test_time_never_falls_with_a_size(kind, phase, data):
    sizes = {
        "batch": st.integers(1, 64),
        "length": st.integers(1, 30_000),
        "heads": st.integers(1, 64),
        "key_dim": st.integers(16, 256),
        "value_dim": st.integers(16, 256),
    }
    drawn = {name: data.draw(values) for name, values in sizes.items()}
    if kind == "mamba1":
        drawn["value_dim"] = 1
    grown = data.draw(st.sampled_from([name for name in drawn if drawn[name] > 1 or kind]))
    factor = data.draw(st.integers(2, 5))
    pair = {name: [value, value] for name, value in drawn.items()}
    if (kind, grown) != ("mamba1", "value_dim"):
        pair[grown] = [drawn[grown], drawn[grown] * factor]
    chunk = SHAPES[kind]["chunk"]
    found = recurrence_times(H100, "bf16", kind=kind, phase=phase, key_heads=1, chunk=chunk, **pair)
    assert found.time[1] >= found.time[0]
    assert found.flops[1] >= found.flops[0]
    assert found.memory_traffic[1] >= found.memory_traffic[0]


def test_decode_never_gets_faster_where_a_state_takes_one_more_block():
    # 18 x 227 numbers fill one block of 4,096, 18 x 228 need two
    widths = {"key_dim": 18, "value_dim": np.arange(200, 260)}
    for kind in SHAPES:
        times = one(kind, "decode", batch=1, heads=49, key_heads=1, **widths).time
        assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize(("kind", "phase"), EVERY)
@pytest.mark.parametrize("path", ["device.memory.bandwidth", "device.memory.l2_bandwidth"])
def test_time_never_falls_with_a_slower_memory(kind, phase, path):
    slower = H100.with_values({path: H100.value(path) / 2})
    assert one(kind, phase, slower).time[0] >= one(kind, phase).time[0]


@pytest.mark.parametrize("kind", SHAPES)
def test_backward_takes_longer_than_forward(kind):
    for batch, length in ((1, 64), (1, 65536), (16, 4096)):
        forward, backward = (one(kind, p, batch=batch, length=length) for p in EVERY_TRAINING)
        assert backward.time[0] > forward.time[0]
        assert backward.memory_traffic[0] > forward.memory_traffic[0]
        assert backward.flops[0] == 2 * forward.flops[0]


EVERY_TRAINING = ("forward", "backward")


@pytest.mark.parametrize("kind", SHAPES)
def test_decode_of_a_large_batch_is_the_state_over_the_bandwidth(kind):
    batch = 4096
    shape = SHAPES[kind]
    found = one(kind, "decode", batch=batch, length=1)
    state = 2 * batch * shape["heads"] * shape["key_dim"] * shape["value_dim"] * 4
    sustained = recurrence_device(H100).portable_bandwidth
    assert RECURRENCE_BOUNDS[found.bound[0]] == "memory"
    assert found.time[0] == pytest.approx(state / sustained, rel=0.15)
    assert found.time[0] > state / sustained


@pytest.mark.parametrize("kind", SHAPES)
def test_decode_of_one_sequence_is_a_launch_and_a_few_waits(kind):
    found = one(kind, "decode", batch=1, heads=1, key_heads=1)
    assert found.time[0] < 5e-6
    assert RECURRENCE_BOUNDS[found.bound[0]] == "latency"
    assert one(kind, "decode", length=1).time[0] == one(kind, "decode", length=9999).time[0]


@pytest.mark.parametrize("kind", ["gated_delta", "kimi_delta", "mamba2", "lightning"])
def test_one_head_of_one_sequence_grows_with_its_chunks_only(kind):
    lone = {"batch": 1, "heads": 1, "key_heads": 1}
    short, long = (one(kind, "forward", length=size, **lone) for size in (2**19, 2**20))
    assert RECURRENCE_BOUNDS[long.bound[0]] == "latency"
    assert long.time[0] == pytest.approx(2 * short.time[0], rel=0.02)


@pytest.mark.parametrize("kind", ["gated_delta", "kimi_delta", "mamba2", "lightning"])
def test_limits_of_the_chunk(kind):
    shape = SHAPES[kind]
    # no chunk at all: the products with the state alone; one chunk: quadratic in the length
    state = shape["heads"] * shape["key_dim"] * shape["value_dim"]
    products = 6 if kind in ("gated_delta", "kimi_delta") else 4
    none, one_token, double = (
        recurrence_flops(kind, **shape | {"chunk": size}) for size in (0, 1, 2)
    )
    assert none == products * state
    assert double - one_token == one_token - none > 0
    # a sequence shorter than its chunk costs the kernels a whole one
    few = {"batch": 4096, "chunk": 64}
    single, whole = (one(kind, "forward", length=size, **few) for size in (1, 64))
    assert single.flops[0] == whole.flops[0] / 64
    assert single.time[0] > whole.time[0] / 64
    # and all chunks longer than it are one step
    long, longer = (one(kind, "forward", length=64, chunk=size) for size in (64, 128))
    assert longer.time[0] >= long.time[0]


def test_flops_are_those_of_the_formula():
    for kind, phase in EVERY:
        per_token = recurrence_flops(kind, phase=phase, **SHAPES[kind])
        tokens = 2 * (1 if phase == "decode" else 4096)
        assert one(kind, phase).flops[0] == pytest.approx(tokens * per_token)


def test_columns_are_what_their_rows_are_alone():
    kinds, phases = zip(*EVERY, strict=True)
    shapes = {name: [SHAPES[kind][name] for kind in kinds] for name in SHAPES["mamba1"]}
    length = np.arange(1, len(EVERY) + 1) * 333
    found = recurrence_times(
        H100, "bf16", kind=kinds, phase=phases, batch=3, length=length, **shapes
    )
    for row, (kind, phase) in enumerate(EVERY):
        alone = one(kind, phase, batch=3, length=length[row])
        for column, single in zip(found, alone, strict=True):
            assert column[row] == single[0]


def test_narrow_formats_leave_the_mixers_in_16_bits():
    shape = SHAPES["mamba2"]
    wide, narrow = (
        recurrence_times(H100, precision, kind="mamba2", batch=2, length=512, **shape)
        for precision in ("bf16", "fp8")
    )
    assert wide.time[0] == narrow.time[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "gated_dleta"}, "unknown kind 'gated_dleta'; did you mean gated_delta"),
        ({"phase": "fwd"}, "unknown phase 'fwd'"),
        ({"heads": 3}, r"heads\[0\] = 3 is not a multiple of key_heads\[0\] = 16"),
        ({"length": 0}, "length is 0; it must be a whole number of at least 1"),
        ({"chunk": 2.5}, "chunk is 2.5"),
        ({"batch": 2.0**31}, "at most"),
        ({"batch": [1, 2], "length": [1, 2, 3]}, "do not broadcast"),
        ({"length": "long"}, "length should be numbers"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(changed, message):
    call = {"kind": "gated_delta", "phase": "forward", "batch": 2, "length": 64}
    with pytest.raises(DataError, match=message) as caught:
        recurrence_times(H100, "bf16", **call | SHAPES["gated_delta"] | changed)
    assert "\n" not in str(caught.value)


def test_a_precision_that_the_device_lacks_is_refused():
    with pytest.raises(HardwareError, match="bf16"):
        one("mamba2", "forward", load_hardware("v100-pcie"))


# ---------------------------------------------------------------- convolutions


def test_a_convolution_is_read_and_written_once():
    found = convolution_times(H100, tokens=65536, channels=8192, kernel=4)
    elements = 65536 * 8192
    weights = 8192 * 5 * 2
    device = recurrence_device(H100)
    alone = (4 * elements + weights) / device.portable_bandwidth + device.stream.launch_latency
    assert found.time[0] == pytest.approx(alone, rel=1e-6)
    assert convolution_flops(8192, 4) == 2 * 4 * 8192
    assert convolution_flops(8192, 4, "backward") == 2 * convolution_flops(8192, 4)


def test_convolutions_backward_and_decode_move_more():
    sizes = {"tokens": np.array([1024.0]), "channels": np.array([512.0]), "kernel": np.array([4.0])}
    once = 1024 * 512 * 2
    read, written = convolution_bytes(phase="backward", **sizes)
    assert (read - 2 * once, written - once) == (512 * 5 * 2, 2 * 512 * 5 * 2)
    read, written = convolution_bytes(phase="decode", **sizes)
    assert (read - 4 * once, written - 4 * once) == (512 * 5 * 2, 0)
    forward, backward = (
        convolution_times(H100, tokens=1e5, channels=8192, kernel=4, phase=phase).time[0]
        for phase in EVERY_TRAINING
    )
    assert 1.3 * forward < backward < 2 * forward


def test_convolutions_never_get_faster_with_a_size():
    kernel = np.array([2.0, 3, 4, 7, 100, 1000])
    assert (
        np.diff(convolution_times(H100, tokens=4096, channels=64, kernel=kernel).time) >= 0
    ).all()
    tokens = np.array([1, 10, 100, 1e4, 1e6])
    assert (np.diff(convolution_times(H100, tokens=tokens, channels=64, kernel=4).time) >= 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"phase": "bakward"}, "unknown phase 'bakward'; did you mean backward"),
        ({"kernel": 0}, "kernel is 0"),
        ({"tokens": [1, 2], "channels": [1, 2, 3]}, "do not broadcast"),
    ],
)
def test_wrong_convolutions_are_refused(changed, message):
    with pytest.raises(DataError, match=message):
        convolution_times(H100, **{"tokens": 4, "channels": 4, "kernel": 4} | changed)
