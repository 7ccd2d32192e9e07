"""``perfmodel kernel``: the time of single kernels, one shape or a grid of them."""

from __future__ import annotations

import click

from perfmodel.cli.core.kernel.commands import COMMANDS
from perfmodel.cli.group import CommandGroup


@click.group("kernel", cls=CommandGroup, short_help="Time single kernels.")
def kernel_group() -> None:
    """Time single kernels on one or more devices: one shape, or a grid of shapes.

    An axis takes a list (1,16,4096) or a range: 256:4096:16 (16 values, evenly spaced),
    1:4096:13:log (evenly spaced in the logarithm) or 1:4096:x2 (powers of two). Several
    axes make every combination.

    \b
    Examples:
      perfmodel kernel gemm --hardware dgx-h100 --m 1,16,4096 --n 4096 --k 4096
      perfmodel kernel attention --hardware dgx-h100 --heads 32 --kv-heads 8 --kv-len 8192
      perfmodel kernel sparse-attention --hardware dgx-h100 --heads 64 --window 128 \\
          --compression 4 --selected 512 --q-len 16384
      perfmodel kernel scan --hardware dgx-h100 --heads 32 --seq-len 4096,65536
      perfmodel kernel stream rms_norm --hardware dgx-h100 --rows 1:65536:x4
      perfmodel kernel moe --hardware dgx-h100 --tokens 4096 --hidden 4096 \\
          --intermediate 14336 --experts 8 --top-k 2
    """


for _command in COMMANDS:
    kernel_group.add_command(_command)
