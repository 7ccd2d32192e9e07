"""``perfmodel report``: what it prints, and how it leaves."""

import json

import pytest
from click.testing import CliRunner

from perfmodel.cli.main import cli

COMPARED = "id,line,measured,projected,error,throughput_error,skip_reason\na,2,2.0,2.2,0.1,-0.1,\n"


def run(*arguments):
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "errors.csv"
    path.write_text(COMPARED)
    return path


def test_it_says_what_it_wrote(runs, tmp_path):
    path = tmp_path / "report.html"
    done = run(runs, "-o", path, "--json", "--title", "Runs", "--top", 3)
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert said["bytes"] == path.stat().st_size
    assert said["populations"] == [
        {"kind": "comparison", "rows": 1, "exact": 1, "total": 1, "selection": "", "pictures": 0}
    ]
    assert "<title>Runs</title>" in path.read_text()
    assert f"wrote {path}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["errors.csv", "-o", "no/report.html"], 2, "does not exist"),
        (["errors.csv", "-o", "errors.csv"], 2, "ends in .html"),
        (["missing.nc", "-o", "report.html"], 2, "does not exist"),
        (["errors.csv", "-o", "report.html", "--where", "erro > 1"], 2, "error"),
        (["errors.csv", "-o", "report.html", "--where", "error > 1"], 3, "passes the filter"),
        (["errors.csv", "-o", "report.html", "--price", "2"], 2, "costs"),
        (["-o", "report.html"], 2, "FILE"),
    ],
)
def test_wrong_input_is_one_line(runs, tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert [it.name for it in tmp_path.iterdir()] == ["errors.csv"]
