"""Stage 3 of ZeRO as AICB's DeepSpeed sends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.workloads.twins.aicb.deepspeed import (
    deepspeed_events,
)
from perfmodel.workloads.twins.aicb.deepspeed_model import llama_tensors
from tests.workloads.twins.aicb.small_deepspeed import (
    arguments_of,
    models,
    sizes,
    small,
    training_events,
)


def test_stage_3_by_hand():
    arguments = small(
        stage=3, global_batch=8, param_persistence_threshold=4, prefetch_bucket_size=40
    )
    events = training_events(arguments)
    alone = [128, 8, 32, 32, 32, 32, 8, 64, 64, 64, 8, 128]
    forward, backward = (sizes(events, "all_gather", phase) for phase in ("forward", "backward"))
    assert forward[:12] == alone  # the order of use is not known yet
    assert backward[:12] == alone[::-1]
    # embedding; norm with q, k, v; o, norm, gate; down, up; norm, head; then, ahead of the
    # backward pass, what is no longer live: v, k, q; embedding.
    assert forward[12:] == [128, 104, 104, 128, 136, 96, 128]
    # head, norm, up, down, gate, norm: given up at the end of the order.
    assert backward[12:] == [128, 8, 64, 64, 64, 8]
    assert sizes(events, "reduce_scatter") == [200] * 6
    assert sizes(events, "all_gather", "step") == [8, 8, 8]  # the norms stay
    assert sizes(events, "all_reduce") == [1, 8]


def test_mixed_precision_of_stage_3_broadcasts_nothing():
    assert sizes(deepspeed_events(small(stage=3, amp_enabled=True)), "broadcast") == []
    assert len(sizes(deepspeed_events(small(stage=3)), "broadcast")) == 12


@given(models, st.integers(0, 3))
def test_stage_3_reduces_and_gathers_everything(fields, micro_batches):
    arguments = arguments_of(fields, 3, micro_batches)
    tensors = llama_tensors(arguments)
    parameters = sum(tensor.size for tensor in tensors)
    passes = micro_batches * arguments.epoch_num
    events = training_events(arguments)
    assert sum(sizes(events, "reduce_scatter")) == parameters * passes
    small_ones = [t.size for t in tensors if t.elements <= arguments.param_persistence_threshold]
    assert sizes(events, "all_gather", "step") == small_ones * arguments.epoch_num
    # The first micro-batch gathers every tensor by itself, before both of its uses.
    first = min(micro_batches, 1) * len(tensors)
    each = [tensor.size for tensor in tensors][:first]
    assert sizes(events, "all_gather", "forward")[:first] == each
    assert sizes(events, "all_gather", "backward")[:first] == each[::-1]


@given(models, st.integers(1, 3))
def test_stage_3_without_anything_ahead_gathers_for_every_use(fields, micro_batches):
    nothing = {"prefetch_bucket_size": 0, "param_persistence_threshold": 0}
    arguments = arguments_of({**fields, **nothing}, 3, micro_batches)
    parameters = sum(tensor.size for tensor in llama_tensors(arguments))
    uses = 2 * micro_batches * arguments.epoch_num
    assert sum(sizes(training_events(arguments), "all_gather")) == uses * parameters
