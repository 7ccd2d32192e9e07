"""Timelines on a terminal: what stages share stands in one line, and notes say what is drawn."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from perfmodel.cli.report.timeline import print_step, step_document, write_tracks
from perfmodel.kernels.variables import TIME_COMPONENTS
from perfmodel.training.step.timeline import step_timeline
from tests.cli.projecting import DENSE, PROBLEMS
from tests.cli.running import document, run
from tests.cli.serving import POINT, serve
from tests.workloads.formats.trace_events import check_events, read_events, sums_by_category


@pytest.fixture(scope="module")
def step(small_dense, grid_of, h100):
    grid = grid_of(small_dense, pipeline_parallel=4, data_parallel=2, micro_batches=8,
                   pipeline_schedule="gpipe")  # fmt: skip
    return step_timeline(small_dense, grid, h100)


def test_stages_alike_share_a_line(step, capsys):
    print_step(step)
    out, err = capsys.readouterr()
    lines = [line.split()[0] for line in out.splitlines() if "GiB" in line]
    assert lines == ["0", "1–2", "3"]
    assert not err


def test_what_is_drawn_shorter_is_said(step, capsys):
    print_step(dataclasses.replace(step, drawn_sends=0.25, drawn_work=0.985))
    err = capsys.readouterr().err
    assert "sends of stages but the slowest are drawn with 25 % of their time" in err
    assert "passes of stages but the slowest are drawn with 98.5 % of their time" in err


def test_numbers_are_of_every_stage(step):
    found = step_document(step)
    assert [one["stage"] for one in found["stages"]] == [0, 1, 2, 3]
    for one in found["stages"]:
        assert sum(one["components"].values()) == pytest.approx(found["step_time"], rel=1e-9)
        assert one["passes"] == 16


def test_files_are_measured(step, tmp_path, capsys):
    path = tmp_path / "step.json"
    found = write_tracks(str(path), step.write)
    assert found == {"output": str(path), "events": found["events"], "bytes": path.stat().st_size}
    assert f"{found['events']:,} events" in capsys.readouterr().err
    assert write_tracks(None, step.write) == {}


INTERLEAVED = PROBLEMS["interleaved"].split()
REQUESTS = "arrival,input_length,output_length\n0,500,20\n0.1,900,30\n0.15,100,5\n"


def test_a_named_strategy_is_written_and_told(folder: Path) -> None:
    result = run("timeline", *INTERLEAVED, "--stages", "first,last", "-o", "step.json")
    assert result.exit_code == 0, result.stderr
    assert "Timeline of a training step: llama-3.1-8b on 32 × dgx-h100, megatron" in result.stdout
    assert "open it at https://ui.perfetto.dev" in result.stderr
    row = document("project", *INTERLEAVED)
    events = read_events(folder / "step.json")
    check_events(events)
    found = document("timeline", *INTERLEAVED, "--stages", "0,1", "-o", "again.json.gz")
    assert found["step_time"] == row["step_time"]
    assert found["end"] == pytest.approx(row["step_time"], rel=1e-9)
    assert found["bytes"] == (folder / "again.json.gz").stat().st_size
    assert read_events(folder / "again.json.gz") == events
    slowest = f"stage {found['slowest_stage']} (slowest)"
    sums = sums_by_category(events, slowest)
    told = found["stages"][found["slowest_stage"]]["components"]
    for name in TIME_COMPONENTS:
        assert told[name] == pytest.approx(row[name], abs=1e-9 * row["step_time"])
        assert sums.get(name, 0.0) == pytest.approx(row[name], abs=1e-9 * row["step_time"])


def test_strategies_of_a_sweep_end_as_stored(file: Path, folder: Path) -> None:
    ranked = document("best", file, "--top", "2", "--where", "pp > 1")["strategies"]
    found = document("timeline", file, "--pick", "2", "--where", "pp > 1", "-o", "s.json")
    assert found["step_time"] == pytest.approx(ranked[1]["step_time"], rel=1e-6)
    check_events(read_events(folder / "s.json"))
    best = document("best", file, "--top", "3")["strategies"]
    numbered = document("timeline", f"{file}#3")
    assert numbered["step_time"] == pytest.approx(best[2]["step_time"], rel=1e-6)


def test_operations_are_told_finely_and_pipelines_alone(folder: Path) -> None:
    fine = document("timeline", *INTERLEAVED, "--operations", "all", "-o", "fine.json")
    coarse = document("timeline", *INTERLEAVED, "-o", "coarse.json")
    assert fine["depth"] == "operations"
    assert fine["events"] > 2 * coarse["events"]
    check_events(read_events(folder / "fine.json"))
    alone = document("timeline", *INTERLEAVED, "--pipeline", "-o", "pipeline.json")
    explained = document("explain", *INTERLEAVED, "--pipeline")["pipeline"]
    assert alone["makespan"] == explained["makespan"]
    events = read_events(folder / "pipeline.json")
    check_events(events)
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last * 1e-6 == pytest.approx(alone["makespan"], rel=1e-9)


def test_served_models_are_told_from_files_and_as_they_are_projected(folder: Path) -> None:
    assert serve(POINT, "-o", "serve.nc", "--timeline", "one.json").exit_code == 0
    found = document("timeline", "serve.nc#1", "-o", "two.json")
    assert found["utilization"] <= 1.0
    one, two = (read_events(folder / name) for name in ("one.json", "two.json"))
    check_events(one)
    assert one == two
    exact = json.loads(serve(POINT, "--exact", "--json").stdout)
    assert found["matrices_time"] == pytest.approx(exact["matrices_time"], rel=1e-9)
    (folder / "requests.csv").write_text(REQUESTS, encoding="utf-8")
    where = ("--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--tp", "1")
    result = run("serve", *where, "--replay", "requests.csv", "--timeline", "r.json.gz")
    assert result.exit_code == 0, result.stderr
    check_events(read_events(folder / "r.json.gz"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pick", "2"], "--pick is for a results file"),
        (DENSE.split()[:-2], "Missing option '--seq-len'"),
        (["nothing.nc"], "results file 'nothing.nc' does not exist"),
        (["nothing.nc#0"], "'nothing.nc#0' should end in #1"),
        (["nothing.nc#1", "--pick", "2"], "--pick has no effect"),
        (["nothing.nc", "--tp", "2"], "--tensor-parallel is for a strategy without a results"),
        ([*INTERLEAVED, "--stages", "2"], "stage 2; the strategy has stages 0 to 1"),
        ([*INTERLEAVED, "--stages", "two"], "'two' is no stage"),
        ([*INTERLEAVED, "--passes", "2"], "--passes is for a served model"),
        ([*INTERLEAVED, "--pipeline", "--stages", "0"], "drop the other options"),
        ([*INTERLEAVED, "-o", "nowhere/step.json"], "folder 'nowhere' does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(folder: Path, arguments: list[str], message: str) -> None:
    result = run("timeline", *arguments)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--tp", "1,2"], "--timeline takes one point"),
        (["--phase", "decode", "--batch", "4"], "--timeline needs a sequence of passes"),
        (["--rate", "1"], "a rate of arrivals is closed in formulas"),
    ],
)
def test_what_has_no_passes_is_refused(folder: Path, more: list[str], message: str) -> None:
    where = [
        "--model",
        "llama-3.1-8b",
        "--hardware",
        "dgx-h100",
        "--tp",
        "1",
        "--isl",
        "2048",
        "--osl",
        "256",
    ]
    load = ["--concurrency", "4"] if more[0] == "--tp" else []
    result = run("serve", *where, *load, *more, "--timeline", "passes.json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(folder.iterdir()) == []


def test_files_of_other_things_are_refused(file: Path, folder: Path) -> None:
    assert "holds training steps" in run("timeline", file, "--passes", "3").stderr
    served = "--model llama-3.1-8b --hardware dgx-h100 --tp 1 --isl 512 --osl 16 --rate 1"
    assert serve(served, "-o", "rate.nc").exit_code == 0
    result = run("timeline", "rate.nc")
    assert result.exit_code == 2
    assert "a rate of arrivals is closed in formulas" in result.stderr
    result = run("timeline", "rate.nc", "--pipeline")
    assert "holds served models" in result.stderr
    (folder / "broken.nc").write_bytes(b"nothing")
    assert run("timeline", "broken.nc").exit_code == 2
