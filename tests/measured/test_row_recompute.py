"""Cells that say what a run recomputes."""

from __future__ import annotations

import pytest

from perfmodel.measured.row_recompute import recompute_of
from perfmodel.measured.rows import MeasuredRow
from perfmodel.model.presets import load_model
from perfmodel.software.framework import load_framework
from perfmodel.training.memory import waiting_share


def row(recompute: str) -> MeasuredRow:
    return MeasuredRow({"recompute": recompute}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cell", "level"),
    [
        ("", ""),
        ("none", "none"),
        ("none/default (recipe sets none)", "none"),
        ("selective [mla_up_proj]", "selective"),
        ("full", "full"),
        ("custom (offload)", "full"),
        ("qkv_proj_offloaded", "selective"),
        ("minimal_offloaded", "selective"),
        ("minimal_with_context", "selective"),
        ("minimal_flash", "selective"),
        ("custom", "full"),
    ],
)
def test_recompute_cells(cell: str, level: str) -> None:
    assert recompute_of(row(recompute=cell)).level == level


def test_blocks_of_layers() -> None:
    found = recompute_of(row(recompute="full (block 5 layers)"))
    assert found.layers == {"recompute_method": "block", "recompute_num_layers": 5}


def test_what_waits_in_the_host() -> None:
    """Of a layer of Llama 2 70B its input, 8192 numbers, and 64 + 2 x 8 heads of 128."""
    found = recompute_of(row(recompute="qkv_proj_offloaded"))
    model, framework = load_model("llama-2-70b"), load_framework("maxtext")
    share = waiting_share(model, framework, found.words.split(), found.waiting)
    assert share == pytest.approx(10240 / (10240 + 8192), rel=1e-12)
