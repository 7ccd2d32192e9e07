"""The command group: one place where errors become one line and an exit code.

Exit codes: 0 done, 1 failure, 2 wrong input, 3 no strategy fits in memory; 128 and the number
of the signal that ended the run, as 130 for Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click

from perfmodel.base.errors import (
    MACHINE_FAILURES,
    MachineError,
    PerfModelError,
    describe_os_error,
    one_line,
)
from perfmodel.base.wings import contributions
from perfmodel.kernels._jit import SettingError

Function = TypeVar("Function", bound=Callable[..., Any])
PACKAGE = "perfmodel.cli"
EXIT_FAILURE = 1
EXIT_INPUT = 2
EXIT_NOTHING_FITS = 3
EXIT_SIGNAL = 128
EXIT_INTERRUPTED = EXIT_SIGNAL + 2
SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
SHOW_CURSOR = "\x1b[?25h"
# What click itself and the shell need to see.
PASSED_ON = (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)


class Settings:
    """How talkative a run is; one object per run, in ``ctx.obj``."""

    def __init__(self) -> None:
        self.quiet = self.verbose = False


def _quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Settings).quiet |= value


def _verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Settings).verbose |= value


def verbosity_options(function: Function) -> Function:
    """Give a command the options ``-q`` and ``-v``."""
    verbose = click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_verbose,
        help="Say more on stderr, and where an unexpected failure happened.",
    )
    quiet = click.option(
        "-q",
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_quiet,
        help="No progress and no remarks on stderr; results and errors only.",
    )
    return quiet(verbose(function))


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
    """A command whose help page groups its options by section; none may be given twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a second value where click would let the last one win."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for param in given:
                if given.count(param) > 1 and not _may_repeat(param):
                    times = {2: "twice"}.get(given.count(param), f"{given.count(param)} times")
                    ctx.fail(f"{param.opts[0]} is given {times}; it takes one value")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; say what it took where more is asked for."""
        start = time.perf_counter()
        try:
            return super().invoke(ctx)
        finally:
            if ctx.ensure_object(Settings).verbose:
                took = f"{time.perf_counter() - start:.2f} s{_most_memory()}"
                click.echo(f"{ctx.command_path}: {took}", err=True)

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


def _most_memory() -> str:
    """Return a clause with the memory that the program has held at most; empty on Windows."""
    try:
        import resource
    except ImportError:
        return ""
    unit = 1 if sys.platform == "darwin" else 1024
    most = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", {most / 2**20:,.0f} MiB of memory at most"


def _may_repeat(param: click.Parameter) -> bool:
    """Tell whether an option takes several values, or is a switch without an opposite."""
    if not isinstance(param, click.Option) or param.multiple:
        return True
    return param.is_flag and not param.secondary_opts


class LateCommands(MutableMapping[str, click.Command]):
    """Commands by name, each imported when it is asked for.

    Parameters
    ----------
    homes : mapping of str to (str, str)
        ``module:attribute`` of each, and its line on the help page of the group.
    sections : mapping of str to sequence of str
        Names of the commands below each heading of that page.
    """

    def __init__(
        self,
        homes: Mapping[str, tuple[str, str]],
        sections: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.homes = dict(homes)
        self.sections = sections or {"Commands": list(homes)}

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = self.homes[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError("late commands are named, not added")

    def __delitem__(self, name: str) -> None:
        del self.homes[name]

    def __contains__(self, name: object) -> bool:
        return name in self.homes

    def __iter__(self) -> Iterator[str]:
        return iter(self.homes)

    def __len__(self) -> int:
        return len(self.homes)


def commands_by_wing() -> LateCommands:
    """Return the commands of the core and of every wing that is there (``cli/WING/verbs.py``)."""
    from perfmodel.cli.core import verbs as core

    homes: dict[str, tuple[str, str]] = {}
    sections: dict[str, list[str]] = {}
    for wing in (core, *contributions("verbs", PACKAGE)):
        package = wing.__name__.rpartition(".")[0]
        homes |= {name: (f"{package}.{home}", line) for name, (home, line) in wing.VERBS.items()}
        sections[wing.TITLE] = list(wing.VERBS)
    return LateCommands(homes, sections)


def add_commands_of_wings(group: click.Group) -> None:
    """Give a group the commands that wings add to it (``SUBCOMMANDS`` of their verbs)."""
    for wing in contributions("verbs", PACKAGE):
        package = wing.__name__.rpartition(".")[0]
        for home in getattr(wing, "SUBCOMMANDS", {}).get(group.name, ()):
            module, _, attribute = home.partition(":")
            group.add_command(getattr(import_module(f"{package}.{module}"), attribute))


class CommandGroup(click.Group):
    """The group of all commands."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of a user's work, not of the alphabet."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, without importing late ones."""
        if not isinstance(self.commands, LateCommands):
            super().format_commands(ctx, formatter)
            return
        homes = self.commands.homes
        width = max(map(len, homes))
        for title, names in self.commands.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), homes[name][1]) for name in names])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn what goes wrong into a `Failure`."""
        settings = ctx.ensure_object(Settings)
        try:
            return super().invoke(ctx)
        except PASSED_ON:
            raise
        except MachineError as error:
            raise Failure(str(error), EXIT_FAILURE) from error
        except (PerfModelError, SettingError) as error:
            raise Failure(str(error), EXIT_INPUT) from error
        except MemoryError as error:
            text = "not enough memory; name fewer values per axis, or write a sweep with --resume"
            raise Failure(text, EXIT_FAILURE) from error
        except Exception as error:
            if "for integer string conversion" in str(error):
                raise Failure("a number has thousands of digits", EXIT_INPUT) from error
            if isinstance(error, OSError) and error.errno is not None:
                given = error.filename is not None and error.errno not in MACHINE_FAILURES
                code = EXIT_INPUT if given else EXIT_FAILURE
                raise Failure(describe_os_error(error), code) from error
            if settings.verbose:
                import traceback

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
    text = one_line(error.format_message())
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        text += f" (see '{context.command_path} --help')"
    click.echo(f"perfmodel: error: {text}", err=True)


def prepare_process() -> None:
    """Make signals end the program at once, and closed streams known; for the program only.

    Raises
    ------
    SystemExit
        There is no standard output to write results to.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        click.echo("perfmodel: error: standard output is closed; results go there", err=True)
        sys.exit(EXIT_INPUT)
    for name in SIGNALS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks
            signal.signal(number, _end_at_once)


def _end_at_once(number: int, frame: Any) -> None:
    """Leave without unwinding, which waits for threads and for libraries that write files."""
    # In the middle of an import the module may be there in part, and has made no files yet.
    files = sys.modules.get("perfmodel.base.files")
    getattr(files, "remove_temporaries", bool)()
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    text = f"{cursor}perfmodel: {SIGNALS[signal.Signals(number).name]}\n"
    try:
        os.write(2, text.encode())
    finally:
        os._exit(EXIT_SIGNAL + number)
