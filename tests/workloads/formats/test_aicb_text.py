"""AICB workload text files: reading, writing, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.aicb_text import (
    AicbHeader,
    aicb_from_columns,
    format_aicb_text,
    parse_aicb_text,
    read_aicb_text,
)
from tests.data import table_of

# Third execution of the public study, first lines (AICB 23eec3c4).
HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 36 ga: 8 "
    "all_gpus: 512 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
)
GATHER = "grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1823473664\t100"
ATTENTION = (
    "attention_layer\t-1\t1820000\tALLREDUCE\t4194304\t1820000\tNONE\t0\t1820000\tNONE\t0\t100"
)
TEXT = f"{HEADER}\n2\n{GATHER}\n{ATTENTION}\n"


def test_columns_and_header_are_read():
    workload = parse_aicb_text(TEXT)
    header = workload.header
    assert (header.tensor_parallel, header.expert_parallel, header.pipeline_parallel) == (2, 1, 1)
    assert (header.layers_per_stage, header.micro_batches, header.world_size) == (36, 8, 512)
    assert header.pipeline_message == 0
    assert workload.name.tolist() == ["grad_gather", "attention_layer"]
    assert workload.placeholder.tolist() == [-1, -1]
    assert workload.forward.compute_time.tolist() == [1, 1820000]
    assert workload.forward.collective.tolist() == ["NONE", "ALLREDUCE"]
    assert workload.forward.size.tolist() == [0, 4194304]
    assert workload.input_gradient.compute_time.tolist() == [1, 1820000]
    assert workload.weight_gradient.collective.tolist() == ["ALLGATHER", "NONE"]
    assert workload.weight_gradient.size.tolist() == [1823473664, 0]
    assert workload.process_time.tolist() == [100, 100]


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        parse_aicb_text(TEXT).forward.size[0] = 1


def test_a_written_file_is_read_back(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(format_aicb_text(parse_aicb_text(TEXT)))
    assert path.read_bytes() == TEXT.encode()
    assert format_aicb_text(read_aicb_text(path)) == TEXT


def test_every_real_file_round_trips_byte_for_byte(development_table):
    files = sorted(development_table("aicb/workloads").glob("*.txt"))
    assert files
    for file in files:
        assert format_aicb_text(read_aicb_text(file)).encode() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    "header",
    [
        HEADER.replace("pp_comm: 0", "pp_comm: 6291456.0"),  # Python float with sequence parallel
        HEADER.replace("vpp: 36", "mode: 1 vpp: 1"),  # inference generator
        HEADER.replace("checkpoints: 0", "checkpoints: 2 3 7"),
        "MICRO",
    ],
)
def test_header_dialects_round_trip(header):
    text = TEXT.replace(HEADER, header)
    assert format_aicb_text(parse_aicb_text(text)) == text


def test_float_and_list_values_of_the_header():
    text = TEXT.replace("pp_comm: 0", "pp_comm: 6291456.0").replace("points: 0", "points: 2 3 7")
    header = parse_aicb_text(text).header
    assert header.pipeline_message == 6291456
    assert header.entries["checkpoints"] == (2, 3, 7)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("pp_comm: 0", "pp_comm 0"),  # SimAI's workload_analytical.txt
        TEXT.replace("BCKWD model", "BCKWD\tmodel"),  # AICB 1.0
        TEXT.replace("\t", "   "),
        TEXT.replace("\n", "\r\n"),
        TEXT.removesuffix("\n"),
        TEXT + "\n",
    ],
)
def test_older_dialects_are_written_in_the_present_form(text):
    assert format_aicb_text(parse_aicb_text(text)) == TEXT


def test_a_workload_without_rows():
    text = f"{HEADER}\n0\n"
    assert format_aicb_text(parse_aicb_text(text)) == text


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [*table_of(__file__, "errors_say_line_and_column"),
(HEADER.split()[0], "HYBRID_TRANSFORMR", "line 1: 'HYBRID_TRANSFORMR'.*did you mean"),
("1823473664", "9" * 19, r"line 3, column 11 \(dp_comm_size\)"),
],
)  # fmt: skip
def test_errors_say_line_and_column(wrong, right, message):
    assert wrong in TEXT
    with pytest.raises(FormatError, match=message):
        parse_aicb_text(TEXT.replace(wrong, right), "file")


@pytest.mark.parametrize("text", ["", "\n", HEADER])
def test_cut_off_files_are_refused(text):
    with pytest.raises(FormatError, match=r"line [12]: "):
        parse_aicb_text(text)


def test_a_missing_key_is_named():
    workload = parse_aicb_text(TEXT.replace(" vpp: 36", ""))
    with pytest.raises(FormatError, match="lacks 'vpp: N'"):
        _ = workload.header.layers_per_stage


def test_the_writer_refuses_what_a_file_cannot_hold():
    workload = parse_aicb_text(TEXT)
    for bad, message in (
        (replace(workload, name=np.array(["two words", "x"])), "a name without blanks"),
        (replace(workload, process_time=np.array([100])), "differ in length.*process_time 1"),
        (replace(workload, process_time=np.array([100, -1])), r"column 12 \(process_time\)"),
    ):
        with pytest.raises(FormatError, match=message):
            format_aicb_text(bad)


def test_a_workload_of_columns():
    columns = [line.split("\t") for line in (GATHER, ATTENTION)]
    header = AicbHeader("MICRO", {})
    workload = aicb_from_columns(header, list(zip(*columns, strict=True)))
    assert format_aicb_text(workload) == TEXT.replace(HEADER, "MICRO")
    assert workload.forward.size.dtype == np.int64
