"""Instructions in a netCDF file come back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.wafer import core_columns
from perfmodel.wafer.core_columns import (
    CoreColumns,
    plain,
    read_cores,
    read_operation,
    step_folders,
)
from perfmodel.wafer.cores.instructions import COPY, GEMM, MULTICAST, OPCODE, READ
from tests.wafer.cores.examples import LATENT, operations


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(core_columns, "KEPT_LINES", 5000)
    file = CoreColumns(tmp_path / "cores.nc", LATENT, {"model": "x"})
    for step in (0, 3):
        for node in (0, 5):
            for one in operations("absorbed")[node]:
                file.add(node, step, one.name, one.macs, one.instructions)
    file.close()
    return tmp_path


def test_instructions_come_back(written: Path) -> None:
    system, found = read_cores(written)
    assert system == LATENT
    wanted = [
        (node, step, one.name, one.instructions)
        for step in (0, 3)
        for node in (0, 5)
        for one in operations("absorbed")[node]
    ]
    for (node, step, name, made), (to, at, word, other) in zip(wanted, found, strict=True):
        assert (node, step, name) == (to, at, word)
        assert (made.lines == other.lines).all()
        cast = made.lines[:, 0] == 5
        assert (made.arguments[~cast] == other.arguments[~cast]).all()
        for mine, theirs in zip(made.arguments[cast], other.arguments[cast], strict=True):
            assert (mine[:2] == theirs[:2]).all()
            assert (
                made.destinations[mine[2] : mine[2] + mine[3]].tolist()
                == other.destinations[theirs[2] : theirs[2] + theirs[3]].tolist()
            )


def test_one_operation_of_one_step(written: Path) -> None:
    _, found = read_cores(written / "cores.nc", 3, "wkva")
    assert [(node, step, name) for node, step, name, _ in found] == [
        (0, 3, "decode3_attn_absorb_wkva"),
        (5, 3, "decode3_attn_absorb_wkva"),
    ]


def test_who_stops_reading_leaves_no_file_open(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import netCDF4

    opened = []
    library = netCDF4.Dataset
    monkeypatch.setattr(netCDF4, "Dataset", lambda path: opened.append(library(path)) or opened[-1])
    _, found = read_cores(written)
    next(found)
    assert opened
    assert not any(file.isopen() for file in opened)


def test_what_is_not_there_is_named(written: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no step 1; it has 0, 3"):
        read_cores(written, 1)
    with pytest.raises(DataError, match="no operation 'wkvx'"):
        read_cores(written, 0, "wkvx")
    with pytest.raises(DataError, match="not a readable"):
        read_cores(tmp_path / "missing.nc")
    (tmp_path / "text.nc").write_text("no")
    with pytest.raises(DataError, match="not a readable"):
        read_cores(tmp_path / "text.nc")
    import netCDF4

    netCDF4.Dataset(tmp_path / "other.nc", "w").close()
    with pytest.raises(DataError, match="'perfmodel workload cores' writes them"):
        read_cores(tmp_path / "other.nc")
    assert np.isfinite(len(list(read_cores(written, 0)[1])))


TEXT = """\
0 READ 1 64\t\t;decode3_attn_wkva_gemm_0_0_0
1 GEMM 2 3 4 [0]\t\t;decode3_attn_wkva_gemm_0_0_0
2 BARRIER 0123456789abcdef\t\t;cross_layer_4
3 COPY 0 5 10\t\t;decode3_ar_0
4 MULTICAST 0 4 5 7 20\t\t;decode4_cast_0
5 GEMM 2 2 2 [0]\t\t;decode4_attn_wkva_gemm_0_0_0
"""


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    place = tmp_path / "traces/decode/node_1/decode0"
    place.mkdir(parents=True)
    (place / "core_2.csv").write_text(TEXT)
    return tmp_path


def test_an_operation_of_a_layer(traces: Path) -> None:
    (part,) = read_operation(traces, "decode0", "wkv_a", 4, "decode3")
    assert part.lines[:, OPCODE].tolist() == [READ, GEMM]
    assert part.lines[:, 1].tolist() == [6, 6]  # core 2 of node 1
    assert part.arguments[1, :3].tolist() == [2, 3, 4]
    (whole,) = read_operation(traces, "decode0", "", 4)
    assert sorted(whole.lines[:, OPCODE].tolist()) == sorted([READ, GEMM, GEMM, COPY, MULTICAST])
    assert whole.destinations.tolist() == [4, 5, 7]
    assert plain("attn.wkv_a") == "attnwkva"
    assert list(step_folders(traces, "decode0")) == [1]


def test_what_is_not_there(traces: Path) -> None:
    with pytest.raises(DataError, match=r"in several layers \(decode3, decode4\)"):
        list(read_operation(traces, "decode0", "wkv_a", 4))
    with pytest.raises(DataError, match="no instruction of 'wo'"):
        list(read_operation(traces, "decode0", "wo", 4))
    with pytest.raises(DataError, match=r"no step 'decode1'.*its steps are decode0"):
        list(read_operation(traces, "decode1", "", 4))
    with pytest.raises(DataError, match="a folder with 'traces/' in it"):
        list(read_operation(traces / "traces", "decode0", "", 4))
    with pytest.raises(FormatError, match="a node has cores 0 to 1"):
        list(read_operation(traces, "decode0", "", 2))


def test_a_broken_line_is_named(traces: Path) -> None:
    path = traces / "traces/decode/node_1/decode0/core_2.csv"
    path.write_text(TEXT.replace("COPY 0 5 10", "COPY 0 x 10"))
    with pytest.raises(FormatError, match=r"core_2\.csv, line 4"):
        list(read_operation(traces, "decode0", "", 4))
