"""A sweep block by block: its blocks, stores of those that are finished, and a journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import DataError
from perfmodel.base.files import atomic_path, not_written
from perfmodel.base.table import Column, Table, to_variable
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.store.cost import add_cost
from perfmodel.store.files import UNFINISHED, check_folder, write_zarr
from perfmodel.store.netcdf import join_netcdf, whole_kind, write_netcdf
from perfmodel.store.results import decide_safely
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.space import BLOCK, Space
from perfmodel.sweeps.several import alike_by_default, combinations
from perfmodel.sweeps.sweep import Problem, sweep_problems

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


class ZarrStore:
    """A zarr store that is written in place, every block a chunk of every variable."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.zarr"
        self._texts: dict[tuple[str, int, int], bytes] = {}

    def holds(self, number: int) -> bool:
        """Tell whether a block that was written is still there."""
        return (self.path / "zarr.json").is_file()

    def create(self, like: Table, count: int, block_size: int) -> None:
        """Make the store, or leave what is there; `like` is a piece of the results."""
        import zarr

        if self.path.exists():
            return
        making = self.path.with_suffix(".new")
        long = {name: it for name, it in like.variables.items() if "strategy" in it.dims}
        sizes = {**like.sizes, "strategy": block_size}
        encoding = {
            name: {"chunks": tuple(sizes[dim] for dim in column.dims)}
            | ({"fill_value": np.nan} if column.values.dtype.kind == "f" else {})
            for name, column in long.items()
        }
        text = "'status' is empty, and numbers are NaN, where nothing is computed yet"
        attrs = {**like.attrs, UNFINISHED: text}
        small = Table(like.data_vars, like.coords, attrs, like.sizes)
        write_zarr(small.isel(strategy=[0]), making, encoding)
        group = zarr.open_group(making, mode="r+")
        for name in long:
            array: Any = group[name]
            array.resize((count, *array.shape[1:]))
        making.rename(self.path)

    def write(self, number: int, start: int, table: Table) -> None:
        """Write a block, the whole of its chunks."""
        import zarr

        group = zarr.open_group(self.path, mode="r+")
        rows = slice(start, start + table.sizes["strategy"])
        for name, column in table.variables.items():
            if "strategy" not in column.dims:
                continue
            array: Any = group[name]
            if column.labels is None or column.is_flag:
                array[rows] = to_variable(column).values
            else:
                place = (number, *(0,) * (len(column.dims) - 1))
                chunk = self.path / name / array.metadata.encode_chunk_key(place)
                self._write_text(name, column, array, rows, chunk)

    def _write_text(self, name: str, column: Column, array: Any, rows: slice, chunk: Path) -> None:
        """Write choices; where all are one, the chunk is that of a block before.

        Texts one by one take longer than everything else.
        """
        codes = column.values
        one = (name, int(codes.flat[0]), codes.size) if codes.min() == codes.max() else None
        if one in self._texts:
            chunk.parent.mkdir(exist_ok=True)
            with atomic_path(chunk) as temporary:
                temporary.write_bytes(self._texts[one])
            return
        array[rows] = np.array(column.labels, np.dtypes.StringDType())[codes]
        if one is not None:
            self._texts[one] = chunk.read_bytes()

    def finish(self, target: Path, blocks: int, attrs: Mapping[str, Any]) -> None:
        """Put the store where the output shall be."""
        for torn in self.path.rglob("*.partial"):  # of writes that were killed
            torn.unlink()
        head = self.path / "zarr.json"
        document = json.loads(head.read_text(encoding="utf-8"))
        document["attributes"].pop(UNFINISHED, None)
        document["attributes"] |= attrs
        with atomic_path(head) as temporary:
            temporary.write_text(json.dumps(document, indent=2), encoding="utf-8")
        check_folder(target)
        if target.exists():
            shutil.rmtree(target)
        self.path.rename(target)


class PartsStore:
    """A netCDF file per block, of which one is made in the end: HDF5 survives no kill."""

    def __init__(self, folder: Path) -> None:
        self.path = folder

    def holds(self, number: int) -> bool:
        """Tell whether a block that was written is still there."""
        return self._part(number).is_file()

    def create(self, like: Table, count: int, block_size: int) -> None:
        """Do nothing: there are only blocks."""

    def write(self, number: int, start: int, table: Table) -> None:
        """Write a block, completely or not at all."""
        with atomic_path(self._part(number)) as temporary:
            write_netcdf(table, temporary)

    def finish(self, target: Path, blocks: int, attrs: Mapping[str, Any]) -> None:
        """Make one file of all blocks."""
        parts = [self._part(number) for number in range(blocks)]
        with atomic_path(target) as temporary:
            join_netcdf(parts, temporary, "strategy", attrs)

    def _part(self, number: int) -> Path:
        return self.path / f"{number:06}.nc"


