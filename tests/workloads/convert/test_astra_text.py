"""Text workloads converted to Chakra traces, against the official converter and ASTRA-sim 2.x.

Traces and figures marked RUN were made by mlcommons/chakra's text converter and ASTRA-sim
af2492b; names, parents and sizes typed here are from their files.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.convert.astra_text import LOOPS, convert_text
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.formats.astra_text import parse_astra_text, read_astra_text
from perfmodel.workloads.formats.chakra.files import read_trace
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.data import ASTRA, needed

SAMPLES = {  # prefix of the .et files: text workload
    "DLRM_HybridParallel_p1": "DLRM_HybridParallel",
    "DLRM_HybridParallel_p2": "DLRM_HybridParallel",
    "MLP_HybridParallel_Data_Model_p1": "MLP_HybridParallel_Data_Model",
    "microAllReduce_p1": "microAllReduce",
    "vgg16_p1": "vgg16",
}


def text_of(policy, rows=3, header=""):
    """Layers a, b, c …: forward 10, 11 …, input gradient 20 …, weight gradient 30 … ns."""
    lines = [f"{policy} {header}", str(rows)]
    for i in range(rows):
        name = "abcdefgh"[i]
        lines.append(
            f"{name} -1 {10 + i} ALLGATHER {100 + i} {20 + i} REDUCESCATTER {200 + i} "
            f"{30 + i} ALLREDUCE {300 + i} 7"
        )
    return "\n".join(lines)


def rows_of(trace):
    """Short form of a trace: kind and name without prefix, number or size, parents."""
    rows = []
    for i in range(trace.nodes):
        name = trace.names[i].replace("COMP_NODE_", "").replace("COMM_COLL_NODE_", "")
        micros = round(trace.duration[i] * 1e6)
        value = micros if trace.kinds[i] == COMPUTE else int(trace.communication_size[i])
        rows.append((name, value, trace.data_parents[i].tolist()))
    return rows


def converted(policy, passes=1, devices=1, **text):
    return convert_text(parse_astra_text(text_of(policy, **text)), devices, passes)


def test_data_parallel_sums_gradients_beside_the_backward_pass_and_waits_in_the_next_one():
    rows = rows_of(converted("DATA", passes=2, rows=2).traces[0])
    assert rows == [
        ("a_FWD", 10, []),
        ("b_FWD", 11, [0]),
        ("b_BWD_WG", 31, [1]),
        ("b_ALLREDUCE", 301, [2]),
        ("b_BWD_IG", 21, [2]),
        ("a_BWD_WG", 30, [4]),
        ("a_ALLREDUCE", 300, [5]),
        ("a_FWD", 10, [6]),
        ("b_FWD", 11, [7, 3]),
        ("b_BWD_WG", 31, [8]),
        ("b_ALLREDUCE", 301, [9]),
        ("b_BWD_IG", 21, [9]),
        ("a_BWD_WG", 30, [11]),
        ("a_ALLREDUCE", 300, [12]),
    ]


def test_model_parallel_exchanges_activations_and_no_weights():
    rows = rows_of(converted("MODEL", passes=2, rows=2).traces[0])
    assert rows[:9] == [
        ("a_FWD", 10, []),
        ("a_ALLGATHER", 100, [0]),
        ("b_FWD", 11, [1]),
        ("b_ALLGATHER", 101, [2]),
        ("b_BWD_IG", 21, [3]),
        ("b_REDUCESCATTER", 201, [4]),
        ("b_BWD_WG", 31, [4]),
        ("a_BWD_IG", 20, [6, 5]),
        ("a_BWD_WG", 30, [7]),
    ]
    assert rows[9] == ("a_FWD", 10, [8])
    assert rows[11] == ("b_FWD", 11, [10, 6])


@pytest.mark.parametrize(
    ("policy", "infix"), [("HYBRID_DATA_MODEL", "_IG_COMM_"), ("HYBRID_MODEL_DATA", "")]
)
def test_hybrids_exchange_both_and_differ_in_a_name_only(policy, infix):
    rows = rows_of(converted(policy, passes=2, rows=2).traces[0])
    assert rows[:10] == [
        ("a_FWD", 10, []),
        ("a_ALLGATHER", 100, [0]),
        ("b_FWD", 11, [1]),
        ("b_ALLGATHER", 101, [2]),
        ("b_BWD_IG", 21, [3]),
        (f"b{infix}_REDUCESCATTER", 201, [4]),
        ("b_BWD_WG", 31, [4]),
        ("b_ALLREDUCE", 301, [6]),
        ("a_BWD_IG", 20, [6, 5]),
        ("a_BWD_WG", 30, [8]),
    ]
    assert rows[11] == ("a_FWD", 10, [10])
    assert rows[13] == ("b_FWD", 11, [7, 12])


DLRM = """HYBRID_DLRM 1
3
emb -1 10 ALLTOALL 100 20 ALLTOALL 200 30 NONE 0 7
bot -1 11 NONE 0 21 NONE 0 31 ALLREDUCE 301 7
top -1 12 NONE 0 22 NONE 0 32 ALLREDUCE 302 7
"""


def test_dlrm_joins_the_embeddings_at_the_last_bottom_layer():
    rows = rows_of(convert_text(parse_astra_text(DLRM), 1, 2).traces[0])
    assert rows[:12] == [
        ("emb_FWD", 10, []),
        ("emb_ALLTOALL", 100, [0]),
        ("bot_FWD", 11, [0, 1]),
        ("top_FWD", 12, [2]),
        ("top_BWD_WG", 32, [3]),
        ("top_ALLREDUCE", 302, [4]),
        ("top_BWD_IG", 22, [4]),
        ("emb_ALLTOALL", 200, [6]),
        ("bot_BWD_WG", 31, [6]),
        ("bot_ALLREDUCE", 301, [8]),
        ("bot_BWD_IG", 21, [8]),
        ("emb_BWD_WG", 30, [10, 7]),
    ]
    assert rows[12:14] == [("emb_FWD", 10, [11]), ("emb_ALLTOALL", 100, [12])]
    assert rows[14] == ("bot_FWD", 11, [9, 12, 13])


def test_numbers_run_on_from_rank_to_rank_and_the_other_columns_are_shared():
    first, second = converted("DATA", devices=2).traces
    assert second.identifiers.tolist() == [i + first.nodes for i in first.identifiers]
    assert (second.data_parents.values == first.data_parents.values + first.nodes).all()
    assert second.duration is first.duration
    assert second.names is first.names


def test_no_collective_becomes_an_all_reduce_of_nothing():
    text = text_of("DATA", rows=1).replace("ALLREDUCE 300", "NONE 0")
    trace = convert_text(parse_astra_text(text), 1).traces[0]
    assert trace.names[2] == "COMM_COLL_NODE_a_NONE"
    assert (trace.kinds[2], trace.collective[2]) == (COLLECTIVE, TRACED.index("all_reduce"))
    assert trace.communication_size[2] == 0


def test_metadata_quote_the_text():
    text = text_of("MICRO")
    workload = parse_astra_text(text)
    assert convert_text(workload, 1, text=text).traces[0].metadata == {
        "schema": "1.0.2-chakra.0.0.4",
        "input_file": text,
    }
    written = convert_text(workload, 1).traces[0].metadata["input_file"]
    assert parse_astra_text(written).equals(workload)


@pytest.mark.parametrize(
    "policy", ["HYBRID_CUSTOMIZED", "DATA_REORDER", "DISTRIBUTED_INFERENCE", "HYBRID_TRANSFORMER"]
)
def test_kinds_that_the_converter_does_not_know_are_refused(policy):
    header = "groups: 2" if policy == "HYBRID_TRANSFORMER" else ""
    text = text_of(policy, header=header)
    if policy == "HYBRID_CUSTOMIZED":
        text = text.replace(" 7", " 7 DATA")
    with pytest.raises(FormatError, match=f"does not support {policy} .*it converts MICRO"):
        convert_text(parse_astra_text(text), 4)


def test_embeddings_that_are_not_exchanged_are_refused():
    with pytest.raises(FormatError, match="ALLTOALL in the forward phase of layer 0"):
        convert_text(parse_astra_text(DLRM.replace("emb -1 10 ALLTOALL", "emb -1 10 NONE")), 1)


@pytest.mark.parametrize(("devices", "passes"), [(0, 1), (4, 0), (4, 10**9), (10**9, 1)])
def test_numbers_out_of_bounds_are_refused(devices, passes):
    with pytest.raises(DataError):
        convert_text(parse_astra_text(text_of("DATA")), devices, passes)


# RUN: all-reduce of 1 MiB on a ring of 4, 50 GiB/s, 500 ns, with 1 and 4 splits, then 2 passes.
@pytest.mark.parametrize(
    ("splits", "passes", "wall"), [(1, 1, 33_829), (4, 1, 43_000), (4, 2, 86_000)]
)
def test_micro_all_reduce_takes_what_astra_sim_measured(splits, passes, wall):
    text = "MICRO 1\nconv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5\n"
    network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    costs = AstraCosts(network, uniform_system(["ring"], preferred_dataset_splits=splits))
    result = simulate(convert_text(parse_astra_text(text), 4, passes), costs)
    assert result.ticks("wall_time") == (wall,) * 4
    assert result.ticks("exposed_communication") == (wall,) * 4


@given(
    st.sampled_from([policy for policy in LOOPS if "DLRM" not in policy]),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_every_conversion_is_a_graph_whose_parents_come_first(policy, rows, passes):
    trace = converted(policy, passes=passes, rows=rows).traces[0]
    parents = trace.parent_positions()
    child = np.repeat(np.arange(trace.nodes), np.diff(parents.offsets))
    assert (parents.values < child).all()
    compute = trace.kinds == COMPUTE
    forward = sum(10 + i for i in range(rows))
    if policy != "MICRO":
        assert compute.sum() == passes * (3 * rows - (policy == "DATA"))
        assert round(trace.duration.sum() * 1e6) >= passes * forward


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("rank", range(4))
def test_traces_equal_those_of_the_official_converter(sample, rank):
    path = needed(ASTRA / "et_samples" / f"{sample}.{rank}.et")
    source = ASTRA / "text" / "workloads" / f"{SAMPLES[sample]}.txt"
    text = source.read_text().replace("\r\n", "\n")
    traces = convert_text(read_astra_text(source), 4, int(sample[-1]), text=text)
    assert traces.traces[rank].equals(read_trace(path))
