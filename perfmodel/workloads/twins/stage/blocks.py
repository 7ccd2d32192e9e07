"""Nodes of one block of STAGE's graph, and columns of many copies of it.

Nodes of one block of STAGE's graph, with references relative to the block.

A block is an embedding, a layer, or the weight updates of one of these. Its nodes refer to
other nodes and to tensors relative to an origin: the block itself, what comes before or
behind it. Copies of a block differ in their origins only, so that 80 layers are one layer's
columns plus a table of origins (`perfmodel.workloads.twins.stage.blocks`).

Columns of many copies of blocks: one rank's trace, built without an object per node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Integers
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, COMPUTE, SEND, Ragged, Trace
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.operations import (
    GRADIENT,
    INPUT,
    SAME,
    Collective,
    Operation,
    Tensor,
    evaluate,
    size_of,
    update_tensors,
)

# Origins of references. OWNER: the block whose weights an update block updates.
OWN, BEFORE, BEHIND, OWNER, SENT_ON, SENT_BACK = range(6)
ORIGINS = 6
DEGREES = ("dp", "tp", "sp")

Reference = tuple[int, int]  # origin, distance from it


@dataclass(slots=True)
class Node:
    """One node of a block."""

    name: str
    kind: int
    identifier: Reference
    num_ops: int = ABSENT
    tensor_size: int = ABSENT
    collective: int = ABSENT
    communication_size: int = ABSENT
    degree: int = ABSENT
    parents: list[Reference] = field(default_factory=list)
    control: list[Reference] = field(default_factory=list)
    inputs: list[Reference] = field(default_factory=list)
    outputs: list[Reference] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """Nodes of one block.

    Attributes
    ----------
    nodes : list of Node
    tensors : list of (str, int)
        Name and size [B].
    identifiers : int
        Numbers used up, also by tensors without nodes.
    ends : dict of str to Reference
        Node after which a tensor is there; none for weights and for inputs of the model.
    places : dict of str to Reference
        Every tensor's place among tensors.
    """

    nodes: list[Node] = field(default_factory=list)
    tensors: list[tuple[str, int]] = field(default_factory=list)
    identifiers: int = 0
    ends: dict[str, Reference] = field(default_factory=dict)
    places: dict[str, Reference] = field(default_factory=dict)


def block_of(
    tensors: Sequence[Tensor],
    arguments: StageArguments,
    outside: Mapping[str, Tensor],
    sent: Mapping[str, int] | None = None,
) -> Block:
    """Return the nodes of an embedding or of a layer.

    Parameters
    ----------
    tensors : sequence of Tensor
    arguments : StageArguments
    outside : mapping of str to Tensor
        What `INPUT` and `GRADIENT` stand for.
    sent : mapping of str to int, optional
        Tensors that another pipeline stage reads: `SENT_ON` or `SENT_BACK`.
    """
    block = Block()
    block.ends |= {INPUT: (BEFORE, 0), GRADIENT: (BEHIND, 0)}
    block.places |= block.ends
    sources = {**outside, **{tensor.name: tensor for tensor in tensors}}
    _lower(block, tensors, sources, arguments, sent or {}, revision=0)
    return block


def updates_of(owner: Block, tensors: Sequence[Tensor], arguments: StageArguments) -> Block:
    """Return the nodes that add gradients to the weights of a block."""
    block = Block(
        ends={name: (OWNER, end) for name, (origin, end) in owner.ends.items() if origin == OWN},
        places={name: (OWNER, at) for name, (origin, at) in owner.places.items() if origin == OWN},
    )
    sources = {tensor.name: tensor for tensor in tensors}
    _lower(block, update_tensors(tensors), sources, arguments, {}, revision=1)
    return block


def _lower(
    block: Block,
    tensors: Sequence[Tensor],
    sources: Mapping[str, Tensor],
    arguments: StageArguments,
    sent: Mapping[str, int],
    revision: int,
) -> None:
    """Add the nodes of some tensors to a block.

    Every tensor takes a number for its computation and one per collective, whether or not
    the nodes stay: weights, inputs and other names of a tensor compute nothing, and their
    nodes are left out (symbolic_tensor_graph/graph/convert_chakra.py, `_clean_empty_comp`).
    """
    made = [evaluate(tensor, sources, arguments) for tensor in tensors]
    numbers = []
    read = dict(block.ends), dict(block.places)
    for tensor, operation in zip(tensors, made, strict=True):
        number = block.identifiers
        numbers.append(number)
        block.identifiers += 1 + len(operation.first) + len(operation.second)
        if operation.num_ops:
            block.ends[tensor.name] = (OWN, number)
        elif operation.first:
            block.ends[tensor.name] = (OWN, number + len(operation.first))
        if tensor.kind != SAME:
            block.places[tensor.name] = (OWN, len(block.tensors))
            size = size_of(tensor.shape, arguments.symbols)
            block.tensors.append((f"{tensor.name}@{revision}{tensor.shape}", size))
    for tensor, operation in zip(tensors, made, strict=True):
        if tensor.kind == SAME and tensor.first is not None:
            block.places[tensor.name] = block.places[tensor.first.tensor]
            if not operation.first:
                block.ends[tensor.name] = block.ends[tensor.first.tensor]
    # An updated weight has the name of the weight that it is made from.
    ends, places = (block.ends, block.places) if revision == 0 else read
    late = {tensor.name: i for i, tensor in enumerate(tensors) if tensor.kind == SAME}
    for tensor, operation, number in zip(tensors, made, numbers, strict=True):
        name = f"{tensor.name}@{revision}"
        nodes = _nodes_of(tensor, operation, number, name, _Readable(ends, places, late))
        if nodes and nodes[0].kind == COMPUTE:
            nodes[0].outputs.append(block.places[tensor.name])
        block.nodes += nodes
        if tensor.name in sent:
            block.nodes.append(
                Node(
                    f"{name}_Y_SEND",
                    SEND,
                    (sent[tensor.name], 0),
                    communication_size=size_of(tensor.shape, arguments.symbols),
                    parents=[block.ends[tensor.name]],
                    inputs=[block.places[tensor.name]],
                )
            )


@dataclass(frozen=True, slots=True)
class _Readable:
    """Where tensors can be read: their last nodes, their places, and which are other names."""

    ends: Mapping[str, Reference]
    places: Mapping[str, Reference]
    late: Mapping[str, int]


def _nodes_of(
    tensor: Tensor, operation: Operation, number: int, name: str, readable: _Readable
) -> list[Node]:
    """Return the nodes of one tensor: its computation, then collectives on its inputs."""
    compute = Node(
        f"{name}_COMP",
        COMPUTE,
        (OWN, number),
        num_ops=operation.num_ops,
        tensor_size=operation.tensor_size,
    )
    nodes, direct = [compute], []
    number += 1
    for use, collectives, label in (
        (tensor.first, operation.first, "X1COMM"),
        (tensor.second, operation.second, "X2_COMM"),
    ):
        if use is None or not use.tensor:
            continue
        compute.inputs.append(readable.places[use.tensor])
        if not collectives:
            direct.append(use)
            continue
        chain = _chain(collectives, number, f"{name}_{label}", readable.places[use.tensor])
        if use.tensor in readable.ends:
            chain[0].parents.append(readable.ends[use.tensor])
        compute.parents.append(chain[-1].identifier)
        nodes += chain
        number += len(chain)
    # Nodes that are left out pass their own parents on, after the others, in their order.
    direct = [use for use in direct if use.tensor in readable.ends]
    direct.sort(key=lambda use: readable.late.get(use.tensor, -1))
    compute.parents += [readable.ends[use.tensor] for use in direct]
    if tensor.after:
        first = nodes[1] if operation.first else compute
        first.control.append(readable.ends[tensor.after])
    return nodes if operation.num_ops else nodes[1:]


def _chain(
    collectives: Sequence[Collective], number: int, name: str, place: Reference
) -> list[Node]:
    """Return collectives on one input, one after another."""
    nodes: list[Node] = []
    for collective in collectives:
        node = Node(
            name,
            COLLECTIVE,
            (OWN, number + len(nodes)),
            collective=TRACED.index(collective.collective),
            communication_size=collective.size,
            degree=DEGREES.index(collective.degree),
            inputs=[place],
        )
        if nodes:
            node.parents.append(nodes[-1].identifier)
        nodes.append(node)
    return nodes


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one block, one after another.

    Attributes
    ----------
    block : Block
    prefixes : sequence of str
        Of the names of each copy.
    nodes, tensors : int64[copies, origins]
        What references are relative to: numbers of nodes, places of tensors.
    """

    block: Block
    prefixes: Sequence[str]
    nodes: Integers
    tensors: Integers


