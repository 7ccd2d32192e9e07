"""Kernels that kernels call: as right, callable from Python too, and cached with their callers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from perfmodel.kernels import _inner, _jit

pytestmark = pytest.mark.skipif(
    numba.config.DISABLE_JIT or not _jit.whole_programs(),
    reason="NUMBA_DISABLE_JIT=1, or a Numba that was not tried: `_inner` is not used",
)

TINY = """
import numpy as np
from perfmodel.kernels._jit import jit, jit_inline, jit_lean

@jit_inline
def square(x):
    return x * x

@jit_lean
def scaled(values, factor):
    total = 0.0
    for value in values:
        total += factor * square(value)
    return total

@jit
def outer(values):
    made = np.empty(3)  # counted references, unlike in what it calls
    for i in range(3):
        made[i] = scaled(values, i + 0.5)
    return made.sum()
"""
RUN = """
import json, sys
import numpy as np
import tiny
values = np.array([1.0, 2.0, 3.0])
found = {"outer": float(tiny.outer(values))}
if sys.argv[1:]:
    found["scaled"] = float(tiny.scaled(values, 2.0))
    found["square"] = int(tiny.square(3))
for name in ("outer", "scaled", "square"):
    stats = getattr(tiny, name).stats
    found[name + " read"] = sum(stats.cache_hits.values())
    found[name + " compiled"] = sum(stats.cache_misses.values())
print(json.dumps(found))
"""
OUTER = 14.0 * (0.5 + 1.5 + 2.5)  # 1 + 4 + 9, three times


def tiny(folder: Path, *arguments: str) -> Any:
    """Run a process with an own cache, and return what it says."""
    (folder / "tiny.py").write_text(TINY)
    paths = [str(folder), str(Path(_jit.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    settings = {
        **{"PERFMODEL_JIT": "always", "XDG_CACHE_HOME": str(folder / "cache")},
        **{"NUMBA_CACHE_DIR": "", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    }
    run = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | settings,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return json.loads(run.stdout)


def test_a_second_process_reads_the_outer_kernel_and_all_that_it_calls(tmp_path: Path) -> None:
    first = tiny(tmp_path)
    assert first["outer"] == OUTER
    assert (first["outer compiled"], first["outer read"]) == (1, 0)
    for name in ("scaled", "square"):  # text only: neither made executable nor kept
        assert first[f"{name} compiled"] == 0
    kept = {file.name.split("-")[0] for file in tmp_path.rglob("*.nbi")}
    assert kept == {"tiny.outer"}
    second = tiny(tmp_path, "called from Python, too")
    assert (second["outer compiled"], second["outer read"]) == (0, 1)
    assert second["outer"] == OUTER
    assert (second["scaled"], second["square"]) == (28.0, 9)
    assert second["scaled compiled"] == second["square compiled"] == 1


def twice(x):
    return x + x


def test_what_kernels_call_is_called_from_python_before_and_after(monkeypatch) -> None:
    monkeypatch.setattr(_jit, "cache_folder", lambda: "")
    monkeypatch.setattr(_jit, "_compiling", True)
    inner: Any = _jit.jit_lean(twice)
    assert inner(2.0) == 4.0

    def both(values):
        return inner(values[0]) + inner(values.size)

    outer: Any = _jit.jit(both)
    assert outer(np.array([1.5, 2.0])) == 7.0
    assert inner(3) == 6
    assert len(outer.signatures) == 1


def test_numba_has_what_is_reached_for() -> None:
    """Fails with a new Numba that has changed: look at `_inner` before raising NEWEST_TRIED."""
    text = _inner.JITCodeLibrary
    for name in ("add_linking_library", "finalize", "get_pointer_to_function", "_ensure_finalized"):
        assert hasattr(text, name), name
    njit: Any = numba.njit
    compiled = njit(pipeline_class=_inner.CodeCompiler)(twice)
    inner = njit(pipeline_class=_inner.TextCompiler, no_cpython_wrapper=True)(twice)
    assert hasattr(compiled, "get_call_template")
    assert hasattr(compiled, "get_overload")
    assert _inner.called_by_kernels(compiled, inner)(4.0) == 8.0
