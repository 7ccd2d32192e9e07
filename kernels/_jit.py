"""The one place that says how kernels are compiled.

``cache``  compiled code is kept on disk, so only the first run compiles;
``nogil``  callers may run chunks of a grid in a thread pool.
No ``fastmath`` (it brings nothing here and breaks NaN checks) and no
``parallel`` (threads belong outside the kernel, where chunks are handed out).

Numba notices when the file of a cached function changes, but not when a function
that it calls, in another file, does. So the cache lives in a folder named after the
content of all kernel files: any change to any kernel starts a fresh one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types
from numba.core import options

KEPT_CACHES = 8
COMPILES = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""False with NUMBA_DISABLE_JIT=1: kernels stay plain Python, for debuggers and coverage."""
# Numba's own name for "always inline", which its documents leave out: without it kernels are
# as right, and a little slower.
_KNOWS_FORCEINLINE = hasattr(getattr(options, "DefaultOptions", None), "forceinline")


def _cache_folder() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    here = Path(__file__).resolve().parent
    for source in sorted(here.rglob("*.py")):
        name = source.relative_to(here).as_posix()
        digest.update(name.encode() + b"\0" + source.read_bytes())
    user = Path(os.path.expanduser("~"), ".cache")
    named = [os.environ.get(name, "") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")]
    roots = [Path(name) for name in named if os.path.isabs(name)][:1] or [user]
    # The shared folder for temporary files is the last resort. Compiled code is trusted,
    # so whoever owns the folder must be the one who runs it.
    owner = os.getuid() if hasattr(os, "getuid") else 0
    for root in (*roots, Path(tempfile.gettempdir(), f"perfmodel-{owner}")):
        folder = root / "perfmodel-kernels" / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if hasattr(os, "getuid") and folder.parent.stat().st_uid != owner:
                continue
            os.utime(folder)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            _forget_old(folder)
            return str(folder)
    return ""


def _forget_old(current: Path) -> None:
    """Remove the caches of all but the last few versions of the kernels."""
    try:
        folders = sorted(current.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    except OSError:
        return
    for stale in folders[:-KEPT_CACHES]:
        if stale != current:
            shutil.rmtree(stale, ignore_errors=True)


CACHE_FOLDER = _cache_folder() if COMPILES else ""


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel: nopython mode, cached on disk, without the GIL."""
    return _compiled(function)


def jit_inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a kernel that becomes part of its callers.

    For what a hot loop calls several times: handing over arrays and settings costs more
    than a few lines of arithmetic. Every call is one more copy of the code to compile.
    """
    return _compiled(function, inline=True)


def _compiled(function: Callable[..., Any], inline: bool = False) -> Callable[..., Any]:
    if not COMPILES:
        return function
    inner: dict[str, Any] = {"forceinline": True} if inline and _KNOWS_FORCEINLINE else {}
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = CACHE_FOLDER  # type: ignore[attr-defined]
    try:
        compiled = numba.njit(cache=bool(CACHE_FOLDER), nogil=True, **inner)(function)
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]
    return _once_for_all_constants(compiled)


def _once_for_all_constants(compiled: Any) -> Callable[..., Any]:
    """Let calls with a constant use the code for any value of its type.

    Numba compiles a function that another kernel calls with a number written out once more
    for each such number, and all that it calls with it. LLVM inserts constants into what it
    inlines anyway. This reaches into Numba: a version whose dispatchers have no such method
    compiles more often, and is otherwise as good.
    """
    template = getattr(compiled, "get_call_template", None)
    if template is None:
        return compiled

    def unliteral(arguments: Any, keywords: Any) -> Any:
        return template(
            tuple(types.unliteral(one) for one in arguments),
            {name: types.unliteral(one) for name, one in keywords.items()},
        )

    compiled.get_call_template = unliteral
    result: Callable[..., Any] = compiled
    return result
