"""``perfmodel workload``: projections and STAGE as files, what files hold, progress, examples."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from perfmodel.cli.main import cli
from perfmodel.wafer.system import WaferSystem
from tests.cli.astra_files import ROOFLINE
from tests.cli.astra_files import SYSTEM as RING_SYSTEM
from tests.cli.running import assert_one_line, run
from tests.cli.workloads.files import LAYER, NATIVE_NETWORK, NATIVE_SYSTEM, STAGE, workload
from tests.wafer.systems import system_text

CHAIN = ("synthetic", "chained", "--count", "2", "--devices")


@pytest.mark.parametrize(
    ("prefix", "part"),
    [
        ("here", "'here' is a folder; name a prefix in it, as 'here/rank'"),
        ("here/", "is a folder"),
        ("", "is a folder"),
        ("file/x", "cannot write to the folder 'file'"),
        ("file/x/y", "cannot write to the folder"),
    ],
)
def test_prefixes_that_cannot_be_written(prefix: str, part: str, folder: Path) -> None:
    (folder / "here").mkdir()
    (folder / "file").touch()
    assert_one_line(run("workload", *CHAIN, "4", "-o", prefix), part)
    assert sorted(item.name for item in folder.iterdir()) == ["file", "here"]
    assert not list((folder / "here").iterdir())


def test_traces_are_not_mixed_with_those_of_another_run(folder: Path) -> None:
    workload(*CHAIN, "4", "-o", "x")
    workload(*CHAIN, "4", "-o", "x")
    before = {item.name: item.read_bytes() for item in folder.iterdir()}
    assert_one_line(run("workload", *CHAIN, "2", "-o", "x"), "'x.2.et' is of other traces")
    assert_one_line(
        run("workload", "stage", *STAGE, "--json-traces", "-o", "x"), "'x.0.et' is of other traces"
    )
    assert {item.name: item.read_bytes() for item in folder.iterdir()} == before
    workload(*CHAIN, "8", "-o", "x")
    workload(*CHAIN, "2", "-o", "xx")
    workload(*CHAIN, "4", "--group-size", "2", "-o", "groups")
    assert_one_line(run("workload", *CHAIN, "4", "-o", "groups"), "'groups.groups.json' is of")


NETWORK = "topology: [ Ring ]\nnpus_count: [ {} ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"

SYSTEM = RING_SYSTEM | ROOFLINE


def examples(*command: str) -> list[str]:
    """Return the command lines of a help page."""
    lines = run(*command, "--help").stdout.replace("\\\n", " ").splitlines()
    start = lines.index("  Examples:")
    return [line.strip() for line in lines[start:] if line.strip().startswith("perfmodel ")]


# Sizes of examples that would take long, smaller.
SMALLER = {
    "--num-stacks 80": "--num-stacks 2",
    "--num_layers=36": "--num_layers=2",
    "--devices 64": "--devices 16",
    "--seq-len 8192": "--seq-len 1024",
    "--count 16": "--count 2",
    "--batch 1024": "--batch 4",
    "--isl 2048": "--isl 8",
    "--isl 1024": "--isl 8",
}

# Shown in part, on traces of PyTorch, which tests of those have, or on nodes written before.
NOT_RUN = ("…", "host_et.json", "kineto_{rank}", "cores out/ --compat")

STAND_INS = {
    "DLRM_HybridParallel.txt": LAYER,
    "gpt3.txt": LAYER,
    "alexnet.4.graph": 'digraph taskgraph {\nnode0 [label="{device_id=0|A|Forward|COMP_NODE|'
    'simulated_run_time=0.5}"];\n}',
    "Example.txt": "train_iter:1\n"
    + "".join(
        f"{name}:\n    time_gpu_max: 9\n    time_gpu_min: 7\n    time_gpu_avg: 8\n"
        for name in ("Emb", "atten_qkv", "mlp_linear_1", "param_time")
    ),
    "workload.txt": "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: 1 pp: 1 "
    "vpp: 1 ga: 1 all_gpus: 512 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0\n1\n"
    "layer\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLREDUCE\t1024\t100\n",
    "hierarchical.json": json.dumps(NATIVE_NETWORK),
    "system.txt": NATIVE_SYSTEM,
    "system.json": json.dumps(SYSTEM),
    "wafer.json": system_text(
        {"decode": WaferSystem(nodes=2, node_grid=(1, 2), tensor_parallel=2, expert_parallel=2)}
    ),
    "bincounts.json": json.dumps([[1] * 256] * 58),
}
WORKLOAD_COMMANDS = [("workload", name) for name in cli.commands["workload"].commands]


@pytest.mark.parametrize(
    "command", [("workload",), *WORKLOAD_COMMANDS, ("simulate",)], ids=" ".join
)
def test_examples_of_the_help_pages_run(command: tuple[str, ...], folder: Path) -> None:
    for name, content in STAND_INS.items():
        (folder / name).write_text(content, encoding="utf-8")
    lines = [line for line in examples(*command) if not any(word in line for word in NOT_RUN)]
    assert lines
    for line in lines:
        devices = 8 if "--devices 8" in line else 16
        (folder / "network.yml").write_text(NETWORK.format(devices), encoding="utf-8")
        for large, small in SMALLER.items():
            line = line.replace(large, small)
        words = shlex.split(line)[1:]
        wanted = words[2] if words[:2] == ["workload", "show"] else words[1]
        if wanted.startswith("traces/") and not (folder / f"{wanted}.0.et").exists():
            assert run("workload", *CHAIN, "16", "-o", wanted).exit_code == 0
        result = run(*words)
        assert result.exit_code == 0, (line, result.stderr)


def test_every_page_fits_and_shells_complete_the_commands() -> None:
    shell = ShellComplete(cli, {}, "perfmodel", "_PERFMODEL_COMPLETE")
    assert "simulate" in {item.value for item in shell.get_completions([], "s")}
    names = {item.value for item in shell.get_completions(["workload"], "")}
    assert names == {name for _, name in WORKLOAD_COMMANDS}
    given = shell.get_completions(["simulate", "--hardware"], "dgx-h1")
    assert {"dgx-h100"} <= {item.value for item in given}
    assert "--timeline" in {item.value for item in shell.get_completions(["simulate"], "--ti")}
