"""The page on adding a pipeline schedule does what it says."""

from __future__ import annotations

import json

from tests.data import in_repository
from tests.how_to import copy_sources, follow, run_perfmodel

pytestmark = in_repository

RUN = (
    *("project", "--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--devices", "8"),
    *("--tp", "2", "--pp", "4", "--global-batch", "8", "--seq-len", "2048", "--json"),
)


def test_a_schedule_takes_two_source_files(tmp_path):
    assert len(follow("add-a-schedule.md", copy_sources(tmp_path))) <= 2
    found, plain = (
        json.loads(run_perfmodel(tmp_path, *RUN, "--schedule", name))
        for name in ("1f1b_ahead", "1f1b")
    )
    assert found["pipeline_schedule"] == "1f1b_ahead"
    # Sends hide behind the pass ahead, whose activations are kept.
    assert 0.9 * plain["step_time"] < found["step_time"] <= plain["step_time"]
    assert found["memory_activations"] > plain["memory_activations"]