Store = ZarrStore | PartsStore
STORES: Mapping[str, type[ZarrStore] | type[PartsStore]] = {".zarr": ZarrStore, ".nc": PartsStore}
"""Ending of an output that is written block by block -> its store."""


LONGEST = 40  # letters of a value that is told; of longer ones a digest is kept


class Journal:
    """The folder of an output that is not finished.

    Attributes
    ----------
    target : Path
        The output.
    finished : bool
        Set where nothing has to be kept any more.
    folder : Path
        Where finished blocks wait for the others.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f"{target.name}.partial")
        self._path = self.folder / "journal"
        self._file: IO[str] | None = None
        self.finished = False

    @contextlib.contextmanager
    def opened(self, question: Mapping[str, Any], resume: bool) -> Iterator[list[dict[str, Any]]]:
        """Lock the folder, made where it is missing, and give what the journal has of blocks.

        Parameters
        ----------
        question : mapping of str to value
            What the results depend on, by the words in which it is told.
        resume : bool
            Whether to go on with what an earlier run left.

        Raises
        ------
        DataError
            Another run writes there, or wrote the answer to another question; something is left
            and `resume` is not asked for; the folder cannot be written.
        """
        new = not self.folder.exists()
        try:
            self.folder.mkdir(exist_ok=True)
            with (self.folder / "lock").open("w") as lock:
                self._lock(lock)
                with self._path.open("a+", encoding="utf-8") as self._file:
                    done = self._read(described(question), resume)
                    yield done
        except OSError as error:
            raise not_written(self.target, error) from None
        finally:
            self._file = None
            # Without a block there is nothing to go on with.
            if self.finished or (new and not self._blocks()):
                shutil.rmtree(self.folder, ignore_errors=True)

    def _lock(self, lock: IO[str]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: two writers are not noticed there
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"'{self.target}' is being written by another run") from None

    def _read(self, asked: dict[str, str], resume: bool) -> list[dict[str, Any]]:
        assert self._file is not None
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]  # a run may have been killed within a line
        self._file.truncate(len(whole.encode()))
        if not whole:
            self.add(json.dumps({"question": asked}))
            return []
        try:
            left, *blocks = (json.loads(line) for line in whole.splitlines())
            before = dict(left["question"])
        except (KeyError, RecursionError, TypeError, ValueError):
            raise DataError(f"'{self._path}' is damaged; remove '{self.folder}'") from None
        where = f"'{self.folder}' holds an unfinished sweep"
        if not resume:
            raise DataError(f"{where}; --resume goes on with it, or remove that folder")
        if differing := differences(before, asked):
            raise DataError(
                f"{where} with other options: {'; '.join(differing[:3])}; "
                "resume with the same ones, or remove that folder"
            )
        return blocks

    def add(self, line: str) -> None:
        """Write that a block is done, so that it stays."""
        assert self._file is not None
        self._file.write(line + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _blocks(self) -> bool:
        with contextlib.suppress(OSError):
            return self._path.read_text(encoding="utf-8").count("\n") > 1
        return False


def described(question: Mapping[str, Any]) -> dict[str, str]:
    """Return what is asked as short texts: values, or digests of those that are long."""
    found = {}
    for name, value in question.items():
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        long = len(text) > LONGEST
        found[name] = f"#{hashlib.sha256(text.encode()).hexdigest()[:16]}" if long else text
    return found


def differences(left: Mapping[str, str], asked: Mapping[str, str]) -> list[str]:
    """Say what differs between two questions, one text each."""
    found = []
    for name in dict.fromkeys((*left, *asked)):
        before, now = left.get(name, ""), asked.get(name, "")
        if before != now:
            known = not (before.startswith("#") or now.startswith("#"))
            values = f" ({before or 'not given'} then, {now or 'not given'} now)" if known else ""
            found.append(f"{name}{values}")
    return found


SMALLEST_BLOCK = 2**14
"""Strategies; fewer only where they would be more pairs with hardware than `MOST_PAIRS`."""
MOST_PAIRS = 2**19


@dataclass(frozen=True)
class BlockSweep:
    """What is swept, and how; small, so that it can be sent to other processes.

    Attributes
    ----------
    problems : list of Problem
        Those with strategies; their grids have a few examples.
    spaces : list of Space
        All strategies of each.
    hardware : list of Hardware
    dtype, threads, hardware_values
        As of `perfmodel.sweeps.several.sweep`.
    costs : mapping
        What `perfmodel.store.cost.add_cost` takes; nothing for no costs.
    safe : bool
        As of `perfmodel.store.results.decide_safely`.
    scaling : str
        Attribute of the results; "" for none.
    block_size : int
        Strategies of every block but the last.
    rejected : Counter
        Impossible strategies by the name of the rule that they break.
    empty : dict of (str, int) to dict
        Model and devices without a possible strategy -> its rejected ones.
    """

    problems: list[Problem]
    spaces: list[Space]
    hardware: list[Hardware]
    dtype: Any = np.float32
    threads: int | None = None
    hardware_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    costs: Mapping[str, Any] = field(default_factory=dict)
    safe: bool = False
    scaling: str = ""
    block_size: int = BLOCK
    rejected: Counter[str] = field(default_factory=Counter)
    empty: Mapping[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of strategies."""
        return sum(len(space) for space in self.spaces)

    @property
    def possible(self) -> int:
        """Number of possible strategies."""
        return sum(space.possible for space in self.spaces)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self.block_size)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first strategy of a block, and the one behind its last."""
        start = number * self.block_size
        return start, min(start + self.block_size, self.count)

    def table(self, start: int, stop: int, progress: Any = None) -> Table:
        """Return the results of some strategies, as they are in those of the whole sweep."""
        table = sweep_problems(
            list(self._problems(start, stop)),
            self.hardware,
            dtype=self.dtype,
            threads=self.threads,
            progress=progress,
            hardware_values=self.hardware_values,
            among=self.problems,
        )
        if self.scaling:
            table.attrs["scaling"] = self.scaling
        if self.safe:
            decide_safely(table)
        if self.costs:
            table = add_cost(table, **self.costs)
        coordinates = dict(table.coords)
        for name, column in coordinates.items():
            if name == "strategy":
                column = Column(column.dims, np.arange(start, stop), column.attrs)
            elif (
                "strategy" in column.dims and column.values.dtype.kind == "i" and not column.labels
            ):
                kind = whole_kind(self._largest(name))  # of all blocks
                column = Column(column.dims, column.values.astype(kind), column.attrs)
            coordinates[name] = column
        return Table(table.data_vars, coordinates, table.attrs, table.sizes)

    def _largest(self, name: str) -> int:
        """Return the largest value of a field that any strategy has."""
        if name == "devices":
            return max(space.devices for space in self.spaces)
        return max(space.largest.get(name, 0) for space in self.spaces)

    def _problems(self, start: int, stop: int) -> Iterator[Problem]:
        before = 0
        for problem, space in zip(self.problems, self.spaces, strict=True):
            first, last = max(start - before, 0), min(stop - before, len(space))
            if first < last:
                yield replace(problem, grid=space.part(first, last))
            before += len(space)


def block_sweep(
    models: Sequence[ModelSpec],
    frameworks: Sequence[Framework],
    devices: Sequence[int],
    axes: Mapping[str, Any],
    *,
    hardware: Sequence[Hardware],
    scaling: str = "strong",
    keep_impossible: bool = False,
    block_size: int | None = None,
    **how: Any,
) -> BlockSweep:
    """Count the strategies of every model on every number of devices, for every software.

    Parameters
    ----------
    models, frameworks, devices, axes, hardware, scaling, keep_impossible
        As of `perfmodel.sweeps.several.enumerate_problems`.
    block_size : int, optional
        Default: `BLOCK` strategy-device pairs.
    **how
        As of `BlockSweep`.

    Raises
    ------
    StrategyError
        As of `enumerate_problems`, but for memory.
    """
    if block_size is None:
        halvings = (len(hardware) - 1).bit_length()
        smallest = min(SMALLEST_BLOCK, max(MOST_PAIRS >> halvings, 1))
        block_size = max(BLOCK >> halvings, smallest)
    problems, spaces = [], []
    rejected: Counter[str] = Counter()
    empty = {}
    for model, count, given in combinations(models, frameworks, devices, axes, scaling):
        possible = 0
        for alike in alike_by_default(frameworks, model):
            space = Space(
                model,
                count,
                given,
                hardware=hardware,
                framework=alike[0],
                keep_impossible=keep_impossible,
                block_size=block_size,
            )
            for name, number in space.rejected.items():
                rejected[name] += number * len(alike)
            possible += space.possible
            if len(space):
                examples: StrategyGrid = space.examples()
                problems += [Problem(model, framework, examples) for framework in alike]
                spaces += [space] * len(alike)
        if not possible:
            empty[model.name, count] = space.rejected
    return BlockSweep(
        problems,
        spaces,
        list(hardware),
        scaling=scaling if len(devices) > 1 else "",
        block_size=block_size,
        rejected=rejected,
        empty=empty,
        **how,
    )
