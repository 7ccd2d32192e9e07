"""The node level against the wafer generator where the two count the same, and against laws."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.table import Table
from perfmodel.model.presets import load_model
from perfmodel.wafer.nodes.workload import expert_amounts, node_operations, node_table
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import EXCHANGES, WaferSystem
from tests import data

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


EXAMPLE = WaferSystem(
    nodes=56,
    node_grid=(7, 8),
    core_grid=(6, 6),
    data_parallel=7,
    tensor_parallel=4,
    sequence_parallel=2,
    expert_parallel=56,
    shared_copies=4,
)
SMALL = WaferSystem(
    nodes=8,
    node_grid=(2, 4),
    core_grid=(2, 2),
    data_parallel=2,
    tensor_parallel=2,
    sequence_parallel=2,
    expert_parallel=8,
)
# Components that the generator counts alike: ours -> its name.
SAME = {
    "attention.wkv_a": "attn.wkv_a",
    "attention.wq_a": "attn.wq_a",
    "attention.wq_b": "attn.wq_b",
    "attention.wkv_b1": "attn.wkv_b1",
    "attention.wkv_b2": "attn.wkv_b2",
    "attention.wo": "attn.wo",
}


def table_of(
    system: WaferSystem,
    *,
    model: str = "deepseek-v3",
    phase: str = "decode",
    batch: int = 16,
    length: int = 100,
    steps: tuple[int, ...] = (0,),
    layers: list[str] | None = None,
    speculative: int = 0,
) -> Table:
    setting = CoreSetting(load_model(model), system, phase, batch, length, speculative)
    experts = any(layer.experts for layer in setting.model.layers)
    routing = core_routing(setting, "two_level") if experts else None
    return node_table(setting, node_operations(setting, steps, routing, layers), steps)


def totals(table: Table, quantity: str) -> dict[str, float]:
    """Sum a quantity over nodes and steps, by component."""
    found: dict[str, float] = {}
    sums = table[quantity].values.sum(axis=(0, 1))
    for component, total in zip(table["component"].values, sums, strict=True):
        found[component] = found.get(component, 0.0) + float(total)
    return found


def test_products_are_the_wafer_generators() -> None:
    """Multiply-adds and weights of its default system, node by node (ref_nodes, d18)."""
    path = data.needed(data.WAFER / "ref_nodes.csv.gz")
    macs, weights = {}, {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            if row["config"] == "d18" and row["layer"] == "decode10":
                key = row["component"], int(row["node"])
                macs[key], weights[key] = int(row["MACs"]), int(row["memory_footprint_B"])
    table = table_of(EXAMPLE, batch=1024, length=2048, layers=["decode10"])
    components = table["component"].values.tolist()
    for ours, theirs in SAME.items():
        at = components.index(ours)
        for node in range(56):
            assert table["macs"].values[node, 0, at] == macs[theirs, node]
            assert table["footprint"].values[node, 0, at] == weights[theirs, node]
    # It leaves a step's own token out of the context: 2,048 keys where there are 2,049.
    at = components.index("attention.attention")
    ours = table["macs"].values[:, 0, at].sum()
    theirs = sum(value for (name, _), value in macs.items() if name == "attn.mla_absorb")
    assert ours == pytest.approx(theirs * 2049 / 2048, rel=1e-12)


@pytest.mark.parametrize("exchange", ["alltoall", "multicast", "allgather"])
def test_what_is_sent_arrives(exchange: str) -> None:
    system = replace(SMALL, expert_exchange=exchange, shared_copies=2)
    table = table_of(system, layers=["decode5"])
    sent, received = totals(table, "sent"), totals(table, "received")
    for component in sent:
        if component == "moe.dispatch" and exchange == "multicast":
            assert 0 < sent[component] <= received[component]  # routers copy rows on the way
        else:
            assert sent[component] == pytest.approx(received[component])
    assert sent["moe.combine"] > 0


def test_tensor_and_expert_degrees_split_the_same_work() -> None:
    split = replace(SMALL, expert_parallel=4, ffn_tensor_parallel=2)
    whole = table_of(SMALL, layers=["decode5"])
    parts = table_of(split, layers=["decode5"])
    for component in ("moe.up", "moe.gate_projection", "moe.down"):
        assert totals(parts, "macs")[component] == totals(whole, "macs")[component]
        assert totals(parts, "footprint")[component] == totals(whole, "footprint")[component]
    assert totals(parts, "sent")["moe.all_reduce_tensor"] > 0
    copies = table_of(replace(SMALL, expert_parallel=4, ffn_data_parallel=2), layers=["decode5"])
    assert totals(copies, "footprint")["moe.up"] == 2 * totals(whole, "footprint")["moe.up"]
    assert totals(copies, "macs")["moe.up"] == totals(whole, "macs")["moe.up"]


def test_stages_share_the_layers_and_hand_on() -> None:
    system = replace(SMALL, data_parallel=1, pipeline_parallel=2, expert_parallel=4)
    one = replace(SMALL, nodes=4, node_grid=(1, 4), data_parallel=1, expert_parallel=4)
    staged, alone = table_of(system), table_of(one)
    names = staged["operation"].values.tolist()
    hand = names.index("stage0.transfer")
    assert staged["sent"].values[:4, 0, hand].min() > 0 == staged["sent"].values[4:, 0, hand].max()
    np.testing.assert_array_equal(
        staged["sent"].values[:4, 0, hand], staged["received"].values[4:, 0, hand]
    )
    assert sum(totals(staged, "macs").values()) == sum(totals(alone, "macs").values())
    assert not staged["macs"].values[4:, 0, names.index("decode0.attention.wo")].any()


def test_prompts_are_causal_and_fill_the_cache() -> None:
    table = table_of(
        replace(SMALL, expert_parallel=1, ffn_tensor_parallel=8),
        model="llama-3.1-8b",
        phase="prefill",
        batch=2,
        length=64,
        layers=["prefill0"],
    )
    model = load_model("llama-3.1-8b")
    spec = model.layers[0].attentions[0]
    # 64 x 65 / 2 pairs of 2 x 128 multiply-adds per head and sequence; each once in a cluster.
    assert totals(table, "macs")["attention.attention"] == 2 * 64 * 65 / 2 * 256 * spec.heads
    at = table["component"].values.tolist().index("attention.attention")
    queries = 2 * 2 * 64 * spec.heads * 128 * 2.0  # two clusters' sequence ranks write all results
    cache = 2 * 64 * 2 * spec.key_value_heads * 128 * 2.0
    assert table["writes"].values[:, 0, at].sum() == queries + cache


def test_later_steps_and_guesses_cost_more() -> None:
    table = table_of(SMALL, steps=(0, 9), layers=["decode5", "lm_head"])
    first, last = table["macs"].values.sum(axis=(0, 2))
    assert last > first
    guessed = table_of(SMALL, speculative=1, layers=["decode5", "lm_head"])
    assert guessed["macs"].values.sum() > 1.9 * first


def test_layers_and_nodes_that_there_are_not() -> None:
    setting = CoreSetting(load_model("llama-3.1-8b"), WaferSystem(), "decode", 1, 16)
    with pytest.raises(StrategyError, match="has no 'decode40'"):
        node_operations(setting, (0,), None, ["decode40"])
    operations = node_operations(setting, (0,), None, ["decode0"])
    with pytest.raises(StrategyError, match="nodes 0 to 0, not 0, 3"):
        node_table(setting, operations, (0,), [0, 3])
    experts = CoreSetting(load_model("deepseek-v3"), WaferSystem(), "decode", 1, 16)
    with pytest.raises(StrategyError, match="'routing'"):
        node_operations(experts, (0,), None, ["decode5"])
