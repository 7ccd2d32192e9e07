"""FLOP and states of recurrent mixers, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.compute import recurrence_counts as counts

HEAD = {"heads": 1, "key_heads": 1, "key_dim": 128, "value_dim": 128, "chunk": 64}


def test_flops_of_the_delta_rule_per_head_and_token_by_hand():
    # K K^T, A K, Q K^T over 64 keys of 128; A V and the output over 64 values; three products
    # with the state of 128 x 128
    by_hand = 2 * (3 * 64 * 128 + 2 * 64 * 128) + 6 * 128 * 128
    assert by_hand == 180_224
    assert counts.recurrence_flops("gated_delta", **HEAD) == by_hand
    assert counts.recurrence_flops("kimi_delta", **HEAD) == by_hand


def test_flops_of_the_delta_rule_less_the_triangular_solve_are_those_of_torch():
    # FlopCounterMode on transformers' Qwen3-Next, per head of 128 and token: W and U by solve
    solved = 2 * 64 * (128 + 128)
    assert counts.recurrence_flops("gated_delta", **HEAD) - solved == 147_456


def test_flops_of_other_kinds_by_hand():
    ssd = {"heads": 128, "key_heads": 8, "key_dim": 128, "value_dim": 64, "chunk": 128}
    by_hand = 8 * 2 * 128 * 128 + 128 * (2 * 128 * 64 + 4 * 128 * 64)
    assert counts.recurrence_flops("mamba2", **ssd) == by_hand
    scan = {"heads": 8192, "key_heads": 1, "key_dim": 16, "value_dim": 1, "chunk": 64}
    assert counts.recurrence_flops("mamba1", **scan) == 9 * 8192 * 16
    wide = {"heads": 64, "key_heads": 64, "key_dim": 128, "value_dim": 128, "chunk": 256}
    by_hand = 64 * (2 * 256 * 256 + 4 * 128 * 128)
    assert counts.recurrence_flops("lightning", **wide) == by_hand


@pytest.mark.parametrize("kind", counts.RECURRENCES)
def test_backward_counts_two_gradients_of_every_product(kind):
    forward = counts.recurrence_flops(kind, **HEAD)
    assert counts.recurrence_flops(kind, **HEAD, phase="backward") == 2 * forward
    assert counts.recurrence_flops(kind, **HEAD, phase="prefill") == forward
    assert counts.recurrence_flops(kind, **HEAD, phase="decode") <= forward


def test_counts_take_columns():
    heads = np.array([1.0, 2.0, 4.0])
    found = counts.recurrence_flops("gated_delta", **HEAD | {"heads": heads})
    assert found.tolist() == [180_224, 2 * 180_224, 4 * 180_224]
