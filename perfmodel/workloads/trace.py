"""Operations of one rank as columns, and of all ranks with their groups: execution traces.

The columns hold what a Chakra execution trace says (schema 1.0.2-chakra.0.0.4), in SI
units; files are read and written by `perfmodel.workloads.formats.chakra.files`. A trace is a graph:
every node names its parents by their identifiers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers, Texts
from perfmodel.base.errors import FormatError

# Positions are the numbers of Chakra's enums.
NODE_KINDS = (
    "INVALID",
    "METADATA",
    "MEM_LOAD",
    "MEM_STORE",
    "COMP",
    "COMM_SEND",
    "COMM_RECV",
    "COMM_COLL",
)
METADATA, MEM_LOAD, MEM_STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)
ABSENT = -1  # the file does not state it
EVERYBODY = ABSENT  # in `group`: all ranks
REMARKS = "remarks"  # in `metadata`: lines that say what a conversion could not keep
PAUSE = 0  # in `lane`: time passes and nobody works


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of different lengths in one column: list i is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes
    ----------
    offsets : int64[lists + 1]
    values : int64[items]
    """

    offsets: Integers
    values: Integers

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """Return the lists as one column."""
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(items) for items in lists], out=offsets[1:])
        values = np.fromiter((item for items in lists for item in items), np.int64, offsets[-1])
        return cls(offsets, values)

    def __getitem__(self, index: int) -> Integers:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class NamedSizes(Sequence[tuple[str, int]]):
    """Tensors as columns: names and sizes [B].

    Attributes
    ----------
    texts : Texts
        Different names, in the order of first appearance.
    name : int64[tensors]
        Number of each one's name.
    size : int64[tensors]
    """

    __slots__ = ("name", "size", "texts")

    def __init__(self, texts: Texts, name: Integers, size: Integers) -> None:
        self.texts = texts
        self.name = name
        self.size = size

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, int]]) -> NamedSizes:
        """Return tensors in this form; themselves where they have it.

        Raises
        ------
        OverflowError
            A size has more than 63 bits.
        """
        if isinstance(tensors, NamedSizes):
            return tensors
        names = [name for name, _ in tensors]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        numbers = np.fromiter(map(number.__getitem__, names), np.int64, len(names))
        return cls(Texts.of(number), numbers, np.array([size for _, size in tensors], np.int64))

    def __getitem__(self, index: Any) -> Any:
        """Return a tensor, or several."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        return self.texts[self.name[index]], int(self.size[index])

    def __len__(self) -> int:
        """Return how many tensors there are."""
        return len(self.name)

    def __eq__(self, other: Any) -> bool:
        """Tell whether another sequence has the same tensors."""
        if isinstance(other, NamedSizes):
            columns = ((self.name, other.name), (self.size, other.size))
            return self.texts == other.texts and all(np.array_equal(*pair) for pair in columns)
        return isinstance(other, tuple | list) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        """Return a hash: tensors do not change."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Show the tensors."""
        return f"NamedSizes.of({tuple(self)!r})"


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank does. Every column has one entry per node, in file order.

    Attributes
    ----------
    identifiers : int64[nodes]
        Different, >= 0; the order in which ready nodes are issued.
    names : sequence of str
    kinds : int8[nodes]
        Positions in `NODE_KINDS`.
    start_time, duration : float64[nodes]
        As recorded [s]; 0 where the file states none.
    num_ops : int64[nodes]
        Of a compute node [FLOP, or what the writer counts]; `ABSENT`: not stated.
    tensor_size : int64[nodes]
        Memory traffic of a compute node, or size of a load or store [B]; `ABSENT`: not stated.
    collective : int8[nodes]
        Position in `perfmodel.base.collectives.TRACED`; `ABSENT`: no collective.
    communication_size : int64[nodes]
        [B]: the buffer of a device (all-gather: its shard), or the message; `ABSENT`: none.
    source, destination, tag : int32[nodes]
        Of a message: ranks and label; `ABSENT`: not stated.
    priority : int32[nodes]
        `ABSENT`: not stated.
    group : int32[nodes]
        Position in `group_names`; `EVERYBODY`: all ranks.
    involved : int32[nodes]
        Position in `involved_dimensions`; `ABSENT`: all dimensions.
    on_cpu : int8[nodes]
        1: runs on the host; 0: on the device; `ABSENT`: not stated, the device.
    lane : int32[nodes]
        Host thread or stream of the device on which a node was recorded, from 1 on; `PAUSE`;
        `ABSENT`: not stated. Where it is stated, parents hold the order of each lane, and the lanes
        of a rank run side by side, but for communication with other ranks.
    data_parents, control_parents : Ragged
        Identifiers of the nodes that have to end first.
    inputs, outputs : Ragged
        Positions in `tensors`: what a node reads and writes.
    group_names : tuple of str
    involved_dimensions : tuple of tuple of bool
    involved_attributes : tuple of str
        Names under which the file states them; states of ASTRA-sim read different ones. Empty:
        not from a file.
    whole_microseconds : bool
        Its format knows whole microseconds alone: simulators of such files see durations rounded,
        whatever `duration` says.
    unlisted : (int, int)
        Positions of the first nodes whose file has no attribute `inputs` and no `outputs`, not
        even one that lists nothing; `ABSENT`: all have one, or it is not from such a file.
    tensors : sequence of (str, int)
        Name and size [B].
    other : mapping of int to mapping of str to object
        Per position, attributes of the file that have no column.
    metadata : mapping of str to object
        Attributes of the whole file.
    version : str
        As the file states it.
    """

    identifiers: Integers
    names: Sequence[str]
    kinds: NDArray[np.int8]
    start_time: NDArray[np.float64]
    duration: NDArray[np.float64]
    num_ops: Integers
    tensor_size: Integers
    collective: NDArray[np.int8]
    communication_size: Integers
    source: NDArray[np.int32]
    destination: NDArray[np.int32]
    tag: NDArray[np.int32]
    priority: NDArray[np.int32]
    group: NDArray[np.int32]
    involved: NDArray[np.int32]
    on_cpu: NDArray[np.int8]
    lane: NDArray[np.int32]
    data_parents: Ragged
    control_parents: Ragged
    inputs: Ragged
    outputs: Ragged
    group_names: tuple[str, ...] = ()
    involved_dimensions: tuple[tuple[bool, ...], ...] = ()
    involved_attributes: tuple[str, ...] = field(default=(), compare=False)
    whole_microseconds: bool = field(default=False, compare=False)
    unlisted: tuple[int, int] = field(default=(ABSENT, ABSENT), compare=False)
    tensors: Sequence[tuple[str, int]] = ()
    other: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.identifiers)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers that are equal for traces of equal columns."""
        lists = (self.data_parents, self.control_parents, self.inputs, self.outputs)
        return (self.nodes, len(self.tensors), *(len(column.values) for column in lists))

    def equals(self, other: Trace) -> bool:
        """Tell whether two traces say the same, in whatever form."""
        said = [f.name for f in fields(self) if f.compare]
        return all(_same(getattr(self, name), getattr(other, name)) for name in said)

    def parent_positions(self) -> Ragged:
        """Return for every node the positions of all nodes that it waits for.

        Raises
        ------
        FormatError
            Two nodes have one identifier, or a parent is missing.
        """
        order = np.argsort(self.identifiers, kind="stable")
        known = self.identifiers[order]
        twice = np.flatnonzero(known[1:] == known[:-1])
        if twice.size:
            raise FormatError(f"two nodes have the id {known[twice[0]]}; ids should differ")
        lengths = np.diff(self.data_parents.offsets) + np.diff(self.control_parents.offsets)
        offsets = np.zeros(self.nodes + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        values = np.empty(offsets[-1], np.int64)
        for kind, start in (
            (self.data_parents, offsets[:-1]),
            (self.control_parents, offsets[:-1] + np.diff(self.data_parents.offsets)),
        ):
            shift = np.repeat(start - kind.offsets[:-1], np.diff(kind.offsets))
            values[np.arange(len(kind.values)) + shift] = kind.values
        places = np.minimum(np.searchsorted(known, values), max(self.nodes - 1, 0))
        if values.size and (known[places] != values).any():
            item = int(np.flatnonzero(known[places] != values)[0])
            node = int(np.searchsorted(offsets, item, side="right")) - 1
            raise FormatError(
                f"node {self.identifiers[node]} ({self.names[node]}) waits for node "
                f"{values[item]}, which is not in the trace"
            )
        return Ragged(offsets, order[places] if values.size else values)


# Columns in which ranks that do the same differ: whom they send to and receive from.
PEERS = ("source", "destination")


@dataclass(frozen=True, slots=True)
class OtherPeers:
    """What a rank does that differs from a trace in the peers of its messages only.

    Attributes
    ----------
    trace : Trace
        With the rank's own names of groups.
    positions : int64[messages]
        Nodes with another source or destination.
    source, destination : int32[messages]
        Of these.
    """

    trace: Trace
    positions: Integers
    source: NDArray[np.int32]
    destination: NDArray[np.int32]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.trace.nodes

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of the rank."""
        column: NDArray[Any] = getattr(self.trace, name)
        if name in PEERS:
            column = column.copy()
            column[self.positions] = getattr(self, name)
        return column

    def whole(self) -> Trace:
        """Return the rank's trace."""
        return replace(
            self.trace, source=self.column("source"), destination=self.column("destination")
        )


# What ranks may have of their own where they share all columns.
OWN = frozenset((*PEERS, "group_names", "metadata"))


def with_columns_of(trace: Trace, known: Trace) -> tuple[Trace | OtherPeers, bool]:
    """Return a trace that holds those columns of another that are equal to its own.

    Parameters
    ----------
    trace, known : Trace

    Returns
    -------
    trace : Trace or OtherPeers
    alike : bool
        They differ in what ranks may have of their own (`OWN`) only.
    """
    values = {f.name: (getattr(trace, f.name), getattr(known, f.name)) for f in fields(Trace)}
    shared = {name: theirs for name, (own, theirs) in values.items() if _same(own, theirs)}
    differs = values.keys() - shared.keys()
    alike = differs <= OWN
    if not alike or differs.isdisjoint(PEERS):
        return replace(trace, **shared), alike
    other = (trace.source != known.source) | (trace.destination != known.destination)
    positions = np.flatnonzero(other)
    light = replace(trace, **shared, **{name: values[name][1] for name in differs & {*PEERS}})
    ends = (trace.source[positions], trace.destination[positions])
    return OtherPeers(light, positions, *ends), alike


class RankTraces(Sequence[Trace]):
    """Traces by rank, of which many differ in peers only: these are made when asked for.

    Attributes
    ----------
    parts : tuple of Trace or OtherPeers
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Trace | OtherPeers]) -> None:
        self.parts = tuple(parts)

    def __getitem__(self, index: Any) -> Any:
        """Return the trace of a rank, or of several."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        part = self.parts[index]
        return part if isinstance(part, Trace) else part.whole()

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.parts)


