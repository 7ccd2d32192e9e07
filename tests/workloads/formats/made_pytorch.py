"""Traces of PyTorch, made by hand."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.pytorch_host import HostTrace, host_trace
from perfmodel.workloads.formats.pytorch_kineto import KinetoTrace, kineto_trace


def parse_host_trace(content: Any, file: str = "host trace") -> HostTrace:
    return host_trace(json.loads(json.dumps(content)), file)


def parse_kineto(content: Any, file: str = "Kineto trace") -> KinetoTrace:
    return kineto_trace(json.loads(json.dumps(content)), file)


def node(identifier, name, parent=2, values=(), types=(), **attributes):
    attributes = {"rf_id": identifier - 1, "tid": 1} | attributes
    return {
        "id": identifier,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": list(values), "shapes": [], "types": list(types)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": attributes[key]} for key in attributes],
    }


def groups_node(identifier, *groups):
    return node(identifier, "## process_group:init ##", values=[json.dumps(groups)])


def host(*nodes, schema="1.0.2-chakra.0.0.4"):
    root = node(1, "[pytorch|profiler|execution_trace|process]", 1)
    return {"schema": schema, "pid": 1, "nodes": [*nodes, root]}


def event(category, name, start, duration, thread=1, **keys):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": keys,
    }


def kineto(*events, **content):
    return parse_kineto({"traceEvents": list(events), **content})


def reads(parse, content):
    """Whether a value is read, or refused in one line."""
    try:
        parse(content, "x.json")
    except FormatError as error:
        return str(error).startswith("x.json") and len(str(error).splitlines()) == 1
    return True


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["allreduce", "[0, 1]", "Float"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
