"""``perfmodel report`` and ``perfmodel ui``: results as one page, or with controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfmodel.cli.group import EXIT_NOTHING_FITS
from perfmodel.cli.shared import options
from perfmodel.cli.shared.costs import cost_options
from perfmodel.cli.shared.options import page
from perfmodel.cli.shared.printing import activity, print_json, remark


@click.command("report", **page("report", "report", "Show results as one page."))
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path())
@options.options_of("report.report", "where", "top")
@cost_options
@options.options_of("report.report", "title")
@options.output_option("FILE.html", "The page, written completely or not at all.", required=True)
@options.json_option
@options.verbosity_options
@click.pass_context
def report_command(
    ctx: click.Context,
    files: tuple[str, ...],
    where: str | None,
    top: int,
    costs: Mapping[str, Any],
    title: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Write results as one HTML page that needs no network."""
    from perfmodel.report.document import NothingSelected, check_page_path, write_report

    check_page_path(output)
    try:
        with activity(f"writing {output}"):
            written = write_report(
                files, output, title=title, where=where, costs=dict(costs), top=top
            )
    except NothingSelected as nothing:
        click.echo(f"perfmodel: {nothing}", err=True)
        ctx.exit(EXIT_NOTHING_FITS)
    if as_json:
        from perfmodel.kernels.variables import SCHEMA_VERSION

        print_json({"schema_version": SCHEMA_VERSION, **written})
    for it in written["populations"]:
        if it["selection"]:
            remark(f"note: {it['selection']}")
    remark(f"wrote {output} ({written['bytes'] / 1e6:.1f} MB)")


PORT = 8765


@click.command("ui", **page("report", "ui", "Open a page with controls."))
@options.options_of("report.ui", "model", "hardware")
@options.options_of("report.ui", "port", default=PORT)
@options.options_of("report.ui", "no_browser")
@options.verbosity_options
def ui_command(
    model: tuple[str, ...], hardware: tuple[str, ...], port: int, no_browser: bool
) -> None:
    """Show strategies of a model on a page whose controls project while they are moved."""
    from perfmodel.cli.report.server.question import Offer
    from perfmodel.cli.report.server.run import run_page
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.model.presets import load_model

    for name in model:
        load_model(name)  # refused here, not on the page
    for name in hardware:
        load_hardware(name)

    def tell(link: str) -> None:
        click.echo(link)
        remark("Ctrl-C ends it")

    run_page(port, Offer(model, hardware), browser=not no_browser, tell=tell)
