"""Attention in a portable language: splits, gathers and masked tiles."""

from __future__ import annotations

import pytest

from perfmodel.kernels.attention.portable import portable_splits
from tests.kernels.attention.calls import DEVICE, forward

PORTABLE = DEVICE._replace(
    portable=1.0,
    smallest_query_tile=16.0,
    decode_key_tile=32.0,
    split_rule=0.0,
    most_splits=8.0,
    packs_groups=0.0,
    masked_tile=0.7,
    windowed_tile=2.0,
    unit_bandwidth=0.5,
    conversion_operations=45.0,
    decode_latency=3e-7,
)


@pytest.mark.parametrize(
    ("keys", "blocks", "splits"),
    # SGLang get_num_kv_splits_triton, 132 units: min(8, ceil(132 max(log2(keys / 64), 1) / blocks))
    [(64, 1, 8), (64, 66, 2), (64, 132, 1), (1024, 132, 4), (1024, 100, 6), (10**6, 5000, 1)],
)
def test_portable_kernels_split_keys_as_their_library_does(keys, blocks, splits):
    assert portable_splits(132.0, float(keys), float(blocks), 8.0, 64.0) == splits


def test_portable_decode_is_paced_by_its_gathers_until_blocks_fill_the_units():
    time = [forward(PORTABLE, b, 1, 131072, 2, 1, 128, 128, True, 0)[0] for b in (1, 2, 16, 64)]
    assert time[1] == pytest.approx(time[0], rel=0.02)
    assert time[2] == pytest.approx(time[0], rel=0.05)
    assert time[3] > 1.5 * time[0]


def test_portable_decode_sees_the_window_only():
    call = (8, 1, 65536, 8, 2, 128, 128, True)
    windowed = forward(PORTABLE, *call, 1024)
    assert windowed[2] == 8 * 1024 * 2 * 256 * 2
    assert windowed[0] < 0.2 * forward(PORTABLE, *call, 0)[0]
    assert windowed[0] == forward(PORTABLE, 8, 1, 1024, 8, 2, 128, 128, True, 0)[0]


def test_a_narrow_cache_costs_portable_kernels_conversions():
    call = (512, 1, 4096, 8, 1, 128, 128, True, 0)
    narrow = PORTABLE._replace(key_bytes=1.0, conversion_operations=0.0)
    free = forward(narrow, *call)[0]
    assert free < 0.6 * forward(PORTABLE, *call)[0]
    costly = forward(narrow._replace(conversion_operations=200.0), *call)[0]
    assert costly > 2 * free


def test_portable_prefill_walks_over_masked_tiles():
    call = (4, 8192, 8192, 8, 8, 128, 128, True)
    whole = forward(PORTABLE, *call, 0, prefill=True)
    windowed = forward(PORTABLE, *call, 512, prefill=True)
    assert 0.6 < windowed[0] / whole[0] < 1.0
    assert windowed[1] < 0.2 * whole[1]  # executed FLOP count what is unmasked


SERIAL = DEVICE._replace(latent_key_time=1e-7, units=108.0)


@pytest.mark.parametrize(
    ("batch", "heads", "waves"),
    # two blocks per sequence and 64 heads, two per unit; one that shares its unit takes 1.42
    [
        (1, 16, 1.0),
        (54, 64, 1.0),
        (55, 64, 1.42),
        (108, 16, 1.42),
        (162, 16, 2.42),
        (54, 128, 1.42),
    ],
)
def test_a_serial_latent_kernel_takes_whole_waves(batch, heads, waves):
    found = forward(SERIAL, batch, 1, 65536, heads, 1, 576, 512, True, 0, latent=True)[0]
    block = SERIAL.decode_latency + 65536 * SERIAL.latent_key_time
    assert found == pytest.approx(SERIAL.launch_latency + waves * block)
