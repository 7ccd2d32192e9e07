"""What PyTorch records of a collective: kinds, sizes, lists of ranks."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.pytorch.collectives import (
    CollectiveRecord,
    collective_kind,
    element_size,
    record_from_keys,
)
from tests.workloads.formats.pytorch.made import event, kineto


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
