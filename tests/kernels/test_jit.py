"""How kernels are compiled, and that they need not be."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest
from numba.core.options import DefaultOptions

from perfmodel.kernels import _jit

PROJECT = (
    *("project", "--model", "llama-3.1-8b", "--hardware", "dgx-h100", "--devices", "64"),
    *("--tp", "2", "--pp", "2", "--zero", "1", "--global-batch", "64", "--seq-len", "8192"),
)


def perfmodel(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert run.returncode == 0, run.stderr
    return run


def test_uncompiled_kernels_give_the_same_digits_and_compile_nothing(tmp_path):
    """An empty cache would be announced and filled; `NUMBA_DISABLE_JIT=1` does neither."""
    switches = {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    uncompiled = perfmodel(*PROJECT, "--json", **switches)
    assert uncompiled.stdout == perfmodel(*PROJECT, "--json").stdout
    assert "compiling" not in uncompiled.stderr
    assert not list(tmp_path.rglob("*"))


def double(x):
    return x + x


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
def test_numba_has_what_we_reach_for():
    """Fails with a new Numba that has changed: look at `_jit` before raising its bound."""
    assert hasattr(DefaultOptions, "forceinline")
    assert hasattr(numba.njit(double), "get_call_template")


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="NUMBA_DISABLE_JIT=1: nothing is compiled")
@pytest.mark.parametrize("inlined", [False, True])
def test_kernels_compile_without_the_inner_parts_of_numba(monkeypatch, inlined):
    monkeypatch.setattr(_jit, "CACHE_FOLDER", "")
    monkeypatch.setattr(_jit, "_KNOWS_FORCEINLINE", False)
    monkeypatch.setattr(_jit, "_once_for_all_constants", lambda compiled: compiled)
    kernel = (_jit.jit_inline if inlined else _jit.jit)(double)
    assert kernel(2.0) == 4.0
    assert not kernel.targetoptions.get("forceinline", False)
