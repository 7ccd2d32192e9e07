"""One row of stored results: which one, and what was typed beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.launch_file import stated_launch
from perfmodel.kernels.variables import RATE

if TYPE_CHECKING:
    from perfmodel.base.table import Table

SWEPT = ("pick", "by", "where", "everything")
"""Options that need a results file."""
SECTION = "Which of FILE"

pick_options = options.stack(
    options.options_of("shared.picked", "pick"),
    options.option(
        "--by",
        section=SECTION,
        metavar="VAR",
        shell_complete=completions.complete_variables,
        help=f"Variable to rank by, as in 'perfmodel best'.  [default: {RATE}]",
    ),
    options.options_of("shared.picked", "where", "all"),
)


def given_options(ctx: click.Context) -> set[str]:
    """Return the options that were typed."""
    from click.core import ParameterSource

    typed = {
        name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return typed | ({"from"} if stated_launch() is not None else set())


def picked_row(
    ctx: click.Context, file: str, pick: int, by: str, where: str | None, everything: bool
) -> tuple[Table, dict[str, Any]]:
    """Return the results of a file, and the row that is the `pick`-th best.

    Ends the program with code 3 where there are not so many.
    """
    from perfmodel.store import results

    table = results.open_table(file)
    found = results.best(table, pick, by=by, where=where, fitting=not everything)
    if len(found) < pick:
        passes = " and pass the filter" if where else ""
        verb = "are possible" if everything else "fit in memory"
        what = "operating points" if "deployment" in table.sizes else "strategies"
        click.echo(f"perfmodel: {len(found):,} {what} {verb}{passes}, not {pick:,}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    return table, found[pick - 1]
