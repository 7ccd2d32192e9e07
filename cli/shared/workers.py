"""Work on several processes or machines, and sweeps block by block: the options, how runs go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfmodel.base.units import format_si
from perfmodel.cli.shared.options import Function, options_of, stack
from perfmodel.cli.shared.printing import detail, progress, remark

if TYPE_CHECKING:
    from perfmodel.sweeps.blocks import BlockSweep
    from perfmodel.sweeps.stored import Summary
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
    names = processes.lstrip("-"), "scheduler"
    return options_of("shared.workers", *names, section=section, words={"what": what})


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


BLOCKS = "Larger than memory, or on several processes"

block_options = stack(
    options_of("shared.blocks", "resume"),
    worker_options("Project blocks", BLOCKS),
)


def run_blocks(
    sweep: BlockSweep,
    output: str | None,
    top: int,
    given: Mapping[str, Any],
) -> Summary | None:
    """Project a sweep block by block; say how large it gets, and how far it is.

    Parameters
    ----------
    sweep : BlockSweep
    output : str or None
        Where the results go, checked.
    top : int
        Strategies that are shown.
    given : mapping
        Values of `block_options`.

    Returns
    -------
    Summary or None
        None where the output is there already, finished by an earlier run.
    """
    from perfmodel.sweeps.stored import StoredSweep

    rows = len(sweep.hardware)
    stored = StoredSweep(sweep, None if output is None else Path(output), top)
    with stored.opened(given["resume"]) as work:
        if work.finished:
            return None
        said = f"{sweep.count:,} strategies in {sweep.blocks:,} blocks"
        if output is not None:
            said += (
                f"; {format_si(float(work.size), 'B')} before compression, usually a tenth of it "
                f"after; {format_si(float(work.free), 'B')} are free"
            )
        remark(said)
        if work.blocks_done:
            remark(f"{work.blocks_done:,} of {sweep.blocks:,} blocks are done already")
        done = work.strategies_done * rows
        with (
            chosen_workers(given["workers"], given["scheduler"]) as workers,
            progress(sweep.count * rows, "strategies", done=done) as advance,
        ):
            return work.run(workers, advance)
