"""What a training run costs, on the command line: the options, and how costs look."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError
from perfmodel.cli.shared.options import Function, options_of, stack
from perfmodel.cli.shared.printing import remark, table
from perfmodel.cli.shared.tables import Shown, print_rows
from perfmodel.cli.shared.types import Context, ListType, Parameter
from perfmodel.kernels.variables import COSTS

if TYPE_CHECKING:
    from perfmodel.base.table import Table

NAMES = (
    "tokens",
    "price",
    "pue",
    "goodput",
    "failures_per_device_hour",
    "checkpoint_time",
    "storage_bandwidth",
    "restart_time",
)
DAY, HOUR, MWH = 86400.0, 3600.0, 3.6e9
NOTHING = "–"
FAILING = {"goodput", "checkpoint_time", "checkpoint_interval", "failure_interval"}
WHOLE = {"training_time", "device_time", "training_energy", "training_cost"}


class Prices(ListType):
    """USD per device-hour: one number for all hardware, or ``NAME=USD,…``."""

    name = "USD|NAME=USD,…"

    def items(self, text: str, param: Parameter, ctx: Context) -> list[tuple[str, float]]:
        """Return whose price it is, "" for all, and the price."""
        name, equals, written = (part.strip() for part in text.rpartition("="))
        try:
            value = float(written)
        except ValueError:
            value = math.nan
        if bool(equals) != bool(name) or not math.isfinite(value) or value < 0:
            text = f"'{text}' should be USD per device-hour: 2.5, or dgx-h100=2.5,dgx-b200=4"
            self.fail(text, param, ctx)
        return [(name, value)]


def _price(pairs: Sequence[tuple[str, float]] | None) -> float | dict[str, float] | None:
    """Return one price, the price of each name, or None."""
    prices = dict(pairs or ())
    if len(prices) < len(pairs or ()) or (len(prices) > 1 and "" in prices):
        raise click.BadParameter("some hardware has two prices", param_hint="'--price'")
    return prices.get("", prices) if prices else None


def given_costs(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of this module out of all options, and return what was given of them."""
    given = {name: options.pop(name) for name in NAMES if name in options}
    given["price"] = _price(given["price"])
    given["goodput"] = given.get("goodput") or None
    return {name: value for name, value in given.items() if value is not None}


def _collected(function: Function) -> Function:
    """Hand the options of this module to a command as one mapping, ``costs``."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, costs=given_costs(kwargs), **kwargs)

    return run  # type: ignore[return-value]


price_option = options_of("shared.costs", "price", type=Prices())
pue_option = options_of("shared.costs", "pue")
cost_options: Callable[[Function], Function] = stack(
    options_of("shared.costs", "tokens"),
    price_option,
    pue_option,
    options_of("shared.costs", *NAMES[3:]),
    _collected,
)
"""The options of costs; the command gets them as one mapping, ``costs``, of what was given."""
serving_cost_options: Callable[[Function], Function] = stack(price_option, pue_option, _collected)
"""Those that served models have."""


def with_costs(results: Table, costs: Mapping[str, Any], *wanted: str | None) -> Table:
    """Return results with their costs, where options ask for them or what is wanted names them.

    Parameters
    ----------
    results : Table
    costs : mapping
        What `cost_options` gave.
    *wanted : str, optional
        What is ranked by, and filters: the name of a cost in them asks for it.

    Raises
    ------
    click.UsageError
        The cost of a whole training is wanted without its tokens.
    DataError
        A cost that is wanted has no value anywhere; see `perfmodel.store.cost.add_cost`.
    """
    import numpy as np

    from perfmodel.store.cost import add_cost, assumptions, unknown_costs

    words = set(re.findall(r"\w+", " ".join(filter(None, wanted))))
    named = [name for name in COSTS if name in words]
    if not costs and all(name in results for name in named):
        return results
    stored = assumptions(results)
    costs = {**stored, **costs}
    if stored and isinstance(costs["price"], Mapping):
        costs["price"] = {**stored["price"], **costs["price"]}
    if FAILING & set(named):
        costs["goodput"] = True
    if lacking := [name for name in named if name in WHOLE and "tokens" not in costs]:
        raise click.UsageError(f"{lacking[0]} needs --tokens, the tokens to train on")
    costed = add_cost(results, **costs)
    unknown = unknown_costs(costed)
    for name in named:
        if name in wanted and np.isnan(costed[name].values).all():
            raise DataError(f"'{name}' has no value: {'; '.join(unknown)}")
    for line in unknown:
        remark(f"note: {line}")
    return costed


def costs_header(results: Table) -> dict[str, Any]:
    """Return what JSON documents say about the costs in results; nothing without any."""
    from perfmodel.store.cost import assumptions

    found = assumptions(results)
    return {"cost": found} if found else {}


def print_cost(row: Mapping[str, Any]) -> None:
    """Print what one strategy costs; nothing where that was not asked for."""
    lines = list(_lines(row)) if "cost_per_token" in row else []
    if lines:
        click.echo()
        click.echo(table(["cost", "", ""], lines, left=(0, 2)))


def print_costs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what strategies cost, one line each; nothing where that was not asked for."""
    columns = [column for column in COLUMNS if rows and column[0] in rows[0]]
    if columns:
        click.echo()
        cells = [Shown(title, _cell(name, unit, form)) for name, title, unit, form in columns]
        print_rows(rows, cells)


