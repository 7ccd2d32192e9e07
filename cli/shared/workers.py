"""Work on several processes or machines: the options, and who they name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from perfmodel.cli.shared.options import Function, option, stack
from perfmodel.cli.shared.printing import detail
from perfmodel.cli.shared.types import WholeRange

if TYPE_CHECKING:
    from perfmodel.sweeps.workers import Workers

WORKERS = "Several processes or machines"


def worker_options(
    what: str, section: str = WORKERS, processes: str = "--workers"
) -> Callable[[Function], Function]:
    """Return the options that say who does the work.

    Parameters
    ----------
    what : str
        What is done there, as in "Project blocks".
    section : str
    processes : str
        Name of the option for processes of this machine; its parameter is called so, too.
    """
    return stack(
        option(
            processes,
            section=section,
            type=WholeRange(1),
            metavar="N",
            help=f"{what} in N processes of this machine; needs 'perfmodel[dask]'.",
        ),
        option(
            "--scheduler",
            section=section,
            metavar="ADDRESS",
            help=f"{what} on the workers of a Dask scheduler, such as tcp://node1:8786.",
        ),
    )


@contextlib.contextmanager
def chosen_workers(
    processes: int | None, scheduler: str | None, name: str = "--workers"
) -> Iterator[Workers | None]:
    """Give the workers that options name until the work is over; None for this process alone.

    Raises
    ------
    click.UsageError
        Both are named.
    DataError
        As of `perfmodel.sweeps.workers.local_workers` and `scheduler_workers`.
    """
    check_one(processes, scheduler, name)
    if processes is None and scheduler is None:
        yield None
        return
    from perfmodel.sweeps.workers import local_workers, scheduler_workers

    with scheduler_workers(scheduler) if scheduler else local_workers(processes or 1) as found:
        detail(f"{len(found)} workers of {found.name}")
        yield found


def check_one(processes: int | None, scheduler: str | None, name: str = "--workers") -> None:
    """Refuse both options together."""
    if processes is not None and scheduler is not None:
        raise click.UsageError(f"{name} and --scheduler exclude each other")
