"""SI base units inside, readable units outside."""

from __future__ import annotations

import math

GB = 1e9
GIB = 2**30

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "µs", 1e6))


def format_si(value: float, unit: str = "", digits: int = 3) -> str:
    """Write a number with an SI prefix: ``format_si(4.5e11, "B/s")`` is ``"450 GB/s"``."""
    if not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * (1 - 0.5 * 10**-digits):
            return f"{value / factor:.{digits}g} {prefix}{unit}".rstrip()
    return f"{value:.{digits}g} {unit}".rstrip()


def format_time(seconds: float) -> str:
    """Write a time in s, ms or µs, whichever reads best."""
    if not math.isfinite(seconds):
        return str(seconds)
    for limit, unit, factor in _TIME_STEPS:
        if abs(seconds) >= limit:
            return f"{seconds * factor:.4g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.3g} µs"


def format_range(low: float, high: float, like: float, *, unit: bool = True) -> str:
    """Write a range of times in the unit in which `format_time` writes `like`.

    ``format_range(0.93, 1.1, 1.01)`` is ``"0.930–1.10 s"``; empty where there is no range.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return ""
    name, factor = next(
        ((name, factor) for limit, name, factor in _TIME_STEPS if abs(like) >= limit), ("µs", 1e6)
    )
    ends = (end * factor for end in (low, high))
    texts = (f"{end:#.3g}".rstrip(".") if abs(end) < 999.5 else f"{end:.0f}" for end in ends)
    return "–".join(texts) + (f" {name}" if unit else "")


def format_gib(size: float) -> str:
    """Write a size in GiB (2**30 bytes)."""
    return f"{size / GIB:.1f} GiB"
