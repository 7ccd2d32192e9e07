"""One row of stored results: which one; and what was typed on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.launch_file import stated_launch

if TYPE_CHECKING:
    from perfmodel.base.table import Table


def typed_options() -> dict[str, Any]:
    """Return the options that were typed, by their names in Python, with their values."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


SWEPT = ("pick", "by", "where", "everything")
"""Options that need a results file."""
pick_options = options.options_of("shared.picked", "pick", "by", "where", "all")


def given_options() -> set[str]:
    """Return the names of the options that were typed, --from among them."""
    return {*typed_options(), *(["from"] if stated_launch() is not None else [])}


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
