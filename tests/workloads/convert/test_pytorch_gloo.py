"""Collectives of gloo in Kineto's traces, drawn by hand; times in microseconds."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.collectives import TRACED
from perfmodel.workloads.convert.pytorch import pytorch_trace, pytorch_traces
from perfmodel.workloads.trace import COLLECTIVE, RECEIVE, REMARKS, SEND
from tests.data import table_of
from tests.workloads.convert.timelines import awaited, event, operator, run, timeline, wall
from tests.workloads.formats.made_pytorch import parse_kineto

WORLD = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": 4}
WORLD["ranks"] = [0, 1, 2, 3]
ROWS = {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]}
COLUMNS = {"pg_name": "2", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 2]}
WORKER = 70  # a thread of gloo's


def asked(name, start, end, shapes, values=(), thread=1, types=None):
    """An operator of c10d; a list of tensors is a list of shapes."""
    kinds = ["TensorList" if s and isinstance(s[0], list) else "float" if s else "" for s in shapes]
    keys = {"Input Dims": shapes, "Input type": kinds if types is None else types}
    return operator(
        f"c10d::{name}", start, end, thread, **keys, **{"Concrete Inputs": list(values)}
    )


def ran(name, start, end, shapes, thread=WORKER, category="user_annotation", kind="float"):
    """An event of gloo's."""
    keys = {"Input Dims": shapes, "Input type": [kind] * len(shapes)}
    return event(category, f"gloo:{name}", start, end, thread, **keys)


def recorded(events, rank=0, groups=(WORLD,), devices=4, **content):
    info = {"backend": "gloo", "rank": rank, "world_size": devices, "pg_config": list(groups)}
    content = {"traceEvents": events, "distributedInfo": info | content}
    return parse_kineto(content)


def all_reduce(values=("", "", "", "", "True", "-1")):
    """DDP: asked for in the backward pass, waited for in the end."""
    return [
        operator("backward", 0, 100),
        asked("allreduce_", 40, 50, [[[1000], [24]], [], [], [], [], []], values),
        ran("all_reduce", 55, 295, [[1000], [24]]),
        operator("step", 300, 320),
    ]


def test_a_collective_has_kind_size_group_and_those_who_wait_for_it():
    trace = pytorch_trace(None, recorded(all_reduce(("", "", "", "", "", ""))))
    number = list(trace.names).index("gloo:all_reduce")
    assert trace.kinds[number] == COLLECTIVE
    assert trace.collective[number] == TRACED.index("all_reduce")
    assert trace.communication_size[number] == 1024 * 4
    assert trace.duration[number] == pytest.approx(240e-6)
    assert trace.group_names == ()  # all ranks
    assert awaited(trace, number) == {"c10d::allreduce_"}
    assert "gloo:all_reduce" in awaited(trace, list(trace.names).index("step"))
    assert REMARKS not in trace.metadata


def test_the_network_decides_how_long_a_job_of_gloo_takes():
    traces = pytorch_traces([(None, recorded(all_reduce(("",) * 6), rank)) for rank in range(4)])
    slow, fast = wall(traces, 0.001), wall(traces, 100.0)
    assert slow > 1000 > fast
    result = run(traces, 100.0)
    assert result.communication_time[0] > 0
    # From the request at 50 on: 5 to the thread, the collective, 5 to the next operator, 20.
    assert fast == pytest.approx(50 + 5 + result.communication_time[0] * 1e6 + 5 + 20, abs=50)


def test_who_does_not_wait_goes_on():
    events = all_reduce()  # asyncOp True, and waited for later: nothing else ran until it ended
    trace = pytorch_trace(None, recorded(events))
    assert awaited(trace, list(trace.names).index("step")) == {"backward", "gloo:all_reduce"}
    events[2] = ran("all_reduce", 55, 150, [[1000], [24]])  # long before the caller went on
    trace = pytorch_trace(None, recorded(events))
    assert awaited(trace, list(trace.names).index("step")) == {"backward"}
    events[1] = asked("allreduce_", 40, 50, [[[1024]], [], [], [], [], []], ("",) * 4 + ("False",))
    trace = pytorch_trace(None, recorded(events))  # its caller waits, it says
    assert awaited(trace, list(trace.names).index("step")) == {"backward", "gloo:all_reduce"}


def test_a_call_that_waits_ends_with_its_collective():
    events = [
        operator("forward", 0, 10),
        asked("allreduce_", 10, 200, [[[256]], [], [], [], [], []], ("",) * 4 + ("False", "-1")),
        ran("all_reduce", 30, 190, [[256]]),
        operator("step", 200, 210),
    ]
    trace = pytorch_trace(None, recorded(events))
    assert timeline(trace) == [
        ("forward", 0, 10),
        ("gloo:all_reduce", 30, 190),
        ("c10d::allreduce_", 190, 200),
        ("step", 200, 210),
    ]


