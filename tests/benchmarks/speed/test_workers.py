"""The script that prints how work scales over workers."""

from __future__ import annotations

import pytest

from tests.measured.korthikanti import KORTHIKANTI_TABLE_5


@pytest.mark.parametrize(("kind", "least"), [("sweep", 100), ("compare", 8), ("serve", 32)])
def test_a_line_without_workers_is_the_work_of_one_process(script, kind, least, tmp_path):
    module = script.load("speed.workers")
    runs = tmp_path / "runs.csv"
    runs.write_text(KORTHIKANTI_TABLE_5, encoding="utf-8")
    found = module.line(kind, 0, True, runs)
    assert (found["kind"], found["workers"]) == (kind, 0)
    assert found["count"] >= least
    assert found["seconds"] > 0.0
    assert found["rate_per_core"] * found["cpu_seconds"] == pytest.approx(found["count"])
