"""Questions to the page with controls, without a port."""

from __future__ import annotations

import json
from typing import Any

import pytest

app = pytest.importorskip("perfmodel.cli.report.server.app", reason="the extra 'ui' is not there")


@pytest.fixture
def questions(script: Any) -> Any:
    return script.load("fuzz.fuzz_commands").ui_questions


def test_answers_refusals_and_downloads_are_told_apart(questions: Any) -> None:
    made = app.make_app(token=questions.TOKEN, warm=False)
    asked = json.dumps(questions.EXAMPLES["training.question"]).encode()
    for path, content, status in (
        ("/api/results", asked, 200),
        ("/api/results", b"{}}", 400),
        ("/download/results.nc", asked, 200),
        ("/download/launch?row=x", asked, 400),
        ("/nowhere", asked, 404),
    ):
        found, body = questions.ask(made, path, content)
        assert found == status, body[:200]
        assert not questions.verdict(path, found, body)


def test_what_is_wrong_is_said(questions: Any) -> None:
    assert "status 500" in questions.verdict("/api/results", 500, b"{}")
    assert "no JSON" in questions.verdict("/api/results", 200, b"NaN")
    assert "characters" in questions.verdict("/api/results", 400, b'{"error": ""}')
    assert questions.verdict("/download/launch", 200, b"") == "an empty answer"
