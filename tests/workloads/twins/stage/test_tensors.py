"""Shapes of STAGE's tensors under its degrees."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workloads.twins.stage.operations import Collective, operations, size_of, splitters
from tests.workloads.twins.stage.small import INNER, SMALL, WIDTH


def test_sharded_weights():
    """Attention is gathered over dp and sp, feed-forward over dp only, all sized as stored."""
    sharded = {each.name: each for each in operations(replace(SMALL, weight_sharded=True))}
    shard = WIDTH**2 // 64
    assert sharded["stack_0_mha_q@0"].second == (
        Collective("all_gather", "dp", shard),
        Collective("all_gather", "sp", shard),
    )
    assert sharded["stack_0_ffn_x1@0"].second == (
        Collective("all_gather", "dp", WIDTH * INNER // 64),
    )
    assert [each.collective for each in sharded["stack_0_mha_wq@1"].second] == [
        "reduce_scatter",
        "reduce_scatter",
    ]
    assert sharded["stack_0_ffn_w1@1"].second == (
        Collective("reduce_scatter", "dp", WIDTH * INNER // 4),
        Collective("all_reduce", "sp", WIDTH * INNER // 4),
    )
    assert sharded["stack_0_ffn_w1@1"].num_ops == WIDTH * INNER // 64
    # Without data parallelism the dimension is credited to sequence parallelism.
    alone = replace(SMALL, weight_sharded=True, data_parallel=1)
    found = {each.name: each for each in operations(alone)}
    assert [each.degree for each in found["stack_0_ffn_x1@0"].second] == ["sp"]


def test_shapes():
    degrees = {"dp": 2, "tp": 1, "sp": 3}
    assert splitters("Dmodel/(dp*sp),Dff/tp", degrees) == {"dp": "Dmodel/(dp*sp)"}
    assert splitters("Dmodel/dp,Dmodel/(Head*sp)", degrees) == {
        "dp": "Dmodel/dp",
        "sp": "Dmodel/(Head*sp)",
    }
    assert splitters("", degrees) == {}
    assert size_of("Dmodel/(Head*sp),Head", {"Dmodel": 12, "Head": 4, "sp": 3}) == 4
