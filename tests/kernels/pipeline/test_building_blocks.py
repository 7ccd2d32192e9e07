"""V-Half and V-Min: what the paper says of their memory, and orders of the authors' scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.held import peaks
from perfmodel.strategy.pipelines import named_pipeline, schedule_rows

# Of the authors' scheduler: repository sail-sg/zero-bubble-pipeline-parallelism, zbv_greedy.py.
AUTHORS = {
    ("v_half", 2, 3): [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0I0 3I1 3W1 3F2 3I2 0I1 3W2 0I2 0W0 0W1 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 2W2 1W1 1W2",
    ],
    ("v_min", 3, 3): [
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 5F2 0I1 5I2 5W2 0W1 0I2 0W2",
        "1F0 1F1 4F0 4F1 4I0 4W0 1I0 1W0 4I1 1F2 4W1 4F2 1I1 1W1 4I2 4W2 1I2 1W2",
        "2F0 3F0 2F1 3F1 3I0 2I0 3W0 2W0 3I1 2F2 3F2 2I1 3W1 2W1 3I2 2I2 3W2 2W2",
    ],
    ("v_half", 3, 4): [
        "0F0 0F1 0F2 5F0 5I0 5W0 5F1 5I1 5W1 0I0 0W0 0F3 "
        "5F2 5I2 5W2 0I1 0W1 5F3 5I3 0I2 5W3 0W2 0I3 0W3",
        "1F0 1F1 4F0 4F1 4I0 4W0 1F2 1I0 4I1 4W1 4F2 1W0 "
        "1F3 1I1 4I2 4W2 4F3 1W1 1I2 4I3 4W3 1W2 1I3 1W3",
        "2F0 3F0 2F1 3F1 3I0 3W0 2I0 2W0 2F2 3F2 3I1 2I1 "
        "3W1 2F3 2W1 3F3 3I2 2I2 3W2 2W2 3I3 2I3 3W3 2W3",
    ],
}


@pytest.mark.parametrize(("schedule", "ranks", "micro_batches"), AUTHORS)
def test_orders_are_those_of_the_authors(schedule, ranks, micro_batches):
    order = named_pipeline(schedule, ranks, micro_batches).order
    found = [" ".join(map(str, row)) for row in schedule_rows(order)]
    assert found == AUTHORS[schedule, ranks, micro_batches]


@pytest.mark.parametrize("ranks", range(1, 13))
@pytest.mark.parametrize("schedule", ["v_half", "v_min"])
def test_memory_is_the_published_one(schedule, ranks):
    """Qi et al. 2024 (arXiv:2405.15362): (p + 2) // 2 and (p + 4) // 3 micro-batches.

    The authors' comparison, huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-
    memory; of two stages each.
    """
    micro_batches = (ranks + 2) // 2 if schedule == "v_half" else (ranks + 4) // 3
    order = named_pipeline(schedule, ranks, 3 * ranks + 1).order
    one = np.ones(order.rank_of.size)
    assert peaks(order, 0 * one, one).max() == 2 * micro_batches
