"""``perfmodel ui``: the page of a report, with controls that project while they are moved."""

from __future__ import annotations

import click

from perfmodel.cli.group import Command
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import remark

PORT = 8765


@click.command("ui", cls=Command, short_help="Open a page with controls.")
@options.options_of("report.ui", "model", "hardware")
@options.options_of("report.ui", "port", default=PORT)
@options.options_of("report.ui", "no_browser")
@options.verbosity_options
def ui_command(
    model: tuple[str, ...], hardware: tuple[str, ...], port: int, no_browser: bool
) -> None:
    """Show strategies of a model on a page whose controls project while they are moved.

    The page is that of 'perfmodel report'. Model, hardware, devices, lengths, batch, precision and
    software are chosen on it; results, the report and what starts a strategy can be saved from it,
    and a link holds what was chosen. It is served to this machine's own browser alone (127.0.0.1),
    and nothing leaves the machine. Ctrl-C ends it. Needs pip install 'perfmodel[ui]'.

    \b
    Examples:
      perfmodel ui
      perfmodel ui --model ./config.json --port 9000 --no-browser
    """
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.model.presets import load_model
    from perfmodel.report.server.question import Offer
    from perfmodel.report.server.run import run_page

    for name in model:
        load_model(name)  # refused here, not on the page
    for name in hardware:
        load_hardware(name)

    def tell(link: str) -> None:
        click.echo(link)
        remark("Ctrl-C ends it")

    run_page(port, Offer(model, hardware), browser=not no_browser, tell=tell)
