"""Axes of a grid of kernels as a user writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from perfmodel.base.errors import did_you_mean
from perfmodel.cli.shared import options
from perfmodel.cli.shared.parsing import parse_range, split_names
from perfmodel.sweeps.grids import GridAxis, Setting

Function = TypeVar("Function", bound=Callable[..., Any])
SHAPE = "Shape"


class Counts(click.ParamType):
    """Whole numbers: ``1,16,4096``, ``256:4096:16``, ``1:4096:13:log`` or ``1:4096:x2``."""

    name = "N,…"

    def __init__(self, minimum: int = 1) -> None:
        self.minimum = minimum

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """Return the numbers, each once."""
        if isinstance(value, list):
            return value
        found: list[int] = []
        for item in str(value).split(","):
            found += self._item(item.strip(), param, ctx)
        for number in found:
            if number < self.minimum:
                self.fail(f"{number} is below {self.minimum}", param, ctx)
        return list(dict.fromkeys(found))

    def _item(
        self, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        start, _, rest = text.partition(":")
        stop, _, step = rest.partition(":")
        if step.lower().startswith("x"):
            return self._powers(text, start, stop, step[1:], param, ctx)
        if rest:
            return [round(number) for number in parse_range(text, text)]
        return [self._whole(text, text, param, ctx)]

    def _powers(
        self,
        text: str,
        start: str,
        stop: str,
        factor: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> list[int]:
        first, last = (self._whole(text, part, param, ctx) for part in (start, stop))
        by = self._whole(text, factor, param, ctx)
        if first < 1 or by < 2 or last < first:
            self.fail(f"'{text}' should be START:STOP:xFACTOR, as in 1:4096:x2", param, ctx)
        found = [first]
        while found[-1] * by <= last:
            found.append(found[-1] * by)
        return found

    def _whole(
        self, text: str, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            number = int(part)
        except ValueError:
            self.fail(
                f"'{text}' should be whole numbers as in 1,16,4096 or a range as in "
                "256:4096:16, 1:4096:13:log or 1:4096:x2",
                param,
                ctx,
            )
        if number > 2**40:
            self.fail(f"{number} is above 2**40", param, ctx)
        return number


class Names(click.ParamType):
    """A comma-separated list of some known names."""

    name = "NAME,…"

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return the names, each once."""
        if isinstance(value, list):
            return value
        found = [item.strip() for item in str(value).split(",")]
        for name in found:
            if name not in self.known:
                hint = did_you_mean(name, self.known) or f"; known: {', '.join(self.known)}"
                self.fail(f"'{name}' is not known{hint}", param, ctx)
        return list(dict.fromkeys(found))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the last name of the list."""
        done, comma, last = incomplete.rpartition(",")
        return [CompletionItem(done + comma + name) for name in self.known if name.startswith(last)]


class Words(click.ParamType):
    """A comma-separated list of words that are checked where they are used."""

    name = "NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return the words, each once."""
        return value if isinstance(value, list) else list(dict.fromkeys(split_names(str(value))))


def axis_parameter(axis: GridAxis) -> Callable[[Function], Function]:
    """Return the option, or the argument, for an axis; compulsory without a default."""
    if axis.option == "-":
        metavar = f"[{axis.name.upper()},…]"
        return click.argument(axis.name, metavar=metavar, type=Words(), required=False)
    # Not default=None: to click that is a value, and the option is not missing then.
    given: dict[str, Any] = {"required": True}
    if axis.default is not None:
        given = {"default": str(axis.default), "show_default": True}
    text = axis.help or axis.long_name[0].upper() + axis.long_name[1:]
    if axis.choices:
        text += f": {', '.join(axis.choices)}."
    kind = Names(axis.choices) if axis.choices else Words() if axis.words else Counts(axis.minimum)
    flag = f"--{(axis.option or axis.name).replace('_', '-')}"
    return options.option(flag, axis.name, section=SHAPE, type=kind, help=text, **given)


def setting_option(setting: Setting) -> Callable[[Function], Function]:
    """Return the option for a setting."""
    flags = setting.flags or (f"--{setting.name.replace('_', '-')}",)
    default = setting.default
    given: dict[str, Any] = {"default": default, "show_default": True}
    if default is None:
        given = {}
    elif isinstance(default, bool):
        given = given if "/" in flags[0] else {"is_flag": True}
    else:
        span: Any = click.IntRange if isinstance(default, int) else click.FloatRange
        given["type"] = span(setting.least, setting.most)
    about = {"metavar": setting.metavar, "help": setting.help}
    return options.option(*flags, setting.name, section=SHAPE, **about, **given)
