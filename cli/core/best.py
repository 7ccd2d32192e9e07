"""``perfmodel best``: the best strategies of a stored sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from perfmodel.base.wings import contributions
from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options, costs_header, print_costs, with_costs
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import heading, print_json
from perfmodel.kernels.variables import RATE


@click.command("best", **page("core", "best", "Rank a sweep, or served models."))
@click.argument("file", metavar="FILE", type=click.Path())
@options.options_of("core.best", "top", "by", "where", "pareto", "all")
@options.safe_option
@cost_options
@options.json_option
@options.verbosity_options
@click.pass_context
def best_command(
    ctx: click.Context,
    file: str,
    top: int | None,
    by: str | None,
    where: str | None,
    pareto: list[str] | None,
    everything: bool,
    safe: bool,
    costs: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Rank the strategies of a sweep, or the operating points of a served model."""
    if pareto is not None and by is not None:
        raise click.UsageError("--pareto and --by exclude each other")
    from perfmodel.store import results
    from perfmodel.store.subject import subject_of

    table = with_costs(results.open_table(file), costs, by, where, *(pareto or ()))
    if safe:
        results.decide_safely(table)
    view = view_of(subject_of(table).verb)
    count = results.count_selected(table, where, fitting=not everything)
    if pareto is not None:
        rows = results.pareto(table, pareto, where=where, fitting=not everything)[:top]
        title = f"Not beaten in {' and '.join(map(view.title, pareto))}"
    else:
        rows = results.best(table, top or 10, by=by or RATE, where=where, fitting=not everything)
        title = f"Best by {view.title(by or RATE)}"
    if as_json:
        counts = {"selected": count, "total": math.prod(results.shape_of(table))}
        print_json(view.header(table) | costs_header(table) | counts | {view.rows: rows})
    elif rows:
        chosen = "possible" if everything else "fitting"
        total = math.prod(results.shape_of(table))
        click.echo(heading(str(table.attrs.get("title", "Sweep"))))
        click.echo(f"{count:,} of {total:,} {view.pairs} are {chosen} and selected")
        click.echo()
        click.echo(heading(title))
        view.show(rows)
        print_costs(rows)
    if not rows:
        passes = " and passes the filter" if where else ""
        hint = "" if everything else "; --all shows what does not fit"
        verb = "is possible" if everything else "fits in memory"
        click.echo(f"perfmodel: no {view.one} {verb}{passes}{hint}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)


class Strategies:
    """How strategies of a sweep are called and shown."""

    one, rows, pairs = "strategy", "strategies", "strategy-device pairs"

    def __init__(self) -> None:
        from perfmodel.cli.shared import tables

        self.title, self.header = tables.variable_title, tables.results_header
        self.show = tables.print_strategies


class Points:
    """How operating points of served models are called and shown."""

    one, rows, pairs = "operating point", "points", "operating points"

    def __init__(self) -> None:
        from perfmodel.cli.shared import serving_tables

        self.title, self.header = serving_tables.variable_title, serving_tables.points_header
        self.show = serving_tables.print_points


def view_of(verb: str) -> Any:
    """Return how the results of a command are called and shown; wings bring views of their own."""
    if verb == "serve":
        return Points()
    for wing in contributions("verbs", "perfmodel.cli"):
        if verb in getattr(wing, "VIEWS", {}):
            module, _, name = wing.VIEWS[verb].partition(":")
            return getattr(import_module(module), name)()
    return Strategies()
