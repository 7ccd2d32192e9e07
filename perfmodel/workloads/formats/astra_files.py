"""ASTRA-sim's ``network.yml`` and ``system.json``, read and written.

Errors name the file, the line and the key. Writing and reading again gives the same
record; keys of a system file that no collective depends on are carried along.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from perfmodel.base.errors import FormatError, HardwareError, did_you_mean
from perfmodel.base.files import Located, atomic_path, json_object, key_line, read_text, shortened
from perfmodel.workloads.formats.astra_machine import (
    COLLECTIVE_OPTIMIZATIONS,
    SCHEDULING_POLICIES,
    TOPOLOGIES,
    AstraNetwork,
    AstraSystem,
    check_implementation,
    check_name,
    check_number,
    check_whole,
)
from perfmodel.workloads.formats.words import words_of

_WORDS = words_of("astra_files")
NETWORK_KEYS: dict[str, tuple[str, str]] = _WORDS["network_keys"]
SYSTEM_KEYS: dict[str, str] = _WORDS["system_keys"]
REQUIRED: dict[str, str] = _WORDS["required"]  # what is right for each
SWITCHES = ("roofline-enabled", "trace-enabled", "track-local-mem")


def read_network(path: str | Path) -> AstraNetwork:
    """Read a ``network.yml`` of the analytical backend.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    AstraNetwork

    Raises
    ------
    FormatError
        The file cannot be read, is no YAML, lacks or repeats a key, or holds a value that
        the simulator refuses; names file, line and key.
    """
    root = _yaml_root(path, read_text(path, "a network.yml"))
    if not isinstance(root, yaml.MappingNode):
        raise FormatError(f"{path}:{_line(root)}: should be keys: {', '.join(NETWORK_KEYS)}")
    lists = Located(path)
    for key_node, value_node in root.value:
        at = _line(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise FormatError(
                f"{path}:{at}: a key is itself a list or has keys; "
                f"right are: {', '.join(NETWORK_KEYS)}"
            )
        key = shortened(key_node.value)
        if key not in NETWORK_KEYS:
            raise FormatError(f"{path}:{at}: unknown key '{key}'{did_you_mean(key, NETWORK_KEYS)}")
        lists.put(key, _scalars(path, key, value_node), at)
    for key, (_, example) in NETWORK_KEYS.items():
        if key not in lists:
            raise FormatError(
                f"{path}:{_line(root)}: key '{key}' is missing; it should be a list with one "
                f"entry per dimension, such as {key}: {example}"
            )
    dimensions = len(lists["topology"].value)
    for key, (entries, _) in lists.items():
        if len(entries) != dimensions:
            raise FormatError(
                f"{lists.where(key)}: {key} has {len(entries)} entries, but topology has "
                f"{dimensions}; there should be one per dimension"
            )
    values = {
        field: tuple(_network_value(path, key, text, at) for text, at in lists[key].value)
        for key, (field, _) in NETWORK_KEYS.items()
    }
    try:
        return AstraNetwork(**values)
    except HardwareError as error:
        raise FormatError(f"{lists.where('npus_count')}: {error}") from None


def write_network(network: AstraNetwork, path: str | Path) -> None:
    """Write a ``network.yml``.

    Parameters
    ----------
    network : AstraNetwork
    path : str or Path
        Replaced when all is written.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    units = {"bandwidth": "  # GiB/s", "latency": "  # ns"}
    lines = []
    for key, (field, _) in NETWORK_KEYS.items():
        entries = ", ".join(str(value) for value in getattr(network, field))
        lines.append(f"{key}: [ {entries} ]{units.get(key, '')}\n")
    with atomic_path(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def read_system(path: str | Path) -> AstraSystem:
    """Read a ``system.json``.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    AstraSystem
        Keys of the file that it has no field for are in ``other``.

    Raises
    ------
    FormatError
        As for :func:`read_network`.
    """
    text = read_text(path, "a system.json")
    document = json_object(path, text, next(iter(REQUIRED)))
    for key in REQUIRED:
        if key not in document:
            hint = _misspelt(key, document, text) or f"; it should be there, as in {REQUIRED[key]}"
            raise FormatError(f"{path}:1: key '{key}' is missing{hint}")
    values: dict[str, Any] = {}
    other: dict[str, Any] = {}
    for key, value in document.items():
        where = f"{path}:{key_line(text, key)}: "
        if key not in SYSTEM_KEYS:
            near = difflib.get_close_matches(key, SYSTEM_KEYS, n=1, cutoff=0.85)
            if near:
                raise FormatError(f"{where}unknown key '{key}'; did you mean {near[0]}?")
            if not _is_json(value):
                raise FormatError(f"{where}{key} holds NaN or Infinity, which JSON does not have")
            other[key] = value
            continue
        try:
            values[SYSTEM_KEYS[key]] = _system_value(key, value)
        except HardwareError as error:
            raise FormatError(where + str(error)) from None
    return AstraSystem(**values, other=MappingProxyType(other))


def write_system(system: AstraSystem, path: str | Path) -> None:
    """Write a ``system.json``.

    Parameters
    ----------
    system : AstraSystem
    path : str or Path
        Replaced when all is written.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    values = {key: getattr(system, field) for key, field in SYSTEM_KEYS.items()}
    values |= {key: int(values[key]) for key in SWITCHES}
    with atomic_path(path) as temporary:
        text = json.dumps(values | dict(system.other), indent=2)
        temporary.write_text(f"{text}\n", encoding="utf-8")


def _yaml_root(path: str | Path, text: str) -> yaml.Node:
    """Return the root node of a YAML document; nodes know their lines."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        at = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise FormatError(f"{path}{at}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise FormatError(
            f"{path}: nested too deeply; it should have lists of one level, such as "
            f"npus_count: {NETWORK_KEYS['npus_count'][1]}"
        ) from None
    if root is None:
        raise FormatError(f"{path}: is empty; it should have keys: {', '.join(NETWORK_KEYS)}")
    return root


def _line(node: yaml.Node) -> int:
    """Return the line on which a node begins, from 1."""
    return int(node.start_mark.line) + 1


def _scalars(path: str | Path, key: str, node: yaml.Node) -> list[tuple[str, int]]:
    """Return text and line of each entry of a list, or raise."""
    example = NETWORK_KEYS[key][1]
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise FormatError(
            f"{path}:{_line(node)}: {key} should be a list with one entry per dimension, "
            f"such as {example}"
        )
    for entry in node.value:
        if not isinstance(entry, yaml.ScalarNode):
            raise FormatError(
                f"{path}:{_line(entry)}: {key} has an entry that is itself a list or has keys; "
                f"it should be like {example}"
            )
    return [(str(entry.value), _line(entry)) for entry in node.value]


def _network_value(path: str | Path, key: str, text: str, at: int) -> Any:
    """Return a checked entry of ``network.yml``.

    The text is read here, not by YAML's rules: 1e2 is a number to the simulator, and a
    string to YAML 1.1.
    """
    try:
        if key == "topology":
            check_name("topology", text, TOPOLOGIES)
            return text
        if key == "npus_count":
            count = _parsed(text, int)
            check_whole("npus_count", count, 2)
            return count
        value = _parsed(text, float)
        check_number(key, value, positive=key == "bandwidth")
        return value
    except HardwareError as error:
        raise FormatError(f"{path}:{at}: {error}") from None


def _parsed(text: str, kind: Callable[[str], Any]) -> Any:
    """Return the number that a text is, or the text."""
    try:
        return kind(text) if "_" not in text else text
    except ValueError:
        return text


def _is_json(value: Any) -> bool:
    """Tell whether a value can be written as JSON: Python also reads NaN and Infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def _misspelt(key: str, document: dict[str, Any], text: str) -> str:
    """Return a hint at the key that was probably meant to be a missing one."""
    unknown = [name for name in document if name not in SYSTEM_KEYS]
    near = difflib.get_close_matches(key, unknown, n=1, cutoff=0.8)
    if not near:
        return ""
    return f"; '{near[0]}' on line {key_line(text, near[0])} should probably be it"


def _system_value(key: str, value: Any) -> Any:
    """Return a checked value of ``system.json``; raises HardwareError."""
    if key.endswith("-implementation"):
        if not isinstance(value, list) or not value:
            raise HardwareError(
                f"{key} is {json.dumps(value)}; it should be a list with one algorithm per "
                'dimension, such as ["ring", "direct"]'
            )
        for name in value:
            check_implementation(name)
        return tuple(value)
    if key in SWITCHES:
        if value not in (0, 1):
            raise HardwareError(f"{key} is {json.dumps(value)}; it should be 0 or 1")
        return bool(value)
    if key == "scheduling-policy":
        check_name(key, value, SCHEDULING_POLICIES)
    elif key == "collective-optimization":
        check_name(key, value, COLLECTIVE_OPTIMIZATIONS)
    elif key in ("preferred-dataset-splits", "active-chunks-per-dimension"):
        check_whole(key, value, 1)
    elif key == "endpoint-delay":
        check_whole(key, value, 0)
    else:
        check_number(key, value, positive=key == "local-mem-bw")
    return value
