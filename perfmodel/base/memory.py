"""Work that needs more memory than there is, or more than was meant, refused before it begins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.units import format_si, format_time

# Of a container, version 2 and 1 (Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1).
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory_limit() -> int | None:
    """Return the bytes that this process can hold, None where the system does not say.

    The least of the machine's memory, the limit of its container, and what the limit of
    addresses (``ulimit -v``) leaves.
    """
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int(Path(path).read_text(encoding="ascii"))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            yield max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)


def check_memory(
    what: str, size: float, hint: str, error: type[PerfModelError] = DataError
) -> None:
    """Refuse work that needs more memory than there is.

    Parameters
    ----------
    what : str
        What is counted, for the message, such as "3,000,000 strategies".
    size : float
        Memory that it needs at least [B].
    hint : str
        What would need less.
    error : type of PerfModelError
        What to raise.

    Raises
    ------
    PerfModelError
        `size` is more than `memory_limit`.
    """
    limit = memory_limit()
    if limit is not None and size > limit:
        raise error(
            f"{what} need about {format_si(size, 'B')} of memory, and there are "
            f"{format_si(float(limit), 'B')}; {hint}"
        )


LONG = 120.0  # s of a core
LARGE = 4e9  # B on the disk
MANY_FILES = 10_000
MUCH = "PERFMODEL_LARGE"
"""Environment variable that lets work begin whatever it takes; ``perfmodel --large`` sets it."""


def check_amount(
    what: str, hint: str, *, seconds: float = 0.0, size: float = 0.0, files: int = 0
) -> None:
    """Refuse work that takes or writes more than somebody may have meant, until told to go on.

    Parameters
    ----------
    what : str
        What is done, for the message, such as "traces of 100,000 ranks".
    hint : str
        What would be less.
    seconds, size, files : float
        About what it takes of a core [s], and writes [B].

    Raises
    ------
    DataError
        `LONG`, `LARGE` or `MANY_FILES` is exceeded, and nothing says to go on.
    """
    if os.environ.get(MUCH) or (seconds <= LONG and size <= LARGE and files <= MANY_FILES):
        return
    parts = [f"{format_time(seconds)} of a core"] if seconds > LONG else []
    parts += [f"{format_si(size, 'B')} of disk"] if size > LARGE else []
    parts += [f"{files:,} files"] if files > MANY_FILES else []
    raise DataError(
        f"{what} would take about {' and '.join(parts)}; {hint}, or go on with 'perfmodel --large'"
    )
