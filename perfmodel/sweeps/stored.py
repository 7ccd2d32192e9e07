"""Sweeps larger than memory: block by block into a store, interrupted and resumed at any time."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, PerfModelError
from perfmodel.base.files import not_written
from perfmodel.base.provenance import source_digest
from perfmodel.base.table import Column, Table
from perfmodel.kernels.variables import RATE
from perfmodel.store.files import check_results_path
from perfmodel.store.netcdf import read_netcdf
from perfmodel.store.results import GROUPS
from perfmodel.strategy.rules import PRECISION_UNSUPPORTED, STATUS_NAMES
from perfmodel.sweeps.blocks import STORES, BlockSweep, Journal, Store, described
from perfmodel.sweeps.ranking import RankedSweep
from perfmodel.sweeps.workers import Workers, in_blocks

MOST_KEPT = 2**20  # pairs of strategies and hardware, before they are winnowed


@dataclass(frozen=True)
class Tally:
    """Counts of a sweep, for every row of hardware.

    Attributes
    ----------
    fitting : list of int
        Strategies that fit in memory.
    lacking : list of int
        Those whose precision the device lacks.
    possible : list of int
        Those that have a step time.
    least_memory : list of float
        Of those [B]; infinite without any.
    """

    fitting: list[int]
    lacking: list[int]
    possible: list[int]
    least_memory: list[float]

    def __add__(self, other: Tally) -> Tally:
        """Return the counts of both."""
        return Tally(
            _sums(self.fitting, other.fitting),
            _sums(self.lacking, other.lacking),
            _sums(self.possible, other.possible),
            [min(pair) for pair in zip(self.least_memory, other.least_memory, strict=True)],
        )


def _sums(some: list[int], others: list[int]) -> list[int]:
    return [a + b for a, b in zip(some, others, strict=True)]


def tally(table: Table) -> Tally:
    """Count the strategies of a table."""
    finite = np.isfinite(table["step_time"].values)
    memory = np.where(finite, table["memory_total"].values, np.inf)
    status = table["status"]
    code = (status.labels or ()).index(STATUS_NAMES[PRECISION_UNSUPPORTED])
    return Tally(
        table["fits"].values.sum(axis=0).tolist(),
        (status.values == code).sum(axis=0).tolist(),
        finite.sum(axis=0).tolist(),
        memory.min(axis=0, initial=np.inf).tolist(),
    )


def ranked_tally(ranked: RankedSweep) -> Tally:
    """Return the counts of a sweep of which the best were kept alone."""
    kept = tally(ranked.table)
    return Tally(
        [one.fitting for one in ranked.counts],
        [one.lacking for one in ranked.counts],
        [one.strategies - one.lacking for one in ranked.counts],
        kept.least_memory,
    )


def winners(table: Table, top: int) -> Table:
    """Return what has to be kept of a table, so that others than these need not be asked.

    That is: the `top` best; of every problem and row of hardware the best, the first that fits and
    the first that is possible; where the devices differ, also the best on every number of them, of
    every curve that `perfmodel.store.results` draws. Winners of the winners of parts are those
    of the whole.
    """
    rate = table[RATE].values.reshape(-1)
    good = np.isfinite(table["step_time"].values).reshape(-1)
    fits = good & table["fits"].values.reshape(-1)
    codes = _codes(table, ("model", "framework", "devices", "hardware"))
    found = [_first_of_each(codes, np.flatnonzero(it)) for it in (good, fits)]
    chosen = np.flatnonzero(fits)
    chosen = chosen[np.argsort(-rate[chosen], kind="stable")]
    found += [chosen[:top], _first_of_each(codes, chosen)]
    if "scaling" in table.attrs:
        curves = _codes(table, ("devices", "global_batch_size", *GROUPS))
        found += [_first_of_each(curves, it) for it in (chosen, np.sort(chosen))]
    strategies = np.unique(np.concatenate(found) // table.sizes["hardware"])
    return table.isel(strategy=strategies)


def _codes(table: Table, names: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for every combination of columns, one per strategy and device."""
    codes = np.zeros((table.sizes["strategy"], table.sizes["hardware"]), np.int64)
    for name in names:
        if name == "hardware":
            codes = codes * table.sizes["hardware"] + np.arange(table.sizes["hardware"])
        elif name in table:
            known, at = np.unique(table[name].values, return_inverse=True)
            codes = codes * known.size + at.reshape(-1, 1)
    return codes.reshape(-1)


