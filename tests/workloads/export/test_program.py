"""The order in which a stage works: passes, micro-batches, pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES
from perfmodel.kernels.pipeline.actions import Order
from perfmodel.software.framework import load_framework
from perfmodel.strategy.pipelines import linked_pipeline, named_pipeline
from perfmodel.training.step.program import ProgramStep, pass_program
from perfmodel.training.step.types import ProjectedOperation
from perfmodel.workloads.export.program import (
    Slot,
    in_pieces,
    stage_slots,
)
from perfmodel.workloads.trace import COLLECTIVE
from tests.training.step.cases import STATE
from tests.workloads.export.traces import named_traces


def chunks_of(schedule):
    """Return the fewest chunks of a schedule, above one where it may have more."""
    kind = SCHEDULE_FACTS[schedule]
    return max(kind.fewest_chunks, 2 if kind.chunk_step else 1)


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_chunk_passes_every_micro_batch_forward_then_backward(schedule, paired):
    virtual, split = chunks_of(schedule), SCHEDULE_FACTS[schedule].splits_backward
    order = named_pipeline(schedule, 4, 8, virtual).order
    for stage in range(4):
        slots = stage_slots(order, stage, paired=paired)
        assert len(slots) == len(set(slots))
        assert sum(slot.forward for slot in slots) == 8 * virtual
        # Weights may be left to the pass for the input where nothing waits for it.
        assert sum(slot.completes for slot in slots) == 8 * virtual
        for slot in slots:
            if slot.forward:
                continue
            assert slots.index(slot) > slots.index(Slot(True, slot.chunk, slot.micro_batch))
            assert split or slot.gradients == "all"
            if slot.gradients == "weights":
                ahead = slot._replace(gradients="input")
                assert slots.index(slot) > slots.index(ahead)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("pipeline", [2, 3, 5])
def test_pairs_of_passes_never_wait_for_each_other(schedule, pipeline):
    # One forward pass more ahead on every stage, and still all of it can be done.
    virtual, batches = chunks_of(schedule), 2 * pipeline
    if SCHEDULE_FACTS[schedule].even:
        pipeline += pipeline % 2
        batches = 2 * pipeline
    order = named_pipeline(schedule, pipeline, batches, virtual).order
    kind, chunk, batch, first = [], [], [], [0]
    for stage in range(pipeline):
        own = np.flatnonzero(order.rank_of == stage)
        for slot in stage_slots(order, stage, paired=True):
            kind.append(KINDS[slot.forward, slot.gradients])
            chunk.append(own[slot.chunk])
            batch.append(slot.micro_batch)
        first.append(len(kind))
    alone = np.zeros(len(kind), bool)
    columns = (np.array(it) for it in (first, kind, chunk, batch))
    linked_pipeline(Order(*columns, alone, order.rank_of, order.copies, batches))


KINDS = {(True, "all"): 0, (False, "all"): 1, (False, "input"): 2, (False, "weights"): 3}


def test_groups_of_micro_batches_pass_a_chunk_together():
    slots = stage_slots(named_pipeline("interleaved", 2, 8, 2, 4).order, 1)
    forward = [(slot.chunk, slot.micro_batch) for slot in slots if slot.forward]
    assert forward[:8] == [(0, i) for i in range(4)] + [(1, i) for i in range(4)]


def test_gradients_of_weights_come_behind_what_the_stage_ahead_waits_for(workload_of):
    part = workload_of("zero bubble in a V").stages[0].chunks[0][1].part
    whole, early, late = (
        pass_program(part.operations, False, it) for it in ("all", "input", "weights")
    )
    names = [{(step.operation.name, step.operation.phase) for step in it} for it in (early, late)]
    assert not names[0] & names[1]
    assert len(early) + len(late) == len(whole)
    assert not any(step.operation.communicates for step in late)
    assert {step.operation.phase for step in late} == {"backward_weight"}
    assert any(step.operation.communicates for step in early)


def test_one_forward_one_backward_of_narayanan_2021_figure_4():
    # 4 stages, 8 micro-batches: stage 2 has one forward pass ahead, the last one none.
    def written(stage):
        return " ".join(
            f"{'F' if slot.forward else 'B'}{slot.micro_batch + 1}"
            for slot in stage_slots(named_pipeline("1f1b", 4, 8).order, stage)
        )

    assert written(0).startswith("F1 F2 F3 F4 B1 F5 B2 F6")
    assert written(2).startswith("F1 F2 B1 F3 B2")
    assert written(3) == " ".join(f"F{i} B{i}" for i in range(1, 9))


def test_interleaved_schedule_of_two_chunks():
    # Megatron-Core, 2 stages of 2 chunks: the first has 2 · 1 + 1 · 2 passes ahead.
    slots = stage_slots(named_pipeline("interleaved", 2, 4, 2).order, 0)
    assert slots[:6] == [
        Slot(True, 0, 0), Slot(True, 0, 1), Slot(True, 1, 0), Slot(True, 1, 1),
        Slot(True, 0, 2), Slot(False, 1, 0),
    ]  # fmt: skip


# What the traces wait for.


def test_a_backward_pass_ends_with_its_reductions(small_workload):
    # PyTorch, FSDPParamGroup.finalize_backward: the stream waits for the last reduction.
    def first_forward_waits(zero):
        trace = named_traces(small_workload("llama", data_parallel=2, zero_stage=zero)).traces[0]
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


def test_pipelined_collectives_show_one_piece(small_workload):
    framework = load_framework("megatron", overlap_tensor_parallel="full")
    trace = named_traces(small_workload("llama", framework, tensor_parallel=4)).traces[0]
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


def test_collectives_of_a_group_follow_each_other(small_workload):
    # Members that took them up in different orders would wait for each other for ever.
    fields: dict[str, Any] = {"tensor_parallel": 2, "data_parallel": 2, "zero_stage": 3}

    def chained(serial, same):
        workload = small_workload("llama", "megatron-tuned", **fields)
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
