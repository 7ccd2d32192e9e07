"""Rows of combines: what comes back, and the generator's slips."""

from __future__ import annotations

import pytest

from perfmodel.wafer.twin.combine_rows import combine_rows
from perfmodel.wafer.twin.expert_layer import ExpertLayer
from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from tests.wafer.twin.examples import ITERATIONS, routed


def combined(name, node=0):
    iteration = ITERATIONS[name]
    layer = ExpertLayer(
        Rows(node, iteration.element),
        Routes(iteration, routed(iteration).of_layer(0)),
        "decode1_moe",
    )
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
