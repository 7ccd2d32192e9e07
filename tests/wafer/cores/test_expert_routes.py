"""Where the tokens of a layer go."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.wafer.cores.expert_routes import expert_routes, node_experts
from perfmodel.wafer.routing import core_routing
from tests.wafer.cores.examples import operations, setting


@pytest.mark.parametrize("name", ["absorbed", "split experts", "idle"])
def test_all_tokens_of_all_experts_are_worked_on_once(name: str) -> None:
    made = setting(name)
    experts = core_routing(made, "uniform")(0, 3)
    routes = expert_routes(made, experts, 256, True)
    assert routes.worked[:256].sum() == made.batch * 8
    assert routes.worked[256:].sum() == made.batch
    assert (np.bincount(experts.ravel(), minlength=256) == routes.worked[:256].sum((1, 2))).all()
    split = made.system.ffn_tensor_parallel
    rows = sum(
        int(rows.sum())
        for node in range(made.system.stage_nodes)
        for word, rows in node_experts(routes, node, 256)
        if word != "exp_shared"
    )
    assert rows == split * made.batch * 8


def test_a_token_goes_to_a_node_once() -> None:
    made = setting("absorbed")
    together = np.tile(np.arange(8), (5, 1, 1))  # all on the first node
    routes = expert_routes(made, together, 256, False)
    assert routes.sent[:, 0].sum() == 5
    assert routes.sent.sum() == 5
    assert routes.casts == ({},) * 8


def test_routing_of_another_shape_is_refused() -> None:
    made = setting("absorbed")
    with pytest.raises(StrategyError, match="'routing': 4 sequences"):
        expert_routes(made, np.zeros((4, 1, 8), int), 256, True)
    with pytest.raises(StrategyError, match="'expert_parallel': 8 ranks for 4"):
        expert_routes(made, np.tile(np.arange(2), (5, 1, 1)), 4, True)


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
