"""AICB's CSV for Vidur: reading, writing, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.workloads.formats.aicb.csv import (
    COLUMNS,
)
from perfmodel.workloads.formats.aicb.vidur import (
    VidurPart,
    format_vidur_csv,
    parse_vidur_csv,
    read_vidur_csv,
)
from tests.workloads.formats.aicb.made import HEADER, parts

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
