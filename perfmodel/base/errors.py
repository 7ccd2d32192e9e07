"""Errors that a user can cause, and the wording they share.

Every message says what is wrong, where, and what would be right. The command
line prints such an error as one line and exits with code 2, or 1 where it is no input's fault.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

LONGEST_LINE = 1500  # characters
_ELLIPSIS = " … "
# What a user cannot mend by another input.
MACHINE_FAILURES = frozenset(
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ETIMEDOUT")
    if hasattr(errno, name)
)


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


class MachineError(PerfModelError):
    """The machine cannot do what is right to ask: a full disk, a quota, a broken device."""


def one_line(text: str) -> str:
    """Return a message as one printable line of at most `LONGEST_LINE` characters.

    Line ends become blanks; what cannot be printed, marks of writing direction among it, is
    written as in ``\\u202e``; of a longer message the beginning and the end are kept.
    """
    line = " ".join(text.split())
    if len(line) > LONGEST_LINE:  # first, as a message may quote a file
        end = LONGEST_LINE // 4
        line = line[: LONGEST_LINE - end - len(_ELLIPSIS)] + _ELLIPSIS + line[-end:]
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 1] + "…"


def describe_os_error(error: OSError) -> str:
    """Say what the system says, and of which file: ``'x.nc': permission denied``."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return f"'{error.filename}': {reason}" if error.filename is not None else reason


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
