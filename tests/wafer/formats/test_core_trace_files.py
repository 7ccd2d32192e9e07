"""Folders of traces: files per core, whatever the order and size of parts."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.formats import core_trace_files
from perfmodel.wafer.formats.core_trace_files import write_core_traces
from tests.wafer.formats.test_core_trace import PIECES, whole


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
