"""A small model in DeepSpeed, by its arguments."""

from __future__ import annotations

from hypothesis import strategies as st

from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.deepspeed import (
    deepspeed_events,
)

# One layer, so that every file can be worked out by hand. Elements: embedding 64, norm 4,
# q, k, v, o 16 each, norm 4, gate, down, up 32 each, norm 4, head 64; 300 together.
SMALL = {
    "frame": "DeepSpeed",
    "num_layers": 1,
    "hidden_size": 4,
    "ffn_hidden_size": 8,
    "vocab_size": 16,
    "num_attention_heads": 2,
    "seq_length": 2,
    "world_size": 4,
    "global_batch": 4,
    "reduce_bucket_size": 100,
    "allgather_bucket_size": 128,
}


def small(**changes):
    return AicbArguments(**{**SMALL, **changes})


def training_events(arguments):
    """Events after the set-up."""
    events = deepspeed_events(arguments)
    kinds = [event.comm_type for event in events]
    return events[kinds.index("epoch_end") + 1 :]


def sizes(events, kind, stage=""):
    return [e.message_size for e in events if e.comm_type == kind and e.stage.startswith(stage)]


models = st.builds(
    dict,
    num_layers=st.integers(1, 3),
    hidden_size=st.integers(4, 40),
    ffn_hidden_size=st.integers(1, 60),
    vocab_size=st.integers(1, 90),
    num_attention_heads=st.integers(1, 4),
    world_size=st.integers(2, 9),
    reduce_bucket_size=st.integers(0, 4000),
    allgather_bucket_size=st.integers(50, 4000),
    prefetch_bucket_size=st.integers(0, 4000),
    max_live_parameters=st.integers(0, 9000),
    param_persistence_threshold=st.integers(0, 500),
    epoch_num=st.integers(1, 2),
)


def arguments_of(fields, stage, micro_batches, **more):
    batch = micro_batches * fields["world_size"]
    return small(**{**fields, "stage": stage, "global_batch": batch, **more})
