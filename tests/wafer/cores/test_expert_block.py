"""Experts as operations of a node."""

import pytest

from tests.wafer.cores.examples import operations, setting


@pytest.mark.parametrize("name", ["absorbed", "split experts", "gathered", "idle"])
def test_experts_work_on_all_tokens_that_are_theirs(name: str) -> None:
    made = setting(name)
    for word, width in (("up", 2048), ("down", 2048)):
        macs = sum(
            operation.macs
            for node in operations(name).values()
            for operation in node
            if "_exp_" in operation.name and operation.name.endswith(word)
        )
        assert macs == made.batch * (8 + 1) * 7168 * width


def test_gates_see_a_nodes_own_tokens_only() -> None:
    gates = [
        operation.macs
        for node in operations("absorbed").values()
        for operation in node
        if operation.name.endswith("moe_gate")
    ]
    assert sum(gates) == 5 * 7168 * 256
    assert len(gates) == 5


def test_split_experts_are_summed_before_they_go_back() -> None:
    names = [operation.name for operation in operations("split experts")[0]]
    downs = [name for name in names if name.endswith("down") and "shared" not in name]
    for name in downs:
        assert names[names.index(name) + 1] == name.replace("down", "ar")


def test_gathering_exchanges_have_their_names() -> None:
    names = {operation.name: operation.kind for operation in operations("gathered")[0]}
    assert names["decode3_moe_ag_disp"] == names["decode3_moe_combine_ag"] == "AllGather"
    cast = {operation.name: operation.kind for operation in operations("idle")[0]}
    assert cast["decode3_moe_mc_disp"] == "Multicast"
