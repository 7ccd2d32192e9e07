"""Memory through a step: its peak is the memory model's, and activations come and go."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.variables import MEMORY_COMPONENTS
from perfmodel.software.framework import load_framework
from perfmodel.training.stages import stage_memories
from perfmodel.training.step.timeline import step_timeline
from tests.training.step.cases import CASES

ACTIVATIONS = MEMORY_COMPONENTS.index("memory_activations")


@pytest.mark.parametrize("case", [*CASES])
def test_the_peak_of_every_composition_is_the_models(request, grid_of, h100, case):
    name, fields = CASES[case]
    model = request.getfixturevalue(name)
    grid = grid_of(model, **fields)
    step = step_timeline(model, grid, h100)
    peaks = [float(one.memory.total.max()) for one in step.stages]
    wanted = [
        max(one.totals) for one in stage_memories(model, grid, h100, load_framework("megatron"))
    ]
    for peak in wanted:  # stages alike hold as much, or less where they keep fewer
        assert np.isclose(peaks, peak, rtol=1e-12, atol=0).any()
    assert max(peaks) == pytest.approx(max(wanted), rel=1e-12)


def test_activations_come_with_forward_passes_and_end_with_the_update(small_dense, grid_of, h100):
    grid = grid_of(small_dense, pipeline_parallel=4, data_parallel=2, micro_batches=8)
    step = step_timeline(small_dense, grid, h100)
    for one in step.stages:
        held = one.memory.held[:, ACTIVATIONS]
        assert held[0] == held[-1] == 0.0
        forward = one.passes.kind == 0
        first = np.searchsorted(one.memory.start, one.passes.start[forward][0], "right") - 1
        assert held[first] > 0.0
        assert (one.memory.held >= 0.0).all()
        assert (np.diff(one.memory.start) > 0.0).all()
    # 1F1B: stage s keeps p - s micro-batches; the last one its logits, too.
    most = [one.memory.held[:, ACTIVATIONS].max() for one in step.stages]
    assert most[1] / most[2] == pytest.approx(3.0 / 2.0)
