"""Rows of dispatches: what each way calls and sends."""

from __future__ import annotations

import pytest

from perfmodel.wafer.twin.experts import LayerRows, combine_rows, dispatch_rows
from perfmodel.wafer.twin.routing import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS, routed


def layer_of(name, node):
    """Rows of a layer with experts that are still empty, and what its attention made."""
    iteration = ITERATIONS[name]
    routes = Routes(iteration, routed(iteration).of_layer(0))
    layer = LayerRows(iteration, Rows(node, iteration.element), routes)
    layer.layer, layer.part = "decode1", "moe"
    dims = (int(iteration.local_batch[node]), iteration.length, 16)
    return layer, Tensor("x", dims)


def dispatched(name, node=0):
    layer, x = layer_of(name, node)
    return layer, dispatch_rows(layer, x)


@pytest.mark.parametrize("name", ["clusters", "guessed", "prefill", "multicast", "allgather"])
def test_every_expert_gets_its_tokens(name):
    for node in range(ITERATIONS[name].system.nodes):
        layer, inputs = dispatched(name, node)
        served = layer.served()
        assert list(inputs) == list(served)
        for expert, tokens in served.items():
            assert inputs[expert].dims == (len(tokens), 1, 16)
            assert inputs[expert].name.startswith(
                f"decode1_moe_dispatch_recv_concat_expert{expert}_"
            )


def test_alltoall_counts_what_leaves_the_node():
    layer, _ = dispatched("clusters", 4)
    exchange = next(row for row in layer.rows.table if row.operation == "AlltoAll")
    sent = layer.routes.pairs[4].tolist()
    received = layer.routes.pairs[:, 4].tolist()
    assert exchange.dimensions == f"{[sum(sent), 1, 16]} -> {sent} -> {received}"
    assert exchange.sent == (sum(sent) - sent[4]) * 16 * 2
    assert next(node for node in layer.rows.graph if node.name == exchange.name).kind == "AllToAllv"


def test_multicasts_are_counted_once():
    layer, _ = dispatched("multicast")
    rows = [row for row in layer.rows.table if row.operation == "Multicast"]
    assert rows
    assert {row.sent for row in rows} == {16 * 2}
    assert all(0 not in row.group for row in rows)


def test_multicast_slices_from_the_nodes_own_first_sequence():
    layer, _ = dispatched("multicast, tensor", 2)
    assert layer.rows.table[0].dimensions == "[3, 1, 16] -> 0 -> 0:1"
    assert layer.rows.table[0].name == "x_slice2"


def test_allgather_sends_own_sequences():
    layer, _ = dispatched("allgather", 1)
    gather = next(row for row in layer.rows.table if row.operation == "AllGather")
    assert gather.dimensions == "[1, 2, 16]"
    assert gather.group == tuple(range(6))


def combined(name, node=0):
    layer, _ = layer_of(name, node)
    outputs = {
        expert: Tensor(f"decode1_moe_exp_{expert}_down_out", (len(tokens), 1, 16))
        for expert, tokens in layer.served().items()
    }
    return layer, combine_rows(layer, outputs)


@pytest.mark.parametrize("name", ["clusters", "guessed", "prefill", "multicast", "allgather"])
def test_every_node_ends_with_its_clusters_tokens(name):
    iteration = ITERATIONS[name]
    for node in range(iteration.system.nodes):
        layer, made = combined(name, node)
        assert made.dims == (iteration.local_batch[node], iteration.length, 16)
        sums = [row for row in layer.rows.table if row.operation == "Sum"]
        held = iteration.local_batch if name == "allgather" else iteration.own_batch
        assert len(sums) == held[node] * iteration.length
        assert {row.dimensions for row in sums} <= {"[4, 1, 16] -> 0 -> [1, 1, 16]"}


def test_rows_for_the_node_itself_are_not_counted():
    layer, _ = combined("clusters", 4)
    exchange = next(row for row in layer.rows.table if row.operation == "AlltoAll")
    back = layer.routes.back[4]
    assert exchange.sent == (back.sum() - back[4]) * 16 * 2
    layer, _ = combined("multicast", 0)
    rows = {row.group: row.sent for row in layer.rows.table if row.operation == "Unicast"}
    assert rows[0,] == 0
    assert rows[2,] == layer.routes.back[0, 2] * 16 * 2


def test_multicast_to_nobody_is_counted():
    layer, _ = combined("multicast", 3)
    row = next(row for row in layer.rows.table if row.name == "decode1_moe_multicast_dp")
    assert row.group == ()
    assert row.sent == 1 * 2 * 16 * 2


def test_gathered_shared_rows_are_all_the_last_one():
    layer, _ = combined("allgather", 0)
    places = {
        row.dimensions.rpartition("> ")[2]
        for row in layer.rows.table
        if "_slice_expshared_" in row.name
    }
    produced = int(layer.routes.back[0].sum())
    assert places == {f"{produced - 1}:{produced}"}


def rows_of(name, node):
    layer, x = layer_of(name, node)
    made = layer.experts(layer.iteration.moe, 1, x)
    assert made.dims == x.dims
    return layer.rows, layer.routes


def test_experts_without_tokens_are_left_out():
    rows, routes = rows_of("clusters", 1)
    used = [str(expert) for expert in (2, 3) if len(routes.of_expert[expert])]
    found = [row.name for row in rows.table if row.name.endswith("_up")]
    assert found == [f"decode1_moe_exp_{expert}_up" for expert in used]


def test_one_node_exchanges_nothing():
    rows, routes = rows_of("one node", 0)
    assert all(row.sent == 0 for row in rows.table)
    ups = [row for row in rows.table if row.name.endswith("_up")]
    assert len(ups) == sum(map(bool, map(len, routes.of_expert))) + 1


def test_split_experts_reduce_over_all_nodes_after_a_gather():
    rows, _ = rows_of("split experts", 3)
    gather = next(row for row in rows.table if row.operation == "AllGather")
    assert gather.group == (1, 3)
    assert gather.dimensions == "[2, 2, 16]"
    reduces = [row for row in rows.table if row.operation == "AllReduce"]
    assert reduces[-1].name == "decode1_moe_exp_shared_ar"
    assert reduces[-1].dimensions == "[5, 2, 16]"
    assert {row.group for row in reduces} == {(0, 1, 2, 3)}
    assert rows.table[-1].dimensions == "[5, 2, 16] -> 0 -> 3:5"
