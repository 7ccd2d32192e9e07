"""Messages of Chakra's execution traces, schema 1.0.2-chakra.0.0.4, and their attributes.

The message classes are built when they are first needed, from the tables below: nothing is
generated, so any protobuf release from 5 on will do. Numbers and names are the public
schema's (mlcommons/chakra v0.0.4, ``schema/protobuf/et_def.proto``; unchanged since).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.base.files import shortened
from perfmodel.workloads.formats.words import words_of

PACKAGE = "ChakraProtoMsg"
_WORDS = words_of("chakra")
SCALAR_KINDS: tuple[str, ...] = _WORDS["values"]["scalar_kinds"]
LISTS = tuple(f"{kind}_list" for kind in SCALAR_KINDS)
IO_INFO = "io_info"  # not a kind of the schema: the fields `inputs` and `outputs` of a node
# Their names among the attributes in `Trace.other`.
NODE_INPUTS = "node.inputs"
NODE_OUTPUTS = "node.outputs"

# Message: field number, name, type; "repeated" before the type of a list.
MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    **_WORDS["messages"],
    **{name: ((1, "values", f"repeated {name.removesuffix('_list')}"),) for name in LISTS},
}
for _number, _kind in enumerate(SCALAR_KINDS):
    MESSAGES["AttributeProto"] += (
        (3 + 2 * _number, f"{_kind}_val", _kind),
        (4 + 2 * _number, f"{_kind}_list", f"{_kind}_list"),
    )
ATTRIBUTE_OF_NODE = bytes([10 << 3 | 2])  # tag of field `attr`
ATTRIBUTE_NAME = 1 << 3 | 2  # tag of an attribute's field `name`

LARGEST = 2**63 - 1
LARGEST_RANK = 2**31 - 1
MICROSECONDS = 1e6  # per second
# Attribute of a node: column of `Trace`, kind to write, largest value; in writing order.
INTEGERS: Mapping[str, tuple[str, str, int]] = {
    "num_ops": ("num_ops", "int64", LARGEST),
    "tensor_size": ("tensor_size", "uint64", LARGEST),
    "comm_type": ("collective", "int64", len(TRACED) - 1),
    "comm_src": ("source", "int32", LARGEST_RANK),
    "comm_dst": ("destination", "int32", LARGEST_RANK),
    "comm_size": ("communication_size", "int64", LARGEST),
    "comm_tag": ("tag", "int32", LARGEST_RANK),
    "comm_priority": ("priority", "int32", LARGEST_RANK),
    "is_cpu_op": ("on_cpu", "bool", 1),
    "lane": ("lane", "int32", LARGEST_RANK),  # ours
}
GROUP = "pg_name"
# Names of the same: as ASTRA-sim read it until 2025, which is what is written, and since.
INVOLVED = ("involve_dims", "involved_dim")
EXACT_TIMES = {"start_time_seconds": "start_time", "duration_seconds": "duration"}
# Attributes that have columns, as `kernels.trace.wire` counts them.
WORDS = (*INTEGERS, GROUP, *INVOLVED, *EXACT_TIMES, "inputs", "outputs")


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value whose kind a plain Python value would not tell.

    Attributes
    ----------
    kind : str
        One of `SCALAR_KINDS`, one with ``_list`` after it, ``""`` for none, or `IO_INFO`.
    value : object
        A tuple for lists; (values, shapes, types) for `IO_INFO`; None for none.
    doc_string : str
    """

    kind: str
    value: Any
    doc_string: str = ""


# Kinds that `Trace.other` and `Trace.metadata` hold as plain Python values.
PLAIN_KINDS: Mapping[type, str] = {str: "string", bool: "bool", int: "int64", float: "double"}
_PLAIN = frozenset(PLAIN_KINDS.values())


class Messages(NamedTuple):
    """Message classes of protobuf."""

    node: Any
    metadata: Any
    attribute: Any
    io_info: Any


@functools.cache
def messages() -> Messages:
    """Return the message classes."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="perfmodel_chakra.proto", package=PACKAGE, syntax="proto3"
    )
    for name, entries in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, label, kind in entries:
            one = message.field.add(name=label, number=number)
            one.label = field.LABEL_REPEATED if kind[:9] == "repeated " else field.LABEL_OPTIONAL
            kind = kind.removeprefix("repeated ")
            if kind in MESSAGES:
                one.type, one.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                one.type = field.Type.Value(f"TYPE_{kind.upper()}")
            if name == "AttributeProto" and number > 2:
                one.oneof_index = 0  # proto3: written even where the value is 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return Messages(
        *(
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
            for name in ("Node", "GlobalMetadata", "AttributeProto", "IOInfo")
        )
    )


def attribute_value(attribute: Any) -> Any:
    """Return what an AttributeProto says: a plain value, or an `Attribute` with its kind."""
    which = attribute.WhichOneof("value")
    if which is None:
        return Attribute("", None, attribute.doc_string)
    kind = which.removesuffix("_val")
    value = getattr(attribute, which)
    if kind in _PLAIN and not attribute.doc_string:
        return value
    if kind in LISTS:
        value = tuple(value.values)
    return Attribute(kind, value, attribute.doc_string)


def attribute_message(name: str, value: Any) -> Any:
    """Return the AttributeProto that `attribute_value` reads back as `value`.

    Raises
    ------
    TypeError, ValueError
        The value does not fit its kind.
    """
    message = messages().attribute(name=name)
    if not isinstance(value, Attribute):
        value = Attribute(PLAIN_KINDS[type(value)], value)
    message.doc_string = value.doc_string
    if value.kind in LISTS:
        target = getattr(message, value.kind)
        target.SetInParent()  # an empty list is a value as well
        target.values.extend(value.value)
    elif value.kind:
        setattr(message, f"{value.kind}_val", value.value)
    return message


def check_finite(name: str, value: Any) -> None:
    """Refuse NaN and infinity.

    Raises
    ------
    FormatError
        A number is not finite.
    """
    content = value.value if isinstance(value, Attribute) else value
    items = content if isinstance(content, tuple) else (content,)
    if items and isinstance(items[0], float) and not all(map(math.isfinite, items)):
        raise FormatError(f"attribute '{shortened(name)}' is not finite")
