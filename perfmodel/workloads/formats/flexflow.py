"""Read FlexFlow's task graphs, and convert them to execution traces, one per device.

They are Graphviz files whose nodes are computations and messages; one graph holds all devices::

    digraph taskgraph {
      node0 [color=red,label="{device_id=0|Conv2D_100|Forward|COMP_NODE|simulated_run_time=0.28}"];
      node79 [label="{device_id=1|Comm from A to B|Comm|COMM_SEND_RECV_NODE|src_device_id=0|
              dst_device_id=1|comm_size=131072|run_time=0.000122071}",shape=record];
      node0 -> node79;
    }

(a label is one line in the file). An edge leads from a node to one that waits for it. The
``device_id`` of a message numbers a link. Run times are FlexFlow's own: milliseconds.

Traces follow the rules of mlcommons/chakra, ``et_converter/flexflow2chakra_converter.py``
(0c17c63): a computation goes to its device; a message becomes a send on its source and a receive
on its destination, both with the message's number and one tag of their own; a message keeps only
the parents on the same device, a computation keeps all. Beyond upstream, every node states that it
runs on the device: some versions of the feeder take a node that does not for one of the host.

Sources: that converter; the task graphs of its first release.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import DataError, FormatError, did_you_mean
from perfmodel.base.files import read_text, shortened
from perfmodel.workloads.trace import (
    ABSENT,
    COMPUTE,
    RECEIVE,
    SEND,
    Ragged,
    Trace,
    TraceBuilder,
    TraceSet,
)

COMPUTATION, MESSAGE = "COMP_NODE", "COMM_SEND_RECV_NODE"
# What a label holds, in this order; without '=': the bare text.
COMMON_FIELDS = ("device_id=", "name", "phase", "kind")
FIELDS = {
    COMPUTATION: (*COMMON_FIELDS, "simulated_run_time="),
    MESSAGE: (*COMMON_FIELDS, "src_device_id=", "dst_device_id=", "comm_size=", "run_time="),
}
LARGEST_DEVICE = 99_999
LARGEST_FILE = 2**30  # B
LARGEST_SIZE = 2**62  # B
IDENTIFIER = re.compile(r"node([0-9]{1,15})")
WHOLE = re.compile(r"[0-9]{1,19}")
NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")
TOKEN = re.compile(
    r'(?P<space>\s+)|(?P<text>"(?:[^"\\\n]|\\[^\n])*")|(?P<word>[A-Za-z0-9_.#]+)'
    r"|(?P<mark>->|[\[\]{}=,;])"
)


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tasks of all devices; every column has one entry per node, in file order.

    Attributes
    ----------
    identifiers : int64[nodes]
        The numbers in the nodes' names.
    names, phases : tuple of str
        For example ``Conv2D_100`` and ``Forward``.
    device : int32[nodes]
        Of a computation; `ABSENT` for a message.
    run_time : float64[nodes]
        As FlexFlow's simulator predicts it, in its unit (milliseconds).
    source, destination : int32[nodes]
        Devices of a message; `ABSENT` for a computation.
    size : int64[nodes]
        Of a message [B]; `ABSENT` for a computation.
    parents : Ragged
        Positions of the nodes that have to end first, in the order of the file's edges.
    """

    identifiers: Integers
    names: tuple[str, ...]
    phases: tuple[str, ...]
    device: NDArray[np.int32]
    run_time: NDArray[np.float64]
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    size: Integers
    parents: Ragged

    @property
    def nodes(self) -> int:
        """Number of computations and messages."""
        return len(self.identifiers)

    @property
    def devices(self) -> int:
        """Number of devices: one more than the highest number."""
        columns = (self.device, self.source, self.destination)
        return 1 + max((int(column.max(initial=ABSENT)) for column in columns), default=ABSENT)

    @property
    def messages(self) -> NDArray[np.bool_]:
        """Tell for every node whether it is a message."""
        return self.size != ABSENT


