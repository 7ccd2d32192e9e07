"""Core traces and totals among what is compared with the wafer workload generator."""

from __future__ import annotations

import shutil

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.wafer.twin.cores import NodePieces
from tests.data import WAFER, needed
from tests.wafer.test_core_trace import PIECES


@pytest.fixture
def folder(tmp_path):
    """The small run's traces and totals, without its tables."""
    (tmp_path / "configs").mkdir()
    for name in ("bincounts.json", "configs/deepseekv3.json", "core_small_4nodes.csv"):
        shutil.copy(needed(WAFER / name), tmp_path / name)
    for name in ("core_0.csv.gz", "core_15.csv"):
        (tmp_path / "out_small/traces_node_0").mkdir(parents=True, exist_ok=True)
        shutil.copy(WAFER / "out_small/traces_node_0" / name, tmp_path / "out_small/traces_node_0")
    return tmp_path


def test_counts_totals_and_traces_that_differ(script, folder):
    kind = script.load("parity_kinds.wse")
    file = folder / "out_small/traces_node_0/core_15.csv"
    file.write_text(file.read_text().replace("0 READ", "0 WRITE", 1))
    table = folder / "core_small_4nodes.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:1], *lines[2:]]))
    groups = kind.compare(folder)["groups"]
    assert groups["core traces of out_small"]["count"] == 2
    assert groups["core traces of out_small"]["exact"] == 1
    totals = groups["core totals of out_small"]
    assert totals["count"] == 4 * 271
    assert totals["exact"] == 4 * 270  # the row that is lost
    table.write_text("\n".join([lines[0], lines[1].replace("48", "many")]))
    with pytest.raises(FormatError, match=r"core_small_4nodes.csv:2"):
        kind.compare(folder)


def test_experts_and_sums_are_one_layer(script):
    layer_name = script.load("parity_kinds.wse_cores").layer_name
    assert layer_name("decode10_moe_exp_17_up") == "decode10_moe_exp_N_up"
    assert layer_name("decode10_moe_exp_shared_up") == "decode10_moe_exp_shared_up"
    assert layer_name("decode10_moe_sum_3.0") == "decode10_moe"


def test_instructions_bytes_and_work_are_added_up(script):
    core_totals = script.load("parity_kinds.wse_cores").core_totals
    mapped = [NodePieces(1, f"a_exp_{at}_up", PIECES) for at in (3, 8)]
    totals = core_totals(mapped)
    assert {key[:2] for key in totals} == {(1, "a_exp_N_up")}
    found = {key[2]: tuple(total) for key, total in totals.items()}
    assert found == {
        "READ": (2, 2 * 1234567890123, 0, 1),
        "GEMM": (2, 0, 2 * 2 * 8 * 1 * 10, 1),
        "ADD": (2, 0, 2 * 1 * 2 * 3 * 4, 1),
        "COPY": (2, 0, 0, 1),
        "MULTICAST": (2, 16, 0, 1),  # once, whatever the number of its destinations
        "BARRIER": (4, 0, 0, 2),
    }
    assert core_totals([NodePieces(0, "a", [])]) == {}
