"""Errors that a user can cause, and the wording they share.

Every message says what is wrong, where, and what would be right. The command
line prints such an error as one line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PerfModelError(Exception):
    """Base of every error that wrong input can cause.

    Its text is one line, whatever the files hold that it quotes: ``?`` stands for line ends and
    other characters that cannot be printed.
    """

    def __str__(self) -> str:
        """Return the message."""
        text = super().__str__()
        return "".join(character if character.isprintable() else "?" for character in text)


class ModelError(PerfModelError):
    """A model description is missing, malformed or not covered."""


class StrategyError(PerfModelError):
    """A strategy or a strategy axis is malformed."""


class HardwareError(PerfModelError):
    """A hardware profile is unknown, malformed or inconsistent."""


class FormatError(PerfModelError):
    """A file does not have the format that it should have."""


class DataError(PerfModelError):
    """A table or dataset lacks what a command needs."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest known names, or with all when few are known.

    Parameters
    ----------
    name : str
        What the user wrote.
    known : iterable of str
        What would have been right.

    Returns
    -------
    str
        A clause that begins with a semicolon, or an empty string.
    """
    names = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(lowered[match] for match in near) + "?"
    if names and len(names) <= 12:
        return "; known: " + ", ".join(names)
    return ""
