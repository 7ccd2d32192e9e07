"""``perfmodel diff``: two projections side by side, by component."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.errors import DataError
from perfmodel.cli.core.diff_sides import (
    GIVEN,
    Side,
    SidesCommand,
    complete_file,
    refuse_options,
    shared_options,
    side,
)
from perfmodel.cli.group import verbosity_options
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import HOUR, MWH, duration
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import (
    heading,
    percent,
    print_json,
    remark,
    say,
    strategy_label,
    table,
)
from perfmodel.cli.shared.tables import as_written
from perfmodel.kernels.variables import (
    COSTS,
    MEMORY_COMPONENTS,
    RATE,
    SCHEMA_VERSION,
    STEP_VARIABLES,
    TIME_COMPONENTS,
    VARIABLES,
)

if TYPE_CHECKING:
    from perfmodel.store.difference import Change, Difference, Matched

SAME = 5e-4  # a change that would be shown as 0.0 %

FIRST = (
    "step_time",
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "hardware_flops_utilization",
)
SCALED = {
    "device_time": (HOUR, ",.0f", "h"),
    "training_energy": (MWH, ",.4g", "MWh"),
    "training_cost": (1.0, ",.0f", "USD"),
    "cost_per_token": (1e-6, ".4g", "µUSD"),
}
TOTALS = tuple(variable.name for variable in STEP_VARIABLES if variable.name.endswith("_total"))[
    :-1
]


def print_difference(sides: Sequence[Side], found: Difference) -> None:
    """Print what differs; what does not stands in one line."""
    for letter, one in zip("AB", sides, strict=True):
        say(f"{letter}  {_title(one)}", 3)
    click.echo()
    if found.settings:
        rows = [[_name(key), *map(as_written, values)] for key, values in found.settings.items()]
        click.echo(table(["changed", "A", "B"], rows, left=(0, 1, 2)))
        click.echo()
    same: list[str] = []
    for title, names, ordered in _groups(found):
        changed = [name for name in names if abs(found.changes[name].relative) >= SAME]
        same += [name for name in names if name not in changed and found.changes[name].a]
        if not ordered:
            changed.sort(key=lambda name: -abs(found.changes[name].absolute))
        if changed:
            lines = [_line(found.changes[name]) for name in changed]
            click.echo(table([title, "A", "B", "B - A", ""], lines))
            click.echo()
    if lacking := [letter for letter, side in zip("AB", sides, strict=True) if not side.fits]:
        click.echo(f"{' and '.join(lacking)} {'do' if lacking[1:] else 'does'} NOT fit in memory")
    if tight := [letter for letter, side in zip("AB", sides, strict=True) if side.tight]:
        click.echo(f"{' and '.join(tight)} {'are' if tight[1:] else 'is'} tight in memory")
    if same:
        text = "the same: " + ", ".join(_name(name) for name in same)
        say(text, 2)


def _groups(found: Difference) -> Iterator[tuple[str, list[str], bool]]:
    """Yield heading, quantities, and whether they keep their order."""
    for title, names, ordered in (
        ("step", FIRST, True),
        ("time that adds up to the step", TIME_COMPONENTS, False),
        ("communication, hidden included", TOTALS, False),
        ("memory", ("memory_total", *MEMORY_COMPONENTS), False),
        ("cost", tuple(COSTS), True),
    ):
        there = [name for name in names if name in found.changes]
        if there:
            yield title, there, ordered


def _line(change: Change) -> list[str]:
    form = _form(change.name)
    relative = change.relative
    grown = percent(relative, "+") if math.isfinite(relative) else "new"
    sign = "+" if change.absolute > 0 else "-"
    distance = form(abs(change.absolute)).replace(" %", " points")  # of a share
    return [
        _name(change.name),
        form(change.a),
        form(change.b),
        sign + distance,
        grown,
    ]


def _form(name: str) -> Callable[[float], str]:
    """Return how a quantity is written."""
    from perfmodel.base.units import format_gib, format_time

    if name in SCALED:
        scale, form, unit = SCALED[name]
        return lambda value: f"{value / scale:{form}} {unit}"
    if name in COSTS and COSTS[name].units == "s":
        return duration
    units = {**VARIABLES, **COSTS}[name].units
    if units == "s":
        return format_time
    if units == "B":
        return format_gib
    if units == "1":
        return percent
    if units == "1/s":
        return lambda value: f"{value:,.1f}"
    return lambda value: f"{value:,.4g} {units}"


def _name(name: str) -> str:
    return name.replace("_", " ")


def _title(side: Side) -> str:
    row = side.row
    try:
        label = strategy_label(row)
    except KeyError:
        label = ""
    words = [str(row[key]) for key in ("model", "framework") if row.get(key)]
    place = f"{row['devices']:,} × {row['hardware']}" if {"devices", "hardware"} <= set(row) else ""
    return " · ".join(filter(None, [*words, place, label]))


def print_matched(sides: Sequence[Side], found: Matched) -> None:
    """Print how the strategies change that two sweeps share."""
    click.echo()
    count = len(found.strategies)
    click.echo(heading(f"{count:,} strategies that both hold"))
    lines = [
        [
            _name(name),
            *(percent(value, "+") for value in (spread.median, spread.lowest, spread.highest)),
            f"{spread.better:,}",
            f"{spread.worse:,}",
            f"{spread.same:,}",
        ]
        for name, spread in found.spreads.items()
    ]
    click.echo(table(["change", "median", "least", "most", "better", "worse", "same"], lines))
    click.echo(f"only in A {found.only_a:,}, only in B {found.only_b:,}")
    if found.gained or found.lost:
        click.echo(f"fit in memory only in A {found.lost:,}, only in B {found.gained:,}")
    step = found.spreads.get("step_time")
    if step is None or step.same == count:
        return
    for what, at, value in (("most", step.best, step.lowest), ("least", step.worst, step.highest)):
        row = _row(sides, found, at)
        text = f"gains {what} ({percent(value, '+')}): {row['hardware']} · {strategy_label(row)}"
        say(text, 2)


def _row(sides: Sequence[Side], found: Matched, at: int) -> dict[str, Any]:
    """Return a matched strategy as the first sweep has it."""
    import numpy as np

    from perfmodel.store.results import rows

    sweep = sides[0].sweep
    assert sweep is not None
    strategy, hardware = found.strategies[at, :2].tolist()
    return rows(sweep, np.array([strategy * sweep.sizes["hardware"] + hardware]))[0]


def diff_document(
    sides: Sequence[Side], found: Difference, shared: Matched | None
) -> dict[str, Any]:
    """Return a comparison for JSON."""
    known = {**VARIABLES, **COSTS}
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "units": {name: known[name].units for name in found.changes},
        "a": {"text": sides[0].text} | sides[0].row,
        "b": {"text": sides[1].text} | sides[1].row,
        "changed": {name: {"a": a, "b": b} for name, (a, b) in found.settings.items()},
        "changes": {
            name: {
                "a": change.a,
                "b": change.b,
                "absolute": change.absolute,
                "relative": change.relative,
            }
            for name, change in found.changes.items()
        },
    }
    if shared is not None:
        document["matched"] = {
            "count": len(shared.strategies),
            "only_a": shared.only_a,
            "only_b": shared.only_b,
            "gained": shared.gained,
            "lost": shared.lost,
            "changes": {
                name: {
                    key: value
                    for key, value in dataclasses.asdict(spread).items()
                    if key not in ("best", "worst")
                }
                | {
                    "best": _row(sides, shared, spread.best),
                    "worst": _row(sides, shared, spread.worst),
                }
                for name, spread in shared.spreads.items()
            },
        }
    return document


@click.command("diff", **page("core", "diff", "Compare two projections.", SidesCommand))
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@options.options_of("core.diff", "by", default=RATE)
@options.json_option
@verbosity_options
@click.pass_context
def diff_command(ctx: click.Context, a: str, b: str, by: str, as_json: bool) -> None:
    """Compare two projections: what changed in time, memory and cost, by component."""
    from perfmodel.store.difference import difference, matched

    given = ctx.meta[GIVEN]
    sides = [side(ctx, text, given, by) for text in (a, b)]
    if all(one.stored for one in sides):
        refuse_options(given)
    found = difference(sides[0].row, sides[1].row)
    before, after = (one.sweep for one in sides)
    shared = None
    if before is not None and after is not None and a != b:
        try:
            shared = matched(before, after)
        except DataError as error:
            remark(f"note: {error}")
    if as_json:
        print_json(diff_document(sides, found, shared))
        return
    print_difference(sides, found)
    if shared is not None:
        print_matched(sides, shared)


diff_command.params[2:2] = shared_options()
