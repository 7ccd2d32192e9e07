"""All-reduces of passes and exchanges of tokens between experts' ranks."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_model
from perfmodel.compute.collectives import collective_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.communication import (
    LINK_SHARE,
    Side,
    all_reduce_times,
    expert_exchange_times,
    exposed_time,
    fused_norms,
    key_value_heads,
    seconds_per_byte,
    sequence_flows,
)
from perfmodel.software.engine import load_engine

VLLM = load_engine("vllm")


def exchange(hardware, tokens, t, a, e, engine=VLLM, **more):
    rows = (np.atleast_1d(np.asarray(x, float)) for x in (t, a, e))
    return expert_exchange_times(
        hardware, engine, np.atleast_1d(np.asarray(tokens, float)), 7168.0, 8, 256, *rows, **more
    )


def test_an_engine_takes_its_own_kernels_for_small_buffers(h100):
    size = np.array([16384.0, 512e6])
    own = all_reduce_times(h100, VLLM, size, 8)
    library = all_reduce_times(h100, load_engine("vllm", own_all_reduce=False), size, 8)
    np.testing.assert_array_equal(library, collective_times(h100, "all_reduce", size, 8))
    assert own[0] < 0.7 * library[0]
    assert own[1] <= library[1]


def test_an_engines_kernels_end_where_adapters_begin(h100):
    inside, across = (all_reduce_times(h100, VLLM, 65536.0, members)[0] for members in (8, 16))
    assert across == collective_times(h100, "all_reduce", 65536.0, 16)[0]
    assert across > 3.0 * inside
    rack = load_hardware("gb200-nvl72")
    assert all_reduce_times(rack, VLLM, 65536.0, 16)[0] < 2.0 * inside


def test_one_device_has_nobody_to_talk_to(h100):
    time, apart = exchange(h100, 64, 1, 1, 1)
    assert time[0] == 0.0
    assert not apart[0]
    assert all_reduce_times(h100, VLLM, 1e6, 1)[0] == 0.0


def test_one_attention_rank_sums_once_whatever_the_experts_do(h100):
    time, _ = exchange(h100, [64, 64], [8, 8], [1, 1], [1, 8])
    assert time[0] == time[1] == all_reduce_times(h100, VLLM, 64 * 7168 * 2.0, 8)[0]


def test_several_ranks_gather_all_tokens_and_scatter_sums(h100):
    time, apart = exchange(h100, 128, 1, 8, 8)
    size = 8 * 128 * 7168 * 2.0
    parts = (collective_times(h100, kind, size, 8)[0] for kind in ("all_gather", "reduce_scatter"))
    assert time[0] == sum(parts)
    assert not apart[0]
    narrow = load_engine("trtllm")
    assert exchange(h100, 128, 1, 8, 8, narrow, wire_bytes=1.0)[0][0] < time[0]


def test_tokens_go_to_their_experts_alone_where_those_are_few_among_ranks(h100):
    time, apart = exchange(h100, 128, 1, 32, 32)
    assert apart[0]
    all_to_all = load_engine("vllm", expert_all_to_all=False)
    gathered, _ = exchange(h100, 128, 1, 32, 32, all_to_all)
    assert time[0] < gathered[0]


def test_norms_run_inside_an_engines_own_all_reduce(h100, a100):
    size = np.array([65536.0, 512e6, 65536.0])
    members = np.array([8, 8, 1])
    trtllm, sglang = load_engine("trtllm"), load_engine("sglang", "0.5.9")
    assert fused_norms(h100, trtllm, size, members, experts=False).tolist() == [True, False, False]
    assert fused_norms(h100, sglang, size, members, experts=True)[0]
    assert not fused_norms(h100, sglang, size, members, experts=False).any()
    assert not fused_norms(h100, load_engine("vllm", "0.12"), size, members, experts=True).any()
    assert not fused_norms(a100, trtllm, size, members, experts=True).any()


def test_over_a_bus_engines_sum_by_themselves_only_what_they_say():
    cards = load_hardware("l40s-server")
    library = collective_times(cards, "all_reduce", 4096.0, [2, 4])
    for name, own in (("vllm", True), ("trtllm", False)):
        time = all_reduce_times(cards, load_engine(name), 4096.0, [2, 4])
        assert (time < library).tolist() == [own, False]
    blind = cards.with_values({"system.network.0.peer_path": "memory"})
    library = collective_times(blind, "all_reduce", 4096.0, 2)
    assert all_reduce_times(blind, load_engine("vllm"), 4096.0, 2) == library


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
    from perfmodel.serving.communication import handover
    from perfmodel.serving.enumerate import serving_grid

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
