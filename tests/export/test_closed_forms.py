"""Files of projections against closed forms of the papers, and what the dialect corrects."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.export.aicb import LAYERNORM, corrected_workload
from perfmodel.export.chakra import projected_traces
from perfmodel.export.program import ProgramStep, in_pieces
from perfmodel.export.types import ProjectedOperation
from perfmodel.export.workload import projected_workload
from perfmodel.model.build import dense_model, moe_model
from perfmodel.software.framework import load_framework
from perfmodel.trace import COLLECTIVE, SEND

named_traces = partial(projected_traces, numbered_groups=False)

# As Llama 3 (two query heads per key, gated), and as Mixtral (experts in every layer).
MODELS = {
    "llama": dense_model(
        "llama",
        layers=4,
        hidden_size=1024,
        heads=8,
        key_value_heads=4,
        intermediate_size=2816,
        vocab_size=8192,
    ),
    "mixtral": moe_model(
        "mixtral",
        layers=4,
        hidden_size=1024,
        heads=8,
        key_value_heads=4,
        vocab_size=8192,
        experts=8,
        experts_per_token=2,
        expert_intermediate_size=1024,
    ),
}
Sizes = dict[Any, float]


@pytest.fixture(scope="module")
def workload_of(h100, grid_of):
    """Return a function that makes the workload of a model and the fields of a strategy."""

    def make(name, framework="megatron", **fields):
        grid = grid_of(MODELS[name], **fields)
        return projected_workload(MODELS[name], grid, h100, framework=framework)

    return make


HIDDEN, LENGTH, BATCHES = 1024, 2048, 4
STATE = LENGTH * HIDDEN * 2  # [B] of one micro-batch's hidden state
# Per layer: grouped queries and output, three matrices of the MLP, two norms.
LLAMA_LAYER = HIDDEN * (8 + 2 * 4) * 128 + 8 * 128 * HIDDEN + 3 * HIDDEN * 2816 + 2 * HIDDEN
LLAMA = 4 * LLAMA_LAYER + 2 * 8192 * HIDDEN + HIDDEN


def layer_sizes(workload):
    """Bytes per layer and micro-batch, by collective."""
    trace = named_traces(workload).traces[0]
    sizes: Sizes = defaultdict(float)
    for i in np.flatnonzero(trace.kinds == COLLECTIVE).tolist():
        if trace.names[i].startswith("micro-batch 1 layer 2 "):
            sizes[TRACED[trace.collective[i]]] += int(trace.communication_size[i])
    return dict(sizes)


def test_tensor_parallelism_moves_what_korthikanti_2022_says(workload_of):
    # Section 4.2.2: all-gather and reduce-scatter around both blocks in either pass, and
    # one more all-gather each for the weight gradient. Gathers state a shard.
    sharded = layer_sizes(workload_of("llama", tensor_parallel=4))
    assert sharded == {"all_gather": 6 * STATE / 4, "reduce_scatter": 4 * STATE}
    # Shoeybi et al. 2019, section 3: two all-reduces forward, two backward.
    plain = layer_sizes(workload_of("llama", tensor_parallel=4, sequence_parallel=False))
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
def test_data_parallelism_moves_every_parameter(zero, expected, workload_of):
    workload = workload_of("llama", data_parallel=4, zero_stage=zero)
    traces = named_traces(workload)
    trace = traces.traces[3]
    sizes: Sizes = defaultdict(float)
    for i in np.flatnonzero(trace.kinds == COLLECTIVE).tolist():
        name = TRACED[trace.collective[i]]
        sizes[name] += int(trace.communication_size[i]) * (4 if name == "all_gather" else 1)
    assert sizes == pytest.approx(expected, rel=1e-6)


def test_other_axes_move_what_they_hold(workload_of):
    def messages(**fields):
        trace = named_traces(workload_of("llama", **fields)).traces[0]
        rows = np.flatnonzero(trace.kinds == SEND).tolist()
        return [(trace.names[i], int(trace.communication_size[i])) for i in rows]

    stages = messages(pipeline_parallel=2)
    assert [size for _, size in stages] == [STATE] * BATCHES  # the first stage sends forward
    ring = messages(context_parallel=4)
    hops = [size for name, size in ring if "micro-batch 0 layer 1 forward" in name]
    assert hops == [2 * LENGTH // 4 * 4 * 128 * 2] * 3  # keys and values of 4 heads of 128
    # Each token goes to 2 experts and back, in both passes (Lepikhin et al. 2021).
    exchange = layer_sizes(workload_of("mixtral", data_parallel=4, expert_parallel=4))
    assert exchange["all_to_all"] == 4 * 2 * STATE


def test_products_are_those_of_the_matrices(workload_of):
    trace = named_traces(workload_of("llama")).traces[0]
    flops: dict[str, int] = defaultdict(int)
    for name, count in zip(trace.names, trace.num_ops.tolist(), strict=True):
        if name.startswith("micro-batch 1 layer 2 ") and "attention.core" not in name:
            flops["forward" if " forward " in name else "backward"] += max(0, count - 1)
    matrices = LLAMA_LAYER - 2 * HIDDEN
    assert flops["forward"] == pytest.approx(2 * LENGTH * matrices, abs=30)
    assert flops["backward"] == pytest.approx(2 * 2 * LENGTH * matrices, abs=30)


# The corrected dialect, in what AICB gets wrong.


def rows_named(file, name):
    rows = np.flatnonzero(file.name == name)
    assert len(rows), name
    return rows


def test_corrected_dialect_has_the_gated_matrix_and_grouped_queries(workload_of):
    file = corrected_workload(workload_of("llama", data_parallel=4, tensor_parallel=2))
    total = 4 * LLAMA_LAYER + 2 * 8192 * HIDDEN + HIDDEN
    norms = (4 * 2 + 1) * HIDDEN
    held = (total - norms) / 2 + norms  # norms are on both tensor ranks
    gather = int(file.weight_gradient.size[rows_named(file, "grad_gather")[0]])
    reduce = int(file.weight_gradient.size[rows_named(file, "grad_param_comm")[0]])
    assert (gather, reduce) == (2 * held, 4 * held)
    # AICB: 2 B of every parameter; here fp32 gradients of the norms.
    layernorm = rows_named(file, LAYERNORM)
    assert file.input_gradient.size[layernorm].tolist() == [4 * norms]


def test_corrected_dialect_has_the_output_matrix_and_both_passes(workload_of):
    file = corrected_workload(
        workload_of("llama", tensor_parallel=2, sequence_parallel=False, micro_batches=2)
    )
    assert len(rows_named(file, "final_column")) == 2  # one a micro-batch
    for name in ("attention_layer", "mlp_layer"):
        rows = rows_named(file, name)
        assert len(rows) == 2 * 4
        for phase in (file.forward, file.input_gradient):
            assert set(phase.collective[rows].tolist()) == {"ALLREDUCE"}
            assert set(phase.size[rows].tolist()) == {STATE}
        forward, backward = (
            phase.compute_time[rows].sum()
            for phase in (file.forward, file.input_gradient)
        )  # fmt: skip
        assert backward != forward


def test_corrected_dialect_has_context_parallelism(workload_of):
    file = corrected_workload(
        workload_of("llama", context_parallel=2, context_parallel_kind="all_to_all")
    )
    assert file.header.expert_parallel == 2
    words = set(file.forward.collective.tolist())
    assert words == {"NONE", "ALLTOALL_EP"}
    half = corrected_workload(workload_of("llama", context_parallel=1))
    rows = [rows_named(item, "attention_layer") for item in (file, half)]
    times = [item.forward.compute_time[r].sum() for item, r in zip((file, half), rows, strict=True)]
    assert times[0] < 0.75 * times[1]


# What the traces wait for.


def test_a_backward_pass_ends_with_its_reductions(workload_of):
    # PyTorch, FSDPParamGroup.finalize_backward: the stream waits for the last reduction.
    def first_forward_waits(zero):
        trace = named_traces(workload_of("llama", data_parallel=2, zero_stage=zero)).traces[0]
        names = list(trace.names)
        first = names.index("micro-batch 1 embedding forward embedding.lookup")
        parents = [names[i] for i in trace.parent_positions()[first].tolist()]
        return any("reduce_scatter" in name for name in parents)

    assert first_forward_waits(2)
    assert first_forward_waits(3)
    assert not first_forward_waits(1)


def test_communication_that_nothing_can_hide_has_a_piece_of_its_own():
    def item(name, **fields):
        return ProjectedOperation(name, "forward", "communication", **fields)

    gather = item("gather", time=8.0, size=80.0, collective="all_gather", hides=1.0, tail=0.25)
    product = ProjectedOperation("product", "forward", "gemm", time=10.0)
    scatter = item("scatter", time=4.0, size=40.0, collective="reduce_scatter", tail=0.5)
    ring = item("ring", time=4.0, size=40.0, collective="point_to_point", tail=0.25)
    program = [
        ProgramStep(gather, 1, 1), ProgramStep(product), ProgramStep(scatter, 1, 1),
        ProgramStep(ring, 1, 1),
    ]  # fmt: skip
    pieces = in_pieces(program, lambda item: item.tail)
    said = [(s.operation.name, s.operation.size, s.operation.time, s.first) for s in pieces]
    assert said == [
        ("gather.first", 20.0, 2.0, -1), ("gather", 60.0, 6.0, 2), ("product", 0.0, 10.0, -1),
        ("scatter", 20.0, 2.0, 2), ("scatter.last", 20.0, 2.0, -1), ("ring", 40.0, 4.0, 2),
    ]  # fmt: skip
    whole = in_pieces(program, lambda item: 1.0)
    assert [step.aside for step in whole] == [False] * 4
    assert in_pieces(program, lambda item: 0.0) == program


def test_pipelined_collectives_show_one_piece(workload_of):
    framework = load_framework("megatron", overlap_tensor_parallel="full")
    trace = named_traces(workload_of("llama", framework, tensor_parallel=4)).traces[0]
    names = list(trace.names)
    before = "micro-batch 0 layer 1 forward "
    first, product = (
        names.index(before + "mlp.input.all_gather.first"),
        names.index(before + "mlp.up"),
    )
    rest = names.index(before + "mlp.input.all_gather")
    parents = trace.parent_positions()
    assert first in parents[product]
    assert rest not in parents[product]
    sizes = trace.communication_size
    assert sizes[first] * 3 == sizes[rest] == 3 * STATE / 16


def test_collectives_of_a_group_follow_each_other(workload_of):
    # Members that took them up in different orders would wait for each other for ever.
    fields: dict[str, Any] = {"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3}

    def chained(serial, same):
        workload = workload_of("llama", "megatron-tuned", **fields)
        trace = named_traces(workload, serial_communication=serial).traces[0]
        before = [set(trace.parent_positions()[i].tolist()) for i in range(trace.nodes)]
        for own in before:  # parents come earlier, so theirs are complete
            own |= set().union(*(before[parent] for parent in own))
        rows = np.flatnonzero(trace.kinds == COLLECTIVE).tolist()
        if same:
            rows = [i for i in rows if trace.group[i] == trace.group[rows[0]]]
        return all(a in before[b] for a, b in pairwise(rows))

    assert chained(serial=False, same=True)
    assert chained(serial=True, same=False)
    assert not chained(serial=False, same=False)
