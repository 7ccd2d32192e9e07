"""``perfmodel search``: the best strategies of spaces that are too large to be swept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.models import reading_document
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import activity, heading, print_json, remark, say
from perfmodel.cli.shared.spaces import (
    check_strategies,
    lacks_precision,
    named,
    nothing_fits,
    nothing_possible,
    space_options,
)
from perfmodel.kernels.variables import RATE, SEARCHED_BY

if TYPE_CHECKING:
    from perfmodel.model.spec import ModelSpec
    from perfmodel.sweeps.search import SearchResult

PROVED = {
    "memory": "need more memory than there is",
    "compute": "compute for longer than the best take",
    "communication": "compute and communicate for longer",
}


@click.command("search", **page("core", "search", "Find the best of too many strategies."))
@space_options
@options.options_of("core.search", "by", type=click.Choice(SEARCHED_BY), default=RATE)
@options.options_of("core.search", "seconds")
@options.results_option("Write the results of the best strategies")
@options.options_of("shared.common", "top", help="Strategies to find.")
@options.safe_option
@options.json_option
@options.verbosity_options
@click.pass_context
def search_command(
    ctx: click.Context,
    by: str,
    seconds: float | None,
    output: str | None,
    top: int,
    safe: bool,
    as_json: bool,
    **stated: Any,
) -> None:
    """Find the best strategies of a space that is too large to be swept, and prove it."""
    from perfmodel.store.files import check_results_path, save_results
    from perfmodel.sweeps.search import search_spaces, searched_problems
    from perfmodel.sweeps.sweep import Problem

    asked, values = named(stated)
    if output is not None:
        output = check_results_path(output)
    problems = searched_problems(**asked)
    check_strategies(Problem(it.space.model, it.framework, it.space.drawn()) for it in problems)
    with activity("searching") as tell:
        found = search_spaces(
            problems,
            asked["hardware"],
            top=top,
            by=by,
            safe=safe,
            seconds=seconds,
            progress=tell,
            hardware_values=values,
        )
    if not found.possible:
        raise nothing_possible(asked, found.rejected)
    if found.possible == sum(found.lacking.values()):
        raise lacks_precision(found.lacking)
    if output is not None and found.table is not None:
        save_results(found.table, output)
    if as_json:
        print_json(_document(asked["models"], found, output))
    else:
        _print_summary(asked, found)
    if output is not None and found.table is not None:
        remark(f"\nwrote {output}")
    if found.table is None and not found.unsettled:
        capacities = {row.name: row.device.memory.capacity for row in asked["hardware"]}
        click.echo(_nothing_fits(found, capacities, asked["axes"]), err=True)
        ctx.exit(EXIT_NOTHING_FITS)


def _document(
    specs: Sequence[ModelSpec], found: SearchResult, output: str | None
) -> dict[str, Any]:
    from perfmodel.cli.shared.tables import results_header
    from perfmodel.kernels.variables import SCHEMA_VERSION

    header = {"schema_version": SCHEMA_VERSION}
    if found.table is not None:
        header = results_header(found.table)
    return (
        header
        | reading_document(specs)
        | {
            "by": found.by,
            "possible": found.possible,
            "impossible": found.rejected,
            "proved": found.proved,
            "projected": found.evaluated,
            "lacking_precision": found.lacking,
            "unsettled": found.unsettled,
            "bound": found.bound,
            "gap": found.gap if math.isfinite(found.gap) else None,
            "seconds": found.seconds,
            "output": output,
            "strategies": found.strategies,
        }
    )


def _print_summary(asked: Mapping[str, Any], found: SearchResult) -> None:
    from perfmodel.base.units import format_si
    from perfmodel.cli.shared.tables import print_strategies, variable_title

    named = [
        f"{it.name}, {format_si(float(it.parameter_count()))} parameters" for it in asked["models"]
    ]
    counts = ", ".join(f"{count:,}" for count in asked["devices"])
    click.echo(heading(f"{'; '.join(named)}, on {counts} devices"))
    impossible = sum(found.rejected.values())
    lines = [
        ("possible", found.possible, "strategies on every hardware"),
        *((f"  {name}", found.proved[name], text) for name, text in PROVED.items()),
        ("  projected", found.evaluated, "exactly"),
        *(
            ("  precision", count, f"{name} has no rate for it")
            for name, count in found.lacking.items()
        ),
        ("  unsettled", found.unsettled, "when the time was over"),
        ("impossible", impossible, "strategies"),
    ]
    width = max(len(f"{count:,}") for _, count, _ in lines)
    for name, count, text in lines:
        if count or not name.endswith("unsettled"):
            say(f"{name:<16}{count:>{width},}  {text}", 18 + width)
    strategies = found.strategies
    if strategies:
        click.echo()
        click.echo(heading(f"Best by {variable_title(found.by)}"))
        print_strategies(strategies)
    click.echo()
    if found.bound is None:
        click.echo(f"proved in {found.seconds:.1f} s")
    elif strategies:
        click.echo(
            f"stopped after {found.seconds:.1f} s: what is left is at most {found.gap:.1%} better "
            f"({found.by} {found.bound:.6g})"
        )
    else:
        click.echo(f"stopped after {found.seconds:.1f} s, before any strategy that fits was found")


def _nothing_fits(
    found: SearchResult, capacities: Mapping[str, float], axes: Mapping[str, Any]
) -> str:
    from perfmodel.base.units import format_gib

    needs = [
        f"{name} needs at least {format_gib(least)} of {format_gib(capacities[name])}"
        for name, least in list(found.least_memory.items())[:4]
    ]
    return nothing_fits(needs, axes)
