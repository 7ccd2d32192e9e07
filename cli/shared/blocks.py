"""Sweeps block by block on the command line: the options, and how such a run goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import format_si
from perfmodel.cli.shared.options import options_of, stack
from perfmodel.cli.shared.printing import progress, remark
from perfmodel.cli.shared.workers import chosen_workers, worker_options

if TYPE_CHECKING:
    from perfmodel.sweeps.blocks import BlockSweep
    from perfmodel.sweeps.stored import Summary

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
    from perfmodel.sweeps.stored import StoredSweep, run_here

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
            if workers is None:
                return work.run(run_here, advance)
            from perfmodel.sweeps.stored import run_on

            return work.run(run_on(workers), advance)
