"""What is compiled for, and that NumPy is silent meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from perfmodel.kernels import _jit, work
from perfmodel.kernels.uncompiled import uncompiled
from perfmodel.kernels.work import KINDS, Kind, choice, choice_so_far, expect, kernel_work


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[work.Choice]:
    """A process that has done nothing yet, an empty cache, and what the listener hears."""
    heard: list[work.Choice] = []
    compiled: list[bool] = []
    monkeypatch.setattr(work, "_done", {})
    monkeypatch.setattr(work, "_estimated", 0.0)
    monkeypatch.setattr(work, "_spent", 0.0)
    monkeypatch.setattr(work, "_settled", None)
    monkeypatch.setattr(work, "_inside", 0)
    monkeypatch.setattr(work, "_ready", set())
    monkeypatch.setattr(work, "_apart", {})
    monkeypatch.setattr(work, "mode", lambda: "auto")
    monkeypatch.setattr(work, "cache_folder", lambda: str(tmp_path))
    monkeypatch.setattr(work, "compiling", lambda: bool(compiled))
    monkeypatch.setattr(work, "compile_kernels", lambda: compiled.append(True))
    monkeypatch.setattr(work, "listener", heard.append)
    monkeypatch.setattr(work, "IMPORT", 1.0)
    kinds = {"gemms": Kind(1e-3, 10.0, 1.0, "g.g"), "streams": Kind(1e-3, 5.0, 1.0, "s.s")}
    kinds["attentions"] = Kind(1e-3, 5.0, 1.0, "a.a", apart=True)
    monkeypatch.setattr(work, "KINDS", kinds)
    return heard


def do(monkeypatch: pytest.MonkeyPatch, seconds: float | None = None, **amounts: float) -> None:
    """Do some work that takes what it should, or some seconds."""
    times = iter([0.0, sum(amounts.values()) * 1e-3 if seconds is None else seconds])
    monkeypatch.setattr(work, "_clock", lambda: next(times))
    with kernel_work(**amounts):
        pass


def test_small_work_stays_plain(fresh, monkeypatch):
    do(monkeypatch, gemms=1999)
    assert fresh == []
    chosen = choice_so_far()
    assert chosen is not None
    assert not chosen.compiled
    assert "about 2 s of work" in chosen.reason


def test_large_work_is_compiled_and_said_once(fresh):
    with kernel_work(gemms=11_001):
        assert work.compiling()
    with kernel_work(gemms=11_001):
        pass
    assert [(item.compiled, item.cached) for item in fresh] == [(True, False)]


def test_with_a_cache_less_work_is_enough(fresh, tmp_path):
    expect(gemms=2001)
    assert not work.compiling()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.g-1.py311.nbi").touch()
    expect(gemms=2001)
    assert fresh[0].cached


def test_each_kind_is_compiled_apart(fresh):
    assert choice({"gemms": 11_001}).compiled
    assert not choice({"gemms": 11_001, "streams": 1}).compiled
    assert choice({"gemms": 11_001, "streams": 5001}).compiled


@pytest.mark.parametrize(("done", "compiled"), [(50, True), (150, False)])
def test_little_work_that_is_over_is_not_compiled_for(fresh, monkeypatch, done, compiled):
    do(monkeypatch, streams=done)
    expect(gemms=13_000)  # 10 s of compiling for them, and 5 for streams, were there many
    assert work.compiling() is compiled


def test_small_work_adds_up(fresh, monkeypatch):
    """As many rows are compared, or as a long session asks for."""
    for _ in range(11):
        assert not work.compiling()
        do(monkeypatch, gemms=1000)
    with kernel_work(gemms=1):
        assert work.compiling()


def test_a_wrong_estimate_is_noticed(fresh, monkeypatch):
    """What took ten times as long as it should will go on so."""
    do(monkeypatch, seconds=1.0, gemms=100)
    assert choice({"gemms": 1900}).compiled
    assert not choice({"gemms": 1700}).compiled


def test_a_quick_machine_compiles_later(fresh, monkeypatch):
    do(monkeypatch, seconds=0.1, gemms=9000)
    assert not choice({"gemms": 50_000}).compiled


def test_what_lies_ahead_counts_once(fresh, monkeypatch):
    expect(gemms=8000)
    do(monkeypatch, gemms=8000)
    assert not work.compiling()
    expect(gemms=8000)
    assert work.compiling()


def runs_plain(monkeypatch: pytest.MonkeyPatch, seconds: float, **amounts: float) -> bool:
    """Do some work where kernels are compiled; tell whether it runs uncompiled."""
    times = iter([0.0, seconds])
    monkeypatch.setattr(work, "_clock", lambda: next(times))
    with kernel_work(**amounts) as run:
        return run is uncompiled


def test_small_work_apart_stays_plain_beside_compiled_kernels(fresh, monkeypatch):
    with kernel_work(gemms=11_001) as run:
        assert run(abs) is abs
    assert runs_plain(monkeypatch, 3.0, attentions=3000)
    assert runs_plain(monkeypatch, 0.5, attentions=2000)  # quicker than it was thought
    assert not runs_plain(monkeypatch, 0.0, attentions=2000)
    assert not runs_plain(monkeypatch, 0.0, attentions=1)
    assert not runs_plain(monkeypatch, 0.0, attentions=1, streams=1)


def test_compiled_kernels_in_the_cache_are_loaded_apart_sooner(fresh, monkeypatch, tmp_path):
    with kernel_work(gemms=11_001):
        pass
    (tmp_path / "a.a-1.py311.nbi").touch()
    assert runs_plain(monkeypatch, 0.9, attentions=900)
    assert not runs_plain(monkeypatch, 0.0, attentions=101)


def test_small_work_apart_takes_no_time_to_compile(fresh):
    assert choice({"gemms": 12_000, "attentions": 100}).compiled
    assert not choice({"gemms": 12_000, "streams": 100}).compiled


def test_work_apart_alone_is_not_compiled_for_before_it_pays(fresh, monkeypatch):
    """Also where all took longer than it should."""
    do(monkeypatch, seconds=4.0, attentions=1000)
    assert not choice({"attentions": 100}).compiled
    assert choice({"attentions": 1000}).compiled


def test_within_plain_work_all_is_plain(fresh):
    with kernel_work(gemms=11_001):
        pass
    with kernel_work(attentions=1), kernel_work(gemms=11_001) as run:
        assert run is uncompiled
        assert _jit.is_plain_here()
    assert not _jit.is_plain_here()


@pytest.mark.parametrize(("mode", "compiled"), [("always", True), ("never", False)])
def test_the_setting_decides(fresh, monkeypatch, mode, compiled):
    monkeypatch.setattr(work, "mode", lambda: mode)
    for amount in (1, 1e9):
        assert choice({"gemms": amount}).compiled == compiled


def test_numpy_is_silent_inside_only(fresh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with kernel_work(gemms=1):
            assert np.isinf(np.float64(1e308) * np.float64(10.0))
        with pytest.raises(RuntimeWarning):
            np.float64(1e308) * np.float64(10.0)


def test_errors_pass(fresh):
    with pytest.raises(ZeroDivisionError), kernel_work(gemms=1):
        1 / 0  # noqa: B018
    assert work._inside == 0


def test_nothing_changes_under_running_kernels(fresh):
    with kernel_work(gemms=1):
        expect(gemms=1e6)
        assert not work.compiling()
    expect(gemms=1e6)
    assert work.compiling()


def test_every_kind_names_a_kernel():
    import importlib
    import pkgutil

    import perfmodel.kernels

    known = set()
    for item in pkgutil.walk_packages(perfmodel.kernels.__path__, "perfmodel.kernels."):
        module = importlib.import_module(item.name)
        known |= {f"{item.name.rpartition('.')[2]}.{name}" for name in vars(module)}
    assert {kind.kernel for kind in KINDS.values()} <= known


@pytest.mark.skipif(_jit.mode() == "never", reason="nothing is compiled")
def test_the_program_says_what_it_chose(tmp_path):
    command = (
        *("project", "--model", "gpt3-175b", "--hardware", "dgx-h100", "--devices", "8"),
        *("--tp", "8", "--global-batch", "8", "--seq-len", "2048", "--json", "-v"),
    )
    heard = {}
    for mode in ("auto", "always", "never"):
        run = subprocess.run(
            [sys.executable, "-m", "perfmodel", *command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PERFMODEL_JIT": mode},
        )
        assert run.returncode in (0, 3), run.stderr
        assert json.loads(run.stdout)["step_time"] > 0
        heard[mode] = run.stderr
    assert "kernels ran uncompiled: about" in heard["auto"]
    assert "kernels ran compiled: PERFMODEL_JIT=always" in heard["always"]
    assert "kernels ran uncompiled: PERFMODEL_JIT=never" in heard["never"]
