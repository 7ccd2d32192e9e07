"""Layers with experts on nodes: rows of tokens counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.model.presets import load_model
from perfmodel.wafer.nodes.experts import expert_amounts
from perfmodel.wafer.nodes.workload import node_operations, node_table
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import EXCHANGES, WaferSystem

SYSTEM = WaferSystem(nodes=2, node_grid=(1, 2), data_parallel=2, expert_parallel=2)
MODEL = load_model("mixtral-8x7b")


def amounts(system: WaferSystem, experts: list[list[int]]) -> dict[str, list[float]]:
    setting = CoreSetting(MODEL, system, "decode", len(experts), 8)
    routing = np.array(experts)[:, None, :]
    found = expert_amounts(
        setting, MODEL.layers[0].mlps[0], 0, 0, (0,), lambda step, layer: routing
    )
    return {name: rows[:, 0].tolist() for name, rows in found.items()}


def test_rows_of_two_nodes() -> None:
    """Sequences 0 and 1 are node 0's, 2 is node 1's; experts 0 to 3 are on node 0."""
    found = amounts(SYSTEM, [[0, 1], [3, 4], [5, 0]])
    assert found["dispatched"] == [1, 1]
    assert found["dispatch_received"] == [1, 1]
    assert found["worked"] == [4, 2]
    assert found["active"] == [3, 2]
    assert found["returned"] == [1, 1]
    assert found["shared"] == [0, 0]
    assert found["cast"] == [1, 1]


def test_two_experts_on_a_node_come_back_twice() -> None:
    found = amounts(SYSTEM, [[4, 5], [0, 1]])
    assert found["dispatched"] == [1, 1]
    assert found["returned"] == [2, 2]


def setting_of(
    batch: int, phase: str = "decode", length: int = 30, **degrees: object
) -> CoreSetting:
    asked = {
        "data_parallel": 8, "expert_parallel": 2, "ffn_tensor_parallel": 2, "ffn_data_parallel": 2,
    } | degrees  # fmt: skip
    system = WaferSystem(nodes=8, node_grid=(2, 4), **asked)  # type: ignore[arg-type]
    return CoreSetting(load_model("mixtral-8x7b"), system, phase, batch, length)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_nodes_without_tokens_of_their_own_take_part(exchange: str) -> None:
    """Three sequences on eight nodes: experts lie everywhere, what is sent comes."""
    setting = setting_of(3, expert_exchange=exchange)
    routing = core_routing(setting, "uniform")
    operations = node_operations(setting, (0,), routing, ["decode0"])
    table = node_table(setting, operations, (0,))
    components = table["component"].values.tolist()
    sent, received = (table[name].values[:, 0] for name in ("sent", "received"))
    for component in ("moe.dispatch", "moe.combine"):
        at = components.index(component)
        assert received[:, at].sum() > 0.0
        if exchange != "multicast" or component == "moe.combine":
            assert sent[:, at].sum() == pytest.approx(received[:, at].sum())
    if exchange == "allgather":
        assert (received[:, components.index("moe.dispatch")] > 0.0).all()


def test_every_expert_of_a_token_is_worked_on_once() -> None:
    setting = setting_of(9)
    spec = setting.model.layers[0].mlps[0]
    found = expert_amounts(setting, spec, 0, 0, (0, 1), core_routing(setting, "two_level"))
    parts = setting.system.ffn_tensor_parallel
    assert (found["worked"].sum(axis=0) == 9 * spec.experts_per_token * parts).all()
    assert (found["returned"].sum(axis=0) == found["return_received"].sum(axis=0)).all()


def test_drawn_tokens_stand_for_all_of_a_prompt() -> None:
    """Sums are those of all tokens; loads of nodes are as even or uneven."""
    setting = setting_of(
        64, "prefill", 50, expert_parallel=8, ffn_tensor_parallel=1, ffn_data_parallel=1
    )
    spec = setting.model.layers[0].mlps[0]
    some, all_of_them = (
        expert_amounts(setting, spec, 0, 0, (0,), core_routing(setting, "two_level", 0, most))
        for most in (64 * 7, None)
    )
    assert some["worked"].sum() == all_of_them["worked"].sum() == 64 * 50 * 2
    np.testing.assert_allclose(some["worked"], all_of_them["worked"], rtol=0.25)
