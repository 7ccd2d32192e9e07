"""Traces of cores as text: read, written, refused."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.wafer import core_trace as core_trace_files
from perfmodel.wafer.core_trace import (
    TracePiece,
    format_instruction,
    format_pieces,
    parse_core_trace,
    read_core_trace,
    write_core_traces,
)
from perfmodel.wafer.cores.instructions import (
    ADD,
    BARRIER,
    COPY,
    GEMM,
    READ,
    build,
    joined,
    multicasts,
)
from tests.data import SHARED, needed


def column(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_TILES = joined(
    [
        build(READ, column(0), (7, 1234567890123)),
        build(GEMM, column(0), (8, 1, 10), back=1),
        build(ADD, column(2), (1, 2, 3, 4), tile=1),
    ]
)
PIECES = [
    TracePiece(_TILES, "a_b", np.array([[0, 12], [4, 5]])),
    TracePiece(build(COPY, column(0), (0, 1, 0)), "c", np.empty((1, 0), np.int64)),
    TracePiece(
        multicasts(column(5), column(8), column(6, 7), column(2))._replace(
            lines=build(5, column(0), (5, 8, 0, 2)).lines
        ),
        "d",
        np.array([[3]]),
    ),
    TracePiece(build(BARRIER, column(0, 2), (1, 2**32 - 1)), "e", np.empty((1, 0), np.int64)),
]


def whole(pieces: list[TracePiece], cores: int) -> dict[int, str]:
    """Return the text of each core."""
    texts = dict.fromkeys(range(cores), b"")
    for core, text in format_pieces(pieces, np.zeros(cores, np.int64)):
        texts[core] += text
    return {core: text.decode() for core, text in texts.items()}


def test_numbers_go_on_from_piece_to_piece():
    following = np.zeros(3, np.int64)
    parts = [
        text for piece in PIECES for core, text in format_pieces([piece], following) if core == 0
    ]
    assert b"".join(parts).decode() == whole(PIECES, 3)[0]
    assert following.tolist() == [5, 0, 2]


def test_negative_numbers_are_refused():
    with pytest.raises(DataError, match="negative"):
        whole([PIECES[1]._replace(instructions=build(COPY, column(0), (0, 1, -5)))], 1)


def test_what_is_written_is_read():
    text = whole(PIECES, 3)[0]
    read = list(parse_core_trace(text))
    assert read[1].waits == (0,)
    assert "".join(format_instruction(line) + "\n" for line in read) == text


def test_reads_the_generators_own(tmp_path):
    path = needed(SHARED / "wse/out_small/traces_node_0/core_15.csv")
    text = path.read_text()
    assert "".join(format_instruction(line) + "\n" for line in read_core_trace(path)) == text
    packed = tmp_path / "core.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert list(read_core_trace(packed)) == list(parse_core_trace(text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 READ 1 2", "line 1: '0 READ 1 2' should be such as"),
        ("0 RAED 1 2\t\t;x", "unknown instruction 'RAED'"),
        ("0 READ 1\t\t;x", "READ has 1 arguments"),
        ("0 GEMM 1 2 3 4\t\t;x", "GEMM has 4 arguments"),
        ("0 READ 1 ab\t\t;x", "should be whole numbers"),
        ("0 READ 1 9999999999999999999\t\t;x", "should be whole numbers"),
        ("0 BARRIER 12\t\t;x", "16 digits, not 2"),
        ("1 READ 1 2 [1]\t\t;x", "waits for one that is not before it"),
        ("x READ 1 2\t\t;x", "should be such as"),
    ],
)
def test_refuses(line, message):
    with pytest.raises(FormatError, match=message.replace("?", r"\?")):
        list(parse_core_trace(line, "core_0.csv"))


def test_refuses_a_folder(tmp_path):
    with pytest.raises(FormatError, match="cannot read"):
        list(read_core_trace(tmp_path))


def written(folder, node):
    return {
        int(file.stem.removeprefix("core_")): file.read_text()
        for file in (folder / f"traces/decode/node_{node}/decode0").iterdir()
    }


@pytest.mark.parametrize("gathered", [1, 2**18])
def test_files_hold_what_their_cores_run(tmp_path, monkeypatch, gathered):
    monkeypatch.setattr(core_trace_files, "GATHERED", gathered)
    parts = [(node, [piece]) for piece in PIECES for node in (0, 1, 2)]
    lines = write_core_traces(tmp_path, "decode0", [0, 2], 3, parts)
    assert lines == 2 * 7
    assert written(tmp_path, 0) == written(tmp_path, 2) == whole(PIECES, 3)
    assert not (tmp_path / "traces/decode/node_1").exists()


def test_nothing_is_left_where_making_fails(tmp_path):
    def parts():
        yield 0, PIECES
        raise DataError("later")

    write_core_traces(tmp_path, "decode0", [0], 3, [(0, PIECES[:1])])
    before = written(tmp_path, 0)
    with pytest.raises(DataError, match="later"):
        write_core_traces(tmp_path, "decode0", [0], 3, parts())
    assert written(tmp_path, 0) == before
    assert [file.name for file in tmp_path.iterdir()] == ["traces"]


def test_refuses_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        write_core_traces(tmp_path / "no", "decode0", [0], 3, [])
    (tmp_path / "traces").write_text("mine")
    with pytest.raises(DataError, match="something else than traces"):
        write_core_traces(tmp_path, "decode0", [0], 3, [])
