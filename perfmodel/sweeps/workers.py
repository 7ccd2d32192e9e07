"""Blocks of a sweep on workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from perfmodel.base.table import Table
from perfmodel.base.workers import Workers
from perfmodel.sweeps.block_store import Store
from perfmodel.sweeps.blocks import BlockSweep
from perfmodel.sweeps.stored import Run, project_block
from perfmodel.sweeps.winners import BlockResult

WARM = 512  # strategies; enough to run every kernel that their sweep needs
Shared = tuple[BlockSweep, Store | None, int, bool]
"""A sweep, where its workers store blocks, how many winners are kept, and whether blocks are sent
to who stores them."""


def run_on(workers: Workers) -> Run:
    """Return what projects blocks on workers.

    Where these see the files of this process they store what they project, else they send it.
    """

    def run(
        sweep: BlockSweep,
        numbers: Sequence[int],
        store: Store | None,
        top: int,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[BlockResult]:
        sweep = dataclasses.replace(sweep, threads=sweep.threads or 1)
        own = store if workers.shares_files else None
        shared: Shared = sweep, own, top, store is not None and own is None
        for _, (result, table) in workers.results(_block, shared, numbers, _warm):
            start, stop = sweep.bounds(result.number)
            if store is not None and table is not None:
                store.write(result.number, start, table)
            if advance is not None:
                advance((stop - start) * len(sweep.hardware))
            yield result

    return run


def _warm(shared: Shared) -> dict[str, float]:
    from perfmodel.kernels.work import expect

    sweep = shared[0]
    work = {"strategies": float(sweep.count * len(sweep.hardware))}
    expect(**work)
    sweep.table(0, min(WARM, sweep.count))
    return work


def _block(shared: Shared, number: int) -> tuple[BlockResult, Table | None]:
    sweep, store, top, sends = shared
    result, table = project_block(sweep, number, store, top)
    return result, table if sends else None
