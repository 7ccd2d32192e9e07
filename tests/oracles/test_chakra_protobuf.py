"""Columns that kernels read off the wire, against what google.protobuf says of the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.workloads.formats.chakra.schema import (
    INTEGERS,
    SCALAR_KINDS,
    Attribute,
    attribute_message,
    attribute_value,
    messages,
)
from perfmodel.workloads.formats.chakra.writing import parse_messages, serialise, varint
from perfmodel.workloads.trace import ABSENT, Trace
from tests.amount import cases
from tests.data import ASTRA, needed
from tests.workloads.formats.chakra.made import ATTRIBUTES, TEXT, parts_of

WHOLE = [kind for kind in SCALAR_KINDS if kind not in ("string", "bytes")]
BELOW_2_63 = st.integers(0, 2**63 - 1)


def integer(kind: str, value: int) -> Attribute:
    """A number as one of the kinds that can hold it."""
    return Attribute(kind, bool(value) if kind == "bool" else value)


@st.composite
def nodes(draw: Any, identifier: int) -> bytes:
    """A Node message, and its bytes in one of the ways in which it can be written."""
    node = messages().node(id=identifier, name=draw(TEXT), type=draw(st.integers(1, 7)))
    micros = st.integers(0, 2**50)
    node.start_time_micros, node.duration_micros = draw(micros), draw(micros)
    node.data_deps.extend(draw(st.lists(BELOW_2_63, max_size=3)))
    node.ctrl_deps.extend(draw(st.lists(BELOW_2_63, max_size=3)))
    found: dict[str, Any] = dict(draw(ATTRIBUTES))
    for name in draw(st.lists(st.sampled_from(sorted(INTEGERS)), unique=True, max_size=5)):
        value = draw(st.integers(0, min(127, INTEGERS[name][2])))
        kinds = WHOLE if value < 2 else [kind for kind in WHOLE if kind != "bool"]
        found[name] = integer(draw(st.sampled_from(kinds)), value)
    if draw(st.booleans()):
        found["pg_name"] = draw(TEXT)
    if draw(st.booleans()):
        flags = tuple(draw(st.lists(st.booleans(), max_size=3)))
        found[draw(st.sampled_from(["involve_dims", "involved_dim"]))] = Attribute(
            "bool_list", flags
        )
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(TEXT, BELOW_2_63), max_size=3))
        texts = tuple(text for name, size in pairs for text in (name, str(size)))
        found[draw(st.sampled_from(["inputs", "outputs"]))] = Attribute("string_list", texts)
    if draw(st.booleans()):
        found["duration_seconds"] = node.duration_micros / 1e6
    for name in draw(st.permutations(sorted(found))):
        node.attr.append(attribute_message(name, found[name]))
    content = node.SerializeToString()
    for tag, more in ((0x28, draw(st.lists(BELOW_2_63, max_size=2))), (0x20, [])):
        content += b"".join(bytes([tag]) + varint(parent) for parent in more)  # not packed
    return content


@st.composite
def files(draw: Any) -> bytes:
    identifiers = draw(st.lists(BELOW_2_63, max_size=5, unique=True))
    parts = [b"", *(draw(nodes(identifier)) for identifier in identifiers)]
    return b"".join(varint(len(part)) + part for part in parts)


def said(content: bytes) -> dict[str, Any]:
    """What protobuf says of a node."""
    node = messages().node.FromString(content)
    found: dict[str, Any] = {
        "id": node.id,
        "name": node.name,
        "type": node.type,
        "data": list(node.data_deps),
        "control": list(node.ctrl_deps),
        "start": node.start_time_micros / 1e6,
        "duration": node.duration_micros / 1e6,
    }
    for attribute in node.attr:
        value = attribute_value(attribute)
        content_of = value.value if isinstance(value, Attribute) else value
        name = attribute.name
        if name in INTEGERS:
            found[name] = int(content_of)
        elif name in ("involve_dims", "involved_dim"):
            found["involved"] = content_of
        elif name in ("inputs", "outputs") and isinstance(content_of, tuple):
            sizes = [int(float(size)) if "." in size else int(size) for size in content_of[1::2]]
            found[name] = list(zip(content_of[::2], sizes, strict=True))
        elif name == "duration_seconds":
            found["duration"] = value
        elif value not in ("",) or name != "pg_name":
            found[name] = value
    return found


def read(trace: Trace, i: int) -> dict[str, Any]:
    """What a trace says of a node, in the same words."""
    found: dict[str, Any] = {
        "id": trace.identifiers[i],
        "name": trace.names[i],
        "type": trace.kinds[i],
        "data": trace.data_parents[i].tolist(),
        "control": trace.control_parents[i].tolist(),
        "start": trace.start_time[i],
        "duration": trace.duration[i],
        **trace.other.get(i, {}),
    }
    for name, (column, _, _) in INTEGERS.items():
        if getattr(trace, column)[i] != ABSENT:
            found[name] = getattr(trace, column)[i]
    if trace.group[i] != ABSENT:
        found["pg_name"] = trace.group_names[trace.group[i]]
    if trace.involved[i] != ABSENT:
        found["involved"] = trace.involved_dimensions[trace.involved[i]]
    for name, lists in (("inputs", trace.inputs), ("outputs", trace.outputs)):
        if len(lists[i]):
            found[name] = [trace.tensors[row] for row in lists[i]]
    return found


def check(content: bytes) -> Trace:
    """Compare all nodes of a file."""
    trace = parse_messages(content, "t.et")
    _, *parts = parts_of(content)
    assert trace.nodes == len(parts)
    for i, part in enumerate(parts):
        expected = said(part)
        for name in ("inputs", "outputs"):
            if expected.get(name) in ([], Attribute("", None)):
                del expected[name]
        assert read(trace, i) == expected
    return trace


@given(files())
@settings(max_examples=cases(120), deadline=None)
def test_any_file_of_nodes(content):
    trace = check(content)
    assert parse_messages(serialise(trace), "t.et").equals(trace)


@pytest.mark.parametrize("folder", ["et_handwritten", "et_samples", "et_sanity"])
def test_files_of_astra_sim_and_chakra(folder):
    files = sorted(needed(ASTRA / folder).glob("*.et"))
    assert files
    for path in files:
        check(path.read_bytes())
