"""``perfmodel plot``: figures of results and of workloads.

What figures are and which options they have is said by `perfmodel.report.plots.kinds`; texts stand
in ``options.toml`` and ``figures.toml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.base.files import read_toml
from perfmodel.cli.group import Command, CommandGroup, add_commands_of_wings
from perfmodel.cli.shared import options
from perfmodel.cli.shared.options import fields_of, page
from perfmodel.cli.shared.printing import activity, print_json, remark
from perfmodel.report.plots.kinds import KINDS

RESULT = "RESULT"
OPTIONS = {
    field.name: options.options_of("report.plot", key)
    for key, field in fields_of("report.plot").items()
    if any(field.name in kind.options for kind in KINDS.values())
}
"""Options of figures by the names that `perfmodel.plot` has for them."""

PAGES = read_toml(Path(__file__).with_name("figures.toml"))
"""Figure -> its line in a list, and its help page."""


def shared_options(kind: str) -> Any:
    """Return what every figure takes."""
    return options.stack(
        options.options_of("report.plot", "output", default=f"{kind}.svg"),
        options.options_of("report.plot", "width", "title", "data"),
        options.json_option,
        options.verbosity_options,
    )


def figure_command(kind: str) -> click.Command:
    """Return the command that draws one kind of figure."""

    def run(result: str, output: str, data: str | None, as_json: bool, **given: Any) -> None:
        from perfmodel.base.files import check_writable
        from perfmodel.kernels.variables import SCHEMA_VERSION
        from perfmodel.report.plots.figure import check_saving
        from perfmodel.report.plots.kinds import plot

        check_saving(output)
        check_writable(output)
        if data is not None:
            check_writable(data)
        with activity(f"reading {result}"):
            figure = plot(
                result, kind, **{name: it for name, it in given.items() if it is not None}
            )
            figure.save(output)
        if data is not None:
            figure.save_data(data)
        if as_json:
            print_json(
                {"schema_version": SCHEMA_VERSION, "output": output, "data": data}
                | figure.to_json_dict()
            )
            return
        for note in figure.notes:
            remark(note)
        click.echo(output)
        if data is not None:
            click.echo(data)

    decorated = options.stack(
        click.argument("result", metavar=RESULT, type=click.Path()),
        *(OPTIONS[name] for name in OPTIONS if name in KINDS[kind].options),
        shared_options(kind),
    )(run)
    return click.command(
        kind, cls=Command, short_help=PAGES[kind]["short"], help=PAGES[kind]["page"]
    )(decorated)


COMMANDS = [figure_command(kind) for kind in KINDS]
"""One for every kind of figure."""


@click.group(
    "plot", **page("report", "plot", "Draw figures of results and workloads.", CommandGroup)
)
def plot_group() -> None:
    """Draw figures for papers: SVG, PDF or PNG, or a page to point and zoom in."""


for command in COMMANDS:
    plot_group.add_command(command)
add_commands_of_wings(plot_group)
