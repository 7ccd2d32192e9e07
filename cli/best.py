"""``perfmodel best``: the best strategies of a stored sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS, Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options, costs_header, print_costs, with_costs
from perfmodel.cli.shared.printing import heading, print_json
from perfmodel.cli.shared.types import WholeRange, Words

RATE = "tokens_per_second_per_device"


@click.command("best", cls=Command, short_help="Rank the strategies of a sweep.")
@click.argument("file", metavar="FILE", type=click.Path())
@options.option(
    "--top",
    section="Selection",
    type=WholeRange(1),
    metavar="N",
    help="Strategies to show.  [default: 10; with --pareto all]",
)
@options.option(
    "--by",
    section="Selection",
    metavar="VAR",
    shell_complete=options.complete_variables,
    help="Variable to rank by: rates and utilisations largest first, the rest smallest first.  "
    f"[default: {RATE}]",
)
@options.option(
    "--where",
    section="Selection",
    metavar="EXPR",
    help="Filter over variables and strategy fields, long or short names: comparisons, "
    "arithmetic, and, or, not, in; text in quotes.",
)
@options.option(
    "--pareto",
    section="Selection",
    type=Words(),
    metavar="VAR,VAR",
    shell_complete=options.complete_variables,
    help="Show the strategies that no other one beats in all of these variables.",
)
@options.option(
    "--all",
    "everything",
    section="Selection",
    is_flag=True,
    help="Also what does not fit in memory.",
)
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
    costs: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Rank the strategies of a sweep that fit in memory, with their time breakdown.

    FILE is what 'perfmodel sweep -o' wrote.

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

    Units in filters are SI: seconds, bytes, 1/s; utilisations are fractions (0.5).

    Exit codes: 0 done, 1 failure, 2 wrong input, 3 no strategy fits and passes the
    filter.
    """
    if pareto is not None and by is not None:
        raise click.UsageError("--pareto and --by exclude each other")
    from perfmodel.cli.shared.tables import variable_title
    from perfmodel.sweeps import results

    table = with_costs(results.open_table(file), costs, by, where, *(pareto or ()))
    count = int(results.select(table, where, fitting=not everything).size)
    if pareto is not None:
        rows = results.pareto(table, pareto, where=where, fitting=not everything)[:top]
        title = f"Not beaten in {' and '.join(map(variable_title, pareto))}"
    else:
        rows = results.best(table, top or 10, by=by or RATE, where=where, fitting=not everything)
        title = f"Best by {variable_title(by or RATE)}"
    total = int(table.sizes["strategy"] * table.sizes["hardware"])
    _print(table, rows, count, total, title, as_json, everything)
    if not rows:
        passes = " and passes the filter" if where else ""
        hint = "" if everything else "; --all shows what does not fit"
        verb = "is possible" if everything else "fits in memory"
        click.echo(f"perfmodel: no strategy {verb}{passes}{hint}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)


def _print(
    table: Any,
    rows: list[dict[str, Any]],
    count: int,
    total: int,
    title: str,
    as_json: bool,
    everything: bool,
) -> None:
    from perfmodel.cli.shared.tables import print_strategies, results_header

    if as_json:
        counts = {"selected": count, "total": total}
        print_json(results_header(table) | costs_header(table) | counts | {"strategies": rows})
        return
    if not rows:
        return
    chosen = "possible" if everything else "fitting"
    click.echo(heading(str(table.attrs.get("title", "Sweep"))))
    click.echo(f"{count:,} of {total:,} strategy-device pairs are {chosen} and selected")
    click.echo()
    click.echo(heading(title))
    print_strategies(rows)
    print_costs(rows)
