"""Read PyTorch's host execution traces: which operators ran, called by which, with what.

A file of ``torch.profiler.ExecutionTraceObserver`` is one JSON object::

    {"schema": "1.0.2-chakra.0.0.4", "pid": 1, "time": "…", "start_ts": 0, "nodes": [
      {"id": 4, "name": "aten::empty", "ctrl_deps": 2,
       "inputs": {"values": […], "shapes": […], "types": […]}, "outputs": {…},
       "attrs": [{"name": "rf_id", "type": "uint64", "value": 2}, …]}, …], "finish_ts": 5}

Numbers (``id``) grow in the order in which operators start; ``ctrl_deps`` is the caller. Times
are not in it: they are in the Kineto trace of the same run (`pytorch_kineto`), whose
events name the same ``rf_id``. Collectives are operators called ``record_param_comms``.

Sources: pytorch/pytorch, ``torch/csrc/profiler/standalone/execution_trace_observer.cpp`` and
``torch/csrc/distributed/c10d/ParamCommsUtils.hpp``; mlcommons/chakra,
``src/converter/pytorch_node.py`` (072c562). PyTorch 2.0 and 2.1 wrote the same with other keys
(schema 1.0.1: ``parent``, ``inputs`` a list of values, ``input_types``, no ``attrs``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import PROFILE, parse_json, read_json, shortened
from perfmodel.workloads.formats.pytorch_collectives import (
    LARGEST_GROUP,
    LARGEST_SIZE,
    RECEIVE,
    SEND,
    WAIT,
    CollectiveRecord,
    RankLists,
    checked_ranks,
    collective_kind,
    element_size,
    whole,
)
from perfmodel.workloads.trace import ABSENT

FLAT_SCHEMA = "1.0.1"  # PyTorch 2.0 and 2.1
SCHEMAS = (
    FLAT_SCHEMA,
    "1.0.2-chakra.0.0.4",
    "1.0.3-chakra.0.0.4",
    "1.1.0-chakra.0.0.4",
    "1.1.1-chakra.0.0.4",
)
# Later ones only added to a node; what is read here is checked anyway.
COMPATIBLE = re.compile(r"1\.[0-9]{1,3}\.[0-9]{1,3}-chakra\.0\.0\.4")
# Key of a node of `FLAT_SCHEMA`: key, or name of an attribute, of the others.
FLAT_KEYS = {"parent": "ctrl_deps"}
FLAT_ATTRIBUTES = ("rf_id", "tid")
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
COLLECTIVE_NAME = "record_param_comms"
GROUPS_NAME = "process_group:init"
DEEPEST_LIST = 4  # of tensors
TENSOR_FIELDS = 6  # tensor, storage, offset, elements, bytes per element, device


@dataclass(frozen=True, slots=True)
class HostTrace:
    """Operators of one process; every column has one entry per operator, in the order of ids.

    Attributes
    ----------
    schema : str
        For example the last of `SCHEMAS`.
    identifiers, parents : int64[operators]
        Number of the operator and of its caller.
    names : tuple of str
    thread : int64[operators]
    record_function : int64[operators]
        ``rf_id``, by which Kineto's events name the operator; `ABSENT`: not stated.
    collectives : mapping of int to CollectiveRecord
        By position.
    groups : mapping of str to tuple of int
        Ranks of the process groups that the trace defines; an empty tuple: all ranks.
    devices : int
        Size of the largest group stated; `ABSENT`: none is stated.
    """

    schema: str
    identifiers: Integers
    parents: Integers
    names: tuple[str, ...]
    thread: Integers
    record_function: Integers
    collectives: Mapping[int, CollectiveRecord]
    groups: Mapping[str, tuple[int, ...]]
    devices: int = ABSENT

    @property
    def operators(self) -> int:
        """Number of operators."""
        return len(self.identifiers)


def read_host_trace(path: str | os.PathLike[str]) -> HostTrace:
    """Read a host execution trace of PyTorch (JSON, or JSON packed by gzip).

    Raises
    ------
    FormatError
        The file cannot be read or is no such trace; says the node and what would be right.
    """
    return host_trace(read_json(path), str(path))


def host_trace(content: Any, file: str) -> HostTrace:
    """Return the trace that a JSON value describes; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_host_trace`.
    """
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list):
        raise FormatError(
            f"{file}: no execution trace of PyTorch: an object with 'nodes' is needed"
        )
    schema = content.get("schema")
    if schema != FLAT_SCHEMA and not (isinstance(schema, str) and COMPATIBLE.fullmatch(schema)):
        raise FormatError(
            f"{file}: schema '{shortened(str(schema))}' is not covered; covered: "
            f"{', '.join(SCHEMAS)} and later ones of 1.x" + did_you_mean(str(schema)[:50], SCHEMAS)
        )
    nodes = content["nodes"]
    if schema == FLAT_SCHEMA:
        nodes = [_nested(node) for node in nodes]
    operators = [_operator(node, i, file) for i, node in enumerate(nodes)]
    operators.sort(key=lambda operator: operator[0])
    for first, second in pairwise(operators):
        if first[0] == second[0]:
            raise FormatError(f"{file}: two nodes have the id {first[0]}; ids should differ")
    groups: dict[str, tuple[int, ...]] = {}
    sizes: list[int] = []
    lists = RankLists()
    collectives: dict[int, CollectiveRecord] = {}
    for position, (identifier, _, name, attributes, values) in enumerate(operators):
        place = f"{file}, node {identifier} ({shortened(name)})"
        if GROUPS_NAME in name:
            _add_groups(values[0], groups, sizes, place)
        elif name == COLLECTIVE_NAME:
            record = _record(values, attributes, groups, lists, place)
            if record is not None:
                collectives[position] = record
                sizes.append(record.group_size)
    return HostTrace(
        schema,
        np.array([operator[0] for operator in operators], np.int64),
        np.array([operator[1] for operator in operators], np.int64),
        tuple(operator[2] for operator in operators),
        np.array([whole(operator[3].get("tid")) for operator in operators], np.int64),
        np.array([whole(operator[3].get("rf_id")) for operator in operators], np.int64),
        collectives,
        groups,
        max(sizes, default=ABSENT),
    )


def _nested(node: Any) -> Any:
    """Return a node of `FLAT_SCHEMA` in the form of the later ones."""
    if not isinstance(node, dict):
        return node
    inputs = {"values": node.get("inputs"), "types": node.get("input_types")}
    attributes = [{"name": name, "value": node.get(name)} for name in FLAT_ATTRIBUTES]
    renamed = {FLAT_KEYS.get(key, key): value for key, value in node.items()}
    return {**renamed, "inputs": inputs, "attrs": attributes}


Operator = tuple[int, int, str, dict[str, Any], tuple[Any, Any]]


def _operator(node: Any, index: int, file: str) -> Operator:
    """Return number, caller, name, attributes, and input values with types of one node."""
    place = f"{file}, node at index {index}"
    if not isinstance(node, dict):
        raise FormatError(f"{place}: should be an object with id, name and ctrl_deps")
    name = node.get("name")
    if not isinstance(name, str):
        raise FormatError(f"{place}: has no name")
    if node.get("cat") in DEVICE_CATEGORIES:
        raise FormatError(
            f"{place} ({shortened(name)}) ran on the device: this is a linked trace; give the host "
            "trace and the Kineto trace of which chakra_trace_link made it"
        )
    numbers = [whole(node.get(key), least=0) for key in ("id", "ctrl_deps")]
    for key, number in zip(("id", "ctrl_deps"), numbers, strict=True):
        if number == ABSENT:
            raise FormatError(f"{place} ({shortened(name)}): {key} should be a whole number >= 0")
    attributes = node.get("attrs", [])
    if not isinstance(attributes, list) or not all(
        isinstance(item, dict) and isinstance(item.get("name"), str) for item in attributes
    ):
        raise FormatError(f"{place} ({shortened(name)}): attrs should be a list of named values")
    inputs = node.get("inputs")
    inputs = inputs if isinstance(inputs, dict) else {}
    values = inputs.get("values"), inputs.get("types")
    return numbers[0], numbers[1], name, {i["name"]: i.get("value") for i in attributes}, values


def _add_groups(
    values: Any, groups: dict[str, tuple[int, ...]], sizes: list[int], place: str
) -> None:
    """Add the process groups that a node defines: a JSON text within the JSON."""
    text = values[0] if isinstance(values, list) and values else None
    described = parse_json(text, place, PROFILE) if isinstance(text, str) else None
    if not isinstance(described, list) or not all(isinstance(item, dict) for item in described):
        raise FormatError(f"{place}: should hold a list of process groups as JSON text")
    for group in described:
        size = whole(group.get("group_size", group.get("pg_size")), 1, LARGEST_GROUP)
        ranks = group.get("ranks", [])
        if not isinstance(ranks, list):
            raise FormatError(f"{place}: ranks of a process group should be a list")
        name = str(group.get("pg_name", ""))
        groups[name] = checked_ranks(ranks, size, place) if ranks else ()
        sizes.append(size)
        # Older collectives name their group by this number.
        if "backend_id" in group:
            groups[str(group["backend_id"])] = groups[name]


def _record(
    values: tuple[Any, Any],
    attributes: Mapping[str, Any],
    groups: Mapping[str, tuple[int, ...]],
    lists: RankLists,
    place: str,
) -> CollectiveRecord | None:
    """Return the collective that ``record_param_comms`` describes; None if it is another call.

    The inputs are (tensors,) sequence, group, rank, name, two lists of splits, then the group's
    size or (first rank, stride, size).
    """
    items, types = values
    if not isinstance(items, list):
        return None
    place_of_name = next(
        (i for i, item in enumerate(items) if i > 2 and isinstance(item, str)), len(items)
    )
    kind = collective_kind(items[place_of_name]) if place_of_name < len(items) else ""
    if not kind:
        return None
    sequence, group, rank = items[place_of_name - 3 : place_of_name]
    if isinstance(sequence, list):  # (sequence, whether it is a message)
        sequence = sequence[0] if sequence else None
    if isinstance(group, list):  # (name, description)
        group = group[0] if group else ""
    tail = [whole(item, 0, LARGEST_GROUP) for item in items[place_of_name + 3 :]]
    size = tail[2] if len(tail) > 2 else tail[0] if tail else ABSENT
    ranks = groups.get(str(group)) or None
    if ranks is None and len(tail) > 2 and kind != WAIT:
        ranks = lists.spaced(tail[0], tail[1], tail[2], place)
    peer = ABSENT
    if kind in (SEND, RECEIVE):
        peer = whole(rank, 0, LARGEST_GROUP)
        if ranks is not None and peer != ABSENT:
            if peer >= len(ranks):
                raise FormatError(f"{place}: rank {peer} of a group of {len(ranks)}")
            peer = ranks[peer]
    return CollectiveRecord(
        kind,
        _size(items[:place_of_name], types, attributes, place),
        str(group),
        ranks,
        size if size > 0 and kind != WAIT else ABSENT,
        whole(sequence, least=0),
        peer,
    )


def _size(items: list[Any], types: Any, attributes: Mapping[str, Any], place: str) -> int:
    """Return the bytes that the operator puts in: of its tensors, or by its attributes."""
    elements = whole(attributes.get("in_msg_nelems"), least=0, largest=2**58)
    if elements != ABSENT and isinstance(attributes.get("dtype"), str):
        return elements * element_size(attributes["dtype"], place)
    kinds = types if isinstance(types, list) else []
    total, found = 0, False
    for item, kind in zip(items, kinds, strict=False):
        if isinstance(kind, str) and "Tensor(" in kind:
            found = True
            total += sum(_tensor_size(t, place) for t in _tensors(item))
    if total > LARGEST_SIZE:
        raise FormatError(f"{place}: its tensors have {total} B; at most {LARGEST_SIZE} are run")
    return total if found else ABSENT


def _tensors(item: Any, depth: int = 0) -> Sequence[Any]:
    """Return the tensors in a value: one, or a list (of lists) of them."""
    if not isinstance(item, list) or not item or depth > DEEPEST_LIST:
        return ()
    if not isinstance(item[0], list):
        return (item,)
    return [tensor for inner in item for tensor in _tensors(inner, depth + 1)]


def _tensor_size(tensor: Any, place: str) -> int:
    """Return the bytes of a tensor: its elements times their size."""
    if not isinstance(tensor, list) or len(tensor) != TENSOR_FIELDS:
        raise FormatError(
            f"{place}: a tensor should be (tensor, storage, offset, elements, bytes per element, "
            "device)"
        )
    elements, size = whole(tensor[3], 0, 2**58), whole(tensor[4], 0, 16)
    if ABSENT in (elements, size):
        raise FormatError(f"{place}: a tensor of {tensor[3]} elements of {tensor[4]} B")
    return elements * size
