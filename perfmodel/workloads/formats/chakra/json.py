"""Chakra's JSON: communicator groups, and traces as the feeder and the jsonizer have them.

Groups are an object of names to lists of ranks, as ASTRA-sim reads it
(``--comm-group-configuration``)::

    {"1": [0, 1], "2": [4, 5]}

A communication node names its group; the ranks stand in the order of their ring.

A trace in the form of mlcommons/chakra's feeder is one object, with one object per node::

    {"workload_graph": [{"Id": 216, "Name": "aten::mm", "NodeType": 4, "data_deps": [3],
                         "ctrlDeps": [], "runtime": 318, "is_cpu_op": true}, …]}

``runtime`` is in microseconds; a communication node adds ``comm_type``, ``comm_size``,
``comm_src``, ``comm_dst``, ``comm_tag``, ``comm_priority`` and ``tensor_size``. The feeder
reads no ``ctrlDeps``, ``num_ops`` and ``pg_name``; here they mean what they mean in a
protobuf trace, and so does every attribute of one. A value whose kind JSON does not tell
is an object ``{"kind": "uint64", "value": 5}``.

The jsonizer prints the messages of an ``.et`` file as one JSON object after another; that
is read, not written.

Sources: mlcommons/chakra 21585d8, ``src/feeder/json_node.cpp``, ``src/jsonizer``.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import JsonWords, atomic_path, parse_json, read_text, shortened
from perfmodel.workloads.formats.chakra.reading import trace_of_messages
from perfmodel.workloads.formats.chakra.schema import (
    GROUP,
    INTEGERS,
    INVOLVED,
    IO_INFO,
    LISTS,
    NODE_INPUTS,
    NODE_OUTPUTS,
    PLAIN_KINDS,
    SCALAR_KINDS,
    Attribute,
    attribute_message,
    attribute_value,
    check_finite,
    messages,
)
from perfmodel.workloads.formats.chakra.writing import (
    read_metadata,
    whole_microseconds,
    written_nodes,
)
from perfmodel.workloads.trace import NODE_KINDS, Trace

Groups = dict[str, tuple[int, ...]]

_WORDS = JsonWords(
    "{path}:{line}: not JSON: {reason}",
    "{path}: not JSON: {reason}",
    twice="{path}: '{key}' twice",
    no_object='{path}: expected an object such as {{"1": [0, 1]}}',
)


def read_groups(path: str | Path, devices: int | None = None) -> Groups:
    """Read the ranks of each group.

    Parameters
    ----------
    path : str or Path
    devices : int, optional
        Number of ranks; larger ranks are refused.

    Returns
    -------
    dict of str to tuple of int

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON, or a group is not a list of different ranks.
    """
    content = parse_json(read_text(path, "a JSON object of groups"), path, _WORDS)
    try:
        return check_groups(content, devices)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def write_groups(groups: Mapping[str, tuple[int, ...]], path: str | Path) -> None:
    """Write the ranks of each group, in the form that ASTRA-sim reads.

    Raises
    ------
    FormatError
        A group is not a list of different ranks.
    DataError
        The file cannot be written.
    """
    content = check_groups(groups)
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")


def check_groups(groups: Mapping[str, Any], devices: int | None = None) -> Groups:
    """Return the groups as tuples of ranks, or say what is wrong with them.

    Raises
    ------
    FormatError
        A group is empty or not a list; a rank is not a whole number, is negative, not below
        `devices`, or twice in its group.
    """
    checked = {}
    for name, ranks in groups.items():
        where = f"group '{shortened(name)}'"
        if not isinstance(ranks, list | tuple) or not ranks:
            raise FormatError(f"{where}: expected a list of ranks with at least one")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < 2**31:
                raise FormatError(
                    f"{where}: rank {shortened(repr(rank))} should be a whole number >= 0"
                )
            if devices is not None and rank >= devices:
                raise FormatError(f"{where}: rank {rank}, but the ranks are 0 to {devices - 1}")
        if len(set(ranks)) != len(ranks):
            twice = Counter(ranks).most_common(1)[0][0]
            raise FormatError(f"{where}: rank {twice} twice")
        checked[name] = tuple(ranks)
    return checked


GRAPH = "workload_graph"
VERSION = "version"
# Key of a node, field of its message, and the form of the value.
FIELDS: Mapping[str, tuple[str, type]] = {
    "Id": ("id", int),
    "Name": ("name", str),
    "NodeType": ("type", int),
    "ctrlDeps": ("ctrl_deps", list),
    "data_deps": ("data_deps", list),
    "start_time_micros": ("start_time_micros", int),
}
RUNTIME = "runtime"
KEYS = (*FIELDS, RUNTIME, *INTEGERS, GROUP, *INVOLVED)
LISTED = {"inputs": "string_list", "outputs": "string_list", **dict.fromkeys(INVOLVED, "bool_list")}


def parse_json_trace(content: bytes, path: str | Path) -> Trace:
    """Read the content of a ``.json`` file; `path` names it in errors.

    Raises
    ------
    FormatError
        The file is no JSON, has no ``workload_graph``, or a node is not as it should be.
    """
    from google.protobuf.json_format import ParseError

    try:
        text = content.decode("utf-8-sig")
        first, end = _DECODER.raw_decode(text, _skip_space(text, 0))
        if not isinstance(first, dict):
            raise FormatError(f'expected an object such as {{"{GRAPH}": [ … ]}}')
        if GRAPH not in first:
            return _jsonizer_trace(text, first, end)
        if _skip_space(text, end) < len(text):
            raise FormatError(f"more text after the object, from character {end} on")
        return _graph_trace(first)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FormatError(f"{path}: not a Chakra trace: {shortened(reason)}") from None


def json_text(trace: Trace) -> str:
    """Return a trace as the content of a ``.json`` file, one node per line.

    Raises
    ------
    FormatError
        The trace holds what the schema cannot.
    """
    written = written_nodes(trace)
    head = {VERSION: trace.version} if trace.version else {}
    for name, value in trace.metadata.items():
        if name in (GRAPH, VERSION):
            raise FormatError(f"metadata '{name}' is a word of the format")
        check_finite(name, value)
        head[name] = _json_value(name, value)
    places = zip(written.starts.tolist(), written.ends.tolist(), strict=True)
    parts = (written.content[begin:end] for begin, end in places)
    nodes = ",\n".join(json.dumps(_json_node(part)) for part in parts)
    front = json.dumps(head)[:-1] + (", " if head else "")
    return f'{front}"{GRAPH}": [\n{nodes}\n]}}\n'


def _graph_trace(content: Mapping[str, Any]) -> Trace:
    """Return the trace of the feeder's form."""
    nodes = content[GRAPH]
    if not isinstance(nodes, list):
        raise FormatError(f"'{GRAPH}' should be a list of nodes")
    head = messages().metadata()
    for name, value in content.items():
        if name == VERSION:
            head.version = _checked("", name, value, str)
        elif name != GRAPH:
            head.attr.append(_attribute("", name, value))
    parts = []
    for i, entry in enumerate(nodes):
        if not isinstance(entry, dict):
            raise FormatError(f"{GRAPH}[{i}] should be an object")
        try:
            parts.append(_node(f"{GRAPH}[{i}]: ", entry).SerializeToString())
        except FormatError:
            raise
        except (ValueError, TypeError) as error:
            raise FormatError(f"{GRAPH}[{i}]: {shortened(str(error))}") from None
    return trace_of_messages(parts, lambda i: f"{GRAPH}[{i}]: ", *read_metadata(head))


