"""The script that counts pipelines per second."""

from __future__ import annotations

import json

import pytest

from perfmodel.base.pipelines import SCHEDULES


@pytest.fixture
def speed(script):
    return script.load("speed.schedules")


def test_every_schedule_has_pipelines_that_it_takes(speed):
    for schedule in SCHEDULES:
        shapes = {
            (pipeline.program.ranks, pipeline.order.micro_batches)
            for pipeline in speed.pipelines(schedule)
        }
        assert shapes <= set(speed.SHAPES)
        assert len(shapes) == (9 if schedule in ("dualpipe", "dualpipe_v") else 12)


def test_it_prints_a_rate_as_the_other_scripts_do(script):
    _, out, _ = script("speed.schedules", "--count", 200, "--runs", 1, "--json")
    document = json.loads(out)
    assert document["unit"] == "cases/s"
    assert document["rate_per_core"] == pytest.approx(document["count"] / document["seconds"])
    assert set(SCHEDULES) == set(document["rates"])
