"""Logits of an indexer on a round device."""

from __future__ import annotations

import pytest

from perfmodel.kernels.attention.indexer import indexer_backward, indexer_forward
from tests.kernels.attention.calls import DEVICE

NARROW = DEVICE._replace(matrix_rate=2e15, query_bytes=1.0, key_bytes=1.0)
PAIRS = 4096 * 4097 / 2.0


def forward(
    queries=4096, keys=4096, heads=64, ratio=1, block=1, pairs=PAIRS, decode=False, batch=1
):
    return indexer_forward(
        NARROW, batch, queries, keys, heads, 128, ratio, block, pairs, decode
    )  # fmt: skip


def test_products_and_bytes_by_hand():
    time, flops, traffic, _ = forward()
    assert flops == 2 * 64 * 128 * PAIRS
    # 64 heads of 128 bytes with a weight each; keys with a scale; a logit of 4 bytes per pair
    assert traffic == 4096 * 64 * (128 + 4) + 4096 * (128 + 4) + 4 * PAIRS
    assert time > max(flops / NARROW.matrix_rate, traffic / NARROW.bandwidth)


def test_blocks_keep_one_number_per_head():
    whole, blocks = forward(heads=4), forward(heads=4, block=128)
    assert blocks[1] == whole[1]
    assert whole[2] - blocks[2] == pytest.approx(4 * PAIRS * (1 - 4 / 128))


def test_compressed_keys_are_a_quarter_of_the_work():
    pairs = sum(position // 4 for position in range(1, 16385))
    whole = forward(16384, 16384, pairs=16384 * 16385 / 2)
    quarter = forward(16384, 16384, ratio=4, pairs=float(pairs))
    assert quarter[1] == pytest.approx(whole[1] / 4, rel=1e-3)
    assert quarter[0] == pytest.approx(whole[0] / 4, rel=0.1)


def test_decode_reads_the_keys_of_every_sequence():
    time, _, traffic, _ = forward(1, 131072, pairs=131072.0, decode=True, batch=64)
    assert traffic > 64 * 131072 * (128 + 4)
    assert time > traffic / NARROW.bandwidth
    # one sequence is spread over the units: far less than a unit alone would take
    assert forward(1, 131072, pairs=131072.0, decode=True)[0] < 40e-6


def test_backward_is_three_products_over_the_chosen_keys():
    chosen = 4096 * 2048.0
    call = (1, 4096, 64, 128, 2048, chosen, chosen, 32768.0)
    time, flops, traffic, _ = indexer_backward(DEVICE, *call, False)
    assert flops == 3 * 2 * 64 * 128 * chosen
    assert traffic > 2 * 4 * 128 * chosen  # gradients of keys, written and summed
    assert indexer_backward(DEVICE, *call, True)[2] < traffic / 2
    assert time > max(flops / DEVICE.matrix_rate, traffic / DEVICE.bandwidth)


def test_more_keys_queries_and_sequences_take_no_less():
    times = [forward(1, keys, pairs=float(keys), decode=True)[0] for keys in range(256, 65537, 256)]
    assert times == sorted(times)
    times = [forward(n, n, pairs=n * (n + 1) / 2)[0] for n in (128, 1024, 4096, 16384)]
    assert times == sorted(times)
    times = [forward(batch=batch)[0] for batch in (1, 2, 3, 8)]
    assert times == sorted(times)
