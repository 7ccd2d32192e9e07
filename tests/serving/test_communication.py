"""All-reduces of passes and exchanges of tokens between experts' ranks."""

from __future__ import annotations

import numpy as np

from perfmodel.compute.collectives import collective_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.serving.communication import (
    all_reduce_times,
    expert_exchange_times,
    fused_norms,
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
