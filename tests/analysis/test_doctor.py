"""The examination of an installation: what it finds, and that it finds what is wrong."""

from __future__ import annotations

import pytest

from perfmodel.analysis import doctor
from perfmodel.analysis.doctor import EXTRAS, FAIL, OK, REFERENCE, WARN, examine


def found(group: str) -> dict[str, doctor.Finding]:
    """Return the findings of a group by name."""
    findings = list(doctor.PARTS[group]())
    assert {it.group for it in findings} == {group}
    return {it.name: it for it in findings}


def test_a_sound_installation_has_nothing_that_failed():
    findings = list(examine())
    assert list(dict.fromkeys(it.group for it in findings)) == list(doctor.PARTS)
    assert not [it for it in findings if it.state == FAIL]
    assert {it.name for it in findings if it.group == "self-check"} == set(doctor.CHECKS)
    assert all(it.advice for it in findings if it.state == WARN)


def test_the_stored_projection_is_that_of_the_model():
    """Where the model changes, so does `REFERENCE`."""
    assert doctor._projected() == pytest.approx(REFERENCE, rel=1e-10)


def test_a_projection_that_is_off_fails_and_says_by_how_much(monkeypatch):
    off = REFERENCE | {"step_time": REFERENCE["step_time"] * (1 + 1e-6)}
    monkeypatch.setattr(doctor, "REFERENCE", off)
    check = found("self-check")["projection"]
    assert check.state == FAIL
    assert "1.0e-06 from what it should be" in check.text


def test_a_check_that_breaks_is_a_line(monkeypatch):
    def broken() -> doctor.Outcome:
        raise OSError("no\nroom")

    monkeypatch.setitem(doctor.CHECKS, "files", broken)
    check = found("self-check")["files"]
    assert check.state == FAIL
    assert check.text.startswith("no room (")
    assert check.advice


def test_extras_say_what_they_give_and_how_to_install_them(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    extras = found("extras")
    assert list(extras) == list(EXTRAS)
    assert extras["zarr"].advice == "pip install 'perfmodel[zarr]'"
    assert ".zarr" in extras["zarr"].text
    assert extras["zarr"].state == OK
    assert found("versions")["numpy"].state == FAIL


def test_versions_outside_what_is_asked_for_are_warned_of(monkeypatch):
    limits = {"numba": ">=0.1,<0.2", "matplotlib": ">=99"}
    monkeypatch.setattr(doctor, "_limits", lambda: limits)
    numba = found("versions")["numba"]
    assert numba.state == WARN
    assert "numba>=0.1,<0.2" in numba.advice
    assert found("extras")["plot"].state == WARN


@pytest.mark.parametrize(
    ("version", "wanted", "within"),
    [
        ("2.2", ">=2.2", True),
        ("2.1.9", ">=2.2", False),
        ("0.69", ">=0.61.2,<0.69", False),
        ("0.68.1rc1", ">=0.61.2,<0.69", True),
        ("1.7.2.post1", ">=1.7.2", True),
        ("3", "", True),
    ],
)
def test_versions_keep_bounds(version, wanted, within):
    assert doctor._within(version, wanted) is within


def test_a_folder_that_cannot_be_written_is_told(monkeypatch):
    monkeypatch.setattr(doctor._jit, "cache_folder", lambda: "")
    kernels = found("caches")["kernels"]
    assert kernels.state == WARN
    assert "XDG_CACHE_HOME" in kernels.advice


def test_a_setting_that_cannot_be_is_a_failure(monkeypatch):
    def mode() -> str:
        raise doctor._jit.SettingError("PERFMODEL_JIT is 'x'; it should be auto, always or never")

    monkeypatch.setattr(doctor._jit, "mode", mode)
    (finding,) = doctor._caches()
    assert finding.state == FAIL
    assert "'x'" in finding.text


def test_little_memory_is_warned_of(monkeypatch):
    monkeypatch.setattr(doctor, "memory_limit", lambda: 10**9)
    memory = found("machine")["memory"]
    assert memory.state == WARN
    assert "--resume" in memory.advice


def test_usable_cores_are_some():
    assert 0 < doctor.usable_cores() <= (doctor.os.cpu_count() or 1)
