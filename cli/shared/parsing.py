"""What a user writes after an option, turned into values.

Every failure is a `click.BadParameter`, which names the option, or a
`PerfModelError`; both become one line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import did_you_mean
from perfmodel.strategy.fields import StrategyField

Scalar = float | str | bool
TRUTH = {"true": True, "on": True, "yes": True, "1": True} | {
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}
MAX_SWEPT_VALUES = 100_000


class AxisType(click.ParamType):
    """The values of one strategy field: one, or a comma-separated list of them."""

    def __init__(self, spec: StrategyField, *, single: bool) -> None:
        self.spec = spec
        self.single = single
        word = {"int": "N", "bool": "BOOL", "choice": "NAME"}[spec.kind]
        self.name = word if single else f"{word},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value (single) or the list of values."""
        if value == "all" and self.spec.choices and not self.single:
            return list(self.spec.choices)
        if isinstance(value, str):
            written: Sequence[Any] = [item.strip() for item in value.split(",")]
        else:
            written = value if isinstance(value, list | tuple) else [value]
        values = [self._one(item, param, ctx) for item in written]
        if not self.single:
            return values
        if len(values) != 1:
            text = ", ".join(map(str, written))
            self.fail(f"'{text}' should be one value; 'perfmodel sweep' takes lists", param, ctx)
        return values[0]

    def _one(self, item: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        spec, text = self.spec, str(item)
        if text == "":
            self.fail("there is an empty value in the list", param, ctx)
        if spec.kind == "choice":
            if text not in spec.choices:
                self.fail(f"'{text}' is not {spec.expected}{_near(text, spec.choices)}", param, ctx)
            return text
        if spec.kind == "bool":
            if text.lower() not in TRUTH:
                self.fail(f"'{text}' is neither true nor false", param, ctx)
            return TRUTH[text.lower()]
        try:
            number = int(text)
        except ValueError:
            self.fail(f"'{text}' is not a whole number", param, ctx)
        if number < spec.minimum:
            self.fail(f"{number} is below {spec.minimum}", param, ctx)
        return number

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last value of the list."""
        done, comma, last = incomplete.rpartition(",")
        choices = ("true", "false") if self.spec.kind == "bool" else self.spec.choices
        return [CompletionItem(done + comma + item) for item in choices if item.startswith(last)]


def _near(text: str, known: Sequence[str]) -> str:
    hint = did_you_mean(text, known)
    return hint if "did you mean" in hint else ""


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
    if value.lower() in ("true", "false"):
        return path, value.lower() == "true"
    try:
        return path, float(value)
    except ValueError:
        return path, value


def parse_swept(text: str) -> tuple[str, list[float]]:
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


class FiniteRange(click.FloatRange):
    """A finite number within bounds; click lets "nan" pass, and "inf" where a bound is open."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"'{value}' is not a finite number", param, ctx)
        return number


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


def split_names(text: str) -> list[str]:
    """Split a comma-separated list of names, blanks left out."""
    return [item.strip() for item in text.split(",") if item.strip()]