def test_the_caller_of_backward_waits_for_what_backward_waited_for():
    """DDP: autograd's thread asks, and does nothing any more but wait; the caller goes on."""
    events = [
        operator("forward", 0, 90),
        operator("backward", 100, 200, 2),
        asked("allreduce_", 150, 160, [[[256]], [], [], [], [], []], thread=2),
        ran("all_reduce", 170, 390, [[256]]),
        operator("step", 400, 410),
    ]
    trace = pytorch_trace(None, recorded(events))
    step = list(trace.names).index("step")
    assert awaited(trace, step) == {"forward", "backward", "gloo:all_reduce"}
    events[3] = ran("all_reduce", 170, 220, [[256]])  # long before the caller went on
    trace = pytorch_trace(None, recorded(events))
    assert awaited(trace, list(trace.names).index("step")) == {"forward", "backward"}


def test_a_wait_for_a_tensor_waits_for_what_was_asked_before():
    events = [
        asked("allreduce_", 0, 10, [[[256]], [], [], [], [], []], ("",) * 4 + ("True", "-1")),
        ran("all_reduce", 20, 90, [[256]]),
        operator("compute", 10, 50),
        operator("_c10d_functional::wait_tensor", 50, 100),
    ]
    trace = pytorch_trace(None, recorded(events))
    last = timeline(trace)[-1]
    assert last == ("_c10d_functional::wait_tensor", 90, 100)
    assert awaited(trace, list(trace.names).index(last[0])) == {"compute", "gloo:all_reduce"}


@pytest.mark.parametrize(
    ("name", "shapes", "gloo", "inputs", "kind", "size"),
    [
        *table_of(__file__, "every_operator_of_c10d_is_read"),
        ("allreduce_", [[[8], [2, 3]], []], "all_reduce", [[8], [2, 3]], "all_reduce", 14 * 4),
        ("allreduce_coalesced_", [[[8], [6]], []], "all_reduce", [[8], [6]], "all_reduce", 14 * 4),
        ("scatter_", [[[3]], [], []], "scatter", [[3]] * 4, "scatter", 12),
        ("alltoall_", [[[2]] * 4, [[2]] * 4, []], "all_to_all", [[2]] * 4, "all_to_all", 32),
        ("monitored_barrier_", [[1], [], []], None, [], "all_reduce", 4),
    ],
)
def test_every_operator_of_c10d_is_read(name, shapes, gloo, inputs, kind, size):
    """Arguments as torch/csrc/distributed/c10d/Ops.cpp has them."""
    events = [asked(name, 0, 10, shapes)]
    if gloo is not None:
        events.append(ran(gloo, 20, 60, inputs))
    trace = pytorch_trace(None, recorded(events))
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    assert REMARKS not in trace.metadata
    assert [TRACED[kind] for kind in trace.collective[found]] == [kind]
    assert trace.communication_size[found].tolist() == [size]


def test_a_list_to_reduce_and_scatter_is_carried_out_as_one_all_reduce_for_each_rank():
    events = [asked("reduce_scatter_", 0, 10, [[[6]], [], []])]
    events += [ran("all_reduce", 20 + i, 50 + i, [[6]], WORKER + i % 2) for i in range(4)]
    events += [asked("allreduce_", 70, 80, [[[6]], []]), ran("all_reduce", 85, 90, [[6]])]
    trace = pytorch_trace(None, recorded(events))
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    assert [TRACED[k] for k in trace.collective[found]] == ["reduce_scatter", "all_reduce"]
    assert trace.duration[found].tolist() == pytest.approx([33e-6, 5e-6])


def test_a_scatter_has_the_size_that_its_root_says():
    """The root's event lists all parts, that of others nothing, not even a type."""
    world = WORLD | {"pg_size": 2, "ranks": [0, 1]}
    pairs = []
    for rank in range(2):
        inputs = [] if rank else [[3], [3]]
        events = [asked("scatter_", 0, 10, [[[3]], [], []]), ran("scatter", 20, 60, inputs)]
        pairs.append((None, recorded(events, rank, [world], 2)))
    for trace in pytorch_traces(pairs).traces:
        assert REMARKS not in trace.metadata
        assert trace.communication_size[trace.kinds == COLLECTIVE].tolist() == [12]


def test_a_monitored_barrier_is_a_barrier_though_gloo_sends_messages():
    events = [
        operator("c10d::monitored_barrier_", 0, 100),
        ran("recv", 10, 40, [[1]], thread=1, kind="int"),
        ran("send", 50, 60, [[1]], thread=1, kind="int"),
        asked("barrier", 110, 115, [[1], [], []]),
        ran("barrier", 120, 130, []),
    ]
    trace = pytorch_trace(None, recorded(events))
    found = np.flatnonzero(np.isin(trace.kinds, (COLLECTIVE, SEND, RECEIVE)))
    assert [trace.names[i] for i in found] == ["c10d::monitored_barrier_", "gloo:barrier"]
    assert timeline(trace)[0] == ("c10d::monitored_barrier_", 0, 100)
    assert REMARKS not in trace.metadata


