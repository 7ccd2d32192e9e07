"""What PyTorch records of a collective: kinds, sizes, lists of ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.pytorch_collectives import (
    OPERATORS,
    CollectiveRecord,
    GlooCall,
    collective_kind,
    element_size,
    gloo_call,
    record_from_keys,
)
from perfmodel.workloads.formats.pytorch_kineto import GLOO, OPERATOR
from perfmodel.workloads.trace import ABSENT
from tests.workloads.formats.made_pytorch import VALUES, event, kineto, parse_kineto, reads


def test_arguments_of_collectives_are_read():
    keys = {
        "Collective name": "_allgather_base",
        "In msg nelems": 4096,
        "Out msg nelems": 8192,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "3",
        "Process Group Ranks": "[1, 3]",
        "Seq": 9,
    }
    trace = kineto(event("kernel", "ncclDevKernel_AllGather", 0, 5, stream=1, **keys))
    assert trace.collectives == {0: CollectiveRecord("all_gather", 8192, "3", (1, 3), 2, 9)}


def test_lists_of_ranks_that_were_cut_are_continued_at_their_distance():
    keys = {"Collective name": "allreduce", "Process Group Ranks": "[0, 8, 16, ..., 504]"}
    record = record_from_keys({**keys, "Group size": 64}, "here")
    assert record is not None
    assert record.ranks == tuple(range(0, 512, 8))
    keys = {"Collective name": "allreduce", "Global rank start": 2, "Global rank stride": 3}
    record = record_from_keys({**keys, "Group size": 3}, "here")
    assert record is not None
    assert record.ranks == (2, 5, 8)


@pytest.mark.parametrize(
    "ranks", ["[0, 1, 2, 3, 8, 9, ...]", "[0, 8, 16, ..., 500]", "[0, 8, ..., 16]", "[5, ...]"]
)
def test_what_is_cut_from_an_uneven_list_of_ranks_is_not_guessed(ranks):
    keys = {"Collective name": "allreduce", "Process Group Ranks": ranks, "Group size": 64}
    record = record_from_keys(keys, "here")
    assert record is not None
    assert (record.ranks, record.group_size) == (None, 64)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("recv", "receive"),
        ("batch_isend_irecv", ""),
        ("aten::mm", ""),
    ],
)
def test_names_of_collectives(name, kind):
    assert collective_kind(name) == kind


def test_an_element_type_that_is_not_known_is_refused():
    assert (element_size("c10::Half", "x"), element_size("Float", "x")) == (2, 4)
    with pytest.raises(FormatError, match="x: element type 'Quux' is not known"):
        element_size("Quux", "x")


def keys(shapes, types, values=()):
    return {"Input Dims": shapes, "Input type": types, "Concrete Inputs": list(values)}


def test_an_operator_says_elements_group_size_peer_and_whether_its_caller_waits():
    call = gloo_call(
        "c10d::_allgather_base_",
        keys([[8, 32], [4, 16], [], [], []], ["c10::Half", "c10::Half", "", "Scalar", "Scalar"],
             ["", "", "", "False", "-1"]),
    )  # fmt: skip
    assert call == GlooCall("all_gather", 64, 2, 128, group_size=4, blocking=True)
    call = gloo_call("c10d::send", keys([[[3]], [], [], []], ["TensorList"], ["", "", "5", "0"]))
    assert call == GlooCall("send", 3, peer=5, blocking=True)  # the type of a list is not stated


def test_gloos_own_event_says_elements_and_their_type():
    call = gloo_call("gloo:all_reduce", keys([[10], [2, 3], []], ["float", "float", ""]))
    assert call == GlooCall("all_reduce", 16, 4, 64)
    assert gloo_call("gloo:all_reduce", keys([[1], [2]], ["float", "double"])).size == ABSENT
    assert gloo_call("gloo:all_reduce", {}) == GlooCall("all_reduce")
    assert gloo_call("gloo:barrier", {}) == GlooCall("barrier")


def test_what_is_no_collective_is_none():
    for name in ("aten::mm", "c10d::start", "gloo:shuffle", "record_param_comms"):
        assert gloo_call(name, keys([[1]], ["float"])) is None


@pytest.mark.parametrize(
    "shapes", [[[2**40, 2**40]], [[-1]], [["x"]], [5], [[[2**61], [2**61]]], "all", None]
)
def test_absurd_shapes_state_no_size(shapes):
    assert gloo_call("c10d::allreduce_", keys(shapes, [["float"]])).size == ABSENT


def test_events_of_gloo_are_told_from_other_annotations():
    trace = kineto(
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("user_annotation", "nccl:all_reduce", 0, 5),
        event("user_annotation", "gloo:all_reduce", 2, 5, 9, **keys([[4]], ["float"])),
        event("cpu_op", "gloo:broadcast", 8, 5, 9),
        event("cpu_op", "c10d::allreduce_", 1, 5),
        distributedInfo={
            "backend": "cpu:gloo,cuda:nccl",
            "pg_config": [
                {"pg_name": "0", "backend_config": "cpu:gloo,cuda:nccl", "ranks": [0, 1]},
                {"pg_name": "1", "backend_config": "cuda:nccl", "ranks": [0]},
                {"pg_name": "2", "ranks": [1, 0]},
            ],
        },
    )
    assert trace.names == ("c10d::allreduce_", "gloo:all_reduce", "gloo:broadcast")
    assert trace.category.tolist() == [OPERATOR, GLOO, GLOO]
    assert sorted(trace.gloo) == [0, 1, 2]
    assert trace.gloo_groups == {"0": (0, 1), "2": (1, 0)}
    assert trace.backend == "cpu:gloo,cuda:nccl"


def test_arrows_lead_from_forward_to_backward_operators():
    start = {"ph": "s", "cat": "fwdbwd", "id": 3, "pid": 1, "tid": 1, "ts": 10}
    end = {"ph": "f", "cat": "fwdbwd", "id": 3, "pid": 1, "tid": 2, "ts": 30}
    trace = kineto(event("cpu_op", "a", 10, 5), event("cpu_op", "b", 30, 5, 2), end, start)
    (forward, backward) = trace.backward[0]
    assert forward == (trace.thread[0], trace.start[0])
    assert backward == (trace.thread[1], trace.start[1])
    assert kineto(event("cpu_op", "a", 10, 5), end).backward == []
    assert kineto(event("cpu_op", "a", 10, 5), start, end | {"ts": "late"}).backward == []


@given(
    st.sampled_from([*(f"c10d::{name}" for name in OPERATORS), "gloo:send", "gloo:all_to_all"]),
    st.sampled_from(["Input Dims", "Input type", "Concrete Inputs"]),
    VALUES,
)
def test_any_argument_is_read_or_refused(name, key, value):
    arguments = keys([[[4]], [[4]]], ["TensorList", "float"], ["", "", "1"]) | {key: value}
    assert reads(parse_kineto, {"traceEvents": [event("cpu_op", name, 0, 1, **arguments)]})
