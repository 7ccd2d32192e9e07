"""``perfmodel completion``: the script that makes a shell complete commands and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from perfmodel.base.errors import PerfModelError
from perfmodel.cli.group import Command

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", cls=Command, short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, models, profiles and variables.

    \b
    Examples:
      perfmodel completion bash >> ~/.bashrc
      perfmodel completion zsh  >> ~/.zshrc
      perfmodel completion fish > ~/.config/fish/completions/perfmodel.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise PerfModelError(f"no completion for '{shell}'; there is one for {', '.join(SHELLS)}")
    root = ctx.find_root().command
    # The text is a template of the class; `source()` would also run the shell to check
    # its version.
    completion = kind(root, {}, "perfmodel", "_PERFMODEL_COMPLETE")
    click.echo(completion.source_template % completion.source_vars())
