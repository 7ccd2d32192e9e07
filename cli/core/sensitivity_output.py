"""How sensitivities, hiding bandwidths and break-evens are printed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.shared.printing import heading, percent, say, table
from perfmodel.kernels.variables import memory_verdict
from perfmodel.store.subject import SENSITIVITY

if TYPE_CHECKING:
    from perfmodel.analysis.break_even import BreakEven, Hiding
    from perfmodel.analysis.case import Case
    from perfmodel.base.table import Table

NOTHING = "–"
UNMOVED = 5e-7  # relative; what moves the answer less is shown with --all only


def print_sensitivity(found: Table, top: int, everything: bool) -> None:
    """Print numbers by their elasticity, and switches by what they change."""
    rows = [_row(found, place) for place in range(found.sizes["parameter"])]
    attrs = found.attrs
    target = attrs["variable"].replace("_", " ")
    click.echo(heading(f"{attrs['model']} on {attrs['hardware']}, {attrs['software']}"))
    say(attrs["strategy"].replace(" ", " · ").replace("=", " ") or "all by default")
    mode = "; the best strategy is chosen anew" if attrs["mode"] == "reoptimised" else ""
    click.echo(f"{target} {quantity(attrs['base'], attrs['units'])}{mode}")
    numbers = [row for row in rows if not row["other"]]
    switches = [row for row in rows if row["other"]]
    if numbers:
        click.echo()
        _print_numbers(numbers, attrs, top, everything)
    if switches:
        click.echo()
        _print_switches(switches, target, top, everything)


def _row(found: Table, place: int) -> dict[str, Any]:
    return {
        name: column.decoded(column.values[place : place + 1]).tolist()[0]
        for name, column in found.variables.items()
    }


def _moves(row: dict[str, Any]) -> bool:
    values = (row["elasticity"], row["low_change"], row["high_change"])
    return any(math.isfinite(it) and abs(it) > UNMOVED for it in values)


def _print_numbers(
    rows: Sequence[dict[str, Any]], attrs: dict[str, Any], top: int, everything: bool
) -> None:
    moving = [row for row in rows if everything or _moves(row)]
    shown = moving if everything else moving[:top]
    lines = [
        [
            row["path"],
            quantity(row["value"], row["unit"]),
            _elasticity(row),
            _change(row, "low"),
            _change(row, "high"),
        ]
        for row in shown
    ]
    if not lines:
        say(f"none of {len(rows):,} numbers changes anything (--all shows them)")
        return
    factors = [f"×{attrs[name]:g}" for name in ("low_factor", "high_factor")]
    click.echo(table(["number", "value", "elasticity", *factors], lines, left=(0,)))
    _left_out(rows, moving, shown, "numbers")
    if any(row["kink"] for row in shown):
        say("* a kink: from below and from above differ by more than a tenth", 2)
    for mark, told in (("!", "does not fit in memory"), ("~", "is tight in memory")):
        if any(cell.endswith(f" {mark}") for line in lines for cell in line):
            say(f"{mark} {told}", 2)


def _elasticity(row: dict[str, Any]) -> str:
    value = row["elasticity"]
    if not math.isfinite(value):
        return NOTHING
    mark = " *" if row["kink"] else "  "
    return f"{0.0 if abs(value) < 5e-5 else value:+.4f}{mark}" if value else f"0{mark}"


def _change(row: dict[str, Any], side: str) -> str:
    change = row[f"{side}_change"]
    if not math.isfinite(change):
        return NOTHING
    verdict = _verdict(row, side)
    return _signed(change) + {"fits": "", "tight": " ~", "does not fit": " !"}[verdict]


def _verdict(row: Mapping[str, Any], side: str) -> str:
    return memory_verdict({name: row.get(f"{side}_{name}") for name in ("fits", "tight")})


def _signed(change: float) -> str:
    if abs(change) >= 5e-4:
        return percent(change, "+")
    return f"{100 * change:+.1g} %" if abs(change) > UNMOVED else "0"


def _print_switches(
    rows: Sequence[dict[str, Any]], target: str, top: int, everything: bool
) -> None:
    moving = [row for row in rows if everything or _moves(row)]
    shown = moving if everything else moving[:top]
    lines = []
    for row in shown:
        verdict = _verdict(row, "high").replace("fits", "")
        if not math.isfinite(row["high"]):
            verdict = row["reason"].partition(":")[0] or "impossible"
        lines.append([row["path"], row["setting"], row["other"], _bare(row), verdict])
    if not lines:
        say(f"none of {len(rows):,} settings of switches changes anything (--all shows them)")
        return
    headers = ["switch", "is", "set to", target, ""]
    click.echo(table(headers, lines, left=(0, 1, 2, 4), spare=(4,)))
    _left_out(rows, moving, shown, "settings")


def _bare(row: dict[str, Any]) -> str:
    return _signed(row["high_change"]) if math.isfinite(row["high_change"]) else NOTHING


def _left_out(rows: Sequence[Any], moving: Sequence[Any], shown: Sequence[Any], noun: str) -> None:
    more, idle = len(moving) - len(shown), len(rows) - len(moving)
    words = [f"{more:,} more (--top)"] if more else []
    words += [f"{idle:,} {noun} that change nothing or cannot be (--all)"] if idle else []
    if words:
        say("and " + ", ".join(words))


def quantity(value: float, unit: str) -> str:
    """Return a value with its unit as people read it."""
    from perfmodel.base.units import format_gib, format_si, format_time

    if not math.isfinite(value):
        return NOTHING
    if unit == "s":
        return format_time(value)
    if unit == "B" and value >= 2**28:
        return format_gib(value)
    if unit in ("1", "USD/h", ""):
        return f"{value:,.6g}" + (f" {unit}" if unit == "USD/h" else "")
    if unit == "USD" and 0.0 < value < 1e-3:
        return f"{value * 1e6:.4g} µUSD"
    return format_si(value, unit) if value else f"0 {unit}"


def sensitivity_document(found: Table) -> dict[str, Any]:
    """Return sensitivities for JSON."""
    attrs = {
        name: value
        for name, value in found.attrs.items()
        if name not in ("provenance", "Conventions", "title", "source")
    }
    names = {name: column.attrs["units"] for name, column in found.data_vars.items()}
    rows = [_row(found, place) for place in range(found.sizes["parameter"])]
    return attrs | {"column_units": names, "parameters": rows}


# ---------------------------------------------------------------- hiding

BOUND_BY = {
    "at": "",
    "always": "",
    "latency": "latency",
    "other level": "another level",
    "other": "no link",
}


def print_hiding(found: Sequence[Hiding], tolerance: float) -> None:
    """Print from which bandwidth on communication hides."""
    from perfmodel.base.units import format_si, format_time

    click.echo()
    limit = f"below {percent(tolerance)} of the step" if tolerance else "nothing"
    click.echo(heading(f"Bandwidth at which communication hides (exposed time {limit})"))
    lines = []
    for it in found:
        below = "≤ " if it.verdict == "always" else ""
        bandwidth, factor = "never", NOTHING
        if math.isfinite(it.hiding_bandwidth):
            bandwidth = below + format_si(it.hiding_bandwidth, "B/s")
            factor = f"×{it.factor:.3g}"
        lines.append(
            [
                f"{it.level} {it.level_name}",
                it.communication.replace("_", " "),
                f"{format_time(it.exposed)} ({percent(it.share)})",
                format_si(it.bandwidth, "B/s"),
                bandwidth,
                factor,
                format_time(it.remaining),
                BOUND_BY[it.verdict],
            ]
        )
    if not lines:
        say("no communication passes a level whose bandwidth counts")
        return
    headers = ["level", "communication", "exposed", "now", "hides from", "factor", "remains"]
    if not any(line[-1] for line in lines):
        lines = [line[:-1] for line in lines]
    else:
        headers.append("bound by")
    click.echo(table(headers, lines, left=(0, 1, 7)))


# ---------------------------------------------------------------- break-even


def print_break_evens(
    texts: Sequence[str], cases: Sequence[Case], found: Sequence[BreakEven]
) -> None:
    """Print where two projections change places."""
    for letter, text, case in zip("AB", texts, cases, strict=True):
        own = case.base()
        value = quantity(own.value, case.variable.units)
        say(f"{letter}  {text}: {case.variable.name.replace('_', ' ')} {value}", 3)
    for one in found:
        click.echo()
        varied = {"both": "of both", "a": "of A alone", "b": "of B alone"}[one.sides]
        say(heading(f"{one.path} {varied}"))
        low, high = (quantity(it, one.unit) for it in (one.values[0], one.values[-1]))
        if not one.crossings:
            verdict = {"a": "A is better", "b": "B is better", "same": "both are equal"}[one.better]
            say(f"no break-even from {low} to {high}: {verdict} throughout")
            continue
        say(f"from {low} to {high}, {one.better.upper()} is better below the first")
        lines = [
            [
                quantity(it.value, one.unit),
                quantity(it.a, one.units),
                quantity(it.b, one.units),
                f"{it.better.upper()} is better above",
                _between(it.before, it.exact, it.value, one.unit),
            ]
            for it in one.crossings
        ]
        click.echo(table(["break-even", "A", "B", "", ""], lines, left=(3, 4)))


def _between(before: float, exact: bool, value: float, unit: str) -> str:
    if exact:
        return ""
    return "one of them jumps" if before == value else f"not yet at {quantity(before, unit)}"


def break_even_document(
    texts: Sequence[str], cases: Sequence[Case], found: Sequence[BreakEven]
) -> dict[str, Any]:
    """Return break-evens for JSON."""
    return {
        "schema_version": SENSITIVITY.schema,
        **{
            letter: {"text": text, "value": case.base().value, "hardware": case.hardware.name}
            for letter, text, case in zip("ab", texts, cases, strict=True)
        },
        "variable": cases[0].variable.name,
        "units": cases[0].variable.units,
        "break_even": [dataclasses.asdict(it) for it in found],
    }