def _node(where: str, entry: Mapping[str, Any]) -> Any:
    """Return the Node message of one object."""
    for key in ("Id", "NodeType"):
        if key not in entry:
            hint = _hint(key, entry)
            raise FormatError(f"{where}lacks '{key}'{hint}")
    node = messages().node()
    for key, value in entry.items():
        if key in FIELDS:
            field, kind = FIELDS[key]
            value = _checked(where, key, value, kind)
            if kind is list:
                getattr(node, field).extend(_checked(where, key, item, int) for item in value)
            elif kind is int and not 0 <= value < 2**63:
                raise FormatError(f"{where}{key} {value} should be 0 to 2^63 - 1")
            else:
                setattr(node, field, value)
        elif key == RUNTIME:
            _set_duration(node, where, value)
        elif key in (NODE_INPUTS, NODE_OUTPUTS):
            _set_io_info(node, where, key, value)
        else:
            node.attr.append(_attribute(where, key, value))
    return node


def _set_duration(node: Any, where: str, micros: Any) -> None:
    """Set a node's duration; one that is no whole number of microseconds in both ways."""
    if type(micros) not in (int, float) or not 0 <= micros < 2**63:
        raise FormatError(f"{where}{RUNTIME} should be a number of microseconds from 0 on")
    if micros == int(micros):
        node.duration_micros = int(micros)
        return
    import numpy as np

    seconds = micros / 1e6
    node.duration_micros = int(whole_microseconds(np.array([seconds]))[0][0])
    node.attr.append(attribute_message("duration_seconds", seconds))


def _set_io_info(node: Any, where: str, key: str, value: Any) -> None:
    """Set the fields `inputs` or `outputs`, as PyTorch's traces have them."""
    texts = value.get("value") if isinstance(value, dict) else None
    if not isinstance(texts, list) or len(texts) != 3:
        raise FormatError(f"{where}'{key}' should have three texts: values, shapes, types")
    info = messages().io_info(values=texts[0], shapes=texts[1], types=texts[2])
    getattr(node, key.removeprefix("node.")).CopyFrom(info)


