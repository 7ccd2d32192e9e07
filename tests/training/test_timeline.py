"""The pipeline of one strategy, stage by stage, against its projection."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.variables import STEP_VARIABLES
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.strategy.single import one_strategy
from perfmodel.training.project import project_grid
from perfmodel.training.timeline import pipeline_timeline
from perfmodel.training.workload import Workload


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb_v", "dualpipe", "hanayo"])
def test_stages_shown_are_those_projected(h100, name):
    model = load_model("llama-3.1-8b")
    run = {"pipeline_parallel": 4, "pipeline_schedule": name}
    run |= {"global_batch_size": 64, "sequence_length": 2048}
    grid = one_strategy(model, 8, run)
    found = pipeline_timeline(model, grid, h100, load_framework("megatron"))
    assert sum(sum(stage.layers) for stage in found.stages) == 32 * found.pipeline.order.copies
    for stage in found.stages:
        whole = stage.busy + stage.sending + stage.waiting
        assert whole == pytest.approx(found.makespan, rel=1e-9)
    out = np.empty((len(STEP_VARIABLES), 1))
    project_grid(Workload(model, grid), h100, load_framework("megatron"), out, threads=1)
    projected = {item.name: out[i, 0] for i, item in enumerate(STEP_VARIABLES)}
    most = max(stage.kept for stage in found.stages)
    assert projected["memory_activations"] <= most * (1 + 1e-9)
    busy = max(stage.busy for stage in found.stages)
    shown = ("forward_time", "backward_time", "recompute_time", "tensor_parallel_exposed")
    work = sum(projected[part] for part in (*shown, "host_time"))
    overhead = h100.calibrated("host", "step_overhead")
    assert busy == pytest.approx(work - overhead, rel=1e-9)
