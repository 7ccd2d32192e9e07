"""``system.json`` of the wafer workload generator: one block each for prefill and decode.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``configs/system.json`` and
``src/node_level/common/config.py``, which reads every key of `KEYS`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError, did_you_mean
from perfmodel.base.files import atomic_path, json_object, key_line, read_text, shortened
from perfmodel.wafer.system import WaferSystem

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


def format_systems(systems: Mapping[str, WaferSystem]) -> str:
    """Return systems as text of the file.

    Raises
    ------
    FormatError
        A routing has no name there.
    """
    names = {routing: name for name, routing in WORKLOADS.items()}
    document: dict[str, dict[str, Any]] = {}
    for phase, system in systems.items():
        if system.routing not in names:
            raise FormatError(
                f"key 'expert_workload_model': the file has no name for routing "
                f"'{system.routing}'{did_you_mean(system.routing, names)}"
            )
        block = {key: getattr(system, field) for key, field in KEYS.items()}
        document[phase] = block | {"expert_workload_model": names[system.routing]}
    return json.dumps(document, indent=4) + "\n"


def write_systems(systems: Mapping[str, WaferSystem], path: str | os.PathLike[str]) -> None:
    """Write systems, completely or not at all.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    with atomic_path(os.fspath(path)) as temporary:
        temporary.write_text(format_systems(systems), encoding="utf-8")


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
