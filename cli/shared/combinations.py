"""Refuse options that a run would silently ignore."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import click
from click.core import ParameterSource

from perfmodel.base.errors import StrategyError


def refuse_unused(used: Collection[str], purposes: Mapping[str, Collection[str]], run: str) -> None:
    """Refuse what was typed on the command line but has no effect on this run.

    Parameters
    ----------
    used : collection of str
        Parameters that have one, by their names in Python.
    purposes : mapping of str to collection of str
        What some parameters are for, in words; others are not looked at.
    run : str
        What it is instead, in words.

    Raises
    ------
    StrategyError
        Names the option, what it is for, and the run.
    """
    context = click.get_current_context()
    for purpose, names in purposes.items():
        for name in names:
            if (
                name in used
                or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE
            ):
                continue
            flag = next(param.opts[0] for param in context.command.params if param.name == name)
            raise StrategyError(f"{flag} is for {purpose}; {run}")
