"""The ``perfmodel`` program."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from perfmodel._version import __version__
from perfmodel.cli.group import CommandGroup, LateCommands, prepare_process, verbosity_options

# Where each command is (imported when it is asked for), and its line on the help page.
COMMANDS = {
    "sweep": ("perfmodel.cli.sweep:sweep_command", "Project every sensible strategy."),
    "search": (
        "perfmodel.cli.search:search_command",
        "Find the best of too many strategies.",
    ),
    "best": (
        "perfmodel.cli.best:best_command",
        "Rank a sweep, or served models.",
    ),
    "project": ("perfmodel.cli.project:project_command", "Project one strategy."),
    "explain": ("perfmodel.cli.explain:explain_command", "Say where time and memory go, op by op."),
    "timeline": (
        "perfmodel.cli.timeline:timeline_command",
        "Write a step or a served model in time.",
    ),
    "diff": ("perfmodel.cli.diff.command:diff_command", "Compare two projections."),
    "sensitivity": (
        "perfmodel.cli.sensitivity.command:sensitivity_command",
        "Say what a projection depends on.",
    ),
    "report": ("perfmodel.cli.report:report_command", "Show results as one page."),
    "launch": ("perfmodel.cli.launch:launch_command", "Write what starts a chosen strategy."),
    "serve": ("perfmodel.cli.serve.command:serve_command", "Project a served model."),
    "size": ("perfmodel.cli.size:size_command", "Find the fewest devices for a served rate."),
    "wafer": (
        "perfmodel.cli.wafer.group:wafer_group",
        "Project models on wafer-scale engines.",
    ),
    "kernel": ("perfmodel.cli.kernel.group:kernel_group", "Time single kernels."),
    "collective": ("perfmodel.cli.collective:collective_command", "Time collectives."),
    "topology": (
        "perfmodel.cli.topology.command:topology_group",
        "Show, draw and export networks.",
    ),
    "workload": (
        "perfmodel.cli.workload.group:workload_group",
        "Write, convert and describe workloads.",
    ),
    "plot": ("perfmodel.cli.plot.group:plot_group", "Draw figures of results and workloads."),
    "simulate": ("perfmodel.cli.simulate.command:simulate_command", "Run a workload on a network."),
    "ui": ("perfmodel.cli.ui:ui_command", "Open a page with controls."),
    "hardware": ("perfmodel.cli.hardware:hardware_group", "List and show hardware profiles."),
    "model": ("perfmodel.cli.model:model_group", "List and show models."),
    "software": (
        "perfmodel.cli.software:software_group",
        "List and show frameworks and engines.",
    ),
    "compare": ("perfmodel.cli.compare:compare_command", "Compare projections with measured runs."),
    "calibrate": (
        "perfmodel.cli.calibrate:calibrate_command",
        "Fit a profile to measured kernels.",
    ),
    "samples": (
        "perfmodel.cli.samples:samples_command",
        "Copy the documentation's sample files.",
    ),
    "doctor": ("perfmodel.cli.doctor:doctor_command", "Check this installation."),
    "completion": (
        "perfmodel.cli.completion:completion_command",
        "Print a shell completion script.",
    ),
}


@click.group(
    cls=CommandGroup,
    commands=LateCommands(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="perfmodel", message="%(prog)s %(version)s")
@verbosity_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Project the training and serving of large language models, without a GPU.

    Time, throughput and memory of every parallel strategy of a model, or of every deployment
    that serves it, on given hardware, from the model's architecture and the hardware's facts.

    \b
    Examples:
      perfmodel sweep --model llama-3.1-70b --hardware dgx-h100 --devices 1024 \\
          --seq-len 8192 --global-batch 2048 -o sweep.nc
      perfmodel best sweep.nc --top 10
      perfmodel project --model llama-3.1-70b --hardware dgx-h100 --devices 256 \\
          --tp 8 --pp 4 --global-batch 512 --seq-len 8192
      perfmodel serve --model llama-3.1-70b --hardware dgx-h200 --tp 4 --isl 8192 --osl 1024 \\
          --concurrency 64

    Results go to stdout, progress and remarks to stderr. Exit codes: 0 done,
    1 failure, 2 wrong input, 3 nothing is possible or fits in memory.
    """
    from perfmodel.cli.shared.printing import announce_compilation, tell_choice
    from perfmodel.kernels import work

    work.listener = announce_compilation
    ctx.call_on_close(tell_choice)


def main() -> None:
    """Run the program; never returns."""
    prepare_process()
    # No command multiplies large matrices: what NumPy's library for it gets are threads that
    # take longer to start than to be of use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            # A terminal that cannot show × or µ shows ? instead of failing.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    cli(prog_name="perfmodel")


if __name__ == "__main__":
    main()
