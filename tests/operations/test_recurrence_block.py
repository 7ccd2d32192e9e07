"""Recurrences: heads over tensor ranks, states over context ranks, convolutions between them."""

from __future__ import annotations

import pytest

from perfmodel.compute.recurrence_counts import RECURRENCES
from perfmodel.operations.operations import Recurrence, Role, Stream
from perfmodel.operations.recurrence_block import LAUNCHES
from perfmodel.software.framework import load_framework
from tests.operations.counting import communications, number, operations_of
from tests.operations.layers import model_of

KINDS = ("gated delta", "kimi delta", "mamba2", "mamba1", "lightning")


def layer_of(name, framework="megatron", **fields):
    return operations_of(model_of(name), "layer0", load_framework(framework), **fields)


def core(operations, phase="forward"):
    (found,) = [x for x in operations if isinstance(x, Recurrence) and x.phase == phase]
    return found


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_runs_its_chain_forward_and_backward(name):
    operations = layer_of(name)
    for phase in ("forward", "backward_input"):
        item = core(operations, phase)
        assert item.backward == (phase != "forward")
        assert item.role == Role.RECURRENCE
        assert item.launches == LAUNCHES[item.kind][item.backward]
        assert (number(item.batch), number(item.length)) == (1, 2048)
    assert set(LAUNCHES) == set(RECURRENCES)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fields", [{"tensor_parallel": 4}, {"context_parallel": 4}])
def test_ranks_share_heads_times_tokens(name, fields):
    one, item = core(layer_of(name)), core(layer_of(name, **fields))
    assert number(item.heads) * number(item.length) * 4 == number(one.heads) * 2048


def test_all_to_all_exchanges_heads_for_the_sequence():
    fields = {"context_parallel": 4, "context_parallel_kind": "all_to_all"}
    operations = layer_of("gated delta", **fields)
    item = core(operations)
    assert (number(item.heads), number(item.key_heads), number(item.length)) == (8, 4, 2048)
    names = {x.name for x in communications(operations, "context")}
    assert names == {"recurrence.exchange"}
    # Queries, keys, values, gate, decay and step of a token go one way, its output the other.
    (sent,) = [x for x in communications(operations, "context") if x.phase == "forward"]
    width = 2 * 16 * 128 + 2 * 32 * 128 + 2 * 32
    assert number(sent.size) == 512 * (width + 32 * 128) * 2


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("mamba2", 64 * 128 * 64),
        ("lightning", 32 * 128 * 128),
        # Under a delta rule also what a rank does to the state that comes in.
        ("gated delta", 32 * 128 * (128 + 128)),
    ],
)
def test_states_go_from_rank_to_rank_in_single_precision(name, numbers):
    for kind, collective, count, copies in (
        ("ring", "point_to_point", 3, 1),
        ("all_gather", "all_gather", 1, 4),
    ):
        items = layer_of(name, context_parallel=4, context_parallel_kind=kind, micro_batch_size=2)
        for phase in ("forward", "backward_input"):
            (state,) = [
                x
                for x in communications(items, "context")
                if x.name == "recurrence.state" and x.phase == phase
            ]
            assert state.collective == collective
            assert number(state.count) == count
            assert number(state.size) == 2 * numbers * 4 * copies
            assert not state.hidden_by


def test_convolutions_take_the_last_tokens_of_the_rank_before():
    items = layer_of("mamba2", context_parallel=4, tensor_parallel=2)
    halo = [x for x in communications(items, "context") if x.name.endswith(".halo")]
    channels = 64 * 64 + 2 * 8 * 128
    assert [number(x.size) for x in halo] == [3 * channels / 2 * 2] * 2
    short = layer_of("short convolution", context_parallel=4, context_parallel_kind="all_to_all")
    halo = [x for x in communications(short, "context") if x.name.endswith(".halo")]
    assert [number(x.size) for x in halo] == [2 * 2048 * 2] * 2


def test_a_convolution_reads_and_writes_each_channel_once():
    (item,) = [
        x
        for x in layer_of("gated delta")
        if isinstance(x, Stream) and x.name == "recurrence.convolution" and x.phase == "forward"
    ]
    channels = 2 * 16 * 128 + 32 * 128
    assert number(item.bytes_read) == number(item.bytes_written) == 2048 * channels * 2


def test_mamba_1_sums_time_step_b_and_c_over_tensor_ranks():
    items = layer_of("mamba1", tensor_parallel=4, sequence_parallel=True)
    name = "recurrence.time_step_b_c.all_reduce"
    sums = [x for x in communications(items, "tensor") if x.name == name]
    assert [x.phase for x in sums] == ["forward", "backward_input"]
    assert number(sums[0].size) == 2048 * (128 + 2 * 16) * 2


def test_only_mamba_1_has_its_gate_inside_the_scan():
    for name in KINDS:
        names = {x.name for x in layer_of(name)}
        assert ("recurrence.gated_norm" in names) == (name != "mamba1")


def test_an_unfused_norm_ahead_of_a_gate_is_a_kernel_of_its_own():
    def gate(framework):
        items = layer_of("mamba2", framework)
        return next(x for x in items if x.name == "recurrence.gated_norm")

    fused, apart = gate("megatron"), gate("fsdp")
    assert number(apart.launches) == 2 * number(fused.launches)
    assert number(apart.bytes_read) > number(fused.bytes_read)
