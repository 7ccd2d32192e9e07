"""Chakra execution traces: round trips, and sets of ranks."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.chakra.files import (
    make_folder_of,
    parse_trace,
    read_trace,
    read_traces,
    write_traces,
)
from perfmodel.workloads.formats.chakra.schema import (
    IO_INFO,
    NODE_INPUTS,
    NODE_OUTPUTS,
    SCALAR_KINDS,
    Attribute,
    messages,
)
from perfmodel.workloads.formats.chakra.writing import serialise
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    OtherPeers,
    TraceBuilder,
    TraceSet,
)
from tests.amount import cases
from tests.workloads.formats.chakra.made import TYPES_FILE, framed, node_with, small_trace, traces


class TestRoundTrip:
    def test_small_trace(self, tmp_path):
        trace = small_trace()
        write_traces(TraceSet((trace,)), tmp_path / "t")
        again = read_trace(tmp_path / "t.0.et")
        assert again.equals(trace)
        assert not again.equals(replace(trace, duration=trace.duration + 1e-9))

    @given(traces())
    @settings(max_examples=cases(80))
    def test_any_trace(self, trace):
        content = serialise(trace)
        again = parse_trace(content, "t.et")
        assert again.equals(trace)
        assert serialise(again) == content

    def test_every_kind_of_integer_is_a_whole_number(self):
        for kind in SCALAR_KINDS[:13]:  # all but string and bytes
            one = True if kind == "bool" else 1.0 if kind in ("double", "float") else 1
            part = node_with(("comm_size", Attribute(kind, one)))
            assert parse_trace(framed(part), "t.et").communication_size.tolist() == [1]

    def test_both_names_of_the_involved_dimensions(self):
        flags = Attribute("bool_list", (True, False))
        for names in (["involve_dims"], ["involved_dim"], ["involve_dims", "involved_dim"]):
            trace = parse_trace(framed(node_with(*((name, flags) for name in names))), "t.et")
            assert trace.involved_dimensions == ((True, False),)
            assert trace.involved.tolist() == [0]
            assert trace.involved_attributes == tuple(names)

    def test_sizes_with_decimals_as_stage_writes_them(self):
        texts = Attribute("string_list", ("x", "2097152000.0", "y", "7.5"))
        trace = parse_trace(framed(node_with(("inputs", texts))), "t.et")
        assert trace.tensors == (("x", 2097152000), ("y", 7))

    def test_fields_of_pytorch_traces_and_unusual_attributes_are_kept(self):
        info = messages().io_info(values="[1]", shapes="[[]]", types="['Int']")
        part = node_with(("tid", 5), ("pid", Attribute("uint64", 2**64 - 1)), outputs=info)
        trace = parse_trace(framed(part), "t.et")
        assert trace.other == {
            0: {
                "tid": 5,
                "pid": Attribute("uint64", 2**64 - 1),
                NODE_OUTPUTS: Attribute(IO_INFO, ("[1]", "[[]]", "['Int']")),
            }
        }
        assert serialise(trace) == framed(part)

    def test_gzipped_files(self, tmp_path):
        path = tmp_path / "t.0.et"
        path.write_bytes(gzip.compress(TYPES_FILE[:60]) + gzip.compress(TYPES_FILE[60:]))
        assert read_trace(path).equals(parse_trace(TYPES_FILE, path))

    def test_parents_packed_or_one_by_one(self):
        """Both are protobuf; proto3 writers pack."""
        one_by_one = b"\x08\x02\x12\x01b\x18\x04\x28\x01\x28\x01"
        trace = parse_trace(framed(node_with(), one_by_one), "t.et")
        assert trace.data_parents[1].tolist() == [1, 1]


class TestSets:
    def pair(self):
        trace = small_trace()
        return TraceSet((trace, trace), {"tp": (1, 0)})

    @pytest.mark.parametrize("suffix", [".et", ".json"])
    def test_write_and_read(self, tmp_path, suffix):
        traces = self.pair()
        names = [path.name for path in write_traces(traces, tmp_path / "w", suffix)]
        assert names == [f"w.0{suffix}", f"w.1{suffix}", "w.groups.json"]
        again = read_traces(tmp_path / "w")
        assert again.equals(traces)
        assert again.traces[0] is again.traces[1]  # the files are identical
        assert read_traces(tmp_path).equals(traces)
        assert again.members(0, 1) == (1, 0)

    def test_ranks_that_differ_in_groups_and_peers_share_their_columns(self, tmp_path):
        trace = small_trace()
        ranks = [
            replace(trace, source=np.where(trace.source < 0, -1, rank).astype(np.int32))
            for rank in range(3)
        ]
        ranks[2] = replace(ranks[2], group_names=("other",))
        groups = {"tp": (0, 1), "other": (2,)}
        write_traces(TraceSet(tuple(ranks), groups), tmp_path / "w")
        again = read_traces(tmp_path / "w")
        assert again.equals(TraceSet(tuple(ranks), groups))
        parts = again.parts
        assert [isinstance(part, OtherPeers) for part in parts] == [False, True, True]
        assert parts[2].trace.group_names == ("other",)
        for column in ("identifiers", "names", "duration", "data_parents", "other", "tensors"):
            assert getattr(parts[2].trace, column) is getattr(parts[0], column)
        write_traces(again, tmp_path / "v")
        for rank in range(3):
            names = (tmp_path / f"{prefix}.{rank}.et" for prefix in "vw")
            assert len({name.read_bytes() for name in names}) == 1

    def test_the_order_is_that_of_the_ranks(self, tmp_path):
        different = []
        for rank in range(11):
            builder = TraceBuilder()
            builder.add(f"rank {rank}", COMPUTE)
            different.append(builder.build())
        paths = write_traces(TraceSet(tuple(different)), tmp_path / "w")
        for source in (tmp_path / "w", sorted(paths, key=str)):  # "w.10.et" before "w.2.et"
            names = [trace.names[0] for trace in read_traces(source).traces]
            assert names == [f"rank {rank}" for rank in range(11)]

    def test_one_file_is_one_rank(self, tmp_path):
        write_traces(self.pair(), tmp_path / "w")
        assert read_traces(tmp_path / "w.1.et").devices == 1

    def test_files_in_the_order_given(self, tmp_path):
        (tmp_path / "b.et").write_bytes(serialise(small_trace()))
        (tmp_path / "a.et").write_bytes(TYPES_FILE)
        traces = read_traces([tmp_path / "b.et", tmp_path / "a.et"]).traces
        assert [trace.nodes for trace in traces] == [3, 4]

    def test_a_missing_rank_is_named(self, tmp_path):
        write_traces(TraceSet((small_trace(),) * 4), tmp_path / "w")
        (tmp_path / "w.2.et").unlink()
        with pytest.raises(FormatError, match="the file of rank 2 is missing"):
            read_traces(tmp_path / "w")

    def test_two_files_of_one_rank(self, tmp_path):
        write_traces(TraceSet((small_trace(),)), tmp_path / "w")
        write_traces(TraceSet((small_trace(),)), tmp_path / "w", ".json")
        with pytest.raises(FormatError, match="two files of rank 0"):
            read_traces(tmp_path / "w")

    def test_two_prefixes_in_a_folder(self, tmp_path):
        write_traces(self.pair(), tmp_path / "v")
        write_traces(self.pair(), tmp_path / "w")
        with pytest.raises(FormatError, match="one prefix; found: v, w"):
            read_traces(tmp_path)

    @pytest.mark.parametrize("source", ["nothing", "folder/w", "."])
    def test_no_files(self, tmp_path, source):
        with pytest.raises(FormatError):
            read_traces(tmp_path / source)
        with pytest.raises(FormatError, match="no trace files"):
            read_traces([])

    def test_a_group_beyond_the_ranks(self, tmp_path):
        write_traces(TraceSet((small_trace(),)), tmp_path / "w")
        with pytest.raises(FormatError, match="rank 1, but the ranks are 0 to 0"):
            read_traces(tmp_path / "w", {"tp": [0, 1]})
        with pytest.raises(FormatError, match="rank 1, but the ranks are 0 to 0"):
            write_traces(TraceSet((small_trace(),), {"tp": (0, 1)}), tmp_path / "v")

    def test_all_or_nothing(self, tmp_path):
        good = small_trace()
        bad = replace(good, duration=np.full(3, np.inf))
        with pytest.raises(FormatError):
            write_traces(TraceSet((good, bad)), tmp_path / "w")
        assert not list(tmp_path.iterdir())
        with pytest.raises(DataError):
            write_traces(self.pair(), tmp_path / "missing" / "w")

    def metadata_trace(self, listed, group="1"):
        builder = TraceBuilder()
        info = Attribute(IO_INFO, (listed, "[[]]", "['String']"))
        builder.add("## process_group:init ##", METADATA, other={NODE_INPUTS: info})
        builder.add("r", COLLECTIVE, collective=0, communication_size=8, group=group)
        return builder.build()

    def write_metadata(self, folder, *listed, group="1"):
        traces = tuple(self.metadata_trace(text, group) for text in listed)
        write_traces(TraceSet(traces), folder / "w")

    def test_process_groups_of_pytorch(self, tmp_path):
        entries = [{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [1, 0], "size": 2}]
        text = "['" + json.dumps(entries) + "']"
        self.write_metadata(tmp_path, text, text)
        traces = read_traces(tmp_path / "w")
        assert traces.groups == {"0": (0, 1), "1": (1, 0)}
        assert traces.members(0, 1) == (1, 0)
        assert read_traces(tmp_path / "w", {"1": [0]}).members(0, 1) == (0,)

    def test_group_0_is_everybody(self, tmp_path):
        self.write_metadata(tmp_path, "[]", "[]", group="0")
        assert read_traces(tmp_path / "w").groups == {"0": (0, 1)}

    @pytest.mark.parametrize(
        "listed",
        [
            '[\'[{"pg_name": "1", "ranks": [0, 0]}]\']',
            '[\'[{"pg_name": "1", "ranks": [2]}]\']',
            '[\'[{"pg_name": "1"}]\']',
            '[\'[{"pg_name": "1", "ra\']',
            "['" + "[" * 100_000 + '"pg_name"\']',
            '[\'[{"pg_name": "1", "ranks": 3}]\']',
        ],
    )
    def test_unreadable_process_groups(self, tmp_path, listed):
        self.write_metadata(tmp_path, listed, listed)
        with pytest.raises(FormatError, match=r"w.0.et: .*group"):
            read_traces(tmp_path / "w")

    def test_process_groups_that_differ_between_ranks(self, tmp_path):
        texts = (f'[\'[{{"pg_name": "1", "ranks": [{rank}]}}]\']' for rank in (0, 1))
        self.write_metadata(tmp_path, *texts)
        with pytest.raises(FormatError, match="process group '1' differs between files"):
            read_traces(tmp_path / "w")


def test_the_metadata_of_a_double_attribute_is_eight_bytes():
    """proto3: a oneof member is written even where it is 0."""
    assert serialise(TraceBuilder().build({"a": 0.0})) == b"\x0e\x12\x0c\n\x01a\x19" + struct.pack(
        "<d", 0.0
    )


class TestFolderOfAPrefix:
    def test_it_is_made(self, tmp_path):
        make_folder_of(str(tmp_path / "new" / "t"), TraceSet((small_trace(),)))
        assert (tmp_path / "new").is_dir()

    def test_files_that_are_replaced_are_no_obstacle(self, tmp_path):
        one = TraceSet((small_trace(),))
        write_traces(one, tmp_path / "t")
        make_folder_of(str(tmp_path / "t"), one)

    @pytest.mark.parametrize("left", ["t.1.et", "t.0.json", "t.groups.json"])
    def test_files_that_would_be_read_together_are_named(self, tmp_path, left):
        (tmp_path / left).write_text("", encoding="utf-8")
        with pytest.raises(DataError, match=f"{left}' is of other traces and would be read"):
            make_folder_of(str(tmp_path / "t"), TraceSet((small_trace(),)))

    def test_a_folder_is_no_prefix(self, tmp_path):
        with pytest.raises(DataError, match="is a folder; name a prefix in it"):
            make_folder_of(str(tmp_path), TraceSet((small_trace(),)))
