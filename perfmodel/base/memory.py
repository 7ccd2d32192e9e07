"""How much memory there is, and work that needs more of it refused before it begins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.units import format_si

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
