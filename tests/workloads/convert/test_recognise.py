"""The kind of a workload is told from its content."""

from __future__ import annotations

import gzip

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.convert.recognise import workload_kind

CONTENTS = {
    "astra-text": "HYBRID_TRANSFORMER model_parallel_NPU_group: 4\r\n1\r\n",
    "aicb-text": "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 4\n",
    "aicb-csv": "comm_type,comm_group,comm_group_size,msg_size\n",
    "vidur-csv": "layer_id\tlayer_name\tcomp_time\tcomm_size\n",
    "aiob": "train_iter:10\nEmb:\n",
    "flexflow": "digraph taskgraph {\n",
    "pytorch": '{"schema": "1.0.2-chakra.0.0.4", "nodes": []}',
    "kineto": '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}',
    "chakra-json": '{"workload_graph": []}',
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_text_files_are_told_by_their_first_lines(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text(CONTENTS[kind], newline="")
    assert workload_kind(path) == kind


def test_a_compressed_file_is_looked_into(tmp_path):
    path = tmp_path / "trace.0.json.gz"
    path.write_bytes(gzip.compress(CONTENTS["chakra-json"].encode()))
    assert workload_kind(path) == "chakra-json"


def test_ranks_are_found_by_folder_and_by_prefix(tmp_path):
    for rank in range(2):
        (tmp_path / f"run.{rank}.et").write_bytes(b"\0")
    assert workload_kind(tmp_path) == "chakra"
    assert workload_kind(tmp_path / "run") == "chakra"
    assert workload_kind(tmp_path / "run.1.et") == "chakra"


def test_a_prefix_is_a_whole_name(tmp_path):
    (tmp_path / "run2.0.et").write_bytes(b"\0")
    with pytest.raises(FormatError, match="no workload at"):
        workload_kind(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"hello world\n", b"\x1f\x8b broken", bytes(range(256))])
def test_what_is_no_workload_is_named(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="file"):
        workload_kind(path)
