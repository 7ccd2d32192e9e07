"""What pages and figures show of each kind of results, and what they call it: ``shown.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_toml
from perfmodel.kernels import variables
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import parts_of
from perfmodel.store.subject import subjects

SHOWN = read_toml(Path(__file__).with_name("shown.toml"))
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Waterfall:
    """Parts that add up to a whole.

    Attributes
    ----------
    title, whole : str
        The heading, and the figure that the parts add up to.
    parts : tuple of str
        Figures, in the order in which they are stacked.
    strip : tuple of str
        Ends of their names that the labels of the parts do without.
    """

    title: str
    whole: str
    parts: tuple[str, ...]
    strip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How one kind of results is shown.

    Attributes
    ----------
    name, title : str
    one, many : str
        What a row is called.
    rank : str
        Figure by which rows are ranked at first.
    answer : str
        Figure that is finite where there is an answer; it has the band.
    trades : tuple of (str, str)
        Figures that the trade-off chart offers together, x and y.
    figures : tuple of str
        Figures in the order of their importance; others follow while there is room.
    table : tuple of str
        Columns of the table of the best.
    axes : tuple of str
        Figures that have an axis beside the choices.
    waterfalls : tuple of Waterfall
    bands : mapping of str to (str, str)
        Figure -> those that hold its 10th and 90th percentile.
    larger : frozenset of str
        Figures of which more is better; of all others less.
    verb : str
        Command that projects one row again; empty where none takes all that a row has.
    map : tuple of str
        Choices that the heat map lies over at first, down and across.
    heading : str
        Of the table of the rows that rank first.
    """

    name: str
    title: str
    one: str
    many: str
    rank: str
    answer: str
    trades: Pairs
    figures: tuple[str, ...]
    table: tuple[str, ...]
    axes: tuple[str, ...]
    waterfalls: tuple[Waterfall, ...] = ()
    bands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    verb: str = ""
    map: tuple[str, ...] = ()
    heading: str = ""


WAFERS = "wafer"
"""Verb of results of the wing of that name, which may be absent."""
VARIABLES = {
    "training": variables.VARIABLES,
    "serving": serving_variables.VARIABLES,
    **{it.verb: it.variables for it in subjects() if it.verb == WAFERS},
}
PROJECTED = "projected_"
"""Ahead of the variables of a projection, in columns of what was compared."""


def _parts(kind: str, whole: str) -> tuple[str, ...]:
    """Return the figures that add up to another one, as the tables of variables have them."""
    if kind == "comparison":
        own = whole.removeprefix(PROJECTED) if whole.startswith(PROJECTED) else "step_time"
        return tuple(PROJECTED + name for name in _parts("training", own))
    return parts_of(whole, VARIABLES.get(kind, {}).values())


def _kind(name: str) -> Kind:
    """Return a kind as ``shown.toml`` has it."""
    told: dict[str, Any] = {**SHOWN["kinds"][name]}
    waterfalls = tuple(
        Waterfall(
            it["title"],
            it["whole"],
            tuple(it.get("parts", ())) or _parts(name, it["whole"]),
            tuple(it.get("strip", ())),
        )
        for it in told.pop("waterfalls")
    )
    bands = {key: (low, high) for key, (low, high) in told.pop("bands", {}).items()}
    trades = tuple((x, y) for x, y in told.pop("trades"))
    rest: dict[str, Any] = {
        key: tuple(it) if isinstance(it, list) else it for key, it in told.items()
    }
    return Kind(name=name, trades=trades, waterfalls=waterfalls, bands=bands, **rest)


TRAINING, SERVING, WAFER = map(_kind, ("training", "serving", "wafer"))
COMPARISON, RANKS, LAYERS = map(_kind, ("comparison", "ranks", "layers"))

SLOWEST_FIRST = frozenset({"absolute_error", "wall_time", "busy_time"})
"""Ranked from the largest: not because that is good, but because that is what one looks for."""

TITLES: Mapping[str, str] = {
    **{
        name: item.title
        for table in VARIABLES.values()
        for name, item in table.items()
        if item.title
    },
    "cost_per_token": variables.COSTS["cost_per_token"].title,
    **SHOWN["titles"],
}
SHORT: Mapping[str, str] = SHOWN["short"]
SHARES = ("utilization", "share", "goodput", "error", "fraction", "acceptance", "_spread")
"""Ends of the names of figures that read best in per cent."""


def title_of(name: str) -> str:
    """Return how a column is called on the page."""
    return TITLES.get(name, name.replace("_", " "))


def form_of(name: str, units: str) -> str:
    """Return how the page writes a figure."""
    if name == "cost_per_token":
        return "per_million"
    if units == "1" and name.endswith(SHARES):
        return "percent"
    return {"s": "time", "B": "bytes", "J": "joule", "W": "watt", "USD": "money"}.get(
        units, "number"
    )
