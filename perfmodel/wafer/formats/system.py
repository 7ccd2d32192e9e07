"""The wafer workload generator's settings: systems and tiles, JSON files.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``configs/system.json`` and
``src/node_level/common/config.py``, which reads every key of `KEYS`.

An object ``layers`` (pattern of operations, ``*`` for any text -> sides of a tile) and one
``defaults`` (kind of operation -> sides). A side of ``null`` is the whole dimension. The
generator looks up the four attention kinds only; it finds tiles of products by itself.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``configs/tiling.json``,
``src/generate_traces.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import json_object, key_line, read_text, shortened
from perfmodel.wafer.system import WaferSystem

# ``system.json`` of the wafer workload generator: one block each for prefill and decode.

LARGEST = 2**20  # B
PHASES = ("prefill", "decode")

KEYS: Mapping[str, str] = {
    "num_nodes": "nodes",
    "node_grid": "node_grid",
    "core_grid": "core_grid",
    "dp_attn": "data_parallel",
    "dp_ffn": "ffn_data_parallel",
    "tp_attn": "tensor_parallel",
    "tp_ffn": "ffn_tensor_parallel",
    "pp": "pipeline_parallel",
    "sp": "sequence_parallel",
    "ep": "expert_parallel",
    "n_redundant_shared_exp": "shared_copies",
    "expert_workload_model": "routing",
    "moe_comm": "expert_exchange",
}
"""Key of the file -> field of `WaferSystem`."""

WORKLOADS: Mapping[str, str] = {
    "uniform": "uniform",
    "identical": "balanced",
    "empirical_mmlu": "two_level",
}
"""Expert workload of the file -> routing. The counts of ``empirical_mmlu`` are another file
(``empirical:bincounts.json``); without it, what was fitted to them stands for them."""

_WORD = re.compile(
    "|".join(
        [r"(?<=')nodes(?=')", *(rf"\b{f}\b" for f in KEYS.values() if f not in ("nodes", *KEYS))]
    )
)
_KEY_OF = {field: key for key, field in KEYS.items()}


def read_systems(path: str | os.PathLike[str]) -> dict[str, WaferSystem]:
    """Read the systems of both phases.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    dict of str to WaferSystem
        ``prefill``, ``decode`` or both, as the file has them.

    Raises
    ------
    FormatError
        The file cannot be read, has neither block, lacks a key or has another, or its degrees
        and grids contradict each other; names file, line and key.
    """
    return parse_systems(read_text(path, "a system.json", LARGEST), str(path))


def parse_systems(text: str, file: str = "system.json") -> dict[str, WaferSystem]:
    """Read systems from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_systems`.
    """
    document = json_object(file, text, "'prefill' and 'decode'")
    for phase in document:
        if phase not in PHASES:
            raise FormatError(
                f"{file}:{key_line(text, phase)}: unknown block '{shortened(phase)}'"
                f"{did_you_mean(phase, PHASES)}"
            )
    if not document:
        raise FormatError(f"{file}:1: has neither 'prefill' nor 'decode'")
    return {
        phase: _system(block, file, phase, text, number)
        for number, (phase, block) in enumerate(document.items())
    }


def _system(block: Any, file: str, phase: str, text: str, number: int) -> WaferSystem:
    if not isinstance(block, dict):
        raise FormatError(f"{file}:{key_line(text, phase)}: '{phase}' should be an object of keys")

    def wrong(key: str, what: str) -> FormatError:
        line = key_line(text, key, number) if key in block else key_line(text, phase)
        return FormatError(f"{file}:{line}: {phase}: {what}")

    for key in block:
        if key not in KEYS:
            raise wrong(key, f"unknown key '{shortened(key)}'{did_you_mean(key, KEYS)}")
    for key in KEYS:
        if key not in block:
            raise wrong(key, f"key '{key}' is missing")
    values: dict[str, Any] = {KEYS[key]: value for key, value in block.items()}
    for key in ("node_grid", "core_grid"):
        if not isinstance(block[key], list):
            raise wrong(key, f"key '{key}': should be [rows, columns]")
        values[key] = tuple(block[key])
    workload = block["expert_workload_model"]
    if not isinstance(workload, str) or workload not in WORKLOADS:
        raise wrong(
            "expert_workload_model",
            f"key 'expert_workload_model': unknown '{shortened(workload)}'"
            f"{did_you_mean(str(workload), WORKLOADS)}",
        )
    values["routing"] = WORKLOADS[workload]
    if not isinstance(block["moe_comm"], str):
        raise wrong("moe_comm", f"key 'moe_comm': should be text, not {shortened(values)}")
    try:
        return WaferSystem(**values)
    except StrategyError as error:
        said = _WORD.sub(lambda found: _KEY_OF[found[0]], str(error))
        named = next((key for key in KEYS if re.search(rf"\b{key}\b", said)), "num_nodes")
        raise wrong(named, said) from None


# ``tiling.json`` of the wafer workload generator: sizes of tiles by kind and by layer.

BLOCKS = ("layers", "defaults")
SIDES: Mapping[str, int] = {
    "Linear": 3,
    "GroupedLinear": 4,
    "MLAQ": 4,
    "MLAKV": 3,
    "MHAQ": 4,
    "MHAKV": 4,
}
"""Kind of operation -> sides of its tile."""

Tile = tuple[int | None, ...]
"""Elements along each dimension; None for all of them."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of tiles.

    Attributes
    ----------
    layers : mapping of str to Tile
        By pattern of an operation's name, the first that fits counts.
    defaults : mapping of str to Tile
        By kind of operation.
    """

    layers: Mapping[str, Tile]
    defaults: Mapping[str, Tile]

    def tile(self, kind: str, operation: str = "") -> Tile:
        """Return the tile of an operation.

        Raises
        ------
        FormatError
            There is none for its kind.
        """
        for pattern, sides in self.layers.items():
            if operation and fnmatchcase(operation, pattern):
                return sides
        if kind not in self.defaults:
            raise FormatError(f"tiling: no default for '{kind}'{did_you_mean(kind, self.defaults)}")
        return self.defaults[kind]


def read_tiling(path: str | os.PathLike[str]) -> Tiling:
    """Read sizes of tiles.

    Raises
    ------
    FormatError
        The file cannot be read or is no such file; names file, line and key.
    """
    return parse_tiling(read_text(path, "a tiling.json", LARGEST), str(path))


def parse_tiling(text: str, file: str = "tiling.json") -> Tiling:
    """Read sizes of tiles from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_tiling`.
    """
    document = json_object(file, text, "'layers' and 'defaults'")
    for key in document:
        if key not in BLOCKS:
            raise FormatError(
                f"{file}:{key_line(text, key)}: unknown block '{shortened(key)}'"
                f"{did_you_mean(key, BLOCKS)}"
            )
    found: dict[str, dict[str, Tile]] = {}
    for block in BLOCKS:
        entries = document.get(block, {})
        if not isinstance(entries, dict):
            raise FormatError(f"{file}:{key_line(text, block)}: '{block}' should be an object")
        found[block] = {}
        for name, sides in entries.items():
            place = f"{file}:{key_line(text, name)}: key '{shortened(name)}'"
            if block == "defaults" and name not in SIDES:
                raise FormatError(f"{place}: unknown kind{did_you_mean(name, SIDES)}")
            found[block][name] = _tile(sides, SIDES[name] if block == "defaults" else 0, place)
    return Tiling(found["layers"], found["defaults"])


def _tile(sides: Any, count: int, place: str) -> Tile:
    right = isinstance(sides, list) and all(
        side is None or (type(side) is int and 0 < side < 2**31) for side in sides
    )
    if not right or not sides or (count and len(sides) != count):
        wanted = f"{count} whole numbers" if count else "whole numbers"
        raise FormatError(f"{place}: should be a list of {wanted} above 0, or null for all")
    return tuple(sides)
