"""Kinds of values that options take, and how what a user writes becomes one of them.

Every failure is a `click.BadParameter`, which names the option, or a `PerfModelError`; both become
one line. A list is ``A,B`` or the option repeated, each value once
(`perfmodel.cli.shared.options.option`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.fields import Field
from perfmodel.base.files import user_path
from perfmodel.base.units import parse_clock, parse_size

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
        if not math.isfinite((stop - start) * steps):
            raise click.BadParameter(f"'{text}': the ends lie too far apart")
        values = [start + (stop - start) * i / steps for i in range(steps)]
        return [*values, stop]
    if start <= 0 or stop <= 0:
        raise click.BadParameter(f"'{text}': a logarithmic range needs positive ends")
    if not 0.0 < stop / start < math.inf:
        raise click.BadParameter(f"'{text}': the ends lie too far apart")
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


Parameter: TypeAlias = click.Parameter | None
Context: TypeAlias = click.Context | None
TRUTH = {"true": True, "on": True, "yes": True, "1": True} | {
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}
MOST = 2**40


class ListType(click.ParamType):
    """A comma-separated list of values."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[Any]:
        """Return the values, each once."""
        return list(dict.fromkeys(self.listed(value, param, ctx)))

    def listed(self, value: Any, param: Parameter, ctx: Context) -> list[Any]:
        """Return the values as they were written."""
        found: list[Any] = []
        for item in self.split(str(value)):
            if not item:
                self.fail("there is an empty value in the list", param, ctx)
            found += self.items(item, param, ctx)
        return found

    def split(self, text: str) -> list[str]:
        """Return what stands between commas."""
        return [item.strip() for item in text.split(",")]

    def items(self, text: str, param: Parameter, ctx: Context) -> list[Any]:
        """Return the values for which one item of the list stands."""
        return [text]

    def proposals(self) -> Sequence[str]:
        """Return what may be completed."""
        return ()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last value of the list."""
        done, comma, last = incomplete.rpartition(",")
        names = (name for name in self.proposals() if name.startswith(last))
        return [CompletionItem(done + comma + name) for name in names]


class One(click.ParamType):
    """A single value of what could be a list in another command."""

    def __init__(self, several: ListType, lists: str = "perfmodel sweep") -> None:
        self.several, self.lists = several, lists
        self.name = several.name.removesuffix(",…")

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """Return the value."""
        values = self.several.convert(value, param, ctx)
        if len(values) != 1:
            self.fail(f"'{value}' should be one value; '{self.lists}' takes lists", param, ctx)
        return values[0]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the value."""
        return self.several.shell_complete(ctx, param, incomplete)


class Axis(ListType):
    """Values of one strategy field."""

    def __init__(self, spec: Field) -> None:
        self.spec = spec
        self.name = {"int": "N", "float": "SHARE", "bool": "BOOL", "choice": "NAME"}[
            spec.kind
        ] + ",…"

    def proposals(self) -> Sequence[str]:
        """Return the labels of the field."""
        return ("true", "false") if self.spec.kind == "bool" else self.spec.choices

    def items(self, text: str, param: Parameter, ctx: Context) -> list[Any]:
        """Return the value, or those of a range; all labels for 'all'."""
        spec = self.spec
        if spec.kind == "choice":
            if text == "all":
                return list(spec.choices)
            if text not in spec.choices:
                self.fail(f"'{text}' is not {spec.expected}{_near(text, spec.choices)}", param, ctx)
            return [text]
        if spec.kind == "bool":
            if text.lower() not in TRUTH:
                self.fail(f"'{text}' is neither true nor false", param, ctx)
            return [TRUTH[text.lower()]]
        whole = spec.kind == "int"
        if ":" in text:
            numbers = parse_range(text, text)
            numbers = [round(number) for number in numbers] if whole else numbers
        else:
            try:
                numbers = [int(text) if whole else float(text)]
            except ValueError:
                self.fail(f"'{text}' is not a {'whole ' if whole else ''}number", param, ctx)
        for number in numbers:
            if not number >= spec.minimum:
                self.fail(f"{number:g} is below {spec.minimum}", param, ctx)
            if not whole and number > spec.maximum:
                self.fail(f"{number:g} is above {spec.maximum}", param, ctx)
        return list(numbers)


def _near(text: str, known: Sequence[str]) -> str:
    hint = did_you_mean(text, known)
    return hint if "did you mean" in hint else ""