def _attribute(where: str, name: str, value: Any) -> Any:
    """Return the AttributeProto of a key."""
    if name in LISTED and isinstance(value, list):
        value = Attribute(LISTED[name], value)
    elif isinstance(value, dict) and {"kind", "value"} <= value.keys() <= {
        "kind",
        "value",
        "doc_string",
    }:
        kind, content, text = value["kind"], value["value"], value.get("doc_string", "")
        if kind not in (*SCALAR_KINDS, *LISTS, ""):
            raise FormatError(f"{where}'{shortened(name)}' has no kind of the schema")
        if isinstance(content, list) != (kind in LISTS):
            raise FormatError(f"{where}'{shortened(name)}' of kind '{kind}' has another value")
        if kind in ("bytes", "bytes_list"):
            content = _each(content, base64.b64decode)
        value = Attribute(kind, content, text)
    elif type(value) not in PLAIN_KINDS:
        hint = did_you_mean(name[:60], KEYS)
        raise FormatError(f"{where}'{shortened(name)}' should be a text or a number{hint}")
    return attribute_message(name, value)


def _json_node(part: bytes) -> dict[str, Any]:
    """Return a node as an object."""
    node = messages().node.FromString(part)
    entry: dict[str, Any] = {
        "Id": node.id,
        "Name": node.name,
        "NodeType": node.type,
        "ctrlDeps": list(node.ctrl_deps),
        "data_deps": list(node.data_deps),
        RUNTIME: node.duration_micros,
    }
    if node.start_time_micros:
        entry["start_time_micros"] = node.start_time_micros
    for attribute in node.attr:
        value = attribute_value(attribute)
        if attribute.name in entry or attribute.name in FIELDS:
            raise FormatError(f"node {node.id}: attribute '{shortened(attribute.name)}' is a word")
        entry[attribute.name] = _json_value(attribute.name, value)
    for key, label in ((NODE_INPUTS, "inputs"), (NODE_OUTPUTS, "outputs")):
        if node.HasField(label):
            info = getattr(node, label)
            entry[key] = {"kind": IO_INFO, "value": [info.values, info.shapes, info.types]}
    return entry


def _json_value(name: str, value: Any) -> Any:
    """Return an attribute so that `_attribute` reads it back."""
    if not isinstance(value, Attribute):
        return value
    if name in INTEGERS:
        return value.value
    if LISTED.get(name) == value.kind and not value.doc_string:
        return list(value.value)
    content = list(value.value) if isinstance(value.value, tuple) else value.value
    if value.kind in ("bytes", "bytes_list"):
        content = _each(content, lambda item: base64.b64encode(item).decode())
    entry = {"kind": value.kind, "value": content}
    return {**entry, "doc_string": value.doc_string} if value.doc_string else entry


def _each(content: Any, convert: Any) -> Any:
    """Convert a value, or each of a list."""
    return [convert(item) for item in content] if isinstance(content, list) else convert(content)


def _jsonizer_trace(text: str, first: dict[str, Any], end: int) -> Trace:
    """Return the trace of the jsonizer's form: objects of messages, metadata first."""
    from google.protobuf.json_format import ParseDict

    if {"Id", "id"} & first.keys() or not first.keys() <= {VERSION, "attr"}:
        hint = _hint(GRAPH, first)
        raise FormatError(f"the object has no '{GRAPH}'{hint}")
    metadata, version = read_metadata(ParseDict(first, messages().metadata()))
    parts: list[bytes] = []
    types = {f"{name}_NODE": i for i, name in enumerate(NODE_KINDS)}
    for entry in _objects(text, end):
        if not isinstance(entry, dict):
            raise FormatError(f"node {len(parts)} of the file should be an object")
        kind = entry.get("type")
        if isinstance(kind, str):
            if kind not in types:
                raise FormatError(f"node type '{shortened(kind)}'{did_you_mean(kind[:60], types)}")
            entry["type"] = types[kind]
        parts.append(ParseDict(entry, messages().node()).SerializeToString())
    return trace_of_messages(parts, lambda _: "", metadata, version)


def _objects(text: str, place: int) -> Iterator[Any]:
    """Yield the JSON values from a place on."""
    while (place := _skip_space(text, place)) < len(text):
        value, place = _DECODER.raw_decode(text, place)
        yield value


def _skip_space(text: str, place: int) -> int:
    """Return the next place that is no white space."""
    found = _NO_SPACE.search(text, place)
    return found.start() if found else len(text)


def _no_constant(name: str) -> Any:
    raise FormatError(f"{name} is not a number of JSON")


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise FormatError(f"an object states a key twice: {shortened(repr(sorted(content))[:60])}")
    return content


_NO_SPACE = re.compile(r"[^ \t\r\n]")
_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_no_repetition)


def _hint(name: str, found: Mapping[str, Any]) -> str:
    """Return which key may have been meant."""
    return did_you_mean(name, map(shortened, list(found)[:50]))


def _checked(where: str, key: str, value: Any, kind: type) -> Any:
    """Return a value of the given type."""
    if type(value) is not kind:
        expected = {int: "a whole number", str: "a text", list: "a list of ids"}[kind]
        raise FormatError(f"{where}'{key}' should be {expected}")
    return value
