"""Instructions of cores in one netCDF file, and selections of it and of traces.

The lines of an operation of a node follow one another, those of a core in its order. The file
says of what system, model and tokens they are; it is written part by part.

``traces/<phase>/node_<node>/<step>/core_<core>.csv``; see `perfmodel.wafer.core_trace`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import DataError, FormatError, PerfModelError, did_you_mean
from perfmodel.base.files import HDF5, read_unpacked, shortened
from perfmodel.store.seal import check_seal, seal
from perfmodel.wafer.core_trace import LARGEST, Instruction, parse_instruction
from perfmodel.wafer.cores.instructions import (
    COLUMNS,
    COPY,
    MOST_ARGUMENTS,
    MULTICAST,
    OPCODES,
    Instructions,
    build,
    joined,
    multicasts,
)
from perfmodel.wafer.system import WaferSystem

# Instructions of cores as a netCDF-4 file: columns of lines, and where each operation's begin.

if TYPE_CHECKING:
    from netCDF4 import Dataset

PRESSED: dict[str, Any] = {"zlib": True, "complevel": 1, "shuffle": True}
CHUNK = 1 << 16
KEPT_LINES = 1 << 18
AT_ONCE = 64  # operations; opening the file takes longer than one
TITLE = "instructions of cores"

LINE_COLUMNS = {
    "opcode": ("u1", "instruction"),
    "core": ("i4", "core, counted over the wafer"),
    "tile": ("i4", "tile of the operation"),
    "argument_count": ("u1", "arguments in the text"),
    "back": ("i4", "lines of the core back to the first that it waits for"),
    "waits": ("i4", "lines that it waits for"),
}
"""In the order of the columns of `Instructions.lines`."""


class CoreColumns:
    """A file that is being written.

    Parameters
    ----------
    path : path
    system : WaferSystem
    attributes : mapping
        Text and numbers that say what the instructions are of.
    """

    def __init__(self, path: Path, system: WaferSystem, attributes: dict[str, Any]) -> None:
        import netCDF4

        self._path = path
        with HDF5:
            self._file = netCDF4.Dataset(path, "w", format="NETCDF4")
            self._declare(system, attributes)
        self._names: dict[str, int] = {}
        self._waiting: list[Instructions] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._lines = self._written = self._destinations = self._operations = 0

    def _declare(self, system: WaferSystem, attributes: dict[str, Any]) -> None:
        file = self._file
        file.setncatts({"title": TITLE, "system": json.dumps(asdict(system)), **attributes})
        for dim in ("line", "destination", "operation", "name"):
            file.createDimension(dim, None)
        file.createDimension("argument", MOST_ARGUMENTS)
        for name, (kind, meaning) in LINE_COLUMNS.items():
            self._variable(name, kind, ("line",)).long_name = meaning
        file["opcode"].flag_values = np.arange(len(OPCODES), dtype=np.uint8)
        file["opcode"].flag_meanings = " ".join(OPCODES)
        arguments = self._variable("arguments", "i8", ("line", "argument"))
        arguments.long_name = (
            "READ and WRITE: bank, bytes; GEMM: M, K, N; ADD: sides; COPY: source bank, "
            "destination bank, bytes; MULTICAST: source bank, bytes, first destination, "
            "destinations; BARRIER: two halves of its name, shared by nodes"
        )
        self._variable("destinations", "i4", ("destination",)).long_name = "banks of multicasts"
        for name in ("node", "step", "operation_name"):
            self._variable(name, "i4", ("operation",))
        self._variable("first_line", "i8", ("operation",)).long_name = "of an operation of a node"
        self._variable("macs", "i8", ("operation",)).long_name = "multiply-adds asked for"
        file["operation_name"].long_name = "place in 'name'"
        file.createVariable("name", str, ("name",))

    def _variable(self, name: str, kind: Any, dims: tuple[str, ...]) -> Any:
        chunks = [CHUNK if dim != "argument" else MOST_ARGUMENTS for dim in dims]
        if dims[0] == "operation":
            chunks = [4096]
        return self._file.createVariable(name, kind, dims, chunksizes=chunks, **PRESSED)

    def add(self, node: int, step: int, name: str, macs: int, instructions: Instructions) -> None:
        """Add the instructions of an operation of a node."""
        at = self._names.setdefault(name, len(self._names))
        self._rows.append((node, step, at, self._lines, macs))
        self._waiting.append(instructions)
        self._lines += len(instructions.lines)
        if self._lines - self._written >= KEPT_LINES:
            with HDF5:
                self._flush()

    def _flush(self) -> None:
        file = self._file
        begin, end = self._written, self._lines
        lines = np.concatenate([one.lines for one in self._waiting])
        arguments = np.concatenate([one.arguments for one in self._waiting])
        at = 0
        for one in self._waiting:
            count = len(one.lines)
            if one.destinations.size:
                cast = lines[at : at + count, 0] == OPCODES.index("MULTICAST")
                arguments[at : at + count, 2][cast] += self._destinations
                to = self._destinations + one.destinations.size
                file["destinations"][self._destinations : to] = one.destinations
                self._destinations = to
            at += count
        for place, name in enumerate(LINE_COLUMNS):
            file[name][begin:end] = lines[:, place]
        file["arguments"][begin:end] = arguments
        rows = np.array(self._rows, np.int64).reshape(-1, 5)
        to = self._operations + len(rows)
        for place, name in enumerate(("node", "step", "operation_name", "first_line", "macs")):
            file[name][self._operations : to] = rows[:, place]
        self._operations, self._written = to, end
        self._waiting, self._rows = [], []

    def close(self) -> None:
        """Write what is left, and close the file."""
        with HDF5:
            if self._waiting:
                self._flush()
            if self._names:
                self._file["name"][: len(self._names)] = np.array(list(self._names), object)
            self._file.close()
        seal(self._path)


def read_cores(
    path: str | os.PathLike[str], step: int | None = None, operation: str | None = None
) -> tuple[WaferSystem, Iterator[tuple[int, int, str, Instructions]]]:
    """Read the instructions of a file, operation by operation.

    Parameters
    ----------
    path : str or path
        What `CoreColumns` wrote, or the folder with it (``cores.nc``).
    step : int, optional
        Of decode; all otherwise.
    operation : str, optional
        Name, or its end behind a layer's (``wkva`` for all layers); all otherwise.

    Returns
    -------
    system : WaferSystem
    instructions : iterator of (node, step, name, Instructions)
        Cores and banks are counted over the wafer.

    Raises
    ------
    DataError
        No such file, another file, or a step or operation that it lacks.
    """
    place = Path(path)
    place = place / "cores.nc" if place.is_dir() else place
    with _opened(place) as file:
        if getattr(file, "title", None) != TITLE:
            raise DataError(f"'{place}' has no {TITLE}; 'perfmodel workload cores' writes them")
        facts = json.loads(file.system)
        for key in ("node_grid", "core_grid"):
            facts[key] = tuple(facts[key])
        system = WaferSystem(**facts)
        names = [str(name) for name in file["name"][:]]
        steps = file["step"][:]
    if step is not None and step not in steps:
        raise DataError(f"'{place}' has no step {step}; it has {_some(np.unique(steps).tolist())}")
    wanted = [
        at
        for at, name in enumerate(names)
        if operation is None or name == operation or name.endswith(f"_{operation}")
    ]
    if not wanted:
        raise DataError(
            f"'{place}' has no operation '{shortened(operation)}'"
            f"{did_you_mean(operation or '', names)}"
        )
    return system, _operations(place, step, wanted, names)


def _some(items: list[int]) -> str:
    return ", ".join(map(str, items[:8])) + (" …" if len(items) > 8 else "")


@contextlib.contextmanager
def _opened(place: Path) -> Iterator[Dataset]:
    """Give the file, and close it: one left to the garbage collector is closed in any thread.

    Raises
    ------
    DataError
        It is no netCDF-4 file, or what is read from it is damaged.
    """
    import netCDF4

    with HDF5:
        try:
            check_seal(place)
            file = netCDF4.Dataset(place)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise DataError(f"'{place}' is not a readable netCDF-4 file: {reason}") from None
        try:
            file.set_auto_maskandscale(False)
            yield file
        except PerfModelError:
            raise
        except (RuntimeError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"'{place}' is damaged: {shortened(str(error))}") from None
        finally:
            with contextlib.suppress(RuntimeError):
                file.close()


def _operations(
    place: Path, step: int | None, wanted: list[int], names: list[str]
) -> Iterator[tuple[int, int, str, Instructions]]:
    with _opened(place) as file:
        numbers = file["operation_name"][:]
        chosen = np.isin(numbers, wanted)
        if step is not None:
            chosen &= file["step"][:] == step
        nodes, steps = file["node"][:], file["step"][:]
        ends = np.append(file["first_line"][:], len(file.dimensions["line"]))
    places = np.flatnonzero(chosen).tolist()
    for first in range(0, len(places), AT_ONCE):
        part = places[first : first + AT_ONCE]
        with _opened(place) as file:  # never while others go on with what was read
            read = [_instructions(place, file, ends, at) for at in part]
        for at, found in zip(part, read, strict=True):
            yield int(nodes[at]), int(steps[at]), names[int(numbers[at])], found


def _instructions(place: Path, file: Dataset, ends: NDArray[np.int64], at: int) -> Instructions:
    begin, end = int(ends[at]), int(ends[at + 1])
    if not 0 <= begin <= end <= ends[-1]:
        raise DataError(f"'{place}' is damaged: lines {begin} to {end}")
    lines = np.empty((end - begin, COLUMNS), np.int64)
    for column, name in enumerate(LINE_COLUMNS):
        lines[:, column] = file[name][begin:end]
    arguments = file["arguments"][begin:end]
    cast = lines[:, 0] == OPCODES.index("MULTICAST")
    destinations = np.empty(0, np.int64)
    if cast.any():
        first = int(arguments[cast, 2].min())
        last = int((arguments[cast, 2] + arguments[cast, 3]).max())
        destinations = file["destinations"][first:last].astype(np.int64)
        arguments[cast, 2] -= first
    return Instructions(lines, arguments, destinations)


# One operation out of a folder of core traces, as columns.

FOLDER = "traces"
_FILE = re.compile(r"core_(\d+)\.csv(?:\.gz)?")
_NODE = re.compile(r"node_(\d+)")
_LAYER = re.compile(r"(?:decode|prefill|layer)?\d+|lm_head")
_STEP = re.compile(r"([a-z]+)\d*")


def plain(name: str) -> str:
    """Return letters and digits of a name: ``attn.wkv_a`` and ``attn_absorb_wkva`` both hold it."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def step_folders(folder: str | os.PathLike[str], step: str) -> dict[int, Path]:
    """Return the folder of a step for each node that has one.

    Raises
    ------
    DataError
        No traces, or none of the step.
    """
    match = _STEP.fullmatch(step)
    root = Path(folder) / FOLDER
    if not root.is_dir():
        raise DataError(f"'{folder}': a folder with '{FOLDER}/' in it, as 'workload cores' writes")
    found, known = {}, set()
    for place in sorted(root.glob("*/node_*/*")) + sorted(root.glob("node_*/*")):
        node = _NODE.fullmatch(place.parent.name)
        if node is None or not place.is_dir():
            continue
        known.add(place.name)
        if place.name == step:
            found[int(node[1])] = place
    if match is None or not found:
        steps = ", ".join(sorted(known)) or "none"
        raise DataError(
            f"'{folder}': no step '{step}'{did_you_mean(step, known)}; its steps are {steps}"
        )
    return found


