"""What Kineto's traces say of collectives that gloo runs.

Two events describe one: the operator that asked for it (``c10d::allreduce_``, on the caller's
thread) and gloo's own (``gloo:all_reduce``, mostly on a thread of the process group). Neither
names the process group. With ``record_shapes=True`` both say the shapes of their tensors
(``Input Dims``), gloo's always their type (``Input type``), and c10d's what else it was called with
(``Concrete Inputs``).

Sources: pytorch/pytorch, ``torch/csrc/distributed/c10d/Ops.cpp`` (arguments of operators),
``ProcessGroupGloo.cpp`` (titles of gloo's events), ``torch/csrc/profiler/collection.cpp``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.workloads.formats.pytorch.collectives import (
    ELEMENT_SIZES,
    LARGEST_GROUP,
    LARGEST_SIZE,
    RECEIVE,
    SEND,
    collective_kind,
    whole,
)
from perfmodel.workloads.trace import ABSENT

OPERATOR_PREFIX, EVENT_PREFIX = "c10d::", "gloo:"
MONITORED_BARRIER = "monitored_barrier"  # small messages, no barrier of gloo's


@dataclass(frozen=True, slots=True)
class _Arguments:
    """Where an operator has its arguments; `ABSENT`: it has none such.

    Attributes
    ----------
    kind : str
    tensor : int
        What this rank puts in; of scatters and lists to reduce, the part that it gets.
    whole : int
        Tensor that is as large as those of all ranks together.
    peer : int
        Other rank of a message, as the group counts.
    parts : bool
        What this rank puts in is one `tensor` for each rank.
    """

    kind: str
    tensor: int = 0
    whole: int = ABSENT
    peer: int = ABSENT
    parts: bool = False


OPERATORS: Mapping[str, _Arguments] = {
    "allreduce_": _Arguments("all_reduce"),
    "allreduce_coalesced_": _Arguments("all_reduce"),
    "broadcast_": _Arguments("broadcast"),
    "reduce_": _Arguments("reduce"),
    "allgather_": _Arguments("all_gather", 1),
    "_allgather_base_": _Arguments("all_gather", 1, whole=0),
    "allgather_coalesced_": _Arguments("all_gather", 1),
    "allgather_into_tensor_coalesced_": _Arguments("all_gather", 1, whole=0),
    "reduce_scatter_": _Arguments("reduce_scatter", 0, parts=True),
    "_reduce_scatter_base_": _Arguments("reduce_scatter", 0, whole=1, parts=True),
    "reduce_scatter_tensor_coalesced_": _Arguments("reduce_scatter", 0, whole=1, parts=True),
    "gather_": _Arguments("gather", 1),
    "scatter_": _Arguments("scatter", 0),  # a trace's size of a scatter is one part
    "alltoall_": _Arguments("all_to_all", 1),
    "alltoall_base_": _Arguments("all_to_all", 1),
    "barrier": _Arguments("barrier", ABSENT),
    "monitored_barrier_": _Arguments(MONITORED_BARRIER, ABSENT),
    "send": _Arguments(SEND, peer=2),
    "recv_": _Arguments(RECEIVE, peer=2),
    "recv_any_source_": _Arguments(RECEIVE),
}
# What gloo's events are called where they are not what c10d was asked for.
CARRIED_OUT_AS = {"reduce_scatter": ("reduce_scatter", "all_reduce"), MONITORED_BARRIER: ()}


@dataclass(frozen=True, slots=True)
class GlooCall:
    """A collective as one of its two events describes it.

    Attributes
    ----------
    kind : str
        As of `perfmodel.workloads.formats.pytorch.collectives.CollectiveRecord`.
    elements : int
        Of the tensors that this rank puts in, or gets a part of; `ABSENT`: not stated.
    element_size : int
        [B]; `ABSENT`: not stated, or different ones.
    size : int
        Of these tensors [B]; `ABSENT`: not stated.
    parts : bool
        This rank puts in so much for each rank of the group.
    group_size : int
        As the sizes of two tensors say; `ABSENT`: they say nothing.
    peer : int
        Of a message, the other rank as the group counts; `ABSENT`: not stated.
    blocking : bool
        The caller waits. Else it may do so later.
    """

    kind: str
    elements: int = ABSENT
    element_size: int = ABSENT
    size: int = ABSENT
    parts: bool = False
    group_size: int = ABSENT
    peer: int = ABSENT
    blocking: bool = False


def gloo_call(name: str, keys: Mapping[str, Any]) -> GlooCall | None:
    """Return what an event of either kind says; None if it is neither.

    Parameters
    ----------
    name : str
        Of the event.
    keys : mapping of str to object
        Its ``args``.
    """
    shapes, types = _listed(keys.get("Input Dims")), _listed(keys.get("Input type"))
    if name.startswith(EVENT_PREFIX):
        kind = collective_kind(name)
        tensors = [shape for place, shape in enumerate(shapes) if _type(types, place)]
        elements = _elements(tensors) if tensors else ABSENT
        known = {_type(types, place) for place in range(len(shapes))} - {""}
        element = _element_size(known.pop()) if len(known) == 1 else ABSENT
        return GlooCall(kind, elements, element, _bytes(elements, element)) if kind else None
    if not name.startswith(OPERATOR_PREFIX):
        return None
    arguments = OPERATORS.get(name.removeprefix(OPERATOR_PREFIX))
    if arguments is None:
        kind = collective_kind(name)
        return GlooCall(kind) if kind else None
    values = _listed(keys.get("Concrete Inputs"))
    elements, element = _of_argument(shapes, types, arguments.tensor)
    together, _ = _of_argument(shapes, types, arguments.whole)
    group_size = ABSENT
    if elements > 0 and together > 0 and together % elements == 0:
        group_size = together // elements
    peer = ABSENT
    if 0 <= arguments.peer < len(values):
        peer = whole(values[arguments.peer], 0, LARGEST_GROUP)
    # The only argument that is true or false says whether the call is asynchronous.
    stated = [value for value in values if value in ("True", "False")]
    return GlooCall(
        arguments.kind,
        elements,
        element,
        _bytes(elements, element),
        arguments.parts,
        group_size if group_size <= LARGEST_GROUP else ABSENT,
        peer,
        # Messages end when somebody has waited for them; a monitored barrier's says something else.
        arguments.kind in (SEND, RECEIVE, MONITORED_BARRIER) or stated[:1] == ["False"],
    )


def _of_argument(shapes: Sequence[Any], types: Sequence[Any], place: int) -> tuple[int, int]:
    """Return elements of the tensors of an argument, and bytes of an element."""
    if not 0 <= place < len(shapes):
        return ABSENT, ABSENT
    shape = shapes[place]
    kind = types[place] if place < len(types) else ""
    if isinstance(kind, list):  # one for each tensor of a list
        known = {item for item in kind if isinstance(item, str)}
        kind = known.pop() if len(known) == 1 else ""
    several = isinstance(shape, list) and any(isinstance(item, list) for item in shape)
    if several:
        return _elements(shape), _element_size(kind)
    element = _element_size(kind)
    if element == ABSENT:  # no tensor, or a list whose shapes are not stated
        return ABSENT, ABSENT
    return _elements([shape]), element


def _elements(shapes: Sequence[Any]) -> int:
    """Return the elements of several tensors together."""
    total = 0
    for shape in shapes:
        if not isinstance(shape, list):
            return ABSENT
        sides = [whole(side, 0, LARGEST_SIZE) for side in shape]
        if ABSENT in sides:
            return ABSENT
        total += math.prod(sides)
        if total > LARGEST_SIZE:
            return ABSENT
    return total


def _bytes(elements: int, element: int) -> int:
    """Return a size, if it is stated and within bounds."""
    if ABSENT in (elements, element) or elements * element > LARGEST_SIZE:
        return ABSENT
    return elements * element


def _element_size(name: Any) -> int:
    """Return the bytes of an element type; `ABSENT` if it is none."""
    plain = name.lower().removeprefix("c10::").replace(" ", "") if isinstance(name, str) else ""
    return ELEMENT_SIZES.get(plain, ABSENT)


def _type(types: Sequence[Any], place: int) -> str:
    """Return the element type of a tensor among an event's inputs; empty if it is none."""
    kind = types[place] if place < len(types) else ""
    return kind if _element_size(kind) != ABSENT else ""


def _listed(value: Any) -> list[Any]:
    """Return a list, empty if it is none."""
    return value if isinstance(value, list) else []
