"""One operation out of a folder of core traces, as columns.

``traces/<phase>/node_<node>/<step>/core_<core>.csv``; see `perfmodel.wafer.formats.core_trace`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perfmodel.base.errors import DataError, FormatError, did_you_mean
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.cores.instructions import (
    COPY,
    MULTICAST,
    OPCODES,
    Instructions,
    build,
    joined,
    multicasts,
)
from perfmodel.wafer.formats.core_trace import LARGEST, Instruction, parse_instruction

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
