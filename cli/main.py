"""The ``perfmodel`` program."""

from __future__ import annotations

import contextlib
import sys

import click

from perfmodel._version import __version__
from perfmodel.cli.best import best_command
from perfmodel.cli.calibrate import calibrate_command
from perfmodel.cli.collective import collective_command
from perfmodel.cli.compare import compare_command
from perfmodel.cli.completion import completion_command
from perfmodel.cli.explain import explain_command
from perfmodel.cli.group import CommandGroup, prepare_process
from perfmodel.cli.hardware import hardware_group
from perfmodel.cli.kernel.group import kernel_group
from perfmodel.cli.launch import launch_command
from perfmodel.cli.model import model_group
from perfmodel.cli.project import project_command
from perfmodel.cli.shared import options
from perfmodel.cli.simulate.command import simulate_command
from perfmodel.cli.software import software_group
from perfmodel.cli.sweep import sweep_command
from perfmodel.cli.topology.command import topology_group
from perfmodel.cli.workload.group import workload_group


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="perfmodel", message="%(prog)s %(version)s")
@options.verbosity_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Project the training of large language models, without a GPU.

    Time, throughput and memory of every parallel strategy of a model on given hardware,
    from the model's architecture and the hardware's facts.

    \b
    Examples:
      perfmodel sweep --model llama-3.1-70b --hardware dgx-h100 --devices 1024 \\
          --seq-len 8192 --global-batch 2048 -o sweep.nc
      perfmodel best sweep.nc --top 10
      perfmodel project --model llama-3.1-70b --hardware dgx-h100 --devices 256 \\
          --tp 8 --pp 4 --global-batch 512 --seq-len 8192

    Results go to stdout, progress and remarks to stderr. Exit codes: 0 done,
    1 failure, 2 wrong input, 3 no strategy fits in memory.
    """
    from perfmodel.cli.shared.printing import announce_compilation, tell_uncompiled
    from perfmodel.kernels import work

    work.listener = announce_compilation
    ctx.call_on_close(tell_uncompiled)


for _command in (
    sweep_command,
    best_command,
    project_command,
    explain_command,
    launch_command,
    kernel_group,
    collective_command,
    topology_group,
    workload_group,
    simulate_command,
    hardware_group,
    model_group,
    software_group,
    compare_command,
    calibrate_command,
    completion_command,
):
    cli.add_command(_command)


def main() -> None:
    """Run the program; never returns."""
    prepare_process()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            # A terminal that cannot show × or µ shows ? instead of failing.
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    cli(prog_name="perfmodel")


if __name__ == "__main__":
    main()
