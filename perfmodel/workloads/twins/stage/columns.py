"""Columns of many copies of blocks: one rank's trace, built without an object per node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, COMPUTE, SEND, Ragged, Trace
from perfmodel.workloads.twins.stage.blocks import Block, Node, Reference


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