@pytest.mark.parametrize(
    ("kind", "size"), [("c10::BFloat16", 2), ("double", 8), ("long int", 8), ("signed char", 1)]
)
def test_the_element_type_counts(kind, size):
    events = [
        asked("allreduce_", 0, 10, [[[10]], []]),
        ran("all_reduce", 20, 30, [[10]], kind=kind),
    ]
    trace = pytorch_trace(None, recorded(events))
    assert trace.communication_size.max() == 10 * size


def test_older_versions_record_gloo_as_an_operator_without_shapes_of_lists():
    events = [
        asked("allreduce_", 0, 10, [[], [], []], types=["TensorList", "", ""]),
        ran("all_reduce", 20, 30, [[10]], category="cpu_op"),
    ]
    assert pytorch_trace(None, recorded(events)).communication_size.max() == 40


def test_messages_are_matched_between_ranks():
    """A pipeline of two stages: rank 0 sends what rank 1 receives."""
    sends = [
        operator("forward", 0, 50),
        asked("send", 50, 60, [[[64]], [], [], []], ("", "", "1", "0")),
        ran("send", 55, 95, [[64]], thread=1),
    ]
    receives = [
        asked("recv_", 0, 10, [[[64]], [], [], []], ("", "", "0", "0")),
        ran("recv", 5, 100, [[64]], thread=1),
        operator("forward", 102, 150),
    ]
    world = WORLD | {"pg_size": 2, "ranks": [0, 1]}
    traces = pytorch_traces(
        [
            (None, recorded(events, rank, [world], 2))
            for rank, events in enumerate((sends, receives))
        ]
    )
    assert SEND in traces.traces[0].kinds
    assert RECEIVE in traces.traces[1].kinds
    names = list(traces.traces[1].names)
    assert "gloo:recv" in awaited(traces.traces[1], names.index("forward"))
    result = run(traces)
    assert result.sent_bytes.tolist() == [256, 0]
    # Rank 0 sends at 55; the message takes its time; 2 later rank 1 works for 48.
    assert 55 + 2 + 48 < result.wall_time[1] * 1e6 < 55 + 2 + 48 + 2


def test_the_other_rank_of_a_message_is_counted_within_its_group():
    events = [
        asked("send", 0, 10, [[[64]], [], [], []], ("", "", "1", "0")),
        ran("send", 5, 9, [[64]], thread=1),
    ]
    trace = pytorch_trace(None, recorded(events, groups=[COLUMNS]))
    assert trace.destination.max() == 2
    events[0]["args"]["Concrete Inputs"] = []
    trace = pytorch_trace(None, recorded(events, groups=[COLUMNS]))
    assert "the other rank is not recorded" in trace.metadata[REMARKS]


def test_a_group_is_told_by_sizes_and_by_the_thread_of_gloo():
    events = [
        asked("_allgather_base_", 0, 10, [[12], [6], []]),  # of two ranks
        ran("all_gather", 15, 30, [[6]], thread=WORKER),
        asked("allreduce_", 40, 50, [[[7]], []]),  # on the same thread of gloo
        ran("all_reduce", 55, 60, [[7]], thread=WORKER),
        asked("allreduce_", 70, 80, [[[9]], []]),  # on another
        ran("all_reduce", 85, 90, [[9]], thread=WORKER + 1),
        asked("_allgather_base_", 91, 92, [[24], [6], []]),  # of four
        ran("all_gather", 93, 94, [[6]], thread=WORKER + 1),
    ]
    trace = pytorch_trace(None, recorded(events, groups=[WORLD, ROWS]))
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    groups = [trace.group_names[group] if group >= 0 else "" for group in trace.group[found]]
    assert groups == ["0,1", "0,1", "", ""]


