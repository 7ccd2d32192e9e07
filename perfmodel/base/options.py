"""Options that a run would silently ignore are refused, in Python as on the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from perfmodel.base.errors import StrategyError

FLAGS = {"settings": "--set"}
"""Option whose name on the command line is not its name in Python."""


def flag(name: str) -> str:
    """Return what an option is called on the command line, as all messages call it."""
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def refuse_unused(
    given: Collection[str],
    used: Collection[str],
    purposes: Mapping[str, Collection[str]],
    run: str,
) -> None:
    """Refuse what somebody stated that has no effect on this run.

    Parameters
    ----------
    given : collection of str
        Options that were stated, by their names in Python.
    used : collection of str
        Options that have an effect.
    purposes : mapping of str to collection of str
        What some options are for, in words; others are not looked at.
    run : str
        What it is instead, in words.

    Raises
    ------
    StrategyError
        Names the option, what it is for, and the run.
    """
    for purpose, names in purposes.items():
        for name in names:
            if name in given and name not in used:
                raise StrategyError(f"{flag(name)} is for {purpose}; {run}")
