"""The one place that says how kernels are compiled, and whether they are.

A kernel is a plain Python function. It stays one until `compile_kernels` puts compiled
functions in the place of all of them, for the rest of the process: `perfmodel.kernels.work`
does so where the work is worth it. Until then Numba is not even imported.

``cache``  compiled code is kept on disk, so only the first run compiles;
``nogil``  callers may run chunks of a grid in a thread pool.
No ``fastmath`` (it brings nothing here and breaks NaN checks) and no
``parallel`` (threads belong outside the kernel, where chunks are handed out).

Numba notices when the file of a cached function changes, but not when a function
that it calls, in another file, does. So the cache lives in a folder named after the
content of all kernel files and the order of the variables whose rows they write: any change
to either starts a fresh one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KEPT_CACHES = 8
MEMOISED = 1 << 16
"""Results of one kernel that are kept: some 30 MB."""
MODES = ("auto", "always", "never")
LOWEST_TRIED, NEWEST_TRIED = (0, 61), (0, 68)
"""Versions of Numba with which `_inner` was tried."""
_lock = threading.RLock()
_plain: dict[int, tuple[Callable[..., Any], bool, bool]] = {}
"""Kernels that are plain functions so far, by identity, and whether inline, and lean."""
_memoised: set[Callable[..., Any]] = set()
_compiling = False
_here = threading.local()
"""Whether this thread runs `plainly`."""


class SettingError(ValueError):
    """A setting in the environment has a value that it cannot have."""


@functools.cache
def mode() -> str:
    """Return whether kernels are compiled: "auto" (where it pays), "always" or "never".

    From ``PERFMODEL_JIT``; ``NUMBA_DISABLE_JIT=1``, Numba's own switch, means never.

    Raises
    ------
    SettingError
        ``PERFMODEL_JIT`` is none of these.
    """
    given = os.environ.get("PERFMODEL_JIT") or "auto"
    if given not in MODES:
        shown = given if len(given) <= 40 else f"{given[:40]}…"
        raise SettingError(f"PERFMODEL_JIT is {shown!r}; it should be auto, always or never")
    disabled = os.environ.get("NUMBA_DISABLE_JIT", "")
    return "never" if disabled.isdecimal() and int(disabled) else given


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel: compiled in nopython mode, cached on disk, without the GIL."""
    return _kernel(function)


def jit_inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel that becomes part of its callers.

    For what a hot loop calls several times: handing over arrays and settings costs more
    than a few lines of arithmetic. Every call is one more copy of the code to compile.
    """
    return _kernel(function, inline=True)


def jit_lean(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel that makes no arrays, nor calls one that does.

    It does not count references to arrays that it is handed: with records of twenty arrays
    that took ten times as long as the arithmetic of a kernel called once per pass of a model.
    Nor to views that it takes of them: it must not return one, as who gets it would give up a
    reference that nobody holds.
    """
    return _kernel(function, lean=True)


def jit_lean_inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel that is both: lean, and part of its callers.

    For the pieces of a walk that are handed many arrays: they took ten times as long as one
    function, and as lean kernels twice.
    """
    return _kernel(function, inline=True, lean=True)


def jit_memoised(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function a kernel that, as long as it is not compiled, keeps what it found.

    For what is asked with the same numbers again and again. Compiled code finds them anew as fast
    as they are looked up.
    """
    return _kernel(function, memoised=True)


def _kernel(
    function: Callable[..., Any], inline: bool = False, lean: bool = False, memoised: bool = False
) -> Callable[..., Any]:
    if memoised:
        _memoised.add(function)
    with _lock:
        if mode() == "always":
            compile_kernels()
        if _compiling:
            return _compiled(function, inline, lean)
        plain = functools.lru_cache(MEMOISED)(function) if memoised else function
        _plain[id(plain)] = function, inline, lean
        return plain


def is_memoised(function: Callable[..., Any]) -> bool:
    """Tell whether a plain function is one of `jit_memoised`."""
    return function in _memoised


def compiling() -> bool:
    """Tell whether kernels are compiled from now on, and this thread does not run `plainly`."""
    return _compiling and not is_plain_here()


