"""Chakra traces, made by hand and at random."""

from __future__ import annotations

from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.files import (
    parse_trace,
)
from perfmodel.workloads.formats.chakra.schema import (
    IO_INFO,
    NODE_INPUTS,
    SCALAR_KINDS,
    Attribute,
    attribute_message,
    messages,
)
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    SEND,
    Trace,
    TraceBuilder,
)

# A chain of four nodes with every integer attribute as uint64, and one CPU operation (RUN).
TYPES_FILE = (
    b"&\n\x050.0.4\x12\x1d\n\x06schema\xea\x01\x121.0.2-chakra.0.0.4"
    b"\x1c\x08\x03\x12\x04comp\x18\x048dR\x0e\n\tis_cpu_op\xd8\x01\x00"
    b";\x08\x04\x12\x02C4\x18\x07*\x01\x03R\r\n\tcomm_typeh\x00R\x0f\n\tcomm_sizeh\x80\x80@"
    b"R\x0e\n\tis_cpu_op\xd8\x01\x00"
    b"\x1e\x08\t\x12\x03cpu\x18\x04*\x01\x0382R\x0e\n\tis_cpu_op\xd8\x01\x01"
    b"\x0e\x08\n\x12\x03gpu\x18\x04*\x01\x038<"
)

# Communication of DLRM's layer 0, as the text converter of Chakra wrote it.
NAME = b"COMM_COLL_NODE_layer_64_1_ALLTOALL"

CONVERTED_NODE = (
    b"\x08\x01\x12" + bytes([len(NAME)]) + NAME + b"\x18\x07\x2a\x01\x00"
    b"\x52\x0d\x0a\x09comm_type\x48\x06\x52\x0f\x0a\x09comm_size\x48\x80\x80\x06"
)
EMPTY_METADATA = b"\x00"


def framed(*parts: bytes) -> bytes:
    """A file with an empty metadata message and these nodes (shorter than 128 B each)."""
    assert all(len(part) < 128 for part in parts)
    return EMPTY_METADATA + b"".join(bytes([len(part)]) + part for part in parts)


def parts_of(content: bytes) -> list[bytes]:
    """The messages of a file."""
    parts, place = [], 0
    while place < len(content):
        length = shift = 0
        while True:
            byte = content[place]
            length |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
            if byte < 128:
                break
        parts.append(content[place : place + length])
        place += length
    return parts


def node_with(*attributes, **fields) -> bytes:
    """The bytes of a Node message."""
    node = messages().node(**{"id": 1, "name": "n", "type": COMPUTE, **fields})
    node.attr.extend(attribute_message(name, value) for name, value in attributes)
    return node.SerializeToString()


def small_trace():
    """Every kind of column once."""
    builder = TraceBuilder()
    first = builder.add("compute", COMPUTE, num_ops=2**40, tensor_size=3000, on_cpu=1)
    second = builder.add(
        "reduce",
        COLLECTIVE,
        collective=TRACED.index("all_reduce"),
        communication_size=0,
        priority=3,
        group="tp",
        data=[first],
        inputs=[("weights", 2**40)],
    )
    builder.add(
        "send",
        SEND,
        source=0,
        destination=1,
        tag=0,
        communication_size=64,
        involved=[True, False],
        control=[first, second],
        duration=1.5e-6,
        start_time=2.0,
        outputs=[("weights", 2**40), ("y", 0)],
        other={"stream": 7, "lanes": Attribute("sint32_list", (-1, 2), "why")},
    )
    return builder.build({"schema": "1.0.2-chakra.0.0.4"}, version="0.0.4")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)

# What each kind of the schema can hold; float has to be exact in 32 bits.
SCALAR_VALUES = {
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": st.binary(max_size=4),
}

for scalar in SCALAR_KINDS:
    bits = 64 if scalar.endswith("64") else 32
    least = 0 if scalar.startswith(("u", "fixed")) else -(2 ** (bits - 1))
    SCALAR_VALUES.setdefault(scalar, st.integers(least, least + 2**bits - 1))
PLAIN = st.one_of(SCALAR_VALUES[kind] for kind in ("double", "bool", "string", "int64"))

TYPED = st.one_of(
    [
        st.builds(Attribute, st.just(kind), values, TEXT.filter(bool))
        for kind, values in SCALAR_VALUES.items()
    ]
    + [
        st.builds(Attribute, st.just(f"{kind}_list"), st.lists(values, max_size=3).map(tuple))
        for kind, values in SCALAR_VALUES.items()
    ]
    + [st.just(Attribute("", None))]
)
ATTRIBUTES = st.dictionaries(TEXT.map("x{}".format), PLAIN | TYPED, max_size=2)
SIZES = st.integers(ABSENT, 2**63 - 1)
RANKS = st.integers(ABSENT, 2**31 - 1)

TIMES = st.one_of(
    st.integers(0, 10**12).map(lambda micros: micros / 1e6),
    st.floats(0, 1e9),
    st.sampled_from([0.0, 5e-324, 4.9e-7, 5e-7]),
)
TENSORS = st.lists(st.tuples(TEXT, st.integers(0, 2**63 - 1)), max_size=2)


@st.composite
def traces(draw):
    """A trace of up to six nodes."""
    builder = TraceBuilder()
    identifiers = draw(st.lists(st.integers(0, 2**63 - 1), max_size=6, unique=True))
    parents = st.lists(st.sampled_from(identifiers or [0]), max_size=3)
    for identifier in identifiers:
        other = dict(draw(ATTRIBUTES))
        if draw(st.booleans()):
            other[NODE_INPUTS] = Attribute(IO_INFO, (draw(TEXT), "", draw(TEXT)))
        builder.add(
            draw(TEXT),
            draw(st.integers(1, 7)),
            identifier=identifier,
            group=draw(TEXT),
            involved=draw(st.none() | st.lists(st.booleans(), max_size=3)),
            data=draw(parents),
            control=draw(parents),
            inputs=draw(TENSORS),
            outputs=draw(TENSORS),
            other=other,
            start_time=draw(TIMES),
            duration=draw(TIMES),
            num_ops=draw(SIZES),
            tensor_size=draw(SIZES),
            communication_size=draw(SIZES),
            collective=draw(st.integers(ABSENT, 9)),
            source=draw(RANKS),
            destination=draw(RANKS),
            tag=draw(RANKS),
            priority=draw(RANKS),
            on_cpu=draw(st.integers(ABSENT, 1)),
        )
    printable = st.text("0123456789.-chakra", max_size=8)
    return builder.build(draw(ATTRIBUTES), draw(printable))


def trace_or_error(content: bytes) -> Trace | None:
    """The trace, or None where the error is one line."""
    try:
        return parse_trace(content, "t.et")
    except FormatError as failure:
        lines = str(failure).splitlines()
    assert len(lines) == 1
    return None


def with_version(version: bytes) -> bytes:
    return bytes([len(version) + 2]) + b"\x0a" + bytes([len(version)]) + version
