"""The rows of one page: choices that somebody made, and figures that followed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.report.kinds import SLOWEST_FIRST, Kind
from perfmodel.store.results import LARGER_IS_BETTER

MOST_LABELS = 2**12
"""Different values that are offered as choices; more are only numbers."""
NOTHING = "–"
FILE = "file"


@dataclass
class Choices:
    """One column of choices.

    Attributes
    ----------
    labels : list of str
        What the codes stand for; numbers from the smallest.
    codes : ndarray of int, shape (rows,)
    numbers : list of float, or None
        The same as numbers, where they are.
    short, text : str
        How narrow columns call it, and what it is.
    option : str
        Of the command that projects a row, without its dashes.
    default : str
        Label of which that command needs nothing to be said.
    """

    labels: list[str]
    codes: NDArray[np.intp]
    numbers: list[float] | None = None
    short: str = ""
    text: str = ""
    option: str = ""
    default: str = ""


@dataclass
class Figures:
    """One column of figures: values [units], and what they are."""

    values: NDArray[Any]
    units: str = "1"
    text: str = ""


@dataclass
class Population:
    """Rows of one kind.

    Attributes
    ----------
    kind : Kind
    choices : dict of str to Choices
    figures : dict of str to Figures
    total : int
        Rows of the results, impossible ones included.
    left_out : Counter of str
        Reason -> rows without an answer.
    limits : dict of str to dict
        Figure -> label of ``hardware`` -> what it must not exceed, in the figure's unit.
    flat : ndarray of int, shape (rows,)
        Where each row stands in the results that it is from; empty where nobody asks.
    """

    kind: Kind
    choices: dict[str, Choices] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    total: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    flat: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))

    @property
    def count(self) -> int:
        """Rows with an answer that passed the filter."""
        return next(iter(self.figures.values())).values.size

    def best_first(self, rows: NDArray[np.intp], name: str) -> NDArray[np.intp]:
        """Return rows in the order of a figure; what has none comes last."""
        values = self.figures[name].values[rows].astype(float)
        keys = -values if larger_first(name) else values
        return rows[np.argsort(keys, kind="stable")]

    def fitting(self) -> NDArray[np.intp]:
        """Return the rows that fit in memory; all where nothing says so."""
        fits = self.choices.get("fits")
        if fits is None:
            return np.arange(self.count)
        return np.flatnonzero(fits.codes != fits.labels.index("no"))

    def take(self, rows: NDArray[np.intp]) -> Population:
        """Return the population of some of the rows."""
        choices = {
            name: Choices(**{**vars(it), "codes": it.codes[rows]})
            for name, it in self.choices.items()
        }
        figures = {
            name: Figures(it.values[rows], it.units, it.text) for name, it in self.figures.items()
        }
        flat = self.flat[rows] if self.flat.size else self.flat
        return Population(self.kind, choices, figures, self.total, self.left_out, self.limits, flat)

    def dedicated(self) -> tuple[dict[str, Choices], dict[str, tuple[str, Choices]]]:
        """Return the choices that differ between rows, and those that all have, with that."""
        varying, common = {}, {}
        for name, it in self.choices.items():
            present = np.flatnonzero(np.bincount(it.codes, minlength=len(it.labels)))
            if present.size == 1:
                common[name] = (it.labels[int(present[0])], it)
            elif present.size:
                varying[name] = _only(it, present)
        return varying, common


def larger_first(name: str) -> bool:
    """Tell whether rows are ranked by a figure from the largest."""
    return name in LARGER_IS_BETTER or name in SLOWEST_FIRST


def coded(values: NDArray[Any], **about: str) -> Choices:
    """Return values as choices: numbers in their order, texts in that of the alphabet."""
    known, codes = np.unique(values, return_inverse=True)
    if known.dtype.kind == "b":
        return Choices(["yes" if it else "no" for it in known], codes.reshape(-1), None, **about)
    numbers = known.astype(float).tolist() if known.dtype.kind in "iuf" else None
    labels = [_label(it) for it in known.tolist()]
    return Choices(labels, codes.reshape(-1), numbers, **about)


def _label(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if value == value else NOTHING
    return f"{value:,}" if isinstance(value, int) else str(value)


def _only(choices: Choices, present: NDArray[np.intp]) -> Choices:
    """Return choices without the labels that no row has."""
    places = np.zeros(len(choices.labels), np.intp)
    places[present] = np.arange(present.size)
    numbers = choices.numbers
    return Choices(
        **{
            **vars(choices),
            "labels": [choices.labels[i] for i in present],
            "codes": places[choices.codes],
            "numbers": None if numbers is None else [numbers[i] for i in present],
        }
    )


def joined(parts: Sequence[Population], names: Sequence[str]) -> Population:
    """Return populations of one kind as one, with a choice between the files they are from.

    Parameters
    ----------
    parts : sequence of Population
    names : sequence of str
        How each is called, all different.
    """
    if len(parts) == 1:
        return parts[0]
    found = Population(parts[0].kind)
    counts = [part.count for part in parts]
    file = np.repeat(np.arange(len(parts)), counts)
    found.choices[FILE] = Choices(list(names), file, None, "file", "file that the row is from")
    for name in dict.fromkeys(name for part in parts for name in part.choices):
        found.choices[name] = _joined_choices([part.choices.get(name) for part in parts], counts)
    for name in dict.fromkeys(name for part in parts for name in part.figures):
        own = [part.figures.get(name) for part in parts]
        known = next(it for it in own if it is not None)
        values = [
            np.full(count, np.nan) if it is None else it.values
            for it, count in zip(own, counts, strict=True)
        ]
        found.figures[name] = Figures(np.concatenate(values), known.units, known.text)
    found.flat = np.concatenate([part.flat for part in parts])
    for part in parts:
        found.total += part.total
        found.left_out += part.left_out
        for name, by_hardware in part.limits.items():
            found.limits.setdefault(name, {}).update(by_hardware)
    return found


def _joined_choices(parts: Sequence[Choices | None], counts: Sequence[int]) -> Choices:
    known = [it for it in parts if it is not None]
    values: dict[str, float] = {}
    for it in known:
        numbers = it.numbers or [np.nan] * len(it.labels)
        values.update(zip(it.labels, numbers, strict=True))
    missing = any(it is None for it in parts)
    numeric = not missing and all(it.numbers is not None for it in known)
    labels = sorted(values, key=lambda it: values[it]) if numeric else list(values)
    labels += [NOTHING] * (missing and NOTHING not in labels)
    place = {label: number for number, label in enumerate(labels)}
    codes = [
        np.full(count, place[NOTHING])
        if it is None
        else np.array([place[label] for label in it.labels])[it.codes]
        for it, count in zip(parts, counts, strict=True)
    ]
    joint = [values[label] for label in labels] if numeric else None
    about: Mapping[str, Any] = vars(known[0])
    new = {"labels": labels, "codes": np.concatenate(codes), "numbers": joint}
    return Choices(**{**about, **new})
