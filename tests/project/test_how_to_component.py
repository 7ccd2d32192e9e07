"""The page on adding a component of a step's time does what it says."""

from __future__ import annotations

import json
import re

import pytest

from perfmodel.kernels.variables import TIME_COMPONENTS
from tests.data import in_repository
from tests.how_to import copy_sources, follow, run_perfmodel

pytestmark = in_repository

RUN = (
    *("--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--devices", "8"),
    *("--tp", "8", "--global-batch", "8", "--seq-len", "2048"),
)


def test_a_component_takes_four_source_files(tmp_path):
    assert len(follow("add-a-component-of-time.md", copy_sources(tmp_path))) <= 4
    found = json.loads(run_perfmodel(tmp_path, "project", *RUN, "--json"))
    assert found["units"]["clip_time"] == "s"
    assert 0.0 < found["clip_time"] < found["optimizer_time"]
    parts = sum(found[name] for name in ("clip_time", *TIME_COMPONENTS))
    assert found["step_time"] == pytest.approx(parts)
    for verb in ("project", "explain"):
        assert re.search(r"norm of the gradients|clip", run_perfmodel(tmp_path, verb, *RUN))