def is_plain_here() -> bool:
    """Tell whether this thread runs `plainly`."""
    return getattr(_here, "plainly", False)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Run kernels of this thread uncompiled, by `perfmodel.kernels.uncompiled`, for once."""
    _here.plainly = True
    try:
        yield
    finally:
        _here.plainly = False


def compile_kernels() -> None:
    """Put compiled functions in the place of all kernels, those not yet imported included.

    Whoever imported a kernel before keeps the plain function, which gives the same digits:
    import kernels where they are called, behind the choice (`perfmodel.kernels.work`).
    """
    global _compiling
    with _lock:
        if _compiling or mode() == "never":
            return
        compiled = {key: _compiled(*kernel) for key, kernel in _plain.items()}
        _compiling = True
        package = __name__.rpartition(".")[0]
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package}.") and module is not None:
                for attribute, value in list(vars(module).items()):
                    if id(value) in compiled:
                        setattr(module, attribute, compiled[id(value)])


def _compiled(function: Callable[..., Any], inline: bool, lean: bool) -> Callable[..., Any]:
    import numba

    folder = cache_folder()
    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]
    try:
        if not whole_programs():
            kernel: Any = numba.njit(cache=bool(folder), nogil=True)(function)
        else:
            from perfmodel.kernels import _inner

            kernel = _inner.compiled(function, inline, lean, bool(folder))
        return _outliving_damage(_named_by_content(kernel, folder, function.__module__))
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


@functools.cache
def whole_programs() -> bool:
    """Whether a kernel is compiled at once with all that it calls, as `_inner` does.

    That reaches into Numba, so it is done with the versions that were tried alone; with any
    other, kernels are compiled one by one through Numba's public face: the same digits, slower
    (docs/performance.md). ``PERFMODEL_COMPILE=plain`` asks for that, ``whole`` for the other.

    Raises
    ------
    SettingError
        ``PERFMODEL_COMPILE`` is neither.
    """
    from importlib.metadata import version

    given = os.environ.get("PERFMODEL_COMPILE", "")
    if given not in ("", "plain", "whole"):
        raise SettingError(f"PERFMODEL_COMPILE is {given[:40]!r}; it should be plain or whole")
    major_minor = tuple(map(int, version("numba").split(".")[:2]))
    return given == "whole" or (not given and LOWEST_TRIED <= major_minor <= NEWEST_TRIED)


def _named_by_content(compiled: Any, folder: str, module: str) -> Any:
    """Keep compiled code by the name of its module, where Numba names it by path and date.

    The folder is named after the content of all kernels, so that every installation of them can
    use it. Reaches into Numba; a version that is made otherwise goes on by paths.
    """
    cache: Any = getattr(compiled, "_cache", None)
    file, name = getattr(cache, "_cache_file", None), getattr(cache, "_impl", None)
    package = __name__.rpartition(".")[0]
    if file is None or name is None or not module.startswith(f"{package}."):
        return compiled
    place = os.path.join(folder, module.removeprefix(f"{package}."))
    with contextlib.suppress(TypeError, AttributeError, OSError):
        os.makedirs(place, exist_ok=True)
        cache._cache_file = type(file)(place, name.filename_base, source_stamp=0)
    return compiled


def _outliving_damage(compiled: Any) -> Callable[..., Any]:
    """Compile anew where what lies in the cache cannot be read: cut off, empty, or not ours.

    Numba takes a missing file for one to write, but gives up on a damaged one, and where it
    cannot write. Reaches into Numba as well; a version without these methods is as before.
    """
    cache: Any = getattr(compiled, "_cache", None)
    names = ("load_overload", "save_overload", "flush")
    load, save, forget = (getattr(cache, name, None) for name in names)
    if load is None or save is None or forget is None:
        return compiled

    def load_or_forget(signature: Any, target: Any) -> Any:
        try:
            return load(signature, target)
        except Exception:  # what is no pickle makes unpickling raise anything
            with contextlib.suppress(OSError):
                forget()  # an empty index: all of this kernel is written again
            return None

    def save_if_possible(signature: Any, data: Any) -> None:
        with contextlib.suppress(Exception):  # a full disk, or an index as above
            save(signature, data)

    cache.load_overload = load_or_forget
    cache.save_overload = save_if_possible
    return compiled


@functools.cache
def cache_folder() -> str:
    """Return where compiled kernels are kept, created with its parents; "" for nowhere.

    ``NUMBA_CACHE_DIR`` and ``XDG_CACHE_HOME`` say where caches are, else ``~/.cache``, else
    the folder for temporary files.
    """
    import hashlib
    import tempfile
    from importlib.metadata import version
    from pathlib import Path

    digest = hashlib.sha256(f"{version('numba')} {whole_programs()}".encode())
    here = Path(__file__).resolve().parent
    for source in sorted((*here.rglob("*.py"), *here.rglob("*.csv"))):  # rows have numbers
        name = source.relative_to(here).as_posix()
        digest.update(name.encode() + b"\0" + source.read_bytes())
    user = Path(os.path.expanduser("~"), ".cache")
    named = [os.environ.get(name, "") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")]
    roots = [Path(name) for name in (*named, str(user)) if os.path.isabs(name)][:1]
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
    import shutil

    try:
        folders = sorted(current.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    except OSError:
        return
    for stale in folders[:-KEPT_CACHES]:
        if stale != current:
            shutil.rmtree(stale, ignore_errors=True)
