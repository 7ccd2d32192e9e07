"""The table of first runs, and that a run knows nothing but its own home."""

from __future__ import annotations

import pytest


@pytest.fixture
def first_run(script):
    return script.load("speed.first_run")


def test_the_table_says_what_is_too_slow_and_where_compiling_pays(first_run):
    found = {"project": {"first": 0.314, "later": 0.296, "most": 0.4}}
    pays = {
        "per_strategy": 5e-5,
        "compiling": 20.0,
        "loading": 0.5,
        "empty_cache": 400_500.0,
        "full_cache": 10_500.0,
    }
    text = first_run.table(found, pays)
    assert "| project | 0.31 | 0.30 | 0.40 |" in text
    assert "a strategy takes 50 µs" in text
    assert "pays from 400,500 strategies on" in text
    assert "pays from 10,500 on" in text


def test_a_run_has_a_home_of_its_own_and_no_switches(first_run, tmp_path, monkeypatch):
    monkeypatch.setenv("PERFMODEL_JIT", "always")
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import os, pathlib\n"
        "assert 'PERFMODEL_JIT' not in os.environ\n"
        "assert pathlib.Path.home() == pathlib.Path.cwd()\n"
        "pathlib.Path('seen').touch()"
    )
    assert first_run.seconds(["-c", code], home) > 0
    assert (home / "seen").exists()
    with pytest.raises(SystemExit, match="wrong"):
        first_run.seconds(["-c", "raise SystemExit('wrong')"], home)


def test_every_case_is_a_command_that_runs(first_run, tmp_path):
    arguments, _ = first_run.CASES["import perfmodel"]
    assert first_run.seconds(arguments, tmp_path) > 0
    for name, (arguments, most) in first_run.CASES.items():
        assert most > 0, name
        assert arguments[0] in ("-c", "-m"), name
