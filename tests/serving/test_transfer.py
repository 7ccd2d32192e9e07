"""Caches on their way: every byte arrives once, links hold, copies share the work."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model
from perfmodel.serving.transfer import (
    LINK_SHARE,
    Side,
    exposed_time,
    key_value_heads,
    seconds_per_byte,
    sequence_flows,
)

RATE = 50e9


def side(tensor: int, stages: int = 1, rate: float = RATE) -> Side:
    return Side(tensor, stages, rate)


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("source", [(1, 1), (4, 1), (8, 2), (16, 1)])
@pytest.mark.parametrize("target", [(1, 1), (2, 2), (8, 1), (16, 4)])
def test_every_device_gets_what_it_keeps(heads, source, target):
    sources, targets, shares = sequence_flows(side(*source), side(*target), heads)
    got = np.bincount(targets, shares, minlength=target[0] * target[1])
    assert got == pytest.approx(np.full(got.size, 1 / min(target[0], heads) / target[1]))
    sent = np.bincount(sources, shares, minlength=source[0] * source[1])
    assert np.sum(sent) == pytest.approx(np.sum(got))
    # Devices send alike, as far as there are targets for all.
    if target[0] >= source[0]:
        assert sent == pytest.approx(np.full(sent.size, np.sum(got) / sent.size))


def test_the_tightest_link_decides():
    assert seconds_per_byte(side(1), side(1), 8) == pytest.approx(1 / RATE)
    assert seconds_per_byte(side(4), side(8), 8) == pytest.approx(1 / (4 * RATE))
    assert seconds_per_byte(side(8), side(4), 8) == pytest.approx(1 / (4 * RATE))
    assert seconds_per_byte(side(4), side(4, rate=RATE / 2), 8) == pytest.approx(2 / (4 * RATE))
    # A latent cache goes whole to every device, from copies that share the sending.
    assert seconds_per_byte(side(4), side(4), 1) == pytest.approx(1 / RATE)
    assert seconds_per_byte(side(2), side(8), 1) == pytest.approx(4 / RATE)
    narrow = Side(4, 1, RATE, shared=RATE)
    assert seconds_per_byte(narrow, side(4), 8) == pytest.approx(1 / RATE)


def test_symmetric_pools_take_as_long_both_ways():
    for tensor, stages in ((2, 1), (4, 2), (1, 4)):
        there = seconds_per_byte(side(tensor, stages), side(4, 1), 4)
        back = seconds_per_byte(side(4, 1), side(tensor, stages), 4)
        assert there == pytest.approx(back)


def test_layers_sent_while_others_run_are_hidden():
    assert exposed_time(1.0, 0.0, 10) == pytest.approx(1.0)
    assert exposed_time(1.0, 1e9, 10) == pytest.approx(0.1)
    assert exposed_time(1.0, 0.5, 10) == pytest.approx(0.1 + 0.9 - 0.45)


def test_parts_of_caches():
    assert key_value_heads(load_model("llama-3.1-70b")) == 8
    assert key_value_heads(load_model("deepseek-r1")) == 1


def test_handed_over_tokens_of_a_grid():
    from perfmodel.model.state import sequence_state
    from perfmodel.serving.enumerate import serving_grid
    from perfmodel.serving.transfer import handover

    model = load_model("llama-3.1-8b")
    grid = serving_grid(
        model,
        engine=["vllm"],
        tensor_parallel=[1, 2],
        prefill_workers=[0, 1],
        prefill_tensor_parallel=[1],
        kv_precision=["bf16"],
    )
    latency, per_token = handover(grid, load_hardware("dgx-h200"))
    apart = grid["prefill_workers"] > 0
    assert apart.any()
    assert not apart.all()
    assert np.all(per_token[~apart] == 0)
    assert np.all(latency[~apart] == 0)
    token = sequence_state(model, 1, "bf16").per_token
    nvlink = load_hardware("dgx-h200").system.network[0]
    assert per_token[apart] == pytest.approx(token / (LINK_SHARE * nvlink.bandwidth))
    other = load_hardware("dgx-b200")
    far = handover(grid, load_hardware("dgx-h200"), other)[1]
    assert far[apart] == pytest.approx(token / (LINK_SHARE * other.system.network[-1].bandwidth))
