"""One declared value: what a strategy field, an option or a setting is called, takes and means.

Columns, coordinates, Python arguments, command-line options, help pages and checks come from
tables of fields. It imports nothing heavy, so that the command line can read it at once.

Options that a run would silently ignore are refused, in Python as on the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from perfmodel.base.errors import StrategyError

MOST = 2**40
"""Nothing that is counted is larger in any run."""


@dataclass(frozen=True, slots=True)
class Field:
    """One value that the user may state.

    Attributes
    ----------
    name : str
        Name in Python, and of the column and coordinate.
    option : str
        Spelling on the command line, without the dashes.
    kind : str
        How values are written and stored: "int", "float", "bool" or "choice"; options of commands
        have further ones (`perfmodel.cli.shared.options.TYPES`).
    default : int or float or str or bool, optional
        Value where nothing is said; None for none.
    description : str
        One line for help pages and ``long_name``.
    choices : tuple of str
        Labels of a ``choice`` field; the column stores the index.
    minimum, maximum : float
        Smallest and largest value of a number; infinite for any.
    form : str
        What a label looks like, of a field with too many choices to list.
    above, below : bool
        Whether a number must exceed the minimum, or stay below the maximum.
    section : str
        Heading of the help page below which the option stands.
    spellings : tuple of str
        Every spelling of the option with its dashes, where it is not ``--option``.
    metavar : str
        What stands for the value on the help page; empty for the kind's own word.
    complete : str
        What the shell proposes (`perfmodel.cli.shared.completions`).
    required, repeated, shown : bool
        Whether the option must be given, may be given again for a further value, and has its
        default on the help page.
    """

    name: str
    option: str
    kind: str
    default: int | float | str | bool | None
    description: str
    choices: tuple[str, ...] = ()
    minimum: float = 1
    maximum: float = MOST
    form: str = ""
    above: bool = False
    below: bool = False
    section: str = ""
    spellings: tuple[str, ...] = ()
    metavar: str = ""
    complete: str = ""
    required: bool = False
    repeated: bool = False
    shown: bool = True

    @property
    def expected(self) -> str:
        """What a label of a ``choice`` field should be, after "is not"."""
        return self.form or f"one of {', '.join(self.choices)}"


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