def _first_of_each(codes: NDArray[np.int64], chosen: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the first of the chosen rows of every code."""
    return chosen[np.unique(codes[chosen], return_index=True)[1]]


def joined(tables: Sequence[Table]) -> Table:
    """Return tables one after another along ``strategy``."""
    first = tables[0]

    def column_of(name: str, like: Column) -> Column:
        if "strategy" not in like.dims:
            return like
        return Column(like.dims, np.concatenate([it[name].values for it in tables]), like.attrs)

    count = sum(it.sizes["strategy"] for it in tables)
    return Table(
        {name: column_of(name, it) for name, it in first.data_vars.items()},
        {name: column_of(name, it) for name, it in first.coords.items()},
        first.attrs,
        {**first.sizes, "strategy": count},
    )


@dataclass(frozen=True)
class BlockResult:
    """What is known of a block that is done."""

    number: int
    tally: Tally
    winners: Table

    def to_json(self) -> str:
        """Return it as one line; `from_json` has every digit back."""
        columns = {
            name: column.values.tolist()
            for name, column in self.winners.variables.items()
            if "strategy" in column.dims
        }
        return json.dumps({"block": self.number, "tally": asdict(self.tally), "winners": columns})

    @staticmethod
    def from_json(document: Mapping[str, Any], like: Table) -> BlockResult:
        """Return what `to_json` wrote, with the attributes of a table of the same sweep."""
        columns = document["winners"]

        def column_of(name: str, old: Column) -> Column:
            if name not in columns:
                return old
            values = np.array(columns[name], old.values.dtype)
            return Column(old.dims, values.reshape(-1, *old.values.shape[1:]), old.attrs)

        kept = Table(
            {name: column_of(name, it) for name, it in like.data_vars.items()},
            {name: column_of(name, it) for name, it in like.coords.items()},
            like.attrs,
            {**like.sizes, "strategy": len(columns["strategy"])},
        )
        return BlockResult(document["block"], Tally(**document["tally"]), kept)


class Summary:
    """The counts and winners of all blocks that are done, in whatever order they come."""

    def __init__(self, top: int) -> None:
        self.top = top
        self._tally: Tally | None = None
        self._kept: list[Table] = []

    def add(self, done: BlockResult) -> None:
        """Count a block."""
        self._tally = done.tally if self._tally is None else self._tally + done.tally
        self._kept.append(done.winners)
        rows = done.winners.sizes["hardware"]
        if rows * sum(it.sizes["strategy"] for it in self._kept) > MOST_KEPT:
            self._kept = [self.table()]

    @property
    def counts(self) -> Tally:
        """Counts of the blocks so far, of which there is one."""
        assert self._tally is not None
        return self._tally

    def table(self) -> Table:
        """Return the winners, in the order of the sweep."""
        every = joined(self._kept)
        order = np.argsort(every["strategy"].values, kind="stable")
        return winners(every.isel(strategy=order), self.top)


KEPT = 20
"""Best strategies that the journal keeps of every block; at least those that are shown."""


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


WARM = 512  # strategies; enough to run every kernel that their sweep needs


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A sweep whose blocks are projected and stored (`perfmodel.sweeps.workers.Work`).

    Attributes
    ----------
    sweep : BlockSweep
    store : ZarrStore or PartsStore, optional
        Where who projects a block writes it.
    top : int
        As of `winners`.
    sends : bool
        Whether blocks are sent to who stores them.
    """

    sweep: BlockSweep
    store: Store | None
    top: int
    sends: bool = False

    def size(self, block: int) -> int:
        """Return how many strategy-device pairs a block has."""
        start, stop = self.sweep.bounds(block)
        return (stop - start) * len(self.sweep.hardware)

    def done(
        self, block: int, progress: Callable[[int], None] | None
    ) -> tuple[BlockResult, Table | None]:
        """Project a block, store it where there is a store, and return what is known of it."""
        start, stop = self.sweep.bounds(block)
        table = self.sweep.table(start, stop, progress)
        if self.store is not None:
            self.store.write(block, start, table)
        result = BlockResult(block, tally(table), winners(table, self.top))
        return result, table if self.sends else None

    def warm(self) -> dict[str, float]:
        """Project a few strategies, with all of them in view."""
        from perfmodel.kernels.work import expect

        work = {"strategies": float(self.sweep.count * len(self.sweep.hardware))}
        expect(**work)
        self.sweep.table(0, min(WARM, self.sweep.count))
        return work


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
            As of `perfmodel.sweeps.blocks.Journal.opened`.
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

    def run(
        self, workers: Workers | None = None, advance: Callable[[int], None] | None = None
    ) -> Summary:
        """Project the blocks that are not done, and finish the output.

        The result is that of `perfmodel.sweeps.sweep.sweep_problems`, value for value; the
        attribute ``history`` is added. Nothing is written where no device has the precision of any
        strategy.

        Parameters
        ----------
        workers : Workers, optional
            Who projects; default: this process. Where they see its files they store, too.
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
            for block, (result, table) in in_blocks(self._work(workers), missing, workers, advance):
                if self._store is not None and table is not None:
                    self._store.write(block, self.sweep.bounds(block)[0], table)
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

    def _work(self, workers: Workers | None) -> StoredBlocks:
        """Return the work of blocks; on workers each is projected by one thread."""
        if workers is None:
            return StoredBlocks(self.sweep, self._store, self.summary.top)
        sweep = dataclasses.replace(self.sweep, threads=self.sweep.threads or 1)
        own = self._store if self._store and workers.see(self._store.path) else None
        sends = self._store is not None and own is None
        return StoredBlocks(sweep, own, self.summary.top, sends)

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
