"""What objects of the public API look like."""

from __future__ import annotations

import pytest

import perfmodel
from perfmodel.base.notebook import facts_html

OBJECTS = {
    "model": lambda: perfmodel.load_model("deepseek-v3"),
    "hardware": lambda: perfmodel.load_hardware("dgx-h100"),
    "framework": lambda: perfmodel.load_framework("megatron"),
    "grid": lambda: perfmodel.strategy_grid(
        "llama-3.1-8b", 16, sequence_length=4096, global_batch_size=64
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_one_line_and_one_table(name: str) -> None:
    shown = OBJECTS[name]()
    assert len(repr(shown)) < 120
    assert "\n" not in repr(shown)
    html = shown._repr_html_()
    assert html.count("<tr>") == html.count("</tr>") > 3
    assert len(html) < 20_000


def test_what_is_shown_is_text() -> None:
    assert "<b>" not in facts_html("<b>", [("<b>", "<b>")])


def test_kernels_take_names() -> None:
    named = perfmodel.gemm_times("dgx-h100", "bf16", 4096, 4096, 4096)
    given = perfmodel.gemm_times(perfmodel.load_hardware("h100"), "bf16", 4096, 4096, 4096)
    assert named.time == given.time
    assert perfmodel.stream_times("dgx-h100", 1e6, 1e6).time > 0
    assert perfmodel.collective_times("dgx-h100", "all_reduce", 2**20, 8) > 0
    assert perfmodel.HardwareCosts("dgx-h100").hardware.name == "dgx-h100"
