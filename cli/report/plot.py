"""``perfmodel plot``: figures of results and of workloads.

What figures are and which options they have is said by `perfmodel.report.plots.kinds`; here stand
the options' and the pages' texts.
"""

from __future__ import annotations

from typing import Any

import click

from perfmodel.cli.group import Command, CommandGroup, add_commands_of_wings
from perfmodel.cli.shared import completions, options
from perfmodel.cli.shared.printing import activity, print_json, remark
from perfmodel.kernels.variables import RATE
from perfmodel.report.plots.kinds import KINDS

SHOWN, SELECTION = "What is shown", "Selection"
RESULT = "RESULT"


def _variable(name: str, text: str) -> Any:
    return options.option(
        f"--{name}",
        section=SHOWN,
        metavar="VAR",
        shell_complete=completions.complete_variables,
        help=text,
    )


OPTIONS = {
    "x": _variable("x", "Variable or field along x.  [default: depends on what RESULT is of]"),
    "y": _variable("y", "Variable or field along y.  [default: depends on what RESULT is of]"),
    "value": _variable("value", f"Variable that colours and numbers are of.  [default: {RATE}]"),
    "group": _variable(
        "group", "Field that colours tell apart, or none.  [default: the first that differs]"
    ),
    "band": options.options_of("report.plot", "band"),
    "log": options.options_of("report.plot", "log"),
    "stages": options.options_of("report.plot", "stages"),
    "hardware": options.options_of("report.plot", "hardware"),
    "top": options.options_of("report.plot", "top"),
    "each": options.options_of("report.plot", "each"),
    "pick": options.options_of("report.plot", "pick"),
    "by": options.option(
        "--by",
        section=SELECTION,
        metavar="VAR",
        shell_complete=completions.complete_variables,
        help=f"Variable to rank by, as in 'perfmodel best'.  [default: {RATE}]",
    ),
    "where": options.options_of("report.plot", "where"),
    "everything": options.options_of("report.plot", "all"),
}
"""Options of figures by the names that `perfmodel.plot` has for them."""

