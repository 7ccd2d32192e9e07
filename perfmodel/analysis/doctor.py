"""Whether this installation can do its work: what there is, and a check that takes seconds.

Reads this machine, this process's environment and a temporary folder of its own; sends nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.base.errors import PerfModelError, one_line
from perfmodel.base.memory import memory_limit
from perfmodel.base.units import format_size
from perfmodel.base.version import __version__
from perfmodel.kernels import _jit, work

OK, WARN, FAIL = "ok", "warn", "fail"
EXTRAS = {
    "plot": ("matplotlib", "figures: `perfmodel plot`, --plot"),
    "ui": ("starlette", "`perfmodel ui`, the page with controls"),
    "parquet": ("pyarrow", "results as .parquet"),
    "zarr": ("zarr", "results as .zarr, and sweeps larger than memory in it"),
    "dask": ("distributed", "--workers and --scheduler"),
}
"""Extras a user may install: the package that tells whether it is there, and what it gives."""
REQUIRED = ("numpy", "numba", "llvmlite", "xarray", "netCDF4", "scipy", "click", "protobuf", "rich")
LITTLE_MEMORY = 2e9
"""Bytes below which sweeps of some hundred thousand strategies find no room."""
LITTLE_DISK = 1e9

# What `_projected` gives where NumPy, the kernels and the profiles are as they were released;
# tests/analysis/test_doctor.py fails where the model has changed, and these with it.
REFERENCE = {"step_time": 3.8907126452409924, "memory_total": 41143361894.4}
TOLERANCE = 1e-9
"""Share by which instruction sets may make a sum differ."""


class Finding(NamedTuple):
    """One line of the examination.

    Attributes
    ----------
    group : str
        What it is about: "versions", "extras", "caches", "machine", "terminal" or "self-check".
    name : str
    state : {"ok", "warn", "fail"}
    text : str
        What was found.
    advice : str
        What to do, or what would give more; empty where nothing is to be done.
    """

    group: str
    name: str
    state: str
    text: str
    advice: str = ""


def examine() -> Iterator[Finding]:
    """Yield what is found, group by group; the checks at the end take a few seconds.

    Kernels of this process are compiled from then on.
    """
    for part in PARTS.values():
        yield from part()


# ---------------------------------------------------------------- versions and extras


def _versions() -> Iterator[Finding]:
    where = Path(__file__).resolve().parents[1]
    yield Finding("versions", "perfmodel", OK, f"{__version__} in {where}")
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    old = sys.version_info < (3, 11)
    yield Finding("versions", "python", FAIL if old else OK, python, "3.11 or newer" if old else "")
    limits = _limits()
    for name in REQUIRED:
        found = _version(name)
        if found is None:
            advice = f"pip install {name}"
            yield Finding("versions", name, FAIL, "not installed", advice)
            continue
        wanted = limits.get(name.lower(), "")
        outside = not _within(found, wanted)
        advice = f"tested with {wanted}: pip install '{name}{wanted}'" if outside else ""
        yield Finding("versions", name, WARN if outside else OK, found, advice)


def _extras() -> Iterator[Finding]:
    limits = _limits()
    for extra, (package, gives) in EXTRAS.items():
        found = _version(package)
        install = f"pip install 'perfmodel[{extra}]'"
        if found is None:
            yield Finding("extras", extra, OK, f"not installed; gives {gives}", install)
            continue
        outside = not _within(found, limits.get(package, ""))
        advice = f"older than what is tested: {install}" if outside else ""
        text = f"{package} {found}; gives {gives}"
        yield Finding("extras", extra, WARN if outside else OK, text, advice)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _limits() -> dict[str, str]:
    """Return the versions that perfmodel asks for, by package; none of what is not installed."""
    try:
        lines = metadata.requires("perfmodel") or []
    except metadata.PackageNotFoundError:  # run from its sources
        return {}
    found = {}
    for line in lines:
        parts = re.match(r"([A-Za-z0-9_.-]+)\s*([<>=!~][^;]*)?", line)
        if parts and parts[2]:
            found[parts[1].lower()] = parts[2].strip()
    return found


def _within(version: str, wanted: str) -> bool:
    """Tell whether a version keeps bounds such as ``">=0.61.2,<0.69"``."""
    has = _numbers(version)
    for sign, bound in re.findall(r"(>=|<)([\d.]+)", wanted):
        if (has < _numbers(bound)) == (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


# ---------------------------------------------------------------- caches and the machine


def _caches() -> Iterator[Finding]:
    try:
        mode = _jit.mode()
    except _jit.SettingError as error:
        yield Finding("caches", "PERFMODEL_JIT", FAIL, str(error), "unset it")
        return
    folder = _jit.cache_folder()
    if not folder:
        text = "compiled kernels are kept nowhere: no folder can be written"
        advice = "set XDG_CACHE_HOME to a folder of yours; until then every process compiles anew"
        yield Finding("caches", "kernels", WARN, text, advice)
    else:
        here = Path(folder)
        text = f"{here}, writable, {format_size(_size(here))}"
        if others := _size(here.parent) - _size(here):
            text += f"; {format_size(others)} of other versions beside it"
        yield Finding("caches", "kernels", OK, text)
    much = 1e15  # pieces, for which compiling pays
    ready = [kind for kind in work.KINDS if work.choice({kind: much}).cached]
    text = f"{len(ready)} of {len(work.KINDS)} kinds of work"
    text += ", that of sweeps too" if "strategies" in ready else ", not that of sweeps"
    advice = "" if "strategies" in ready else "the first large sweep compiles for half a minute"
    if mode == "never":
        text, advice = "never, as PERFMODEL_JIT or NUMBA_DISABLE_JIT say", "large sweeps are slow"
    yield Finding("caches", "compiled", WARN if mode == "never" else OK, text, advice)


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder; of what goes away meanwhile, none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _machine() -> Iterator[Finding]:
    cores, usable = os.cpu_count() or 1, usable_cores()
    text = f"{usable:g} of {cores} usable" if usable < cores else f"{cores}"
    yield Finding("machine", "cores", OK, text)
    limit = memory_limit()
    text = "the system does not say" if limit is None else f"{format_size(limit)} for a process"
    little = limit is not None and limit < LITTLE_MEMORY
    advice = "sweep large grids with --resume or --keep best" if little else ""
    yield Finding("machine", "memory", WARN if little else OK, text, advice)
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    advice = "make room, or set TMPDIR" if free < LITTLE_DISK else ""
    state = WARN if advice else OK
    yield Finding(
        "machine", "temporary files", state, f"{folder}, {format_size(free)} free", advice
    )


def usable_cores() -> float:
    """Return the cores that this process may use: of its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    usable = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    try:  # Linux, Documentation/admin-guide/cgroup-v2.rst: "quota period" or "max period"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return min(usable, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return usable