def read_operation(
    folder: str | os.PathLike[str], step: str, operation: str, cores: int, layer: str = ""
) -> Iterator[Instructions]:
    """Read the instructions of an operation, core by core.

    Parameters
    ----------
    folder : str or path
        With ``traces/`` in it.
    step : str
        Such as ``decode0``.
    operation : str
        What the comments of its lines hold, dots, blanks and underscores apart; empty for all.
    cores : int
        Of a node.
    layer : str
        What comments begin with, such as ``decode10``; empty for any.

    Yields
    ------
    Instructions
        Of one core, counted over the wafer.

    Raises
    ------
    DataError, FormatError
        No such step, nothing of the operation, several layers that have it, or broken lines.
    """
    wanted, layers = plain(operation), set()
    found = 0
    for node, place in sorted(step_folders(folder, step).items()):
        files = {int(m[1]): one for one in place.iterdir() if (m := _FILE.fullmatch(one.name))}
        for number, path in sorted(files.items()):
            text = read_unpacked(path, LARGEST).decode("utf-8", "replace")
            chosen = []
            for instruction in _of_operation(text, wanted, layer, str(path)):
                if instruction.name != "BARRIER":
                    begin = _LAYER.match(instruction.comment)
                    layers.add(begin[0] if begin else "")
                    chosen.append(instruction)
            if len(layers) > 1 and operation:
                names = ", ".join(sorted(layers))
                raise DataError(f"'{operation}' is in several layers ({names}): name one of them")
            if chosen:
                found += 1
                if number >= cores:
                    raise FormatError(f"{path!s}: a node has cores 0 to {cores - 1}")
                yield _columns(chosen, node * cores + number, str(path))
    if not found:
        raise DataError(f"'{folder}', step '{step}': no instruction of '{operation or 'any'}'")


