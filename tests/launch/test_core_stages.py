"""Layouts and groups of micro-batches in Megatron-Core's words, of Megatron-LM and Bridge."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.launch.software import format_launch, parse_launch
from tests.launch.launches import BRIDGE, MEGATRON, split_of


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--pipeline-model-parallel-layout 'Et*7|(t*9|)*2t*7L'", (1, "7,9,9,7")),
        ("--pipeline-model-parallel-layout 'Et*8|(t*8|)*2t*8L'", (1, "even")),
        ("--pipeline-model-parallel-layout 'Et*4|(t*4|)*6t*4L'", (2, "even")),
        ("--pipeline-model-parallel-layout 'E|t*16|t*16|L'", (1, "0,16,16,0")),
        ("--pipeline-model-parallel-layout 'Et*8|t*8|t*16L|'", (1, "Et*8|t*8|t*16L|")),
        ("--decoder-first-pipeline-num-layers 5", (1, "first=5")),
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 4",
            (1, "first=6,last=4"),
        ),
        (
            "--decoder-last-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2",
            (2, "last=2"),
        ),
        ("", (1, "even")),
    ],
)
def test_layouts_of_megatron(options: str, expected: tuple[int, str]) -> None:
    assert split_of(MEGATRON + options) == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("Ett|tt|tt|tL", (1, "Ett|tt|tt|tL")),
        ("[[embedding, decoder], [decoder, decoder], [decoder], [decoder, loss]]", "Et|tt|t|tL"),
        ("[[embedding], [decoder], [decoder], [], [decoder], [decoder], [decoder], [loss]]", None),
    ],
)
def test_layouts_of_megatron_bridge(layout: str, expected: Any) -> None:
    # The recipe's model is not in the file: the layout stays as it is stated.
    chunks, split = split_of(f"{BRIDGE}  pipeline_model_parallel_layout: {layout}\n")
    if expected is None:
        assert (chunks, split) == (2, "E|t|t||t|t|t|L")
    elif isinstance(expected, str):
        assert (chunks, split) == (1, expected)
    else:
        assert (chunks, split) == expected


def test_ends_and_groups_of_megatron_bridge() -> None:
    text = (
        f"{BRIDGE}  virtual_pipeline_model_parallel_size: 2\n"
        "  num_layers_in_first_pipeline_stage: 6\n  num_layers_in_last_pipeline_stage: 2\n"
        "  microbatch_group_size_per_vp_stage: 8\n"
    )
    _, launch = parse_launch(text, "x.yaml")
    assert launch["micro_batch_group"] == 8
    assert launch.framework.stage_split == "first=6,last=2"


@pytest.mark.parametrize(("group", "expected"), [(4, 0), (8, 8)])
def test_groups_of_micro_batches(group: int, expected: int) -> None:
    option = f"--microbatch-group-size-per-virtual-pipeline-stage {group}"
    _, launch = parse_launch(
        f"{MEGATRON} --num-virtual-stages-per-pipeline-rank 2 {option}", "run.sh"
    )
    assert launch["micro_batch_group"] == expected
    assert launch["pipeline_schedule"] == "interleaved"
    assert (option in format_launch("megatron", launch)) == bool(expected)
