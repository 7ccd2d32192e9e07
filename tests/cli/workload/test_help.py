"""``perfmodel workload`` and ``simulate``: progress, examples of the help pages, completion."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from perfmodel.cli.main import cli
from tests.data import ROOT

CHAIN = ("workload", "synthetic", "chained", "--count", "2", "--devices")
NETWORK = "topology: [ Ring ]\nnpus_count: [ {} ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "roofline-enabled": 1,
    "peak-perf": 100,
}
TEXT = "DATA\n1\nlayer\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="perfmodel")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_terminal(*arguments: str) -> tuple[str, str]:
    """Run the program with a terminal as stderr; return stdout and what was on it."""
    pty = pytest.importorskip("pty", reason="terminals are tested where there are any")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed and everything was read
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return done.stdout.decode(), seen.decode()


def test_progress_is_shown_on_a_terminal_and_to_nobody_else(folder: Path) -> None:
    chain = (*CHAIN, "8", "-o", "x")
    stdout, stderr = on_terminal(*chain)
    assert stdout == ""
    assert "writing x" in stderr
    assert "8/8" in stderr
    assert "writing x" not in on_terminal(*chain, "--quiet")[1]
    assert "writing x" not in run(*chain).stderr
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100")
    assert "reading x" in stderr
    assert "running 16 nodes of 8 ranks" in stderr
    assert "reading" not in stdout
    stdout, stderr = on_terminal("simulate", "x", "--hardware", "dgx-h100", "--json")
    assert json.loads(stdout)["ranks"] == 8
    assert "reading" not in stderr


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
}
# Shown in part, or on traces of PyTorch, which tests of those have.
NOT_RUN = ("…", "host_et.json", "kineto_{rank}")
STAND_INS = {
    "DLRM_HybridParallel.txt": TEXT,
    "gpt3.txt": TEXT,
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
    "hierarchical.json": '{"topology-name": "Hierarchical", "topologies-per-dim": ["Ring"], '
    '"dimension-type": ["N"], "dimensions-count": 1, "units-count": [4], "links-count": [2], '
    '"link-latency": [500], "link-bandwidth": [25], "nic-latency": [0], "router-latency": [0], '
    '"hbm-latency": [500], "hbm-bandwidth": [370], "hbm-scale": [0]}',
    "system.txt": "scheduling-policy: LIFO\nendpoint-delay: 10\nactive-chunks-per-dimension: 1\n"
    "preferred-dataset-splits: 4\nboost-mode: 0\nall-reduce-implementation: ring\n"
    "all-gather-implementation: ring\nreduce-scatter-implementation: ring\n"
    "all-to-all-implementation: ring\ncollective-optimization: baseline\n",
    "system.json": json.dumps(SYSTEM),
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
            assert run(*CHAIN, "16", "-o", wanted).exit_code == 0
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
