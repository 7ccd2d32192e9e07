"""Axes of a grid of kernels as a user writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from perfmodel.cli.shared import options
from perfmodel.cli.shared.types import Counts, FiniteRange, Names, WholeRange, Words
from perfmodel.sweeps.kernel_kinds.kind import GridAxis, Setting

Function = TypeVar("Function", bound=Callable[..., Any])
SHAPE = "Shape"


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
        span: Any = WholeRange if isinstance(default, int) else FiniteRange
        given["type"] = span(setting.least, setting.most)
    about = {"metavar": setting.metavar, "help": setting.help}
    return options.option(*flags, setting.name, section=SHAPE, **about, **given)
