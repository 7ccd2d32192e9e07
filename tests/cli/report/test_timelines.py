"""Timelines on a terminal: what stages share stands in one line, and notes say what is drawn."""

from __future__ import annotations

import dataclasses

import pytest

from perfmodel.cli.report.timelines import print_step, step_document, write_tracks
from perfmodel.report.timelines.step import step_timeline


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
