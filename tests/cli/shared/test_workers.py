"""Workers on the command line: every command that has them refuses the same in one line."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.running import assert_one_line, run
from tests.cli.sweeping import run_sweep
from tests.measured.korthikanti import KORTHIKANTI_TABLE_5
from tests.measured.toy import write_table

SERVED = "--model llama-3.1-8b --hardware dgx-h100 --tp 1,2 --isl 512 --osl 64 --concurrency 1,8"
SWEPT = "--model llama-3.1-8b --hardware dgx-h100 --devices 8 --seq-len 512 --global-batch 8"
COMMANDS = {
    "compare": "compare training runs.csv",
    "calibrate": "calibrate dgx-h100 gemm.csv --only launch_latency",
    "serve": f"serve {SERVED}",
    "sweep": f"sweep {SWEPT}",
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(KORTHIKANTI_TABLE_5, encoding="utf-8")
    write_table(tmp_path / "gemm.csv", launch=4e-6, efficiency=0.6, noise=0.02)


def processes(name: str) -> str:
    return "--processes" if name == "serve" else "--workers"  # a deployment has workers


@pytest.mark.parametrize("name", COMMANDS)
def test_what_names_no_workers_is_one_line(name, files, monkeypatch):
    pytest.importorskip("distributed", reason="Dask (the extra 'dask') is not installed")
    monkeypatch.setattr("perfmodel.sweeps.workers.PATIENCE", 0.2)
    words, option = shlex.split(COMMANDS[name]), processes(name)
    for more, text in (
        ([option, "0"], f"'{option}'"),
        ([option, "-1"], f"'{option}'"),
        ([option, "2", "--scheduler", "tcp://a:1"], f"{option} and --scheduler exclude each other"),
        (["--scheduler", "node1"], "'node1' is no address, such as tcp://node1:8786"),
        (["--scheduler", "tcp://127.0.0.1:9"], "'tcp://127.0.0.1:9' does not answer within"),
    ):
        assert_one_line(run(*words, "-q", *more), text)


@pytest.mark.parametrize("name", ["compare", "serve"])
def test_workers_of_a_scheduler_answer_as_one_process(name, files, two_workers):
    words = [*shlex.split(COMMANDS[name]), "--json"]
    alone = run(*words)
    shared = run(*words, "-v", "--scheduler", two_workers.client.scheduler.address)
    assert shared.exit_code == 0, shared.stderr
    assert json.loads(shared.stdout) == json.loads(alone.stdout)
    assert "2 workers of scheduler 'tcp://127.0.0.1:" in shared.stderr


def test_what_fits_nothing_takes_no_workers():
    result = run("calibrate", "--family", "nvidia-hopper", "x.csv", "--bands", "--workers", "2")
    assert_one_line(result, "--bands fits nothing that workers could share; drop them")


WHERE = "--hardware dgx-h100 --top 3"


def test_a_sweep_in_blocks_prints_and_answers_what_one_at_once_does(tmp_path) -> None:
    once, many = str(tmp_path / "once.nc"), str(tmp_path / "many.nc")
    at_once, in_blocks = run_sweep(WHERE, "-o", once), run_sweep(WHERE, "-o", many, "--resume")
    assert in_blocks.exit_code == 0, in_blocks.stderr
    assert in_blocks.stdout == at_once.stdout
    assert "strategies in 1 blocks; " in in_blocks.stderr
    assert " before compression, usually a tenth of it after; " in in_blocks.stderr
    documents = [
        json.loads(run_sweep(WHERE, "-o", path, *more, "--json").stdout) | {"output": ""}
        for path, more in ((once, []), (str(tmp_path / "more.zarr"), ["--resume"]))
    ]
    assert documents[0] == documents[1]
    for path in (many, str(tmp_path / "more.zarr")):
        assert run("best", path).stdout == run("best", once).stdout
    again = run_sweep(WHERE, "-o", many, "--resume")
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == f"{many} is complete; 'perfmodel best' ranks it\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--resume", "--resume needs -o, the file to go on with"),
        ("-o x.csv --resume", "cannot write 'x.csv' block by block; only .zarr and .nc files can"),
        ("-o no/x.zarr --resume", "folder 'no' does not exist"),
        ("-o taken.zarr --resume", "cannot write 'taken.zarr': it exists and is no zarr store"),
        ("-o x.nc --workers 2 --scheduler tcp://a:1", "--workers and --scheduler exclude each"),
        ("-o x.nc --scheduler node1", "'node1' is no address, such as tcp://node1:8786"),
        ("-o x.nc --resume --tp 3", "no strategy is possible on 16 devices"),
        ("-o x.nc --resume --precision fp8 --hardware dgx-a100-80gb", "has a matrix rate"),
    ],
)
def test_what_cannot_be_swept_in_blocks_is_one_line(words, text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.zarr").write_text("")
    given = shlex.split(words)
    hardware = [] if "--hardware" in given else ["--hardware", "dgx-h100"]
    own = "--tp 1 --pp 1 --micro-batch 1 --recompute none"
    own = own.replace("--tp 1", "") if "--tp" in given else own
    problem = "--model llama-3.1-8b --devices 16 --seq-len 4096 --global-batch 64"
    result = run("sweep", "-q", *shlex.split(f"{problem} {own}"), *hardware, *given)
    assert_one_line(result, text)
    assert [it.name for it in tmp_path.iterdir()] == ["taken.zarr"]


def test_workers_need_no_file(tmp_path) -> None:
    pytest.importorskip("distributed", reason="Dask (the extra 'dask') is not installed")
    at_once, workers = run_sweep(WHERE), run_sweep(WHERE, "--workers", "1")
    assert workers.stdout == at_once.stdout
