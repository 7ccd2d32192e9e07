"""``perfmodel doctor``: text, JSON, exit codes."""

from __future__ import annotations

import pytest

from perfmodel.analysis import doctor
from perfmodel.analysis.doctor import Finding
from tests.cli.running import document, run


def test_what_is_found_is_listed_by_group_with_what_to_do():
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for group in ("Versions", "Extras", "Caches", "Machine", "Terminal", "Self-check"):
        assert f"{group}\n" in result.stdout
    assert result.stdout.endswith("\nall is well\n")


def test_json_has_every_finding():
    found = document("doctor")
    assert found["healthy"] is True
    assert {it["state"] for it in found["findings"]} <= {"ok", "warn"}
    assert {"group", "name", "state", "text", "advice"} == set(found["findings"][0])


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_failed_ends_with_1(words, monkeypatch):
    broken = [Finding("caches", "kernels", "fail", "gone", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: iter(broken))
    result = run("doctor", *words)
    assert result.exit_code == 1
    assert "do this" in result.stdout
    assert ("1 of 1 failed" in result.stdout) is not bool(words)
