"""AICB's CSV workloads: reading, writing, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.aicb_tables import (
    COLUMNS,
    COMM_GROUPS,
    COMM_TYPES,
    AicbEvent,
    VidurPart,
    format_aicb_csv,
    format_vidur_csv,
    parse_aicb_csv,
    parse_vidur_csv,
    read_aicb_csv,
    read_vidur_csv,
)
from tests.workloads.formats.made_aicb import HEADER, parts

ROWS = (
    "CommType.broadcast,CommGroup.dp_group,128,524288000,init._broadcast_model,None,0,,None,None,None,1",
    "CommType.barrier,CommGroup.all,128,0,init._setup_for_real_optimizer,None,None,,None,None,None,1",
    "CommType.reduce,CommGroup.dp_group,256,22620680,backward.average_tensor,252,None,,None,None,None,1",
    "CommType.isend,CommGroup.pp_group,1,16777216,forward_step,None,None,send_next,None,None,None,1",
    "CommType.computation,None,None,((2048 1 1024) (1024 4096)),fwd,None,None,,None,None,None,1",
    "CommType.computation,None,None,((3072 8192) (8192 4096)),,None,None,,None,None,None,1",
    "CommType.epoch_end,None,None,0,,None,None,,None,None,None,1",
)  # fmt: skip
TEXT = "\n".join((HEADER, *ROWS, "")).replace("\n\n", "\n")

# A row of a replay's log: the same columns, measured [ms, GB/s].
LOGGED = (
    "CommType.all_gather,CommGroup.tp_group,8,16777216,forward,None,None,,"
    "0.25,67.108864,58.720256,1"
)


def test_every_column_is_read():
    broadcast, barrier, reduce, send, product, gradient, end = parse_aicb_csv(TEXT)
    assert broadcast == AicbEvent(
        "broadcast", "dp_group", 128, 524288000, "init._broadcast_model", source=0
    )
    assert (barrier.comm_group, barrier.message_size) == ("all", 0)
    assert (reduce.destination, reduce.source) == (252, None)
    assert (send.additional, send.comm_group_size) == ("send_next", 1)
    assert product.message_size == ((2048, 1, 1024), (1024, 4096))
    assert product.floating_point_operations == 2 * 2048 * 1024 * 4096
    assert gradient.message_size == ((3072, 8192), (8192, 4096))
    assert gradient.floating_point_operations == 2 * 3072 * 8192 * 4096
    assert end == AicbEvent("epoch_end")
    assert end.floating_point_operations == broadcast.floating_point_operations == 0


def test_a_replays_log_is_read():
    (event,) = parse_aicb_csv(f"{HEADER}\n{LOGGED}\n")
    assert (event.elapsed_time, event.algorithm_bandwidth, event.bus_bandwidth) == (
        0.25,
        67.108864,
        58.720256,
    )
    assert format_aicb_csv([event]) == f"{HEADER}\n{LOGGED}\n"


def test_a_written_file_is_read_back_byte_for_byte(tmp_path):
    path = tmp_path / "workload.csv"
    path.write_text(format_aicb_csv(parse_aicb_csv(TEXT)))
    assert path.read_bytes() == TEXT.encode()
    assert read_aicb_csv(path) == parse_aicb_csv(TEXT)


def test_like_rows_share_one_object():
    first, second = parse_aicb_csv(f"{HEADER}\n{ROWS[0]}\n{ROWS[0]}\n")
    assert first is second


def test_windows_newlines_and_a_missing_last_one_are_read():
    assert parse_aicb_csv(TEXT.replace("\n", "\r\n")) == parse_aicb_csv(TEXT)
    assert parse_aicb_csv("\ufeff".encode().decode("utf-8-sig") + TEXT[:-1]) == parse_aicb_csv(TEXT)


def test_every_real_file_round_trips_byte_for_byte(development_table):
    folder = development_table("aicb/workloads")
    events = sorted(folder.glob("[zp]*.csv"))
    parts = sorted(folder.glob("i*.csv"))
    assert len(events) == 8
    assert len(parts) == 2
    for file in events:
        assert format_aicb_csv(read_aicb_csv(file)).encode() == file.read_bytes(), file.name
    for file in parts:
        assert format_vidur_csv(read_vidur_csv(file)).encode() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROWS[0].replace("broadcast", "brodcast"), "line 2, column 1 .*did you mean broadcast"),
        (ROWS[0].replace("CommType", "Comm"), "column 1 .comm_type.* CommType. and a name"),
        (ROWS[0].replace("dp_group", "dp"), "column 2 .comm_group"),
        (ROWS[0].replace("CommGroup.dp_group", "None"), "'broadcast' needs one of CommGroup.dp"),
        (ROWS[0].replace("128", "-1"), "column 3 .*None or a whole number"),
        (ROWS[0].replace("524288000", "-4"), "column 4 .*size in bytes"),
        (ROWS[0].replace("524288000", "nan"), "column 4 .*'nan'"),
        (ROWS[0].replace("524288000", "1" * 400), r"column 4 .*'1{57}\.\.\.'"),
        (ROWS[0].replace(",0,,", ",x,,"), "column 7 .src.: 'x'"),
        (LOGGED.replace("0.25", "inf"), "column 9 ._elapsed_time.: 'inf'"),
        (LOGGED.replace("58.720256", "1e999"), "column 11 .busbw.: '1e999'"),
        (ROWS[0][:-1] + "None", "column 12 .count.: 'None'"),
        (ROWS[4].replace("((", "("), "column 4 .*shapes of a matrix product"),
        (ROWS[4].replace("(1024 4096)", "(1025 4096)"), "fit: 1024 columns, 1025 rows"),
        (ROWS[4].replace("(2048 1 1024)", "(1024)"), "shapes of a matrix product"),
        (ROWS[4].replace("2048 1", "2048  1"), "shapes of a matrix product"),
        (ROWS[4].replace("((2048 1 1024) (1024 4096))", "4096"), "shapes of a matrix product"),
        (ROWS[0].rpartition(",")[0], "11 columns where a row has 12"),
        (ROWS[0] + ",1", "13 columns where a row has 12"),
        ("", "1 columns where a row has 12"),
    ],
)
def test_bad_rows_say_where_and_what_would_be_right(row, message):
    with pytest.raises(FormatError, match=message) as raised:
        parse_aicb_csv(f"{HEADER}\n{row}\n{ROWS[1]}\n", "w.csv")
    assert "w.csv, line 2" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "\n", "layer,time\n", HEADER.upper() + "\n", "﻿" + HEADER])
def test_a_file_of_something_else_is_refused(text):
    with pytest.raises(FormatError, match="line 1: should be the columns comm_type,comm_group"):
        parse_aicb_csv(text)


GOOD = AicbEvent("all_reduce", "dp_group", 8, 4096, "step")


@pytest.mark.parametrize(
    "event",
    [
        replace(GOOD, comm_type="allreduce"),
        replace(GOOD, comm_group=None),
        replace(GOOD, comm_group_size=-8),
        replace(GOOD, message_size=-1),
        replace(GOOD, message_size=float("nan")),
        replace(GOOD, message_size=((2, 2), (2, 2))),
        replace(GOOD, comm_type="computation"),
        replace(GOOD, comm_type="computation", message_size=((2, 3), (2, 2))),
        replace(GOOD, stage="a,b"),
        replace(GOOD, stage="a\nb"),
        replace(GOOD, additional="a\r"),
        replace(GOOD, elapsed_time=float("inf")),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(event):
    with pytest.raises(FormatError, match="workload, row 3"):
        format_aicb_csv([GOOD, event])


words = st.text(st.characters(codec="utf-8", exclude_characters=",\r\n"), max_size=12)
wholes = st.none() | st.integers(0, 2**62)
times = st.none() | st.floats(0, 1e15) | st.integers(0, 10**9)
sizes = st.integers(1, 2**40)


@st.composite
def events(draw):
    """Any event that a file can hold."""
    kind = draw(st.sampled_from(COMM_TYPES))
    group = draw(st.sampled_from(COMM_GROUPS))
    size = draw(st.integers(0, 2**62) | st.floats(0, 1e15))
    if kind == "computation":
        inner = draw(sizes)
        rows = draw(st.lists(sizes, min_size=1, max_size=2))
        size = ((*rows, inner), (inner, draw(sizes)))
    return AicbEvent(
        kind, group, draw(wholes), size, draw(words), draw(wholes), draw(wholes), draw(words),
        draw(times), draw(times), draw(times), draw(st.integers(0, 99)),
    )  # fmt: skip


@given(st.lists(events(), max_size=5))
def test_any_events_survive_writing_and_reading(written):
    text = format_aicb_csv(written)
    read = parse_aicb_csv(text)
    assert list(read) == written
    assert format_aicb_csv(read) == text


VIDUR = "layer_id\tlayer_name\tcomp_time\tcomm_size\n0\tattention\t1\t0\n3\tmoe\t2\t5562368\n"


def test_the_header_is_aicbs():
    assert ",".join(COLUMNS) == HEADER


def test_a_vidur_file_is_read_and_written_back(tmp_path):
    parts = parse_vidur_csv(VIDUR)
    assert parts == (VidurPart(0, "attention", 1, 0), VidurPart(3, "moe", 2, 5562368))
    path = tmp_path / "vidur.csv"
    path.write_text(format_vidur_csv(parts))
    assert path.read_bytes() == VIDUR.encode()
    assert read_vidur_csv(path) == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: should be the columns layer_id, layer_name"),
        (VIDUR.replace("\t", ","), "line 1: .*separated by tabs"),
        (VIDUR.replace("attention", "atention"), "line 2, column 2 .*did you mean attention"),
        (VIDUR.replace("\t1\t", "\t-1\t"), "line 2, column 3 .comp_time.: '-1'"),
        (VIDUR.replace("5562368", "5562368.0"), "line 3, column 4 .comm_size"),
        (VIDUR.replace("\t5562368", ""), "line 3: 3 columns where a row has 4"),
        (VIDUR.replace("3\tmoe", "x\tmoe"), "line 3, column 1 .layer_id.: 'x'"),
    ],
)
def test_bad_vidur_files_say_where(text, message):
    with pytest.raises(FormatError, match=message):
        parse_vidur_csv(text)


@pytest.mark.parametrize(
    "part", [VidurPart(-1, "moe", 1, 1), VidurPart(0, "norm", 1, 1), VidurPart(0, "moe", 1, -1)]
)
def test_what_a_vidur_file_cannot_hold_is_not_written(part):
    with pytest.raises(FormatError, match="workload, row 2"):
        format_vidur_csv([part])


@given(st.lists(parts, max_size=5))
def test_any_vidur_parts_survive(written):
    assert list(parse_vidur_csv(format_vidur_csv(written))) == written
