"""Execution traces as columns: ragged lists, parents, groups, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.trace import (
    ABSENT,
    COLLECTIVE,
    COMPUTE,
    EVERYBODY,
    RECEIVE,
    SEND,
    NamedSizes,
    OtherPeers,
    Ragged,
    RankTraces,
    Trace,
    TraceBuilder,
    TraceSet,
    with_columns_of,
)


def chain() -> TraceBuilder:
    """Two computations with identifiers of their own, and a sum of group "pair" after them."""
    builder = TraceBuilder()
    builder.add("forward", COMPUTE, identifier=7, num_ops=10, outputs=[("x", 64)])
    builder.add("backward", COMPUTE, identifier=3, data=[7], inputs=[("x", 64)], on_cpu=1)
    builder.add("sum", COLLECTIVE, identifier=5, data=[3], control=[7], group="pair", collective=0)
    return builder


@given(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6))
def test_ragged_lists_come_back(lists):
    column = Ragged.from_lists(lists)
    assert len(column) == len(lists)
    assert [column[i].tolist() for i in range(len(lists))] == lists


def test_nodes_become_columns_and_what_is_not_stated_is_absent():
    trace = chain().build({"rank": 0}, "0.0.4")
    assert (trace.nodes, trace.version, trace.metadata) == (3, "0.0.4", {"rank": 0})
    assert trace.num_ops.tolist() == [10, ABSENT, ABSENT]
    assert trace.on_cpu.tolist() == [ABSENT, 1, ABSENT]
    assert trace.duration.tolist() == [0.0, 0.0, 0.0]
    assert trace.group.tolist() == [EVERYBODY, EVERYBODY, 0]
    assert trace.tensors == (("x", 64),)  # one tensor, though written and read
    assert (trace.outputs[0].tolist(), trace.inputs[1].tolist()) == ([0], [0])


def test_unknown_columns_are_refused():
    with pytest.raises(TypeError, match="no such column: flops"):
        TraceBuilder().add("n", COMPUTE, flops=1)


def test_parents_are_found_by_identifier_data_before_control():
    parents = chain().build().parent_positions()
    assert [parents[i].tolist() for i in range(3)] == [[], [0], [1, 0]]


def test_parents_at_fault_name_the_node():
    builder = chain()
    builder.add("late", COMPUTE, data=[9])
    with pytest.raises(FormatError, match="two nodes have the id 3"):  # its number so far
        builder.build().parent_positions()
    builder = chain()
    builder.add("late", COMPUTE, identifier=8, control=[9])
    with pytest.raises(FormatError, match=r"node 8 \(late\) waits for node 9, which is not in"):
        builder.build().parent_positions()
    builder = chain()
    builder.add("again", COMPUTE, identifier=7)
    with pytest.raises(FormatError, match="two nodes have the id 7"):
        builder.build().parent_positions()


def test_members_are_everybody_or_those_of_the_named_group():
    trace = chain().build()
    traces = TraceSet((trace,) * 4, {"pair": (2, 0)})
    assert (traces.devices, traces.nodes) == (4, 12)
    assert traces.members(0, 0) == (0, 1, 2, 3)
    assert traces.members(0, 2) == (2, 0)  # in the order of its ring
    with pytest.raises(FormatError, match=r"rank 1, node 5 \(sum\): .*'pair' has no list of ranks"):
        TraceSet((trace,) * 4).members(1, 2)


def test_traces_are_equal_where_all_columns_are():
    one = TraceSet((chain().build(),), {"pair": (0,)})
    assert one.equals(TraceSet((chain().build(),), {"pair": (0,)}))
    assert not one.equals(TraceSet((chain().build(),)))
    other = chain()
    other.add("more", COMPUTE, identifier=9)
    assert not one.equals(TraceSet((other.build(),), {"pair": (0,)}))
    longer = chain().build()
    longer.duration[0] = np.nextafter(0.0, 1.0)
    assert not one.equals(TraceSet((longer,), {"pair": (0,)}))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2**63 - 1)), max_size=6))
def test_tensors_as_columns_are_the_same_sequence(tensors):
    columns = NamedSizes.of(tensors)
    assert (list(columns), len(columns)) == (tensors, len(tensors))
    assert columns == tensors
    assert columns == NamedSizes.of(tuple(tensors))
    assert columns[1:] == tuple(tensors[1:])
    assert NamedSizes.of(columns) is columns
    assert columns != [*tensors, ("d", 1)]


def ring(rank: int, ranks: int, group: str = "all", size: int = 64) -> Trace:
    """A rank that sends to the next and receives from the one before, and sums up."""
    builder = TraceBuilder()
    nodes = [
        builder.add("s", SEND, destination=(rank + 1) % ranks, communication_size=size),
        builder.add("r", RECEIVE, source=(rank - 1) % ranks, communication_size=size),
    ]
    builder.add("sum", COLLECTIVE, data=nodes, collective=0, communication_size=8, group=group)
    return builder.build()


def test_ranks_that_differ_in_peers_share_all_other_columns():
    known, own = ring(0, 4), ring(1, 4, "others")
    part, alike = with_columns_of(own, known)
    assert alike
    assert isinstance(part, OtherPeers)
    assert part.positions.tolist() == [0, 1]
    assert part.trace.group_names == ("others",)
    for column in ("kinds", "names", "data_parents", "communication_size", "source"):
        assert getattr(part.trace, column) is getattr(known, column)
    assert part.whole().equals(own)
    assert part.column("destination").tolist() == own.destination.tolist()
    assert part.nodes == 3


def test_ranks_that_do_something_else_share_what_is_equal():
    known, own = ring(0, 4), ring(1, 4, size=65)
    part, alike = with_columns_of(own, known)
    assert not alike
    assert part.equals(own)
    assert part.kinds is known.kinds
    assert part.communication_size is own.communication_size
    same, alike = with_columns_of(ring(0, 4), known)
    assert alike
    assert same.source is known.source


def test_a_set_makes_traces_only_where_they_are_asked_for():
    whole = [ring(rank, 4) for rank in range(4)]
    parts = [whole[0], *(with_columns_of(trace, whole[0])[0] for trace in whole[1:])]
    traces = TraceSet(RankTraces(parts))
    assert (traces.devices, traces.nodes) == (4, 12)
    assert traces.traces[0] is whole[0]
    assert traces.traces[-1].equals(whole[3])
    assert [trace.nodes for trace in traces.traces[1:3]] == [3, 3]
    assert traces.equals(TraceSet(tuple(whole)))
    assert traces.parts == tuple(parts)
    assert TraceSet(tuple(whole)).parts == tuple(whole)