def trace_of(copies: Sequence[Copies], received: Sequence[tuple[str, int]]) -> Trace:
    """Return one rank's trace, without its groups and with numbers from 0 on.

    Parameters
    ----------
    copies : sequence of Copies
        In file order.
    received : sequence of (str, int)
        Tensors that other blocks refer to but none makes; they stand behind all others.
    """

    def column(value: Callable[[Node], int], kind: Any = np.int64) -> NDArray[Any]:
        parts: list[NDArray[Any]] = [
            np.tile(np.array([value(node) for node in item.block.nodes], kind), len(item.prefixes))
            for item in copies
        ]
        return np.concatenate(parts)

    def lists(value: Callable[[Node], list[Reference]], tensors: bool = False) -> Ragged:
        lengths, values = [], []
        for item in copies:
            found = [value(node) for node in item.block.nodes]
            lengths.append(np.tile([len(each) for each in found], len(item.prefixes)))
            flat = [reference for each in found for reference in each]
            values.append(resolved(flat, item.tensors if tensors else item.nodes))
        return Ragged(ends_of(np.concatenate(lengths)), np.concatenate(values))

    kinds = column(lambda node: node.kind, np.int8)
    nodes = len(kinds)
    absent = np.full(nodes, ABSENT, np.int32)
    return Trace(
        identifiers=np.concatenate(
            [
                resolved([node.identifier for node in item.block.nodes], item.nodes)
                for item in copies
            ]
        ),
        names=[
            prefix + node.name
            for item in copies
            for prefix in item.prefixes
            for node in item.block.nodes
        ],
        kinds=kinds,
        start_time=np.zeros(nodes),
        duration=np.zeros(nodes),
        num_ops=column(lambda node: node.num_ops),
        tensor_size=column(lambda node: node.tensor_size),
        collective=column(lambda node: node.collective, np.int8),
        communication_size=column(lambda node: node.communication_size),
        source=absent,
        destination=absent,
        tag=absent,
        priority=absent,
        group=column(lambda node: node.degree, np.int32),
        involved=absent,
        # The generator says of communication that it runs on the device, of computation nothing.
        on_cpu=np.where(kinds == COMPUTE, ABSENT, 0).astype(np.int8),
        lane=absent,
        data_parents=lists(lambda node: node.parents),
        control_parents=lists(lambda node: node.control),
        inputs=lists(lambda node: node.inputs, tensors=True),
        outputs=lists(lambda node: node.outputs, tensors=True),
        tensors=(
            *(
                (prefix + name, size)
                for item in copies
                for prefix in item.prefixes
                for name, size in item.block.tensors
            ),
            *received,
        ),
        metadata={"schema": "symbolic_tensor_network"},
    )


def resolved(references: Sequence[Reference], origins: Integers) -> Integers:
    """Return what references mean, copy by copy."""
    pairs = np.array(references, np.int64).reshape(-1, 2)
    return (origins[:, pairs[:, 0]] + pairs[:, 1]).ravel()


def ends_of(lengths: Integers) -> Integers:
    """Return the offsets of lists with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def chained(trace: Trace) -> Ragged:
    """Return control parents with the generator's order of communication at the start.

    Where more than two collectives or sends wait for nothing, each waits for the one before
    it (symbolic_tensor_graph/graph/graph.py, `comm_add_ctrl_dep`; later nodes are never
    ordered there, because it compares nodes with identifiers). Only sharded weights have
    so many.
    """
    control = trace.control_parents
    lengths = np.diff(control.offsets)
    waiting = np.diff(trace.data_parents.offsets) + lengths
    communicates = (trace.kinds == COLLECTIVE) | (trace.kinds == SEND)
    first = np.flatnonzero(communicates & (waiting == 0))
    if len(first) <= 2:
        return control
    lengths[first[1:]] += 1
    values = np.insert(control.values, control.offsets[first[1:]], trace.identifiers[first[:-1]])
    return Ragged(ends_of(lengths), values)
