"""One operation out of a folder of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.wafer.cores.instructions import COPY, GEMM, MULTICAST, OPCODE, READ
from perfmodel.wafer.formats.core_selection import plain, read_operation, step_folders

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
