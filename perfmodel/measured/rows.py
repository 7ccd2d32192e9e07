"""Tables of measured runs: reading them, their cells, and what becomes of a row.

A cell that is empty means "not stated". A cell that should be a number and is none is
an error of the table, and names the file and the line.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.base.cells import read as read_cells
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.files import not_read, read_toml
from perfmodel.base.memory import check_memory

LARGEST, LARGEST_WHOLE = 1e100, 2**53
"""Of numbers, so that products of them stay finite, and of those that are counted exactly."""
WORDS = Path(__file__).parent / "words"
NOTHING = ("", "nan", "none", "null", "n/a", "-")
TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Skip(Exception):
    """A row that cannot be projected.

    Parameters
    ----------
    reason : str
        Why, in words that are the same for all such rows.
    detail : str
        What this row says.
    scorable : bool
        False where the row states no architecture or no measurement, so that no
        model could ever be judged by it; such rows don't count against coverage.
    """

    def __init__(self, reason: str, detail: str = "", *, scorable: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.scorable = scorable


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One row of a table: its cells as text, and where it stands."""

    cells: Mapping[str, str]
    file: str
    line: int

    def text(self, column: str) -> str:
        """Return the cell without surrounding blanks; empty where the column is missing."""
        return (self.cells.get(column) or "").strip()

    def replaced(self, column: str, text: str) -> MeasuredRow:
        """Return the row with another text in one cell."""
        return MeasuredRow({**self.cells, column: text}, self.file, self.line)

    def lower(self, column: str) -> str:
        """Return `text` in lower case, for matching."""
        return self.text(column).lower()

    def number(self, column: str) -> float | None:
        """Return a number >= 0, or None where nothing is stated.

        Raises
        ------
        DataError
            The cell is not such a number.
        """
        text = self.text(column)
        if text.lower() in NOTHING:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= LARGEST:
            raise self.error(column, f"a number from 0 to {LARGEST:g}")
        return value

    def positive(self, column: str) -> float | None:
        """Return a number > 0, or None where nothing is stated."""
        value = self.number(column)
        if value == 0:
            raise self.error(column, "a number > 0")
        return value

    def whole(self, column: str) -> int | None:
        """Return a whole number >= 1, or None where nothing is stated."""
        value = self.positive(column)
        if value is not None and (value != int(value) or value > LARGEST_WHOLE):
            raise self.error(column, f"a whole number up to {LARGEST_WHOLE:g}")
        return None if value is None else int(value)

    def truth(self, column: str, default: bool) -> bool:
        """Return what a cell of `TRUTH` says, `default` where it says nothing known."""
        return TRUTH.get(self.lower(column), default)

    def error(self, column: str, wanted: str) -> DataError:
        """Return the error that says what should stand in a cell."""
        return DataError(
            f"{self.file}, line {self.line}, column '{column}': "
            f"'{self.text(column)}' should be {wanted}, or empty"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a row.

    Attributes
    ----------
    measured, projected : float or None
        In the unit of the kind (training: seconds per step).
    assumed : tuple of str
        What the row leaves open and the projection chose, as ``field=value``.
    notes : tuple of str
        How cells were understood where that is not obvious.
    details : mapping of str to value
        Further columns of the row table, SI units.
    skip_reason, skip_detail : str
        Why the row is not scored; empty where it is.
    scorable : bool
        See `Skip`.
    """

    measured: float | None = None
    projected: float | None = None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    skip_reason: str = ""
    skip_detail: str = ""
    scorable: bool = True

    @classmethod
    def skipped(cls, skip: Skip) -> Outcome:
        """Make the outcome of a row that cannot be projected."""
        return cls(skip_reason=skip.reason, skip_detail=skip.detail, scorable=skip.scorable)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row of the file with its projection, or with the reason why there is none.

    Attributes
    ----------
    cells : mapping of str to str
        The row as it stands in the file, plus derived columns.
    line : int
        Line of the file.
    outcome : Outcome
    """

    cells: Mapping[str, str]
    line: int
    outcome: Outcome

    @property
    def scored(self) -> bool:
        """Whether there is an error to count."""
        return self.outcome.projected is not None

    @property
    def error(self) -> float | None:
        """Relative error of the projection, projected / measured - 1; None if not scored."""
        projected, measured = self.outcome.projected, self.outcome.measured
        return None if projected is None or measured is None else projected / measured - 1.0

    @property
    def throughput_error(self) -> float | None:
        """The same error seen as throughput, measured / projected - 1."""
        projected, measured = self.outcome.projected, self.outcome.measured
        return None if projected is None or measured is None else measured / projected - 1.0


def read_rows(
    path: str | os.PathLike[str],
    needed: Sequence[str],
    one_of: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> tuple[list[str], list[MeasuredRow]]:
    """Read a table of comma-separated values with a header.

    Parameters
    ----------
    path : str or path
    needed : sequence of str
        Columns that must exist; any other may be missing.
    one_of : iterable of str
        Columns of which at least one must exist.
    aliases : mapping of str to str, optional
        Other spellings of columns; one counts where the name that it stands for is missing.

    Returns
    -------
    columns : list of str
    rows : list of MeasuredRow

    Raises
    ------
    DataError
        The file is missing, unreadable, not text, empty, lacks a needed column, or a
        row has more cells than the header.
    """
    file = Path(path)
    try:
        lines = _lines(file)
        check_memory(f"{lines:,} lines of '{path}'", ROW_BYTES * lines, "compare a part of them")
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            header = [
                name if (aliases or {}).get(name, name) in header else (aliases or {})[name]
                for name in header
            ]
            _check_header(str(path), header, needed, tuple(one_of))
            rows = []
            for cells in map(read_cells, reader):
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) > len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells, but the header "
                        f"names {len(header)} columns"
                    )
                named = dict(zip(header, cells, strict=False))
                rows.append(MeasuredRow(named, str(path), reader.line_num))
    except OSError as error:
        raise DataError(not_read(path, error)) from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text; a CSV file is needed") from None
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    return header, rows


ROW_BYTES = 4000  # of memory for a row with what is found of it


def _lines(path: Path) -> int:
    """Return how many lines a file has, without holding it."""
    with path.open("rb") as stream:
        return sum(piece.count(b"\n") for piece in iter(lambda: stream.read(2**20), b""))


def _check_header(
    path: str, header: Sequence[str], needed: Sequence[str], one_of: Sequence[str]
) -> None:
    if not any(header):
        raise DataError(f"{path}: empty; a header line with column names is needed")
    repeated = sorted({name for name in header if header.count(name) > 1 and name})
    if repeated:
        raise DataError(f"{path}, line 1: column '{repeated[0]}' stands there twice")
    for name in needed:
        if name not in header:
            raise DataError(f"{path}, line 1: no column '{name}'{did_you_mean(name, header)}")
    if one_of and not set(one_of) & set(header):
        raise DataError(f"{path}, line 1: none of the columns {', '.join(one_of)}")


@lru_cache(maxsize=8)
def words(subject: str) -> Mapping[str, Any]:
    """Return expressions over free text of a subject, such as ``training``: tables of data.

    Texts are searched in small letters, and of a table the first pattern that is found counts.
    """
    return read_toml(WORDS / f"{subject}.toml")


def meaning(table: Mapping[str, Any], text: str, default: Any = "") -> Any:
    """Return what the first pattern of a table means that is found in a text.

    Examples
    --------
    >>> meaning({"mx-?fp8": "mxfp8", "fp8": "fp8"}, "FP8 (tensorwise)".lower())
    'fp8'
    """
    return next((value for pattern, value in table.items() if re.search(pattern, text)), default)
