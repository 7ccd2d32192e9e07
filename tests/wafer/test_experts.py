"""Experts on a wafer, against the wafer generator's bytes and against laws."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.hwprofiles.mesh_loader import load_mesh
from perfmodel.model.presets import load_model
from perfmodel.wafer.experts import (
    EXCHANGES,
    PLACEMENTS,
    ExpertTraffic,
    expert_nodes,
    expert_traffic,
)
from perfmodel.wafer.routing import RoutedTokens
from perfmodel.wafer.system import WaferSystem, shared_servers
from tests import data

SYSTEM = WaferSystem(
    nodes=8,
    node_grid=(2, 4),
    core_grid=(4, 4),
    data_parallel=2,
    tensor_parallel=2,
    sequence_parallel=2,
    expert_parallel=8,
    shared_copies=2,
)


def drawn(sequences: int = 40, seed: int = 3) -> RoutedTokens:
    """One layer's experts of DeepSeek-V3's size, no expert twice."""
    keys = np.random.default_rng(seed).random((1, sequences, 1, 256))
    return RoutedTokens(np.argsort(keys, axis=-1)[..., :8], 256)


def traffic(**options: str) -> ExpertTraffic:
    return expert_traffic(load_model("deepseek-v3"), SYSTEM, drawn(), load_mesh("wse-2"), **options)


def test_bytes_are_the_wafer_generators() -> None:
    """Its default system: rows deduplicated there, a row for each expert back (ref_nodes, d18)."""
    path = data.needed(data.WAFER / "ref_nodes.csv.gz")
    sums = {"moe.dispatch(alltoall)": 0, "moe.combine(alltoall)": 0}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["config"] == "d18" and row["component"] in sums:
                sums[row["component"]] += int(row["network_B"])
    routes = np.load(data.needed(data.WAFER / "ref_routings_decode10.npz"))["d18"]
    routed = RoutedTokens(np.moveaxis(routes, 0, -1)[None].astype(np.int64), 256)
    system = WaferSystem(
        nodes=56,
        node_grid=(7, 8),
        core_grid=(6, 6),
        data_parallel=7,
        tensor_parallel=4,
        sequence_parallel=2,
        expert_parallel=56,
        shared_copies=4,
    )
    found = expert_traffic(
        load_model("deepseek-v3"), system, routed, load_mesh("wse-2"), combine="each"
    )
    assert found.dispatch_bytes[0] == sums["moe.dispatch(alltoall)"]
    assert found.combine_bytes[0] == sums["moe.combine(alltoall)"]
    assert found.layers.tolist() == list(range(3, 61))


def test_fewer_rows_go_where_more_is_shared() -> None:
    each, deduplicated, tree = (traffic(dispatch=kind, combine=kind) for kind in EXCHANGES)
    assert each.dispatch_bytes[0] > deduplicated.dispatch_bytes[0] == tree.dispatch_bytes[0]
    assert each.dispatch_hops[0] > deduplicated.dispatch_hops[0] > tree.dispatch_hops[0]
    assert each.combine_hops[0] > deduplicated.combine_hops[0] > tree.combine_hops[0]
    assert each.hottest_link[0] >= deduplicated.hottest_link[0] >= tree.hottest_link[0]
    # Rows that are added on their way back take the way that they came.
    assert tree.combine_hops[0] == tree.dispatch_hops[0]
    assert abs(each.hottest_from[0] - each.hottest_to[0]) in (1, 4)


def test_heavy_experts_are_spread_apart() -> None:
    ratios = [traffic(placement=placement).straggler_ratio[0] for placement in PLACEMENTS]
    assert min(ratios) == ratios[2] >= 1.0
    loads = np.random.default_rng(1).random(256)
    for placement in PLACEMENTS:
        assert np.bincount(expert_nodes(SYSTEM, 256, placement, loads)).tolist() == [32] * 8
    assert shared_servers(SYSTEM, 5).tolist() == [0, 0, 0, 4, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dispatch": "trees"}, "unknown 'trees'; did you mean tree"),
        ({"placement": "random"}, "unknown placement 'random'"),
    ],
)
def test_unknown_words(options: dict[str, str], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        traffic(**options)


def test_routing_of_another_model() -> None:
    model, mesh = load_model("deepseek-v3"), load_mesh("wse-2")
    other = RoutedTokens(np.arange(8).reshape(1, 1, 1, 8), 128)
    with pytest.raises(DataError, match="128 experts, the model has 256"):
        expert_traffic(model, SYSTEM, other, mesh)
    two = RoutedTokens(np.concatenate([drawn().experts] * 2), 256)
    with pytest.raises(DataError, match="2 layers, the model has 58"):
        expert_traffic(model, SYSTEM, two, mesh)
    with pytest.raises(StrategyError, match="has no experts"):
        expert_traffic(load_model("llama-3.1-8b"), SYSTEM, drawn(), mesh)
