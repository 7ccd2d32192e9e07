"""Workers on the command line: every command that has them refuses the same in one line."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.cli.running import assert_one_line, run
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
