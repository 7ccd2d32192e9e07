"""Bytes and FLOP of the nodes of a stage, against closed forms of the papers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.workloads.trace import COLLECTIVE, SEND
from tests.training.step.cases import BATCHES, HIDDEN, LENGTH, LLAMA_LAYER, STATE
from tests.workloads.export.traces import named_traces

Sizes = dict[Any, float]
LLAMA = 4 * LLAMA_LAYER + 2 * 8192 * HIDDEN + HIDDEN


def layer_sizes(workload):
    """Bytes per layer and micro-batch, by collective."""
    trace = named_traces(workload).traces[0]
    sizes: Sizes = defaultdict(float)
    for i in np.flatnonzero(trace.kinds == COLLECTIVE).tolist():
        if trace.names[i].startswith("micro-batch 1 layer 2 "):
            sizes[TRACED[trace.collective[i]]] += int(trace.communication_size[i])
    return dict(sizes)


def test_tensor_parallelism_moves_what_korthikanti_2022_says(small_workload):
    # Section 4.2.2: all-gather and reduce-scatter around both blocks in either pass, and
    # one more all-gather each for the weight gradient. Gathers state a shard.
    sharded = layer_sizes(small_workload("llama", tensor_parallel=4))
    assert sharded == {"all_gather": 6 * STATE / 4, "reduce_scatter": 4 * STATE}
    # Shoeybi et al. 2019, section 3: two all-reduces forward, two backward.
    plain = layer_sizes(small_workload("llama", tensor_parallel=4, sequence_parallel=False))
    assert plain == {"all_reduce": 4 * STATE}


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        # Rajbhandari et al. 2020, section 7; gradients in fp32 (4 B), parameters in bf16 (2 B).
        (0, {"all_reduce": 4 * LLAMA}),
        (1, {"reduce_scatter": 4 * LLAMA, "all_gather": 2 * LLAMA}),
        (2, {"reduce_scatter": BATCHES * 4 * LLAMA, "all_gather": 2 * LLAMA}),
        (3, {"reduce_scatter": BATCHES * 4 * LLAMA, "all_gather": 2 * BATCHES * 2 * LLAMA}),
    ],
)
def test_data_parallelism_moves_every_parameter(zero, expected, small_workload):
    workload = small_workload("llama", data_parallel=4, zero_stage=zero)
    traces = named_traces(workload)
    trace = traces.traces[3]
    sizes: Sizes = defaultdict(float)
    for i in np.flatnonzero(trace.kinds == COLLECTIVE).tolist():
        name = TRACED[trace.collective[i]]
        sizes[name] += int(trace.communication_size[i]) * (4 if name == "all_gather" else 1)
    assert sizes == pytest.approx(expected, rel=1e-6)


def test_other_axes_move_what_they_hold(small_workload):
    def messages(**fields):
        trace = named_traces(small_workload("llama", **fields)).traces[0]
        rows = np.flatnonzero(trace.kinds == SEND).tolist()
        return [(trace.names[i], int(trace.communication_size[i])) for i in rows]

    stages = messages(pipeline_parallel=2)
    assert [size for _, size in stages] == [STATE] * BATCHES  # the first stage sends forward
    ring = messages(context_parallel=4)
    hops = [size for name, size in ring if "micro-batch 0 layer 1 forward" in name]
    assert hops == [2 * LENGTH // 4 * 4 * 128 * 2] * 3  # keys and values of 4 heads of 128
    # Each token goes to 2 experts and back, in both passes (Lepikhin et al. 2021).
    exchange = layer_sizes(small_workload("mixtral", data_parallel=4, expert_parallel=4))
    assert exchange["all_to_all"] == 4 * 2 * STATE


def test_products_are_those_of_the_matrices(small_workload):
    trace = named_traces(small_workload("llama")).traces[0]
    flops: dict[str, int] = defaultdict(int)
    for name, count in zip(trace.names, trace.num_ops.tolist(), strict=True):
        if name.startswith("micro-batch 1 layer 2 ") and "attention.core" not in name:
            flops["forward" if " forward " in name else "backward"] += max(0, count - 1)
    matrices = LLAMA_LAYER - 2 * HIDDEN
    assert flops["forward"] == pytest.approx(2 * LENGTH * matrices, abs=30)
    assert flops["backward"] == pytest.approx(2 * 2 * LENGTH * matrices, abs=30)


def test_gradients_among_copies_wait_for_all_of_backward_where_nothing_hides_them(small_workload):
    def copies(framework):
        fields = {"data_parallel": 16, "zero_stage": 3, "shard_group": 8}
        workload = small_workload("llama", framework=framework, **fields)
        trace = named_traces(workload).traces[0]
        names = [name for name in trace.names if name.startswith("micro-batch 0 ")]
        reduced = [i for i, name in enumerate(names) if "gradients.all_reduce" in name]
        passes = [i for i, name in enumerate(names) if "backward" in name]
        assert len(reduced) > 2
        return reduced[0] > passes[-1]

    assert copies("maxtext")
    assert not copies("fsdp")