def read_flexflow(path: str | os.PathLike[str]) -> TaskGraph:
    """Read a task graph of FlexFlow.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    TaskGraph

    Raises
    ------
    FormatError
        The file cannot be read or is no such graph; says the line and what would be right.
    """
    return parse_flexflow(read_text(path, "a FlexFlow task graph", LARGEST_FILE), str(path))


def parse_flexflow(text: str, file: str = "task graph") -> TaskGraph:
    """Read a task graph from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_flexflow`.
    """
    graph = _Graph(file)
    tokens = _Tokens(text, file)
    tokens.expect("digraph")
    if tokens.next() != "{":
        tokens.expect("{")
    while (word := tokens.next()) != "}":
        if word == ";":
            continue
        node = _identifier(word, tokens)
        line = tokens.line
        follows = tokens.next()
        if follows == "->":
            graph.edges.append((node, _identifier(tokens.next(), tokens), line))
        elif follows == "[":
            graph.add(node, tokens.attributes().get("label", ""), line)
        else:
            raise tokens.wrong("'->' or '[' after the name of a node")
    if tokens.next() != "":
        raise tokens.wrong("the end of the file after the graph's '}'")
    return graph.columns()


def _identifier(word: str, tokens: _Tokens) -> int:
    """Return the number in a node's name."""
    match = IDENTIFIER.fullmatch(word)
    if match is None:
        raise tokens.wrong("the name of a node, for example node0")
    return int(match[1])


