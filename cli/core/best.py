"""``perfmodel best``: the best strategies of a stored sweep."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from perfmodel.base.wings import contributions
from perfmodel.cli.group import EXIT_NOTHING_FITS, Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options, costs_header, print_costs, with_costs
from perfmodel.cli.shared.printing import heading, print_json
from perfmodel.kernels.variables import RATE


@click.command("best", cls=Command, short_help="Rank a sweep, or served models.")
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
    """Rank the strategies of a sweep, or the operating points of a served model.

    FILE is what 'perfmodel sweep', 'perfmodel serve' or 'perfmodel wafer' wrote with -o. What
    does not fit in memory is left out.

    \b
    Examples:
      perfmodel best sweep.nc
      perfmodel best sweep.nc --top 20 --by step_time --where 'tensor_parallel <= 8'
      perfmodel best sweep.nc --where 'recompute == "none" and pp > 1'
      perfmodel best sweep.nc --where 'hardware == "dgx-b200" and memory_total < 100e9'
      perfmodel best sweep.nc --pareto step_time,memory_total
      perfmodel best sweep.nc --all --by memory_total --json
      perfmodel best sweep.nc --by training_cost --tokens 15e12 --price h100=2.5,b200=4
      perfmodel best sweep.nc --by cost_per_token --where 'energy_per_token < 2' --goodput
      perfmodel best serve.nc --by tpot --where 'ttft_p95 < 2 and devices <= 8'
      perfmodel best serve.nc --where 'ttft_p95 < 2' \\
          --pareto tokens_per_second_per_device,tokens_per_second_per_user

    In filters of served models ttft, tpot and itl are means, ttft_p95 and the like percentiles.
    Units in filters are SI: seconds, bytes, 1/s; utilisations are fractions (0.5).

    Exit codes: 0 done, 1 failure, 2 wrong input, 3 no strategy fits and passes the
    filter.
    """
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
