"""``perfmodel workload stage``: its arguments, and what it writes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfmodel.workloads.formats.chakra.files import read_traces
from tests.cli.running import assert_one_line, changed, run
from tests.cli.workloads.workload.files import shown, workload

STAGE = shlex.split(
    "--dp 2 --tp 2 --sp 1 --pp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 "
    "--batch 4 --din 32 --dout 32"
)


def test_stage_writes_what_its_arguments_say(folder: Path) -> None:
    result = workload("stage", *STAGE, "-o", "st/age")
    traces = read_traces("st/age")
    assert traces.devices == 8
    assert f"wrote {traces.nodes:,} nodes of 8 ranks" in result.stderr
    spelled = ["--weight_sharded", "1", "--activation_recompute", "1"]
    joined = ["--weight-sharded=true", "--activation-recompute=true"]
    workload("stage", *STAGE, *spelled, "-o", "a")
    workload("stage", *STAGE, *joined, "--json-traces", "-o", "b")
    assert shown("a")["num_ops"] > shown("st/age")["num_ops"]
    keys = ("ranks", "nodes", "groups", "num_ops", "tensor_size", "collectives", "sent")
    assert [shown("a")[key] for key in keys] == [shown("b")[key] for key in keys]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--dp", "nan"], "(dp) is 'nan'"),
        (["--dp", "0"], "(dp) is 0"),
        (["--dp", "-2"], "(dp)"),
        (["--dp", "100000"], "devices; at most"),
        (["--tp", "3"], "divisible"),
        (["--weight_sharded", "maybe"], "true or false"),
        (["--dq", "1"], "--dq"),
    ],
)
def test_wrong_arguments_of_stage_are_one_line(more: list[str], part: str, folder: Path) -> None:
    assert_one_line(run("workload", "stage", *changed(STAGE, *more, "-o", "x/y")), part)
    assert not list(folder.iterdir())
