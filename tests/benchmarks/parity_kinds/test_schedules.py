"""The script that compares schedules with PyTorch's tables."""

from __future__ import annotations

import json

import pytest

from tests.data import TORCH_SCHEDULES, needed

TABLE = {
    "schedule": "1F1B",
    "ranks": 2,
    "chunks": 1,
    "microbatches": 2,
    "stage_to_rank": [0, 1],
    "order": [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]],
    "sim": {
        "makespan": 9,
        "ideal": 6,
        "bubble": 0.5,
        "peak": [2, 1],
        "peak_until_weight": [2, 1],
    },
}


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.schedules")


def written(tmp_path, *tables):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"tables": tables}), encoding="utf-8")
    return path


def test_every_table_is_reproduced(comparison):
    result = comparison.compare(needed(TORCH_SCHEDULES))
    assert result["count"] == result["exact"] == result["orders"] == 960
    assert result["worst_relative_error"] == 0
    assert result["uncovered"] == {}


def test_a_table_by_hand_is_exact(comparison, tmp_path):
    result = comparison.compare(written(tmp_path, TABLE))
    assert (result["count"], result["exact"], result["orders"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [("makespan", 10, 0.1), ("peak", [2, 2], 0.5), ("peak", [2], 1.0), ("ideal", 5, 0.2)],
)
def test_a_figure_that_differs_is_an_error(comparison, tmp_path, key, value, error):
    table = TABLE | {"sim": TABLE["sim"] | {key: value}}
    result = comparison.compare(written(tmp_path, table))
    assert result["exact"] == 0
    assert result["orders"] == 1
    assert result["worst_relative_error"] == pytest.approx(error)


def test_another_order_is_an_error_and_another_schedule_is_not_covered(comparison, tmp_path):
    other = TABLE | {"order": [["0F0", "0B0", "0F1", "0B1"], TABLE["order"][1]]}
    unknown = TABLE | {"schedule": "Chimera"}
    result = comparison.compare(written(tmp_path, other, unknown))
    assert result["worst_relative_error"] == 1.0
    assert result["orders"] == 0
    assert result["uncovered"] == {"no schedule 'Chimera'": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no tables"),
        ('{"tables": [{"schedule": 3}]}', "table 0: 'schedule' should be there, of type str"),
        ('{"tables": [{"schedule": "1F1B"}]}', "table 0: 'ranks' should be there, of type int"),
        ("[", "not valid JSON"),
    ],
)
def test_a_file_without_tables_is_refused(parity, tmp_path, text, message):
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    code, _, error = parity("schedules", path)
    assert code == 2
    assert message in error


def test_it_prints_a_table(parity, tmp_path):
    code, out, _ = parity("schedules", written(tmp_path, TABLE))
    assert code == 0
    assert "1 of 1 exact" in out
    assert "1 orders equal, action by action" in out
