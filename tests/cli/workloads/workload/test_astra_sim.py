"""``perfmodel workload … --for astra-sim``: files, what is said of them, and both commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import Result

from perfmodel.workloads.formats.astra.network import read_network, read_system
from perfmodel.workloads.formats.chakra.files import read_traces
from tests.cli.running import assert_one_line, document, run
from tests.cli.workloads.workload.files import workload

PROJECTION = shlex.split(
    "chakra --model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 4 --global-batch 2 "
    "--seq-len 512 --granularity layer"
)
STAGE = shlex.split(
    "stage --dp 2 --tp 2 --num-stacks 2 --dmodel 64 --dff 128 --head 4 --seq 32 --batch 4 "
    "--din 32 --dout 32 --hardware dgx-h100"
)
SYNTHETIC = shlex.split("synthetic pipeline --devices 4 --count 2 --hardware mi300x-server")


def commands(result: Result) -> tuple[list[str], list[str]]:
    """Return the words of the real simulator's command, and of ours."""
    real, ours = map(shlex.split, result.stdout.splitlines())
    return real, ours


@pytest.mark.parametrize("words", [PROJECTION, STAGE, SYNTHETIC], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["astra-sim", "astra-sim@af2492b"])
def test_both_commands_name_files_that_are_there_and_ours_runs(
    words: list[str], name: str, folder: Path
) -> None:
    result = workload(*words, "--for", name, "-o", "out/t")
    real, ours = commands(result)
    assert real[0] == "AstraSim_Analytical_Congestion_Unaware"
    files = [word.split("=")[1] for word in real[1:] if "workload" not in word]
    assert files
    assert all((folder / file).is_file() for file in files)
    assert ours[0] == "perfmodel"
    version = "main" if name == "astra-sim" else "af2492b"
    assert ours[-1] == f"astra-sim@{version}"
    found = document(*ours[1:])
    assert (
        found["ranks"] == read_traces("out/t").devices == read_network("out/t.network.yml").devices
    )
    assert found["wall_time"] > 0
    assert f"for astra-sim@{version}: out/t.network.yml, out/t.system.json" in result.stderr


def test_collectives_of_a_rank_have_one_order_and_the_host_is_told_of(folder: Path) -> None:
    result = workload(*PROJECTION, "--for", "astra-sim", "-o", "new")
    assert "of each rank left out, since astra-sim@main loses its statistics" in result.stderr
    old = workload(*PROJECTION, "--for", "astra-sim@af2492b", "--named-groups", "-o", "old")
    assert "ASTRA-sim counts it as exposed communication too" in old.stderr
    workload(*PROJECTION, "--serial-communication", "-o", "plain")
    plain, both = read_traces("plain").traces[0], read_traces("old").traces[0]
    assert (plain.control_parents.values == both.control_parents.values).all()
    assert "tensor 0" in json.loads((folder / "old.groups.json").read_text())


def test_operations_that_are_given_are_for_the_roofline(folder: Path) -> None:
    workload(*SYNTHETIC, "--for", "astra-sim", "-o", "timed")
    workload(*SYNTHETIC, "--num-ops", "1000000000", "--for", "astra-sim", "-o", "priced")
    assert not read_system("timed.system.json").roofline_enabled
    assert read_system("priced.system.json").roofline_enabled
    note = workload(*SYNTHETIC, "--for", "astra-sim", "-o", "again").stderr
    assert "nodes state as many operations as the peak does in their time" in note


def test_the_profile_may_be_changed(folder: Path) -> None:
    change = ("--set", "system.network.0.latency=2e-6")
    workload(*STAGE, *change, "--for", "astra-sim", "-o", "x")
    assert set(read_network("x.network.yml").latency_nanoseconds) == {1000.0}
    quiet = workload(*STAGE, "--for", "astra-sim", "-o", "y", "--quiet")
    assert quiet.stderr == ""
    assert len(commands(quiet)) == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*PROJECTION, "--for", "astra"], "astra-sim@af2492b or astra-sim@main"),
        ([*PROJECTION, "--for", "astra-sim@2"], "no version '2'"),
        ([*STAGE[:-2], "--for", "astra-sim"], "--for astra-sim needs --hardware NAME"),
        (STAGE, "--hardware is for traces with --for astra-sim"),
        ([*STAGE[:-2], "--set", "device.tdp=1"], "--set is for traces with --for astra-sim"),
        ([*STAGE, "--for", "astra-sim", "--json-traces"], "ASTRA-sim reads .et files only"),
        ([*PROJECTION, "--for", "astra-sim", "--json-traces"], "ASTRA-sim reads .et files only"),
        ([*PROJECTION, "--for", "astra-sim", "--named-groups"], "reads names of groups as numbers"),
        ([*SYNTHETIC, "--size", "0", "--for", "astra-sim"], "is a message of 0 B"),
        ([*SYNTHETIC, "--num-ops", "9", "--for", "astra-sim"], "takes less than a nanosecond"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(
    words: list[str], part: str, folder: Path
) -> None:
    assert_one_line(run("workload", *words, "-o", "x/y"), part)
    assert not list(folder.iterdir())


def test_a_path_that_astra_sim_takes_for_none_is_refused(folder: Path) -> None:
    refused = run("workload", *STAGE, "--for", "astra-sim", "-o", "empty/t")
    assert_one_line(refused, "reads no communicator groups from a path with 'empty' in it")
    assert not list(folder.iterdir())
