"""The ``perfmodel`` program."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from perfmodel.base.version import __version__
from perfmodel.cli.group import (
    CommandGroup,
    commands_by_wing,
    prepare_process,
    verbosity_options,
)


@click.group(
    cls=CommandGroup,
    commands=commands_by_wing(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(__version__, prog_name="perfmodel", message="%(prog)s %(version)s")
@click.option(
    "--large", is_flag=True, help="Do also what takes minutes of a core, or gigabytes of disk."
)
@verbosity_options
@click.pass_context
def cli(ctx: click.Context, large: bool) -> None:
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
    if large:
        from perfmodel.base.memory import MUCH

        os.environ[MUCH] = "1"
        ctx.call_on_close(lambda: os.environ.pop(MUCH, None))
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
