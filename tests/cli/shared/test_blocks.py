"""Sweeps in blocks on the command line: the same answers, and one line where they cannot be."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.running import assert_one_line, run
from tests.cli.sweeping import run_sweep

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