@dataclass(frozen=True, slots=True)
class TraceSet:
    """What all ranks do together.

    Attributes
    ----------
    traces : sequence of Trace
        By rank; ranks that do the same may share one object.
    groups : mapping of str to tuple of int
        Ranks of each communicator group, in the order of its ring.
    """

    traces: Sequence[Trace]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of ranks."""
        return len(self.traces)

    @property
    def nodes(self) -> int:
        """Nodes of all ranks."""
        return sum(part.nodes for part in self.parts)

    @property
    def parts(self) -> Sequence[Trace | OtherPeers]:
        """What each rank does, without making traces that are not there."""
        return self.traces.parts if isinstance(self.traces, RankTraces) else self.traces

    def members(self, rank: int, position: int) -> tuple[int, ...]:
        """Return the ranks of a communication node's group.

        Raises
        ------
        FormatError
            The group is not known.
        """
        trace = self.traces[rank]
        index = int(trace.group[position])
        if index == EVERYBODY:
            return tuple(range(self.devices))
        name = trace.group_names[index]
        if name not in self.groups:
            raise FormatError(
                f"rank {rank}, node {trace.identifiers[position]} ({trace.names[position]}): "
                f"communicator group '{name}' has no list of ranks"
            )
        return self.groups[name]

    def equals(self, other: TraceSet) -> bool:
        """Tell whether two sets say the same."""
        return (
            self.devices == other.devices
            and dict(self.groups) == dict(other.groups)
            and all(a is b or a.equals(b) for a, b in zip(self.traces, other.traces, strict=True))
        )


# Columns that hold one number: name, type, value where a node states none.
SCALARS: tuple[tuple[str, Any, float], ...] = (
    ("start_time", np.float64, 0.0),
    ("duration", np.float64, 0.0),
    ("num_ops", np.int64, ABSENT),
    ("tensor_size", np.int64, ABSENT),
    ("collective", np.int8, ABSENT),
    ("communication_size", np.int64, ABSENT),
    ("source", np.int32, ABSENT),
    ("destination", np.int32, ABSENT),
    ("tag", np.int32, ABSENT),
    ("priority", np.int32, ABSENT),
    ("on_cpu", np.int8, ABSENT),
    ("lane", np.int32, ABSENT),
)


class TraceBuilder:
    """Collect the nodes of one rank, one after another; `build` returns the trace.

    Examples
    --------
    >>> builder = TraceBuilder()
    >>> forward = builder.add("forward", COMPUTE, num_ops=2_000_000, tensor_size=3000)
    >>> _ = builder.add("sum", COLLECTIVE, collective=0, communication_size=64, data=[forward])
    >>> builder.build().nodes
    2
    """

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in range(9)]  # as `build` takes them apart
        self._scalars: dict[str, list[float]] = {name: [] for name, _, _ in SCALARS}
        self._group_names: dict[str, int] = {}
        self._involved_dimensions: dict[tuple[bool, ...], int] = {}
        self._tensors: dict[tuple[str, int], int] = {}
        self._other: dict[int, Mapping[str, Any]] = {}

    def add(
        self,
        name: str,
        kind: int,
        *,
        identifier: int | None = None,
        group: str = "",
        involved: Sequence[bool] | None = None,
        data: Sequence[int] = (),
        control: Sequence[int] = (),
        inputs: Iterable[tuple[str, int]] = (),
        outputs: Iterable[tuple[str, int]] = (),
        other: Mapping[str, Any] | None = None,
        **scalars: float,
    ) -> int:
        """Add a node and return its identifier.

        Parameters
        ----------
        name : str
        kind : int
            Position in `NODE_KINDS`.
        identifier : int, optional
            By default the number of nodes so far.
        group : str, optional
            Communicator group; by default all ranks.
        involved : sequence of bool, optional
            One flag per network dimension.
        data, control : sequence of int
            Identifiers of parents.
        inputs, outputs : iterable of (str, int)
            Tensors: name and size [B].
        other : mapping of str to object, optional
            Attributes without a column.
        **scalars : float
            Any of `SCALARS`.
        """
        position = len(self._columns[0])
        number = position if identifier is None else identifier
        for column, _, default in SCALARS:
            self._scalars[column].append(scalars.pop(column, default))
        if scalars:
            raise TypeError(f"no such column: {', '.join(scalars)}")
        flags = None if involved is None else tuple(involved)
        values = (
            number,
            name,
            kind,
            _numbered(self._group_names, group) if group else EVERYBODY,
            ABSENT if flags is None else _numbered(self._involved_dimensions, flags),
            data,
            control,
            tuple([_numbered(self._tensors, item) for item in inputs]) if inputs else (),
            tuple([_numbered(self._tensors, item) for item in outputs]) if outputs else (),
        )
        for items, value in zip(self._columns, values, strict=True):
            items.append(value)
        if other:
            self._other[position] = other
        return number

    def build(self, metadata: Mapping[str, Any] | None = None, version: str = "") -> Trace:
        """Return the trace of what was added."""
        identifiers, names, kinds, group, involved, *lists = self._columns
        data, control, inputs, outputs = map(Ragged.from_lists, lists)
        scalars: dict[str, Any] = {
            name: np.array(self._scalars[name], kind) for name, kind, _ in SCALARS
        }
        return Trace(
            identifiers=np.array(identifiers, np.int64),
            names=tuple(names),
            kinds=np.array(kinds, np.int8),
            group=np.array(group, np.int32),
            involved=np.array(involved, np.int32),
            data_parents=data,
            control_parents=control,
            inputs=inputs,
            outputs=outputs,
            group_names=tuple(self._group_names),
            involved_dimensions=tuple(self._involved_dimensions),
            tensors=self._tensor_columns(),
            other=dict(self._other),
            metadata=dict(metadata or {}),
            version=version,
            **scalars,
        )

    def _tensor_columns(self) -> Sequence[tuple[str, int]]:
        """Return the tensors as columns; as they are where no columns hold them."""
        tensors = tuple(self._tensors)
        try:
            return NamedSizes.of(tensors)
        except (UnicodeEncodeError, OverflowError):
            return tensors


def _numbered(numbers: dict[Any, int], item: Any) -> int:
    """Return the number of an item among the different ones so far; a new one is added."""
    return numbers.setdefault(item, len(numbers))


def _same(a: Any, b: Any) -> bool:
    """Tell whether two fields of traces are equal."""
    if isinstance(a, Ragged):
        return _same(a.offsets, b.offsets) and _same(a.values, b.values)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(list(a) == list(b) if isinstance(a, tuple | list) else a == b)
