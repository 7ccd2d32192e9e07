"""Sweeps larger than memory: block by block into a store, interrupted and resumed at any time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.files import not_written
from perfmodel.base.provenance import source_digest
from perfmodel.base.table import Table
from perfmodel.store.files import check_results_path
from perfmodel.store.netcdf import read_netcdf
from perfmodel.sweeps.block_store import STORES, Store
from perfmodel.sweeps.blocks import BlockSweep
from perfmodel.sweeps.journal import Journal, described
from perfmodel.sweeps.winners import BlockResult, Summary, tally, winners

KEPT = 20
"""Best strategies that the journal keeps of every block; at least those that are shown."""


class Run(Protocol):
    """Something that projects and stores blocks, and yields what is known of each."""

    def __call__(
        self,
        sweep: BlockSweep,
        numbers: Sequence[int],
        store: Store | None,
        top: int,
        advance: Callable[[int], None] | None,
    ) -> Iterator[BlockResult]:
        """Yield blocks that are stored, in any order."""


def check_stored_path(path: str | Path) -> Path:
    """Make sure that results can be written block by block; return where.

    Raises
    ------
    DataError
        As of `perfmodel.store.files.check_results_path`, or its kind cannot.
    """
    if Path(path).suffix.lower() not in STORES:
        raise DataError(
            f"cannot write '{path}' block by block; only {' and '.join(STORES)} files can be"
        )
    return Path(check_results_path(path))


def stored_bytes(sweep: BlockSweep, like: Table) -> int:
    """Return what the results take before they are compressed [B]."""
    columns = [it for it in like.variables.values() if "strategy" in it.dims]
    per = sum((it.values if it.labels else it.labelled())[:1].nbytes for it in columns)
    return per * sweep.count


def run_here(
    sweep: BlockSweep,
    numbers: Sequence[int],
    store: Store | None,
    top: int,
    advance: Callable[[int], None] | None = None,
) -> Iterator[BlockResult]:
    """Project and store blocks in this process, one after another."""
    for number in numbers:
        start, stop = sweep.bounds(number)
        left = (stop - start) * len(sweep.hardware)

        def told(count: int) -> None:
            nonlocal left
            left -= count
            if advance is not None:
                advance(count)

        result, _ = project_block(sweep, number, store, top, told)
        if advance is not None:
            advance(left)  # what is impossible
        yield result


def project_block(
    sweep: BlockSweep,
    number: int,
    store: Store | None,
    top: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[BlockResult, Table]:
    """Project a block, store it where there is a store, and return what is known of it."""
    start, stop = sweep.bounds(number)
    table = sweep.table(start, stop, progress)
    if store is not None:
        store.write(number, start, table)
    return BlockResult(number, tally(table), winners(table, top)), table


class StoredSweep:
    """A sweep whose blocks go to one output; see `opened`.

    Attributes
    ----------
    size : int
        What the results take before they are compressed [B].
    free : int
        What is free on the disk of the output [B].
    finished : bool
        Whether the output is there already, of an earlier run that answered this very question.
    """

    def __init__(self, sweep: BlockSweep, output: Path | None, top: int) -> None:
        self.sweep, self.output = sweep, output
        self.summary = Summary(max(top, KEPT))
        self.like = sweep.table(0, 1)
        self.asked = question(sweep, self.like, self.summary.top)
        self.size = stored_bytes(sweep, self.like)
        self.free = shutil.disk_usage(output.parent).free if output else 0
        self.finished = False
        self._known: set[int] = set()
        self._journal: Journal | None = None
        self._store: Store | None = None

    @property
    def blocks_done(self) -> int:
        """Number of blocks that are done."""
        return len(self._known)

    @property
    def strategies_done(self) -> int:
        """Number of strategies in them."""
        return sum(stop - start for start, stop in map(self.sweep.bounds, self._known))

    @contextlib.contextmanager
    def opened(self, resume: bool) -> Iterator[StoredSweep]:
        """Hold the output, and go on with what an earlier run left where `resume` asks for it.

        Raises
        ------
        DataError
            As of `perfmodel.sweeps.journal.Journal.opened`.
        """
        if self.output is None:
            yield self
            return
        self._journal = journal = Journal(self.output)
        self._store = store = STORES[self.output.suffix.lower()](journal.folder)
        if resume and not journal.folder.exists() and _history(self.output) == self.history:
            self.finished = True
            yield self
            return
        with journal.opened(self.asked, resume) as lines:
            for line in lines:
                if store.holds(line["block"]):
                    self._count(BlockResult.from_json(line, self.like))
            yield self

    def run(self, run: Run, advance: Callable[[int], None] | None = None) -> Summary:
        """Project the blocks that are not done, and finish the output.

        The result is that of `perfmodel.sweeps.sweep.sweep_problems`, value for value; the
        attribute ``history`` is added. Nothing is written where no device has the precision of any
        strategy.

        Parameters
        ----------
        run : callable
            Who projects blocks: `run_here`, or what `perfmodel.sweeps.workers.run_on` returns.
        advance : callable, optional
            Called with the number of strategies done since the last call.

        Raises
        ------
        DataError, MachineError
            The disk is full, or the like; blocks that are done stay.
        """
        try:
            if self._store is not None:
                self._store.create(self.like, self.sweep.count, self.sweep.block_size)
            missing = [it for it in range(self.sweep.blocks) if it not in self._known]
            for result in run(self.sweep, missing, self._store, self.summary.top, advance):
                if self._journal is not None:
                    self._journal.add(result.to_json())
                self._count(result)
            if self._journal is not None and self._store is not None and self.output is not None:
                if any(self.summary.counts.possible):
                    self._store.finish(self.output, self.sweep.blocks, {"history": self.history})
                self._journal.finished = True
        except OSError as error:
            raise self._kept(not_written(self.output or "", error)) from None
        except PerfModelError as error:
            raise self._kept(error) from None
        return self.summary

    def _count(self, result: BlockResult) -> None:
        self._known.add(result.number)
        self.summary.add(result)

    def _kept(self, error: PerfModelError) -> PerfModelError:
        """Return an error that also says what is kept."""
        if self.output is None or not self._known:
            return error
        kept = f"{self.blocks_done:,} of {self.sweep.blocks:,} blocks are kept; --resume goes on"
        return type(error)(f"{error}; {kept}")

    @property
    def history(self) -> str:
        """What the output says of how it came about."""
        digest = hashlib.sha256(json.dumps(described(self.asked)).encode()).hexdigest()[:16]
        blocks, size = self.sweep.blocks, self.sweep.block_size
        return f"swept in {blocks:,} blocks of {size:,} strategies; question {digest}"


def question(sweep: BlockSweep, like: Table, top: int) -> dict[str, Any]:
    """Return what the results of a sweep depend on, each by the words in which it is told."""
    held = json.loads(like.attrs["provenance"])
    names = list(like["hardware"].values.tolist())
    asked = {name: like.attrs[name] for name in ("model", "framework", "devices")}
    asked |= {f"facts of the {name}": held[name] for name in ("model", "framework")}
    asked |= {f"hardware {name}": held["hardware"][name] for name in names}
    spaces = list({id(space): space for space in sweep.spaces}.values())
    for name in dict.fromkeys(name for it in spaces for name in it.axes.values):
        values = [it.axes.values[name].tolist() for it in spaces if name in it.axes.values]
        asked[name] = values[0] if len(values) == 1 else values
    asked |= {
        "keep-impossible": spaces[0].keep_impossible,
        "scaling": sweep.scaling,
        "number type": np.dtype(sweep.dtype).name,
        "costs": dict(sweep.costs),
        "safe": sweep.safe,
        "strategies of a block": sweep.block_size,
        "strategies kept to be shown": top,
    }
    asked["source files of perfmodel"] = source_digest()
    return asked | {f"version of {name}": it for name, it in held["versions"].items()}


def _history(path: Path) -> str:
    """Return what an output says of how it came about; nothing where it says nothing."""
    try:
        if path.suffix.lower() == ".zarr":
            document = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
            return str(document["attributes"].get("history", ""))
        return str(read_netcdf(path).attrs.get("history", "")) if path.is_file() else ""
    except (KeyError, OSError, PerfModelError, ValueError):
        return ""
