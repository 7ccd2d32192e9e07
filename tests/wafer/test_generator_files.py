"""Files of the wafer workload generator: the default example, round trips, wrong files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import read_unpacked
from perfmodel.wafer.generator_files import (
    GRAPH_HEADER,
    KEYS,
    TABLE_HEADER,
    NodeOperation,
    format_node_graph,
    format_node_table,
    read_node_graph,
    read_node_table,
    read_systems,
    read_tiling,
    shapes,
)
from perfmodel.wafer.system import WaferSystem
from tests.data import WAFER, needed
from tests.wafer.systems import system_text

BLOCK = {
    "num_nodes": 4,
    "node_grid": [2, 2],
    "core_grid": [4, 4],
    "dp_attn": 1,
    "dp_ffn": 1,
    "tp_attn": 2,
    "tp_ffn": 1,
    "pp": 1,
    "sp": 2,
    "ep": 4,
    "n_redundant_shared_exp": 1,
    "expert_workload_model": "uniform",
    "moe_comm": "alltoall",
}
SMALL = WaferSystem(
    nodes=4,
    node_grid=(2, 2),
    core_grid=(4, 4),
    tensor_parallel=2,
    sequence_parallel=2,
    expert_parallel=4,
)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Run in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def parsed(read, text, name="file"):
    """What a reader has of a file with this text."""
    Path(name).write_text(text, newline="")
    return read(name)


def wrong(**changes):
    """What reading says of a block with changes."""
    block = {key: value for key, value in (BLOCK | changes).items() if value is not None}
    with pytest.raises(FormatError) as raised:
        parsed(read_systems, json.dumps({"decode": block}, indent=1), "s.json")
    return str(raised.value)


def test_default_example():
    systems = read_systems(needed(WAFER / "configs/system.json"))
    assert list(systems) == ["prefill", "decode"]
    assert systems["decode"] == WaferSystem(
        nodes=56,
        node_grid=(7, 8),
        core_grid=(6, 6),
        data_parallel=7,
        tensor_parallel=4,
        sequence_parallel=2,
        expert_parallel=56,
        shared_copies=4,
        routing="two_level",
    )
    assert systems["prefill"].tensor_parallel == 2


def test_round_trip():
    assert parsed(read_systems, json.dumps({"decode": BLOCK})) == {"decode": SMALL}
    both = {"prefill": SMALL, "decode": SMALL}
    assert parsed(read_systems, system_text(both)) == both


def test_degrees_and_grids_are_named_as_the_file_does():
    assert wrong(dp_attn=3) == (
        "s.json:3: decode: tp_attn 2 x sp 2 x dp_attn 3 x pp 1 is 12, not the 4 of 'num_nodes'"
    )
    assert "tp_ffn 1 x ep 2 x dp_ffn 1 x pp 1 is 2, not the 4 of 'num_nodes'" in wrong(ep=2)
    assert "key 'node_grid': 3 x 2 nodes are not the 4 of 'num_nodes'" in wrong(node_grid=[3, 2])
    assert "key 'core_grid': two whole numbers" in wrong(core_grid=[4])
    assert "key 'sp': a whole number above 0, not -2" in wrong(sp=-2)
    assert "key 'num_nodes': a whole number above 0, not 4.5" in wrong(num_nodes=4.5)
    assert "key 'n_redundant_shared_exp': 9 exceeds the 4" in wrong(n_redundant_shared_exp=9)


def test_wrong_keys():
    for key in KEYS:
        assert f"key '{key}' is missing" in wrong(**{key: None})
    assert "unknown key 'tp_atn'; did you mean tp_attn" in wrong(tp_atn=1)
    assert "should be [rows, columns]" in wrong(core_grid=16)
    assert "unknown 'mmlu'; known: empirical_mmlu" in wrong(expert_workload_model="mmlu")
    assert "unknown 'ring'; known: allgather, alltoall, multicast" in wrong(moe_comm="ring")
    assert "key 'moe_comm': should be text" in wrong(moe_comm=[])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "neither 'prefill' nor 'decode'"),
        ("[]", "should be a JSON object"),
        ('{"decod": {}}', "unknown block 'decod'; did you mean decode"),
        ('{"decode": 3}', "'decode' should be an object of keys"),
        ('{"decode": {"sp": 1, "sp": 2}}', "key 'sp' is given twice"),
        ("{", "not valid JSON"),
    ],
)
def test_no_systems(text, said):
    with pytest.raises(FormatError, match=said):
        parsed(read_systems, text)


def test_default_file():
    tiling = read_tiling(needed(WAFER / "configs/tiling.json"))
    assert tiling.tile("MLAKV") == (1, 512, None)
    assert tiling.tile("Linear") == (16, 1024, 64)
    assert tiling.tile("Linear", "decode10_attn_absorb_wo") == (16, 1024, 128)
    with pytest.raises(FormatError, match="no default for 'Matmul'"):
        tiling.tile("Matmul")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"default": {}}', "unknown block 'default'; did you mean defaults"),
        ('{"defaults": []}', "'defaults' should be an object"),
        ('{"defaults": {"Linar": [1]}}', "unknown kind; did you mean Linear"),
        ('{"defaults": {"Linear": [1, 2]}}', "a list of 3 whole numbers above 0"),
        ('{"defaults": {"Linear": [1, 2, -3]}}', "a list of 3 whole numbers above 0"),
        ('{"layers": {"x": [0.5]}}', "a list of whole numbers above 0"),
        ('{"layers": {"x": []}}', "a list of whole numbers above 0"),
    ],
)
def test_wrong(text, said):
    with pytest.raises(FormatError, match=said):
        parsed(read_tiling, text)


@pytest.mark.parametrize(
    "name", ["out_small/nodes_node_0/decode0.csv", "out_deepseekv3/nodes/node_13_decode0.csv.gz"]
)
def test_tables_round_trip(name):
    file = needed(WAFER / name)
    assert format_node_table(read_node_table(file)).encode() == read_unpacked(file)


def test_cells():
    rows = [
        NodeOperation("a", "Linear", 4, 6, 4, 0, None, "[3, 2] x [2, 1] -> [3, 1]"),
        NodeOperation("b", "Unicast", 0, 0, 0, 8, (3,), "[1, 1, 4]"),
        NodeOperation("c", "Multicast", 0, 0, 0, 8, (), "[0, 1, 4]"),
    ]
    text = format_node_table(rows)
    assert "b;Unicast;0;0;0;8;3;[1, 1, 4]\r\n" in text
    assert parsed(read_node_table, text) == rows
    assert shapes(rows[0].dimensions) == ((3, 2), (2, 1), (3, 1))
    assert shapes("0 -> [] -> [0, 1]") == ((), (0, 1))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a;Linear;0;0;0;0;N/A", "line 2: 7 cells; an operation has 8"),
        ("a;Linear;-1;0;0;0;N/A;x", "memory_footprint .B. '-1' should be a whole number"),
        ("a;Linear;0;nan;0;0;N/A;x", "num_ops .MAC. 'nan'"),
        ("a;Linear;0;0;0;99999999999999999999;N/A;x", "network_data"),
        ("a;Linear;0;0;0;0;[0 1];x", "group '.0 1.' should be"),
    ],
)
def test_wrong_tables(line, said):
    with pytest.raises(FormatError, match=said):
        parsed(read_node_table, f"{TABLE_HEADER}\n{line}\n")
    with pytest.raises(FormatError, match="line 1: no table"):
        parsed(read_node_table, line)


@pytest.mark.parametrize(
    "name", ["out_small/graph_node_0/decode0.csv", "out_small/graph_node_0/decode9.csv.gz"]
)
def test_round_trip_node_graph(name):
    file = needed(WAFER / name)
    graph = read_node_graph(file)
    assert format_node_graph(graph).encode() == read_unpacked(file)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a;Add;[];[]", "4 cells; an operation has 5"),
        ("a;Add;['x'];[];", "should be a list of tensors"),
        ("a;Add;[];0:x;", "should be a list of tensors"),
    ],
)
def test_wrong_node_graph(line, said):
    with pytest.raises(FormatError, match=said):
        parsed(read_node_graph, f"{GRAPH_HEADER}\n{line}\n")
    with pytest.raises(FormatError, match="line 1: no graph"):
        parsed(read_node_graph, line)
