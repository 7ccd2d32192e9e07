"""Chakra files that ASTRA-sim and Chakra's converters wrote, read and written again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.chakra.files import (
    parse_trace,
    read_trace,
    read_traces,
)
from perfmodel.workloads.formats.chakra.writing import serialise
from perfmodel.workloads.trace import ABSENT, COLLECTIVE, RECEIVE, SEND


class TestReferenceFiles:
    """Files of ASTRA-sim and Chakra; skipped without the development data."""

    @pytest.mark.parametrize(
        "prefix",
        [
            "DLRM_HybridParallel_p1",
            "DLRM_HybridParallel_p2",
            "MLP_HybridParallel_Data_Model_p1",
            "microAllReduce_p1",
            "vgg16_p1",
        ],
    )
    def test_converted_text_workloads(self, development_table, prefix):
        """Against a dump by google.protobuf; written again byte for byte."""
        dump = json.loads(
            development_table(f"astra/et_samples/{prefix}.nodes.json").read_text("utf-8")
        )
        for rank in range(4):
            path = development_table(f"astra/et_samples/{prefix}.{rank}.et")
            if (expected := dump.get(f"rank{rank}")) is None:  # large ones: two ranks dumped
                assert rank > 1
                continue
            trace = read_trace(path)
            assert trace.metadata == expected["metadata"]["attr"]
            assert list(trace.names) == [node["name"] for node in expected["nodes"]]
            for i, node in enumerate(expected["nodes"]):
                attributes = {a["name"]: a["int64_val"] for a in node["attr"]}
                assert (trace.identifiers[i], trace.kinds[i]) == (node["id"], node["type"])
                assert trace.duration[i] == node["duration_micros"] / 1e6
                assert trace.data_parents[i].tolist() == node["data_deps"]
                assert trace.control_parents[i].tolist() == node["ctrl_deps"]
                assert trace.collective[i] == attributes.get("comm_type", ABSENT)
                assert trace.communication_size[i] == attributes.get("comm_size", ABSENT)
            assert serialise(trace) == path.read_bytes()
            assert len(trace.parent_positions()) == trace.nodes

    @pytest.mark.parametrize(
        ("case", "ranks", "identical"),
        [
            ("chain", 4, True),
            ("groups", 8, True),
            ("dims", 8, True),
            ("pipe", 4, False),  # uint32 and uint64 become int32 and int64
            ("types", 4, False),
        ],
    )
    def test_handwritten_files(self, development_table, case, ranks, identical):
        path = development_table(f"astra/et_handwritten/{case}.0.et")
        traces = read_traces(path.with_name(case))
        assert traces.devices == ranks
        for rank, trace in enumerate(traces.traces):
            content = path.with_name(f"{case}.{rank}.et").read_bytes()
            assert (serialise(trace) == content) == identical
            assert parse_trace(serialise(trace), path).equals(trace)
        if case == "pipe":
            sends = [trace.kinds.tolist().count(SEND) for trace in traces.traces]
            receives = [trace.kinds.tolist().count(RECEIVE) for trace in traces.traces]
            assert (sends, receives) == ([1, 1, 1, 0], [0, 1, 1, 1])

    def test_stage_sanity_check(self, development_table):
        path = development_table("astra/et_sanity/comm_group.json")
        traces = read_traces(path.parent, path)
        assert (traces.devices, traces.nodes, len(traces.groups)) == (16, 5544, 24)
        kinds = np.bincount(np.concatenate([trace.kinds for trace in traces.traces]))
        assert kinds.tolist() == [0, 0, 0, 0, 2816, 144, 144, 2440]
        for rank, trace in enumerate(traces.traces):
            assert parse_trace(serialise(trace), "t.et").equals(trace)
            assert len(trace.parent_positions()) == trace.nodes
            members = [traces.members(rank, i) for i in np.flatnonzero(trace.kinds == COLLECTIVE)]
            assert all(rank in ranks for ranks in members)

    def test_converted_pytorch_trace(self, development_table):
        path = development_table("astra/chakra_samples/pytorch_converted.0.et")
        trace = read_trace(path)
        assert (trace.nodes, np.count_nonzero(trace.kinds == COLLECTIVE)) == (3664, 21)
        assert np.count_nonzero(trace.collective != ABSENT) == 7
        assert len(trace.other) == 3664
        assert parse_trace(serialise(trace), path).equals(trace)
        with pytest.raises(FormatError, match="waits for node 3, which is not in the trace"):
            trace.parent_positions()
