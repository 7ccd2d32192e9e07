"""What a user writes after an option, turned into values.

Every failure is a `click.BadParameter`, which names the option, or a
`PerfModelError`; both become one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

Scalar = float | str | bool
SOFTWARE = "software."
"""Beginning of paths of training software; all others are of hardware profiles."""
MAX_SWEPT_VALUES = 100_000


def parse_setting(text: str) -> tuple[str, Scalar]:
    """Split ``PATH=VALUE``; the value is a number, true, false or text.

    Raises
    ------
    click.BadParameter
        There is no path or no value.
    """
    path, equals, value = text.partition("=")
    path, value = path.strip(), value.strip()
    if not equals or not path or not value:
        raise click.BadParameter(
            f"'{text}' should be PATH=VALUE, as in device.memory.bandwidth=4.8e12"
        )
    return path, scalar(value)


def scalar(text: str) -> Scalar:
    """Read a number, true, false or, where it is neither, a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def parse_swept(text: str) -> tuple[str, Sequence[Scalar]]:
    """Split ``PATH=START:STOP:COUNT``, ``PATH=START:STOP:COUNT:log`` or ``PATH=A,B,C``.

    Raises
    ------
    click.BadParameter
        Malformed, not finite, or an endless list.
    """
    path, equals, written = text.partition("=")
    path, written = path.strip(), written.strip()
    if not equals or not path or not written:
        raise click.BadParameter(
            f"'{text}' should be PATH=START:STOP:COUNT, PATH=START:STOP:COUNT:log or PATH=A,B,…, "
            "as in system.network.1.bandwidth=25e9:400e9:16"
        )
    if ":" in written:
        return path, parse_range(text, written)
    if path.startswith(SOFTWARE):  # texts and switches, too; checked where the field is known
        return path, [scalar(item.strip()) for item in written.split(",")]
    return path, [_number(text, item) for item in written.split(",")]


def parse_range(text: str, written: str) -> list[float]:
    """Return the values of ``START:STOP:COUNT`` or ``START:STOP:COUNT:log``.

    Parameters
    ----------
    text : str
        What the user wrote, for messages.
    written : str
        The range in it.

    Raises
    ------
    click.BadParameter
        Malformed, not finite, or an endless list.
    """
    parts = written.split(":")
    spacing = parts.pop().strip().lower() if len(parts) == 4 else "linear"
    if len(parts) != 3 or spacing not in ("linear", "log"):
        raise click.BadParameter(f"'{text}': a range is START:STOP:COUNT or START:STOP:COUNT:log")
    start, stop = _number(text, parts[0]), _number(text, parts[1])
    count = _number(text, parts[2])
    if count != int(count) or not 2 <= count <= MAX_SWEPT_VALUES:
        raise click.BadParameter(
            f"'{text}': the count {parts[2]} should be a whole number from 2 to "
            f"{MAX_SWEPT_VALUES:,}"
        )
    steps = int(count) - 1
    if spacing == "linear":
        values = [start + (stop - start) * i / steps for i in range(steps)]
        return [*values, stop]
    if start <= 0 or stop <= 0:
        raise click.BadParameter(f"'{text}': a logarithmic range needs positive ends")
    ratio = math.log(stop / start)
    return [*(start * math.exp(ratio * i / steps) for i in range(steps)), stop]


def _number(text: str, item: str) -> float:
    try:
        value = float(item)
    except ValueError:
        raise click.BadParameter(f"'{text}': '{item.strip()}' is not a number") from None
    if not math.isfinite(value):
        raise click.BadParameter(f"'{text}': '{item.strip()}' is not a finite number")
    return value


def parse_percentage(text: str) -> float:
    """Read ``10%`` or ``0.1`` as the fraction 0.1.

    Raises
    ------
    click.BadParameter
        Neither, or not above 0.
    """
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / (100.0 if stripped.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not value > 0 or not math.isfinite(value):
        raise click.BadParameter(f"'{text}' should be a share above 0, as in 10% or 0.1")
    return value