def _of_operation(text: str, wanted: str, layer: str, file: str) -> Iterator[Instruction]:
    begin = f";{layer}_" if layer else ";"
    for at, line in enumerate(text.splitlines(), 1):
        place = line.find(begin)
        if place >= 0 and wanted in plain(line[place:]):
            yield parse_instruction(line, f"{file}, line {at}")


def _columns(chosen: list[Instruction], core: int, file: str) -> Instructions:
    """Return instructions of a core as columns, kind by kind."""
    parts = []
    for code, name in enumerate(OPCODES):
        of_kind = [one.arguments for one in chosen if one.name == name]
        if not of_kind:
            continue
        if code == MULTICAST:
            targets = [np.array(one[1:-1], np.int64) for one in of_kind]
            counts = np.array([one.size for one in targets])
            first = np.array([one[0] for one in of_kind])
            sizes = np.array([one[-1] for one in of_kind])
            parts.append(multicasts(first, sizes, np.concatenate(targets), counts))
            continue
        width = 3 if code == COPY else max(len(one) for one in of_kind)
        if any(len(one) > 4 for one in of_kind):
            raise FormatError(f"{file}: {name} has more than four arguments")
        table = np.ones((len(of_kind), width), np.int64)
        for row, arguments in enumerate(of_kind):
            table[row, : len(arguments)] = arguments
        parts.append(build(code, np.full(len(of_kind), core), list(table.T)))
    return joined(parts)