def _terminal() -> Iterator[Finding]:
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    plain = encoding.lower().replace("-", "") != "utf8"
    if sys.stdout is not None and sys.stdout.isatty():
        text = f"{shutil.get_terminal_size().columns} columns, {encoding}"
        text += ", no colour (NO_COLOR)" if os.environ.get("NO_COLOR") else ""
    else:
        text = f"to a file or a pipe, {encoding}"
    advice = "set PYTHONUTF8=1, so that × and µ are shown" if plain else ""
    yield Finding("terminal", "output", WARN if plain else OK, text, advice)


# ---------------------------------------------------------------- checks


def _checks() -> Iterator[Finding]:
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            state, text, advice = check()
        except (PerfModelError, OSError, ImportError, ValueError, ArithmeticError) as error:
            state, text = FAIL, one_line(str(error))
            advice = "install perfmodel anew in an environment of its own"
        yield Finding(
            "self-check", name, state, f"{text} ({time.perf_counter() - began:.1f} s)", advice
        )


Outcome = tuple[str, str, str]


def _projected() -> dict[str, float]:
    """Return what `REFERENCE` names, of a small projection."""
    from perfmodel.analysis.projection import project

    found = project(
        "llama-3.1-8b",
        "dgx-h100",
        16,
        sequence_length=8192,
        global_batch_size=64,
        tensor_parallel=2,
        pipeline_parallel=2,
        virtual_pipeline=1,
        micro_batch_size=1,
        recompute="none",
    )
    return {name: float(found[name]) for name in REFERENCE}


def _check_projection() -> Outcome:
    """Compare a projection with stored numbers."""
    found = _projected()
    apart = max(abs(found[name] / it - 1) for name, it in REFERENCE.items())
    if not apart <= TOLERANCE:
        text = f"a projection is {apart:.1e} from what it should be"
        return FAIL, text, "pip install --force-reinstall perfmodel; edited sources also do this"
    return OK, f"step time and memory as stored, to {TOLERANCE:g}", ""


def _check_kernel() -> Outcome:
    """Compare a compiled kernel with itself uncompiled."""
    if _jit.mode() == "never":
        return WARN, "kernels are not compiled here", "unset PERFMODEL_JIT and NUMBA_DISABLE_JIT"
    import numpy as np

    from perfmodel.kernels import stream

    _jit.compile_kernels()
    compiled: Any = stream.hit_share
    distances = np.linspace(0, 6e7, 7).tolist()
    device = stream.StreamDevice(3e12, 6e12, 5e7, 6e13, 2e-6, 1e-6)
    plain = [compiled.py_func(device, distance) for distance in distances]
    if plain != [compiled(device, distance) for distance in distances]:
        return FAIL, "a compiled kernel does not give the digits of the plain one", "report it"
    return OK, "compiled and plain kernels give the same digits", ""


def _check_files() -> Outcome:
    """Write and read netCDF."""
    import numpy as np

    from perfmodel.base.table import Column, Table
    from perfmodel.store.netcdf import read_netcdf, write_netcdf

    numbers = np.arange(10_000.0)
    table = Table({"x": Column("row", numbers, {"units": "s"})}, {}, {"title": "check"})
    with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
        path = Path(folder, "check.nc")
        write_netcdf(table, path)
        again = read_netcdf(path)["x"].values
    if not np.array_equal(again, numbers):
        return FAIL, "netCDF files are not read as they were written", "install netCDF4 anew"
    return OK, "netCDF written and read in a temporary folder", ""


CHECKS: dict[str, Callable[[], Outcome]] = {
    "projection": _check_projection,
    "kernel": _check_kernel,
    "files": _check_files,
}
PARTS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": _versions,
    "extras": _extras,
    "caches": _caches,
    "machine": _machine,
    "terminal": _terminal,
    "self-check": _checks,
}
