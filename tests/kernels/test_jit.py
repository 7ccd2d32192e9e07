"""How kernels are compiled, and that they need not be."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.options import DefaultOptions

from perfmodel.kernels import _jit
from tests.amount import LONG

needs_compiling = pytest.mark.skipif(
    numba.config.DISABLE_JIT, reason="NUMBA_DISABLE_JIT=1: nothing is compiled"
)
PROJECT = (
    *("project", "--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--devices", "64"),
    *("--tp", "2", "--pp", "2", "--zero", "1", "--global-batch", "64", "--seq-len", "8192"),
)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stderr
    return run


def perfmodel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "perfmodel", *arguments, **environment)


@needs_compiling
def test_the_setting_of_the_tests_came_before_the_first_kernel():
    """Else they run as with "auto", and kernels that a test imports are never compiled."""
    assert _jit.mode() == os.environ["PERFMODEL_JIT"]


@pytest.fixture(scope="module")
def compiled_output():
    return perfmodel(*PROJECT, "--json").stdout


@pytest.mark.parametrize(
    "switches",
    [{"NUMBA_DISABLE_JIT": "1"}, {"PERFMODEL_JIT": "never"}, {"PERFMODEL_JIT": "auto"}],
)
def test_uncompiled_kernels_give_the_same_digits_and_compile_nothing(
    tmp_path, switches, compiled_output
):
    """An empty cache would be announced and filled."""
    switches |= {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    uncompiled = perfmodel(*PROJECT, "--json", **switches)
    assert uncompiled.stdout == compiled_output
    assert "compiling" not in uncompiled.stderr
    assert not list(tmp_path.rglob("*"))


def test_a_wrong_setting_is_one_line(monkeypatch):
    run = subprocess.run(
        [sys.executable, "-m", "perfmodel", *PROJECT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PERFMODEL_JIT": "sometimes"},
    )
    text = "PERFMODEL_JIT is 'sometimes'; it should be auto, always or never"
    assert (run.returncode, run.stderr) == (2, f"perfmodel: error: {text}\n")


SWITCH = """
import importlib, pkgutil
import perfmodel.kernels
from perfmodel import load_hardware, stream_times
from perfmodel.kernels import _jit

def times(count):
    return stream_times(load_hardware("dgx-h100"), [1e6] * count, 1e6).time.tolist()

(before,) = times(1)
assert not _jit.compiling()
_jit.compile_kernels()  # some modules are imported already, others below
from perfmodel.kernels import stream
assert times(1) == [before]
assert not stream.stream_times.signatures, "compiled for one operation"
assert set(times(300_000)) == {before}
plain = []
for item in pkgutil.walk_packages(perfmodel.kernels.__path__, "perfmodel.kernels."):
    for name, value in vars(importlib.import_module(item.name)).items():
        if id(value) in _jit._plain:
            plain.append(f"{item.name}.{name}")