class _Tokens:
    """The tokens of a file, one by one; an empty one is the end."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._tokens = self._split()
        self._counted = 0  # characters whose line ends are counted
        self._start = 0
        self._token = ""
        self._lines = 0

    def _split(self) -> Iterator[tuple[str, int]]:
        """Yield the tokens and where they start."""
        place = 0
        while place < len(self._text):
            match = TOKEN.match(self._text, place)
            if match is None:
                self._token, self._start = self._text[place], place
                raise self.wrong("a word, a text in quotes, or one of -> [ ] { } = , ;")
            if match.lastgroup != "space":
                yield match[0], place
            place = match.end()

    @property
    def line(self) -> int:
        """Line of the token taken last, from 1."""
        self._lines += self._text.count("\n", self._counted, self._start)
        self._counted = self._start
        return self._lines + 1

    def next(self) -> str:
        """Return the next token."""
        self._token, self._start = next(self._tokens, ("", len(self._text)))
        return self._token

    def expect(self, token: str) -> None:
        """Take one token that has to be this one."""
        if self.next() != token:
            raise self.wrong(f"'{token}'")

    def attributes(self) -> dict[str, str]:
        """Return what stands in brackets; the opening one is taken already."""
        found: dict[str, str] = {}
        while (key := self.next()) != "]":
            if key == ",":
                continue
            if not TOKEN.fullmatch(key) or not key[0].isalpha():
                raise self.wrong("the name of an attribute, or ']'")
            self.expect("=")
            value = self.next()
            if not value or value in "[]{}=,;->":
                raise self.wrong(f"the value of attribute '{shortened(key)}'")
            found[key] = value[1:-1] if value.startswith('"') else value
        return found

    def wrong(self, wanted: str) -> FormatError:
        """Return the error about the token taken last."""
        if not self._token:
            return FormatError(f"{self._file}: the file ends where {wanted} should follow")
        return FormatError(
            f"{self._file}, line {self.line}: '{shortened(self._token)}' should be {wanted}"
        )


class _Graph:
    """Nodes and edges as they are read."""

    def __init__(self, file: str) -> None:
        self.edges: list[tuple[int, int, int]] = []
        self._file = file
        self._positions: dict[int, int] = {}
        self._texts: list[tuple[str, str]] = []
        self._numbers: list[tuple[int, int, int, int]] = []
        self._times: list[float] = []

    def add(self, node: int, label: str, line: int) -> None:
        """Add a node, given its label."""
        place = f"{self._file}, line {line}, node{node}"
        if node in self._positions:
            raise FormatError(f"{place}: a second node of this name; names should differ")
        fields = [part.strip() for part in label.removeprefix("{").removesuffix("}").split("|")]
        kind = fields[3] if len(fields) > 3 else ""
        if kind not in FIELDS:
            raise FormatError(
                f"{place}: label '{shortened(label)}' should be '{{device_id=N|name|phase|kind|"
                f"…}}' with kind {COMPUTATION} or {MESSAGE}{did_you_mean(kind, FIELDS)}"
            )
        values = _values(fields, FIELDS[kind], place)
        if kind == COMPUTATION:
            numbers = (_whole(values[0], "device_id", LARGEST_DEVICE, place), *(ABSENT,) * 3)
        else:
            _whole(values[0], "device_id", LARGEST_SIZE, place)
            source = _whole(values[4], "src_device_id", LARGEST_DEVICE, place)
            destination = _whole(values[5], "dst_device_id", LARGEST_DEVICE, place)
            if source == destination:
                raise FormatError(f"{place}: device {source} sends to itself")
            size = _whole(values[6], "comm_size", LARGEST_SIZE, place)
            numbers = (ABSENT, source, destination, size)
        self._times.append(_time(values[-1], FIELDS[kind][-1], place))
        self._positions[node] = len(self._texts)
        self._texts.append((values[1], values[2]))
        self._numbers.append(numbers)

    def columns(self) -> TaskGraph:
        """Return the graph; checks that edges join nodes."""
        parents: list[list[int]] = [[] for _ in self._texts]
        for parent, child, line in self.edges:
            for node in (parent, child):
                if node not in self._positions:
                    raise FormatError(
                        f"{self._file}, line {line}: the edge node{parent} -> node{child} names "
                        f"node{node}, which the graph does not have"
                    )
            parents[self._positions[child]].append(self._positions[parent])
        numbers = np.array(self._numbers, np.int64).reshape(-1, 4)
        device, source, destination = numbers[:, :3].astype(np.int32).T
        return TaskGraph(
            np.array(list(self._positions), np.int64),
            tuple(name for name, _ in self._texts),
            tuple(phase for _, phase in self._texts),
            device,
            np.array(self._times, np.float64),
            source,
            destination,
            numbers[:, 3].copy(),
            Ragged.from_lists(parents),
        )


def _values(fields: list[str], wanted: tuple[str, ...], place: str) -> list[str]:
    """Return the values of a label's fields; checks their number and names."""
    if len(fields) != len(wanted):
        raise FormatError(
            f"{place}: the label has {len(fields)} fields; a {fields[3]} has {len(wanted)}: "
            f"{'|'.join(wanted)}"
        )
    for field, name in zip(fields, wanted, strict=True):
        if name.endswith("=") and not field.startswith(name):
            raise FormatError(f"{place}: field '{shortened(field)}' should be '{name}…'")
    return [
        field[len(name) :].strip() if name.endswith("=") else field
        for field, name in zip(fields, wanted, strict=True)
    ]


def _whole(word: str, name: str, largest: int, place: str) -> int:
    """Return a whole number of a label."""
    if not (WHOLE.fullmatch(word) and int(word) <= largest):
        raise FormatError(
            f"{place}: {name} is '{shortened(word)}'; it should be a whole number, 0 to {largest}"
        )
    return int(word)


def _time(word: str, name: str, place: str) -> float:
    """Return a time of a label."""
    if not (NUMBER.fullmatch(word) and math.isfinite(float(word))):
        raise FormatError(f"{place}: {name}'{shortened(word)}' should be a finite number >= 0 [ms]")
    return float(word)


MILLISECOND = 1e-3  # unit of run times in FlexFlow's simulator [s]
LARGEST_TIME = 1e9  # s


