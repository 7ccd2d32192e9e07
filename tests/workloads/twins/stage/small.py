"""A small model by its arguments."""

from __future__ import annotations

from perfmodel.workloads.twins.stage.arguments import (
    StageArguments,
)

# Numbers without common factors where possible, so that no two formulas agree by chance.
SMALL = StageArguments(
    data_parallel=2,
    tensor_parallel=4,
    sequence_parallel=8,
    input_size=44,
    output_size=52,
    hidden_size=192,
    feed_forward_size=320,
    heads=12,
    sequence_length=24 * 8,
    batch=2 * 7,
    layers=3,
)
TOKENS = SMALL.batch * SMALL.sequence_length // 16  # of one rank
WIDTH = SMALL.hidden_size
INNER = SMALL.feed_forward_size
