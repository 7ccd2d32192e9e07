"""Operations of one pass add up to the pass."""

from __future__ import annotations

import pytest

from perfmodel import load_hardware
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import PARTS
from perfmodel.serving.enumerate import serving_grid
from perfmodel.serving.pass_operations import Pass, pass_operations
from perfmodel.serving.pass_table import pass_tables

DECODE = Pass(decoding=64, context=4096)
PREFILL = Pass(prompts=2, chunk=2048, before=1024, finished=2)
CASES = {
    "dense": ("llama-3.1-8b", {"tensor_parallel": 2}, [DECODE, PREFILL]),
    "stages": ("llama-3.1-8b", {"tensor_parallel": 1, "pipeline_parallel": 2}, [DECODE]),
    "experts": ("mixtral-8x7b", {"tensor_parallel": 4, "expert_parallel": 4}, [DECODE]),
    "drafts": (
        "deepseek-r1",
        {"tensor_parallel": 8, "expert_parallel": 8, "draft_length": 2, "acceptance": 0.5},
        [DECODE._replace(verified=3.0)],
    ),
}


@pytest.mark.parametrize(("model", "axes", "wanted"), CASES.values(), ids=CASES)
def test_operations_add_up_to_the_parts_of_the_pass(model, axes, wanted):
    grid = serving_grid(model, "dgx-h200", **axes)
    layouts, _, _ = grid.layouts()
    hardware = load_hardware("dgx-h200")
    tables = pass_tables(grid.model, layouts, hardware)
    for what in wanted:
        found = pass_operations(grid.model, layouts, hardware, what)
        times = pass_times(tables, 0, *what)
        # Sizes between knots are interpolated in the tables: 64 and 4,096 are knots.
        assert sum(item.adds for item in found) == pytest.approx(times[0], rel=2e-3)
        # A cast stands with its product here, and with everything else in the tables.
        parts = dict(zip((*PARTS, "host"), times[1:], strict=True))
        parts["matrices"] += parts.pop("other")
        mine = dict.fromkeys(parts, 0.0)
        for item in found:
            mine["matrices" if item.kind == "other" else item.kind] += item.adds
        assert mine == pytest.approx(parts, rel=5e-3, abs=1e-3 * times[0])
        assert all(item.adds <= 1.000001 * item.calls * item.time for item in found)


def test_operations_say_what_bounds_them():
    grid = serving_grid("llama-3.1-8b", "dgx-h200", engine="vllm-0.12", tensor_parallel=1)
    layouts, _, _ = grid.layouts()
    hardware = load_hardware("dgx-h200")
    bounds = {}
    for name, what in (("decode", DECODE), ("prefill", Pass(prompts=1, chunk=8192, finished=1))):
        found = pass_operations(grid.model, layouts, hardware, what)
        bounds[name] = {item.name: item.bound for item in found}
    assert bounds["decode"]["mlp.up"] == bounds["decode"]["full decode"] == "memory"
    assert bounds["prefill"]["mlp.up"] == bounds["prefill"]["full prefill"] == "compute"
    assert bounds["decode"]["waiting for the host"] == "host"