def flexflow_traces(
    graph: TaskGraph, npu_frequency: float | None = None, run_time_unit: float = MILLISECOND
) -> TraceSet:
    """Convert a task graph to one trace per device.

    Parameters
    ----------
    graph : TaskGraph
    npu_frequency : float, optional
        Clock of a device [MHz]. Reproduces the upstream converter, which takes run times as
        seconds and stores cycles, rounded, where traces hold microseconds.
    run_time_unit : float, optional
        Unit of the graph's run times [s]; not used where `npu_frequency` is given.

    Returns
    -------
    TraceSet
        Nodes of a device in the order of their numbers, without computations of other devices.

    Raises
    ------
    FormatError
        A computation waits for a node of another device, or a time is too long.
    DataError
        Frequency or unit is not positive.
    """
    durations = _durations(graph, npu_frequency, run_time_unit)
    messages = np.flatnonzero(graph.messages)
    owners = [np.flatnonzero(graph.device != ABSENT), messages, messages]
    devices = [graph.device[owners[0]], graph.source[messages], graph.destination[messages]]
    position, device = np.concatenate(owners), np.concatenate(devices)
    order = np.lexsort((graph.identifiers[position], device))
    bounds = np.searchsorted(device[order], np.arange(graph.devices + 1))
    tags = _tags(graph)
    empty = TraceBuilder().build()
    return TraceSet(
        tuple(
            _device_trace(graph, durations, tags, rank, position[order[first:end]])
            if end > first
            else empty
            for rank, (first, end) in enumerate(pairwise(bounds))
        )
    )


def _durations(graph: TaskGraph, npu_frequency: float | None, unit: float) -> list[float]:
    """Return how long every computation takes [s]."""
    for name, value in (("npu_frequency", npu_frequency), ("run_time_unit", unit)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise DataError(f"{name} is {value}; it should be a finite number > 0")
    with np.errstate(over="ignore"):  # refused below
        if npu_frequency is None:
            seconds = graph.run_time * unit
        else:
            seconds = np.rint(graph.run_time * (npu_frequency * 1e6)) / 1e6
    longest = float(seconds.max(initial=0.0))
    if longest > LARGEST_TIME:
        node = graph.identifiers[int(seconds.argmax())]
        raise FormatError(f"node{node} takes {longest:.3g} s; at most {LARGEST_TIME:.0e} s are run")
    return [float(duration) for duration in seconds]


def _tags(graph: TaskGraph) -> Integers:
    """Return a tag per message: numbers in the order in which upstream meets messages.

    It goes through the devices and, for each, through the file's nodes.
    """
    messages = np.flatnonzero(graph.messages)
    first_device = np.minimum(graph.source, graph.destination)[messages]
    tags = np.full(graph.nodes, ABSENT, np.int64)
    tags[messages[np.argsort(first_device, kind="stable")]] = np.arange(len(messages))
    return tags


def _device_trace(
    graph: TaskGraph, durations: list[float], tags: Integers, rank: int, positions: Integers
) -> Trace:
    """Return what one device does, given the positions of its nodes."""
    builder = TraceBuilder()
    for position in map(int, positions):
        parents = graph.parents[position]
        here = _touches(graph, parents, rank)
        identifier = int(graph.identifiers[position])
        if graph.size[position] == ABSENT:
            if not here.all():
                raise FormatError(
                    f"node{identifier} ({graph.names[position]}) on device {rank} waits for "
                    f"node{graph.identifiers[parents[~here][0]]} of another device; a message "
                    "between them is missing"
                )
            builder.add(
                f"COMP_NODE_{graph.names[position]}",
                COMPUTE,
                identifier=identifier,
                duration=durations[position],
                on_cpu=0,
                data=graph.identifiers[parents].tolist(),
            )
            continue
        sends = graph.source[position] == rank
        builder.add(
            f"COMM_{'SEND' if sends else 'RECV'}_NODE_{graph.names[position]}",
            SEND if sends else RECEIVE,
            identifier=identifier,
            source=int(graph.source[position]),
            destination=int(graph.destination[position]),
            communication_size=int(graph.size[position]),
            tag=int(tags[position]),
            on_cpu=0,
            data=graph.identifiers[parents[here]].tolist(),
        )
    return builder.build()


def _touches(graph: TaskGraph, positions: Integers, rank: int) -> np.ndarray:
    """Tell which nodes have a part on a device."""
    columns = (graph.device, graph.source, graph.destination)
    return np.any([column[positions] == rank for column in columns], axis=0)