PAGES = {
    "pareto": (
        "Draw two variables against each other, and their front.",
        """Draw strategies over two variables, and the line that no other one beats in both.

    Every group (hardware, where there are several) has its colour and its own front. Points that
    lie on others are left out.

    \b
    Examples:
      perfmodel plot pareto sweep.nc -o pareto.svg
      perfmodel plot pareto sweep.nc --x memory_total --y model_flops_utilization --group tp
      perfmodel plot pareto serve.nc --where 'ttft_p95 < 2' -o pareto.pdf
      perfmodel plot pareto sweep.nc -o pareto.html

    The default is throughput over memory; of served models over what one user sees.
    """,
    ),
    "breakdown": (
        "Draw where the time goes.",
        """Draw where the time of strategies goes, as stacked bars that add up to it.

    Of a sweep the time of a step; of served models that of a mean pass; of wafers the latency.

    \b
    Examples:
      perfmodel plot breakdown sweep.nc --top 5 -o breakdown.svg
      perfmodel plot breakdown sweep.nc --each hardware --band
      perfmodel plot breakdown serve.nc --each tp --where 'concurrency == 64'
    """,
    ),
    "memory": (
        "Draw where the memory goes.",
        """Draw what fills the memory of strategies, or of one strategy's stages.

    The black line is what has to hold it.

    \b
    Examples:
      perfmodel plot memory sweep.nc --each hardware -o memory.svg
      perfmodel plot memory sweep.nc --all --by memory_total --top 8
      perfmodel plot memory sweep.nc --where 'pp > 1' --stages --width page
    """,
    ),
    "heatmap": (
        "Draw the best value over two fields.",
        """Draw the best value over two fields, the best of all others in each cell.

    Cells are bright where the value is good. Hatched ones have no strategy; a dash says that
    there is one, but that none fits in memory.

    \b
    Examples:
      perfmodel plot heatmap sweep.nc --where 'hardware == "dgx-h100"' -o heatmap.svg
      perfmodel plot heatmap sweep.nc --x micro_batch --y zero --value step_time
      perfmodel plot heatmap serve.nc --x concurrency --y tp --value ttft_p95 --log
    """,
    ),
    "scaling": (
        "Draw how throughput scales with devices.",
        """Draw throughput and efficiency of the best strategies over numbers of devices.

    RESULT holds several numbers of devices. Dashed lines scale ideally from the smallest number on.

    \b
    Examples:
      perfmodel sweep --model llama-3.1-70b --hardware dgx-h100 --devices 64:2048:x2 \\
          --seq-len 8192 --global-batch 2048 -o scaling.nc
      perfmodel plot scaling scaling.nc -o scaling.svg
    """,
    ),
    "roofline": (
        "Draw operations or kernels below their roofs.",
        """Draw what operations achieve, below the roofs of the device.

    Of a sweep the operations of one strategy that do matrix work, as large as the time that they
    take; of a grid of kernels (perfmodel kernel … -o) all of one device. Roofs are datasheet
    rates: the matrix rates of the formats in use, and the bandwidth of the device memory.

    \b
    Examples:
      perfmodel plot roofline sweep.nc -o roofline.svg
      perfmodel plot roofline sweep.nc --where 'hardware == "dgx-b200"' --pick 2
      perfmodel plot roofline gemm.nc --hardware dgx-h100
    """,
    ),
    "pipeline": (
        "Draw the passes of a pipeline.",
        """Draw when the stages of a strategy's pipeline run forward and backward, and wait.

    \b
    Examples:
      perfmodel plot pipeline sweep.nc --where 'pp == 4 and vpp == 1' -o pipeline.svg
      perfmodel plot pipeline sweep.nc --where 'schedule == "interleaved"' --width page
    """,
    ),
    "sensitivity": (
        "Draw what changes a projection most.",
        """Draw what every number and switch does to a projection, the strongest on top.

    RESULT is what 'perfmodel sensitivity' wrote with -o, or what it printed with --json.

    \b
    Examples:
      perfmodel plot sensitivity sensitivity.nc --top 10 -o tornado.svg
    """,
    ),
    "accuracy": (
        "Draw predicted against measured.",
        """Draw predicted against measured, with a band of ±10 %, and the errors of groups.

    RESULT is what 'perfmodel compare … -o FILE.csv' wrote.

    \b
    Examples:
      perfmodel compare training runs.csv -o rows.csv
      perfmodel plot accuracy rows.csv --group hardware -o accuracy.svg
    """,
    ),
}
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

    short, page = PAGES[kind]
    decorated = options.stack(
        click.argument("result", metavar=RESULT, type=click.Path()),
        *(OPTIONS[name] for name in OPTIONS if name in KINDS[kind].options),
        shared_options(kind),
    )(run)
    return click.command(kind, cls=Command, short_help=short, help=page)(decorated)


COMMANDS = [figure_command(kind) for kind in KINDS]
"""One for every kind of figure."""


@click.group("plot", cls=CommandGroup, short_help="Draw figures of results and workloads.")
def plot_group() -> None:
    """Draw figures for papers: SVG, PDF or PNG, or a page to point and zoom in.

    RESULT is what other commands wrote with -o. Colours can be told apart whatever one's colour
    vision; text stays text. What a caption should say is printed on stderr.

    \b
    Examples:
      perfmodel plot pareto sweep.nc -o pareto.svg
      perfmodel plot breakdown sweep.nc --each hardware -o breakdown.pdf
      perfmodel plot heatmap sweep.nc --x tp --y pp --where 'hardware == "dgx-h100"'
      perfmodel plot wafer out/ --step decode0 --operation wkv_a -o wkv_a.png

    Networks are drawn by 'perfmodel topology plot'. docs/plots.md shows one of each.
    """


for command in COMMANDS:
    plot_group.add_command(command)
add_commands_of_wings(plot_group)
