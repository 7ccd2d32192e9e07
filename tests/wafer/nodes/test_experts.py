"""Layers with experts on nodes: rows of tokens counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.model.presets import load_model
from perfmodel.wafer.cores.setting import CoreSetting
from perfmodel.wafer.nodes.experts import expert_amounts
from perfmodel.wafer.system import WaferSystem

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
    assert found["cast"] == [0, 0]
    cast = amounts(replace(SYSTEM, expert_exchange="multicast"), [[0, 1], [3, 4], [5, 0]])
    assert cast["cast"] == [1, 1]


def test_two_experts_on_a_node_come_back_twice() -> None:
    found = amounts(SYSTEM, [[4, 5], [0, 1]])
    assert found["dispatched"] == [1, 1]
    assert found["returned"] == [2, 2]