assert not plain, plain
assert len(stream.stream_times.signatures) == 1, "it was not called"
"""


@needs_compiling
def test_kernels_switch_in_a_running_process():
    python("-c", SWITCH, PERFMODEL_JIT="auto")


def double(x):
    return x + x


@needs_compiling
def test_numba_has_what_we_reach_for():
    """Fails with a new Numba that has changed: look at `_inner` before raising NEWEST_TRIED."""
    if not _jit.whole_programs():
        pytest.skip("a Numba that was not tried: kernels are compiled through its public face")
    assert hasattr(DefaultOptions, "forceinline")
    assert hasattr(DefaultOptions, "_nrt")
    assert hasattr(numba.njit(double), "get_call_template")
    cache = numba.njit(cache=True)(double)._cache
    names = ("load_overload", "save_overload", "flush", "_cache_file")
    assert all(hasattr(cache, name) for name in names)
    assert hasattr(cache._impl, "filename_base")


@pytest.fixture
def unread_settings(monkeypatch):
    """Settings and the version of Numba are read anew, in the test and after it."""
    monkeypatch.setattr(_jit, "cache_folder", lambda: "")
    _jit.whole_programs.cache_clear()
    yield monkeypatch
    _jit.whole_programs.cache_clear()


@needs_compiling
@pytest.mark.parametrize("decorator", ["jit", "jit_inline", "jit_lean"])
def test_a_newer_numba_compiles_through_its_public_face(unread_settings, decorator):
    unread_settings.setattr("importlib.metadata.version", lambda name: "0.99.0")
    unread_settings.setitem(sys.modules, "perfmodel.kernels._inner", None)  # cannot be imported
    kernel = getattr(_jit, decorator)(double)
    assert kernel(2.0) == 4.0
    assert not {"forceinline", "_nrt"} & kernel.targetoptions.keys()


def test_a_wrong_way_to_compile_is_refused(unread_settings):
    unread_settings.setenv("PERFMODEL_COMPILE", "partly")
    with pytest.raises(_jit.SettingError, match="'partly'; it should be plain or whole"):
        _jit.whole_programs()


def add_to_first(pair, number):
    pair[0][0] += number
    return pair[0][0] + pair[1][1]


@needs_compiling
def test_lean_kernels_leave_references_as_they_are(monkeypatch):
    monkeypatch.setattr(_jit, "cache_folder", lambda: "")
    monkeypatch.setattr(_jit, "_compiling", True)
    kernel = _jit.jit_lean(add_to_first)
    arrays = np.zeros(2), np.ones(2)
    before = [sys.getrefcount(each) for each in arrays]
    assert [kernel(arrays, 1.0) for _ in range(3)] == [2.0, 3.0, 4.0]
    assert [sys.getrefcount(each) for each in arrays] == before


STREAM = """
from perfmodel import load_hardware, stream_times
print(stream_times(load_hardware("dgx-h100"), 1e6, 1e6).time.tolist())
"""


@needs_compiling
def test_the_public_face_gives_the_same_digits(tmp_path):
    switches = {"PERFMODEL_JIT": "always", "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}
    ways = [python("-c", STREAM, PERFMODEL_COMPILE=way, **switches) for way in ("plain", "whole")]
    assert ways[0].stdout == ways[1].stdout
    assert len(list(tmp_path.rglob("stream.stream_times-*.nbi"))) == len(ways)  # caches apart


COPY = """
import pathlib, shutil, sys
import perfmodel
here, folder = pathlib.Path(perfmodel.__file__).parent, pathlib.Path(sys.argv[1])
shutil.copytree(here, folder / "perfmodel")
for path in (folder / "perfmodel" / "kernels").rglob("*.py"):
    path.touch()  # of another date
sys.path.insert(0, str(folder))
for name in [name for name in sys.modules if name.startswith("perfmodel")]:
    del sys.modules[name]
"""


@needs_compiling
def test_another_installation_of_the_same_kernels_compiles_nothing(tmp_path: Path):
    cache = tmp_path / "cache"
    switches = {"PERFMODEL_JIT": "always", "XDG_CACHE_HOME": str(cache), "NUMBA_CACHE_DIR": ""}
    first = python("-c", STREAM, **switches).stdout
    written = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert len(written) == 2
    asked = f"{COPY}{STREAM}print(sys.modules['perfmodel'].__file__)"
    other = python("-c", asked, str(tmp_path), **switches)
    assert other.stdout == f"{first}{tmp_path / 'perfmodel' / '__init__.py'}\n"
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == written


@needs_compiling
def test_a_damaged_cache_is_written_again(tmp_path: Path):
    switches = {"PERFMODEL_JIT": "always", "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    first = python("-c", STREAM, **switches).stdout
    kinds = (
        *(("nbi", content) for content in (b"", b"\x93random" * 99, pickle.dumps(1), 0.5)),
        *(("nbc", content) for content in (b"", 0.999)),
    )  # a share of it, or other content
    for suffix, damage in kinds if LONG else kinds[::3]:
        (file,) = tmp_path.rglob(f"stream.stream_times-*.{suffix}")
        whole = file.read_bytes()
        damage = whole[: int(damage * len(whole))] if isinstance(damage, float) else damage
        file.write_bytes(damage)
        run = python("-c", STREAM, **switches)
        assert (run.stdout, run.stderr) == (first, "")
        assert file.read_bytes() != damage
        assert len(file.read_bytes()) > len(whole) // 2


@needs_compiling
def test_neither_a_home_nor_a_writable_folder_is_needed(tmp_path: Path):
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file")
    switches = {"PERFMODEL_JIT": "always", "NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": nowhere}
    assert python("-c", STREAM, **switches, HOME=nowhere, TMPDIR=nowhere).stderr == ""


def test_a_memoised_kernel_finds_nothing_twice_as_long_as_it_is_plain(monkeypatch):
    monkeypatch.setattr(_jit, "mode", lambda: "auto")
    monkeypatch.setattr(_jit, "_compiling", False)
    monkeypatch.setattr(_jit, "_plain", {})
    found = []

    def double(value):
        found.append(value)
        return 2.0 * value

    kernel = _jit.jit_memoised(double)
    assert [kernel(3.0), kernel(3.0), kernel(4.0)] == [6.0, 6.0, 8.0]
    assert found == [3.0, 4.0]
    assert [function for function, *_ in _jit._plain.values()] == [double]