def _cell(name: str, scale: float, form: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: _figure(row[name], scale, form)


COLUMNS = (
    ("training_time", "days", DAY, ",.1f"),
    ("device_time", "device-hours", HOUR, ",.0f"),
    ("training_cost", "USD", 1.0, ",.0f"),
    ("training_energy", "MWh", MWH, ",.1f"),
    ("cost_per_token", "USD/Mtoken", 1e-6, ".4g"),
    ("energy_per_token", "J/token", 1.0, ".4g"),
    ("goodput", "goodput %", 0.01, ".1f"),
)


def _lines(row: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield what there is, its value with its unit, and what that rests on."""
    assumed = row["cost"]
    price = assumed["price"].get(row["hardware"])
    rate = (
        f"{price:,.4g} USD per device-hour" if price is not None else "no price is known: --price"
    )
    power = "no power limit is known: --set device.tdp=WATT"
    if math.isfinite(row["power_per_device"]):
        power = f"{row['power_per_device']:,.0f} W per device, PUE {assumed['pue']:g}"
    if "training_time" in row:
        tokens = f"{assumed['tokens']:.4g} tokens"
        yield ["training time", duration(row["training_time"]), tokens]
        yield ["device-hours", _figure(row["device_time"], HOUR, ",.0f"), ""]
        yield ["price", _figure(row["training_cost"], 1.0, ",.0f", " USD"), rate]
        yield ["energy", _figure(row["training_energy"], MWH, ",.1f", " MWh"), power]
        rate = power = ""
    yield ["a million tokens", _figure(row["cost_per_token"], 1e-6, ".4g", " USD"), rate]
    yield ["a token", _figure(row["energy_per_token"], 1.0, ".4g", " J"), power]
    if "goodput" in row:
        note = f"a checkpoint of {duration(row['checkpoint_time'])} every "
        note += f"{duration(row['checkpoint_interval'])}, a failure every "
        note += duration(row["failure_interval"])
        yield ["goodput", _figure(row["goodput"], 0.01, ".1f", " %"), note]


def duration(seconds: float) -> str:
    """Write a time in days, hours, minutes or seconds, whichever reads best."""
    from perfmodel.base.units import format_time

    for unit, name in ((DAY, "days"), (HOUR, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return format_time(seconds)


def _figure(value: float, scale: float, form: str, unit: str = "") -> str:
    return f"{value / scale:{form}}{unit}" if math.isfinite(value) else NOTHING
