"""Rows of dispatches: what each way calls and sends."""

from __future__ import annotations

import pytest

from perfmodel.wafer.twin.dispatch_rows import dispatch_rows
from perfmodel.wafer.twin.expert_layer import ExpertLayer
from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS, routed


def dispatched(name, node=0):
    iteration = ITERATIONS[name]
    layer = ExpertLayer(
        Rows(node, iteration.element),
        Routes(iteration, routed(iteration).of_layer(0)),
        "decode1_moe",
    )
    dims = (int(iteration.local_batch[node]), iteration.length, iteration.model.hidden)
    return layer, dispatch_rows(layer, Tensor("x", dims))


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
