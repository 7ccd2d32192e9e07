"""SI base units inside, readable units outside; objects as a notebook shows them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

from perfmodel.base.errors import DataError, did_you_mean

GB = 1e9
GIB = 2**30

SIZE_UNITS = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGTP", start=1)
}
"""Bytes of a unit: KB, MB, … are powers of 1000 and KiB, MiB, … of 1024."""

LARGEST_SIZE = 2**60  # beyond every buffer, and well inside 64-bit integers
LOWEST_CLOCK, HIGHEST_CLOCK = 1e6, 1e11  # [Hz]; a number below is rather in MHz or GHz
_SIZE = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIME_STEPS = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (1e-6, "µs", 1e6))


def format_si(value: float, unit: str = "", digits: int = 3, *, even: bool = False) -> str:
    """Write a number with an SI prefix: ``format_si(4.5e11, "B/s")`` is ``"450 GB/s"``.

    With `even` trailing zeros stay, so that all numbers of a column have as many digits.
    """
    if not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * (1 - 0.5 * 10**-digits):
            number = _digits(value / factor, digits) if even else f"{value / factor:.{digits}g}"
            return f"{number} {prefix}{unit}".rstrip()
    return f"{value:.{digits}g} {unit}".rstrip()


def format_time(seconds: float) -> str:
    """Write a time in s, ms or µs, whichever reads best, with four digits."""
    if not math.isfinite(seconds):
        return str(seconds)
    for limit, unit, factor in _TIME_STEPS:
        if abs(seconds) >= limit:
            value = seconds * factor
            return f"{_digits(value, 4) if abs(value) < 9999.5 else f'{value:,.0f}'} {unit}"
    return "0 s" if seconds == 0 else f"{_digits(seconds * 1e6, 3)} µs"


def _digits(value: float, digits: int) -> str:
    """Write a number with so many significant digits, trailing zeros included."""
    return f"{value:#.{digits}g}".rstrip(".")


def counted(count: int, noun: str) -> str:
    """Write how many of something there are: ``counted(1, "rank")`` is ``"1 rank"``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


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


def parse_size(text: str) -> int:
    """Read a size in bytes: ``512``, ``64KiB``, ``1.5 GB``, ``1e9``.

    Raises
    ------
    DataError
        No number, an unknown unit, not a whole number of bytes, or more than `LARGEST_SIZE`.
        ``1K`` is refused: some programs mean 1000 by it, others 1024.
    """
    found = _SIZE.fullmatch(text)
    try:
        number = float(found.group(1)) if found else math.nan
    except ValueError:
        number = math.nan
    if found is None or not math.isfinite(number):
        raise DataError(f"'{text}' should be a size in bytes, as in 512, 64KiB or 1.5GB")
    unit = found.group(2) or "B"
    known = {name.lower(): factor for name, factor in SIZE_UNITS.items()}
    if unit.lower() not in known:
        decimal, binary = f"{unit.upper()}B", f"{unit.upper()}iB"
        hint = did_you_mean(unit, SIZE_UNITS)
        if decimal in SIZE_UNITS:
            hint = f"; write {decimal} (1000) or {binary} (1024)"
        raise DataError(f"'{text}': unknown unit of bytes '{unit}'{hint}")
    size = number * known[unit.lower()]
    if size > LARGEST_SIZE:
        raise DataError(f"'{text}' is more than {format_size(LARGEST_SIZE)}")
    if size != round(size):
        raise DataError(f"'{text}' is {size:g} B, not a whole number of bytes")
    return round(size)


def parse_clock(text: str) -> float:
    """Read a clock in hertz: ``1.2GHz``, ``1200 MHz``, ``1.2e9``.

    Raises
    ------
    DataError
        No number, an unknown unit, or a clock beyond `LOWEST_CLOCK` and `HIGHEST_CLOCK`.
    """
    found = _SIZE.fullmatch(text)
    factors = {"": 1.0, "hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
    unit = (found.group(2) or "").lower() if found else "?"
    try:
        clock = round(float(found.group(1)) * factors[unit], 3) if found else math.nan
    except (ValueError, KeyError):
        clock = math.nan
    if not LOWEST_CLOCK <= clock <= HIGHEST_CLOCK:
        raise DataError(f"'{text}' should be a clock from 1MHz to 100GHz, as in 1.2GHz")
    return clock


def format_size(size: float) -> str:
    """Write a size in bytes: ``64 KiB`` where that is exact, else with an SI prefix."""
    for power, prefix in reversed(list(enumerate("KMGTP", start=1))):
        scaled = size / 1024**power
        if 1.0 <= scaled <= 1024.0 and scaled == round(scaled, 1):
            return f"{scaled:g} {prefix}iB"
    return format_si(size, "B")


def facts_html(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """Return a line and a table of two columns as HTML; anything in them is text."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts
    )
    return f"<p>{html.escape(title)}</p><table>{cells}</table>"
