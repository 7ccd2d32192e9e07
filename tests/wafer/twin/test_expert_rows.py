"""Layers with experts, on many nodes and where every node has a part of each."""

from __future__ import annotations

from perfmodel.wafer.twin.expert_rows import expert_rows, whole_expert_rows
from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS, routed


def rows_of(name, node, add):
    iteration = ITERATIONS[name]
    rows = Rows(node, iteration.element)
    dims = (int(iteration.local_batch[node]), iteration.length, 16)
    routes = Routes(iteration, routed(iteration).of_layer(0))
    made = add(rows, routes, "decode1_moe", Tensor("x", dims))
    assert made.dims == dims
    return rows, routes


def test_experts_without_tokens_are_left_out():
    rows, routes = rows_of("clusters", 1, expert_rows)
    used = [str(expert) for expert in (2, 3) if len(routes.of_expert[expert])]
    found = [row.name for row in rows.table if row.name.endswith("_up")]
    assert found == [f"decode1_moe_exp_{expert}_up" for expert in used]


def test_one_node_exchanges_nothing():
    rows, routes = rows_of("one node", 0, whole_expert_rows)
    assert all(row.sent == 0 for row in rows.table)
    ups = [row for row in rows.table if row.name.endswith("_up")]
    assert len(ups) == sum(map(bool, map(len, routes.of_expert))) + 1


def test_split_experts_reduce_over_all_nodes_after_a_gather():
    rows, _ = rows_of("split experts", 3, whole_expert_rows)
    gather = next(row for row in rows.table if row.operation == "AllGather")
    assert gather.group == (1, 3)
    assert gather.dimensions == "[2, 2, 16]"
    reduces = [row for row in rows.table if row.operation == "AllReduce"]
    assert reduces[-1].name == "decode1_moe_exp_shared_ar"
    assert reduces[-1].dimensions == "[5, 2, 16]"
    assert {row.group for row in reduces} == {(0, 1, 2, 3)}
    assert rows.table[-1].dimensions == "[5, 2, 16] -> 0 -> 3:5"
