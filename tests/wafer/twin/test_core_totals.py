"""Sums over instructions by layer; all of the generator's small run are in `test_cores`."""

from __future__ import annotations

from perfmodel.wafer.twin.core_totals import core_totals, layer_name
from perfmodel.wafer.twin.cores import NodePieces
from tests.wafer.formats.test_core_trace import PIECES


def test_experts_and_sums_are_one_layer():
    assert layer_name("decode10_moe_exp_17_up") == "decode10_moe_exp_N_up"
    assert layer_name("decode10_moe_exp_shared_up") == "decode10_moe_exp_shared_up"
    assert layer_name("decode10_moe_sum_3.0") == "decode10_moe"


def test_instructions_bytes_and_work_are_added_up():
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
