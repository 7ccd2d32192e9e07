"""The command group: one place where errors become one line and an exit code.

Exit codes: 0 done, 1 failure, 2 wrong input, 3 no strategy fits in memory, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from perfmodel.base.errors import PerfModelError

EXIT_FAILURE = 1
EXIT_INPUT = 2
EXIT_NOTHING_FITS = 3
EXIT_INTERRUPTED = 130
# What click itself and the shell need to see.
PASSED_ON = (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)


@dataclass
class Settings:
    """How talkative a run is; one object per run, in ``ctx.obj``."""

    quiet: bool = False
    verbose: bool = False


class Failure(click.ClickException):
    """An error that is shown as one line and ends the run with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class Option(click.Option):
    """An option that names the section of the help page in which it stands."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command whose help page groups its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, the sections in the order in which they first appear."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                name = getattr(param, "section", "Options")
                sections.setdefault(name, []).append(record)
        last = sections.pop("Options", [])
        for name, records in [*sections.items(), ("Options", last)]:
            with formatter.section(name):
                formatter.write_dl(records)


class CommandGroup(click.Group):
    """The group of all commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of a user's work, not of the alphabet."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn what goes wrong into a `Failure`."""
        settings = ctx.ensure_object(Settings)
        try:
            return super().invoke(ctx)
        except PASSED_ON:
            raise
        except PerfModelError as error:
            raise Failure(str(error), EXIT_INPUT) from error
        except MemoryError as error:
            text = "not enough memory; name fewer values per axis, or use --float32"
            raise Failure(text, EXIT_FAILURE) from error
        except Exception as error:
            if settings.verbose:
                traceback.print_exc()
            hint = "" if settings.verbose else "; -v shows where"
            text = f"unexpected {type(error).__name__}: {error}{hint}"
            raise Failure(text, EXIT_FAILURE) from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program and leave with an exit code; see the module's text."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = EXIT_INPUT
        except click.ClickException as error:
            report(error)
            code = error.exit_code
        except click.Abort:
            click.echo("perfmodel: interrupted", err=True)
            code = EXIT_INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def report(error: click.ClickException) -> None:
    """Print an error as one line to stderr."""
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f" (see '{context.command_path} --help')"
    click.echo(f"perfmodel: error: {text}", err=True)