class Counts(ListType):
    """Whole numbers: ``1,16,4096``, ``256:4096:16``, ``1:4096:13:log`` or ``1:4096:x2``."""

    name = "N,…"

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum

    def listed(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        """Return the numbers as they were written."""
        found = super().listed(value, param, ctx)
        for number in found:
            if number < self.minimum:
                self.fail(f"{number} is below {self.minimum}", param, ctx)
        return found

    def items(self, text: str, param: Parameter, ctx: Context) -> list[int]:
        """Return a number, or those of a range."""
        start, _, rest = text.partition(":")
        stop, _, step = rest.partition(":")
        if step.lower().startswith("x"):
            return self._powers(text, start, stop, step[1:], param, ctx)
        if rest:
            return [round(number) for number in parse_range(text, text)]
        return [self.whole(text, text, param, ctx)]

    def _powers(
        self, text: str, start: str, stop: str, factor: str, param: Parameter, ctx: Context
    ) -> list[int]:
        first, last = (self.whole(text, part, param, ctx) for part in (start, stop))
        by = int(factor) if factor.isascii() and factor.isdecimal() and len(factor) < 12 else 0
        if first < 1 or by < 2 or last < first:
            self.fail(f"'{text}' should be START:STOP:xFACTOR, as in 1:4096:x2", param, ctx)
        found = [first]
        while found[-1] * by <= last:
            found.append(found[-1] * by)
        return found

    def whole(self, text: str, part: str, param: Parameter, ctx: Context) -> int:
        """Return one number."""
        try:
            number = int(part)
        except ValueError:
            self.fail(
                f"'{text}' should be whole numbers as in 1,16,4096 or a range as in "
                "256:4096:16, 1:4096:13:log or 1:4096:x2",
                param,
                ctx,
            )
        if number > MOST:
            self.fail(f"{number} is above 2**40", param, ctx)
        return number


class Members(Counts):
    """Devices of a group, in its order: ``0,1,2,3`` or ``0:24:4``."""

    def __init__(self) -> None:
        super().__init__(minimum=0)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        """Return the devices, none of them twice."""
        found = self.listed(value, param, ctx)
        for device, count in Counter(found).items():
            if count > 1:
                self.fail(f"'{value}': device {device} is a member once only", param, ctx)
        return found

    def whole(self, text: str, part: str, param: Parameter, ctx: Context) -> int:
        """Return one device."""
        if not part.strip().lstrip("-").isdecimal():
            self.fail(f"'{text}' should be devices, as in 0,1,2,3 or 0:24:4", param, ctx)
        return super().whole(text, part, param, ctx)


class Sizes(Counts):
    """Bytes: ``1KiB,1MB``, ``1KiB:1GiB:x4``, ``1KiB:1GiB:21:log`` or ``64KiB:1MiB:16``."""

    name = "B,…"

    def __init__(self) -> None:
        super().__init__(minimum=0)

    def items(self, text: str, param: Parameter, ctx: Context) -> list[int]:
        """Return a size, or those of a range."""
        start, colon, rest = text.partition(":")
        stop, _, step = rest.partition(":")
        if not colon or step.lower().startswith("x"):
            return super().items(text, param, ctx)
        ends = [self.whole(text, end, param, ctx) for end in (start, stop)]
        written = ":".join([*map(str, ends), *([step] if step else [])])
        return [round(number) for number in parse_range(text, written)]

    def whole(self, text: str, part: str, param: Parameter, ctx: Context) -> int:
        """Return one size."""
        try:
            return parse_size(part)
        except DataError as error:
            self.fail(str(error), param, ctx)


class Size(click.ParamType):
    """Bytes: ``64MiB``."""

    name = "B"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        """Return the bytes."""
        try:
            return value if isinstance(value, int) else parse_size(str(value))
        except DataError as error:
            self.fail(str(error), param, ctx)


class Clock(click.ParamType):
    """Hertz: ``1.2GHz``; of a unit that the option's name says, the number alone."""

    name = "CLOCK"

    def __init__(self, unit: str = "") -> None:
        self.unit = unit

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Return the clock [Hz]."""
        try:
            text = str(value)
            unit = "" if text.lower().endswith("hz") else self.unit
            return value if isinstance(value, float) else parse_clock(text + unit)
        except DataError as error:
            self.fail(str(error), param, ctx)


class Words(ListType):
    """Words that are checked where they are used."""

    name = "NAME,…"


class Names(Words):
    """Some of the known names."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)

    def proposals(self) -> Sequence[str]:
        """Return the known names."""
        return self.known

    def items(self, text: str, param: Parameter, ctx: Context) -> list[str]:
        """Return the name."""
        if text not in self.known:
            hint = did_you_mean(text, self.known) or f"; known: {', '.join(self.known)}"
            self.fail(f"'{text}' is not known{hint}", param, ctx)
        return [text]


class Paths(Words):
    """Names of what ships, or paths of files of one's own."""

    name = "NAME|PATH,…"

    def split(self, text: str) -> list[str]:
        """Return what stands between commas; a file may have some in its name."""
        try:
            whole = "," in text and user_path(text).exists()
        except (OSError, ValueError, RuntimeError):  # no path at all; refused where it is used
            whole = False
        return [text] if whole else super().split(text)


class WholeRange(click.IntRange):
    """A whole number within bounds, and not larger than any run."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        """Read the number."""
        number = int(super().convert(value, param, ctx))
        if number > MOST:
            self.fail(f"{number} is above 2**40", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """A finite number within bounds; click lets "nan" pass, and "inf" where a bound is open."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        """Read the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"'{value}' is not a finite number", param, ctx)
        return number
