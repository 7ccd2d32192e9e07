"""Model state against Rajbhandari et al. 2020 (arXiv:1910.02054), figure 1."""

from __future__ import annotations

import pytest

from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework

ZERO_TABLE_1 = {0: 120e9, 1: 31.4e9, 2: 16.6e9, 3: 1.88e9}  # Rajbhandari et al. 2020, figure 1


@pytest.mark.parametrize("stage", ZERO_TABLE_1)
def test_rajbhandari_2020_figure_1(project, h100, stage):
    """7.5e9 parameters on 64 devices with 2 + 2 + 12 bytes a parameter (arXiv:1910.02054)."""
    model = load_model("llama-3.1-8b")
    framework = load_framework("megatron", gradient_bytes=2.0)
    found = project(model, h100, framework, data_parallel=64, zero_stage=stage)
    states = sum(found[f"memory_{name}"] for name in ("parameters", "gradients", "optimizer"))
    scaled = states * 7.5e9 / model.parameter_count()
    assert scaled == pytest.approx(ZERO_TABLE_1[stage], rel=5e-3)