def hsdp(rank, threads=(70, 71, 72, 73)):
    """Two by two ranks: parameters gathered among shards, gradients summed up among copies too."""
    first, second, third, fourth = threads
    shards = {"pg_name": "2", "ranks": [rank // 2 * 2, rank // 2 * 2 + 1]}
    copies = {"pg_name": "1", "ranks": [rank % 2, rank % 2 + 2]}
    events = [
        asked("_allgather_base_", 0, 10, [[12], [6], []]),
        ran("all_gather", 15, 30, [[6]], thread=third),
        asked("_reduce_scatter_base_", 40, 50, [[6], [12], []]),
        ran("all_reduce", 55, 60, [[12]], thread=fourth),
        asked("allreduce_", 70, 80, [[[6]], []]),
        ran("all_reduce", 85, 90, [[6]], thread=first),
        asked("allreduce_", 100, 110, [[[6]], []]),
        ran("all_reduce", 115, 120, [[6]], thread=second),
    ]
    return recorded(events, rank, [WORLD, copies, shards])


def test_groups_of_one_size_are_told_by_the_order_in_which_their_threads_were_made():
    traces = pytorch_traces([(None, hsdp(rank)) for rank in range(4)])
    trace = traces.traces[3]
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    members = [traces.members(3, int(i)) for i in found]
    assert members == [(2, 3), (2, 3), (1, 3), (1, 3)]
    assert "taken from the order of gloo's threads" in trace.metadata[REMARKS]
    assert len(set(run(traces).ticks("wall_time"))) == 1


def test_where_ranks_would_disagree_no_group_is_assumed():
    kinetos = [hsdp(rank) for rank in range(3)] + [hsdp(3, (72, 73, 70, 71))]
    for trace in pytorch_traces([(None, kineto) for kineto in kinetos]).traces:
        assert COLLECTIVE not in trace.kinds
        assert "may be of any of 2 process groups" in trace.metadata[REMARKS]


def test_what_cannot_be_told_stays_time_of_the_host_and_is_said():
    events = all_reduce(("",) * 6)
    for events_of, groups, reason in (
        (events, [WORLD, ROWS], "may be of any of 2 process groups"),
        (events, [{**ROWS, "ranks": [1, 2]}], "of no process group that the trace lists"),
        ([events[0], asked("allreduce_", 40, 50, []), ran("all_reduce", 55, 295, []), events[3]],
         [WORLD], "size is not recorded"),
        ([*events, ran("shuffle", 55, 60, [[3]])], [WORLD], "no collective that is known"),
    ):  # fmt: skip
        kineto = recorded(events_of, groups=groups)
        trace = pytorch_trace(None, kineto)
        assert reason in trace.metadata[REMARKS]
        assert "1 × gloo:" in trace.metadata[REMARKS]
        assert max(end for *_, end in timeline(trace)) == pytest.approx(320)


def test_without_a_list_of_groups_a_collective_is_of_all_ranks_and_that_is_said():
    trace = pytorch_trace(None, recorded(all_reduce(("",) * 6), groups=()))
    assert trace.kinds[list(trace.names).index("gloo:all_reduce")] == COLLECTIVE
    assert "no process groups are listed; of all ranks" in trace.metadata[REMARKS]


def test_a_rank_alone_repeats_collectives_that_two_threads_of_gloo_ran_at_once():
    events = [
        operator("backward", 0, 30),
        asked("allreduce_", 5, 10, [[[7]], []]),
        asked("allreduce_", 15, 20, [[[8]], []]),
        ran("all_reduce", 12, 90, [[7]]),
        ran("all_reduce", 22, 70, [[8]], thread=WORKER + 1),
        operator("step", 92, 100),
    ]
    rows = timeline(pytorch_trace(None, recorded(events)))
    assert [row for row in rows if "gloo" in row[0]] == [
        ("gloo:all_reduce", 12, 90),
        ("gloo:all_reduce", 22, 70),
    ]
    assert rows[-1] == ("step", 92, 100)


def test_ranks_keep_the_order_in_which_they_asked():
    """Two threads of a group may begin in another order."""
    events = [
        asked("allreduce_", 0, 10, [[[7]], []]),
        asked("broadcast_", 10, 20, [[[9]], []]),
        ran("broadcast", 25, 35, [[9]], thread=WORKER + 1),
        ran("all_reduce", 30, 40, [[7]]),
    ]
    trace = pytorch_trace(None, recorded(events))
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    assert [TRACED[kind] for kind in trace.collective[found]] == ["all_reduce", "broadcast"]


def test_operators_that_nccl_carried_out_are_not_counted_twice():
    from tests.workloads.convert.timelines import collective_keys, kernel, launch

    events = [
        asked("allreduce_", 0, 30, [[[7]], []]),
        operator("record_param_comms", 5, 25, **collective_keys(ranks="[0, 1, 2, 3]", size=4)),
        launch(10, 15, 1),
        kernel("ncclDevKernel_AllReduce", 20, 90, 1, 20),
        asked("allreduce_", 40, 60, [[[7]], []]),
        ran("all_reduce", 65, 80, [[7]]),
    ]
    trace = pytorch_trace(None, recorded(events, backend="cpu:gloo,cuda:nccl"))
    found = np.flatnonzero(trace.kinds == COLLECTIVE)
    assert [trace.names[i] for i in found] == ["ncclDevKernel_AllReduce", "gloo:all_reduce"]
