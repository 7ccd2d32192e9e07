"""``perfmodel plot KIND``: every kind draws, and what is wrong is one line."""

from __future__ import annotations

import csv

import pytest

from perfmodel.cli.report.plot import OPTIONS, PAGES
from perfmodel.report.plots.kinds import KINDS
from tests.cli.running import assert_one_line, document, run
from tests.data import table_of

pytest.importorskip("matplotlib", reason="matplotlib (the extra 'plot') is not installed")


def test_every_kind_has_its_page_and_every_option_its_text():
    assert set(PAGES) == set(KINDS)
    assert {name for kind in KINDS.values() for name in kind.options} == set(OPTIONS)


@pytest.mark.parametrize(
    "words",
    [
        ["pareto", "--group", "tp", "--band"],
        ["breakdown", "--each", "hardware"],
        ["memory", "--stages", "--where", "pp == 2"],
        ["heatmap", "--x", "micro_batch", "--value", "step_time"],
        ["roofline", "--pick", "2", "--by", "step_time"],
        ["pipeline", "--where", "pp == 2"],
    ],
)
def test_figures_of_a_sweep(file, folder, words):
    result = run("plot", words[0], file, *words[1:])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{words[0]}.svg\n"
    assert (folder / f"{words[0]}.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert result.stderr  # what a caption should say


def test_json_says_what_was_drawn_and_data_are_the_numbers(file, folder):
    found = document("plot", "pareto", file, "-o", "a.pdf", "--data", "a.csv", "--width", "page")
    assert (found["kind"], found["output"], found["width"]) == ("pareto", "a.pdf", 7.0)
    series = found["panels"][0]["series"]
    count = sum(len(it["rows"]) for it in series)
    with (folder / "a.csv").open(encoding="utf-8", newline="") as written:
        assert len(list(csv.DictReader(written))) == count
    assert (folder / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("words", "parts"),
    table_of(__file__, "wrong_input_is_one_line_and_leaves_nothing"),
)
def test_wrong_input_is_one_line_and_leaves_nothing(file, folder, words, parts):
    (folder / "empty.nc").touch()
    result = run("plot", *(str(file) if word == "FILE" else word for word in words))
    assert_one_line(result, *parts)
    assert [path.name for path in folder.iterdir()] == ["empty.nc"]
