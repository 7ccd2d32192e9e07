"""``perfmodel diff``: two projections side by side, by component."""

from __future__ import annotations

import click

from perfmodel.base.errors import DataError
from perfmodel.cli.core.diff.output import diff_document, print_difference, print_matched
from perfmodel.cli.core.diff.sides import (
    GIVEN,
    SidesCommand,
    complete_file,
    refuse_options,
    shared_options,
    side,
)
from perfmodel.cli.group import verbosity_options
from perfmodel.cli.shared import options
from perfmodel.cli.shared.printing import print_json, remark
from perfmodel.kernels.variables import RATE


@click.command("diff", cls=SidesCommand, short_help="Compare two projections.")
@click.argument("a", metavar="A", shell_complete=complete_file)
@click.argument("b", metavar="B", shell_complete=complete_file)
@options.options_of("core.diff", "by", default=RATE)
@options.json_option
@verbosity_options
@click.pass_context
def diff_command(ctx: click.Context, a: str, b: str, by: str, as_json: bool) -> None:
    """Compare two projections: what changed in time, memory and cost, by component.

    A and B are each one of

    \b
      FILE          the best strategy of a sweep, or what 'project --json' printed
      FILE#N        its N-th best
      'KEY=VALUE …' a projection: the options of this command, with these changed or
                    added; KEY is an option without its dashes, or the path of a value
                    as of --set (device.memory.bandwidth, software.gradient_bytes)
      -             a projection: the options of this command as they are

    Two sweeps are also compared over all strategies that both hold. Components that do
    not change stand in one line. Components of the time add up to the step.

    \b
    Examples:
      # Two strategies, two machines
      perfmodel diff tp=4 tp=8 --model llama-3.1-70b --hardware dgx-h100 --devices 256 \\
          --pp 4 --global-batch 512 --seq-len 8192
      perfmodel diff hardware=dgx-h100 hardware=dgx-b200 --model llama-3.1-70b \\
          --devices 256 --tp 8 --pp 4 --global-batch 512 --seq-len 8192 --tokens 15e12 \\
          --price dgx-h100=2.5,dgx-b200=4

    \b
      # What would faster memory bring? Other software, with what else that needs?
      perfmodel diff - device.memory.bandwidth=4.8e12 --model llama-3.1-8b \\
          --hardware dgx-h100 --devices 16 --tp 2 --global-batch 64 --seq-len 8192
      perfmodel diff framework=megatron 'framework=fsdp tp=1 zero=3' --model llama-3.1-8b \\
          --hardware dgx-h100 --devices 16 --tp 2 --global-batch 64 --seq-len 8192

    \b
      # The two best of a sweep; two sweeps; a sweep and a projection
      perfmodel diff sweep.nc#1 sweep.nc#2
      perfmodel diff before.nc after.nc
      perfmodel diff sweep.nc run.json

    Units: as 'perfmodel project'; SI with --json, changes relative to A as fractions.

    Exit codes: 0 done, 1 failure, 2 wrong input.
    """
    from perfmodel.store.difference import difference, matched

    given = ctx.meta[GIVEN]
    sides = [side(ctx, text, given, by) for text in (a, b)]
    if all(one.stored for one in sides):
        refuse_options(given)
    found = difference(sides[0].row, sides[1].row)
    before, after = (one.sweep for one in sides)
    shared = None
    if before is not None and after is not None and a != b:
        try:
            shared = matched(before, after)
        except DataError as error:
            remark(f"note: {error}")
    if as_json:
        print_json(diff_document(sides, found, shared))
        return
    print_difference(sides, found)
    if shared is not None:
        print_matched(sides, shared)


diff_command.params[2:2] = shared_options()
