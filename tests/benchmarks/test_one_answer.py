"""Every verb, Python and files answer alike: some of what the drive asks thousands of times."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.strategy_fields import FIELDS
from perfmodel.software.framework import FRAMEWORKS


@pytest.fixture
def one_answer(script: Any) -> Any:
    return script.load("one_answer")


CP = {
    **{"model": "llama-3.1-70b", "hardware": "gb200-nvl72", "framework": "maxtext", "devices": 8},
    **{"seq-len": 4096, "global-batch": 16, "tp": 2, "cp": 2, "zero": 3, "micro-batch": 2},
    "recompute": "none",
}


def test_verbs_answer_random_requests_alike(tmp_path: Path, one_answer: Any) -> None:
    asked = ((request, one_answer.verbs(request, tmp_path)) for request in one_answer.requests(4))
    found = list(itertools.islice((it for it in asked if it[1] is not None), 4))
    assert not [(request, unlike) for request, unlike in found if unlike]


def test_software_says_how_keys_are_exchanged_in_every_verb(
    tmp_path: Path, one_answer: Any
) -> None:
    assert one_answer.verbs(CP, tmp_path) == []
    assert one_answer.answer("project", *one_answer.options(CP))["context_parallel_kind"] == (
        FRAMEWORKS["maxtext"].context_parallel_kind
    )


@pytest.mark.parametrize("first", range(3))
def test_files_come_back(first: int, tmp_path: Path, one_answer: Any) -> None:
    every = 7919
    found = [
        (request, one_answer.files(request, tmp_path))
        for request in itertools.islice(one_answer.every_file(), 2639 * first, None, every)
    ]
    assert not [(request, unlike) for request, unlike in found if unlike]


def test_the_drive_counts_and_shows(
    one_answer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Any] = [None, [], ["sweep: step_time 2, of project 1"]]
    monkeypatch.setattr(one_answer, "verbs", lambda *_: answers.pop(0))
    assert one_answer.main(["verbs", "--cases", "2"]) == 1
    shown = capsys.readouterr().out
    assert "sweep: step_time 2" in shown
    assert "{'impossible': 1, 'alike': 1, 'wrong': 1}" in shown


def test_what_differs_is_named(one_answer: Any) -> None:
    mine = {spec.name: spec.default for spec in FIELDS} | {"step_time": 1.0}
    assert one_answer.unlike("sweep", mine, None) == ["sweep refuses"]
    assert one_answer.unlike("sweep", mine, {"step_time": 1.0}) == []
    (found,) = one_answer.unlike("sweep", mine, mine | {"zero_stage": 3})
    assert found.startswith("sweep: zero_stage 3, of project ")
