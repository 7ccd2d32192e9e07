"""Operations of a layer as STAGE counts them."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workloads.twins.stage.arguments import (
    StageArguments,
)
from perfmodel.workloads.twins.stage.operations import Collective, operations, size_of, splitters
from tests.workloads.twins.stage.small import INNER, SMALL, TOKENS, WIDTH


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


def total(arguments: StageArguments, *kinds: str) -> int:
    """Return the operations of the first layer of some kinds, updates of weights excluded."""
    return sum(
        found.num_ops
        for found in operations(arguments)
        if found.kind in kinds and found.name.startswith("stack_0") and found.name.endswith("@0")
    )


def test_products_of_a_layer():
    """Nine of T·D², six of T·S·D, six of T·D·F; the vocabulary's six are dense too."""
    sequence = SMALL.sequence_length
    nine = 9 * WIDTH**2 + 6 * sequence * WIDTH + 6 * WIDTH * INNER
    assert total(SMALL, "M") == nine * TOKENS // 4
    ends = [
        found.num_ops for found in operations(SMALL) if "emb" in found.name and found.kind == "M"
    ]
    assert ends == [TOKENS * WIDTH * 44 // 4] * 3 + [TOKENS * WIDTH * 52 // 4] * 3


def test_recomputation_adds_q_k_v_scores_and_the_first_feed_forward_product():
    again = replace(SMALL, activation_recompute=True)
    added = 3 * WIDTH**2 + SMALL.sequence_length * WIDTH + WIDTH * INNER
    assert total(again, "M") - total(SMALL, "M") == added * TOKENS // 4
    assert total(again, "R", "A", "E") == total(SMALL, "R", "A", "E")


def test_operations_on_elements():
    """Norms and their gradients 5 per element; sums and reshapes 1; updates 1 per weight."""
    activation = TOKENS * WIDTH // 4
    assert total(SMALL, "E") == 4 * 5 * activation
    assert total(SMALL, "R", "A") == 8 * activation
    updates = [found for found in operations(SMALL) if found.name.endswith("@1")]
    weights = {
        "in_emb_w": 44 * WIDTH,
        "out_emb_w": 52 * WIDTH,
        **{f"stack_0_mha_w{letter}": WIDTH**2 for letter in "qkv"},
        **{f"stack_0_ffn_w{number}": WIDTH * INNER for number in (1, 2)},
    }
    assert {found.name[:-2]: 4 * found.num_ops for found in updates} == weights
    assert all(found.tensor_size == 3 * found.num_ops for found in updates)


def test_memory_traffic_is_both_inputs_as_used_and_the_output():
    found = {each.name: each.tensor_size for each in operations(SMALL)}
    activation, scores = TOKENS * WIDTH // 4, TOKENS * SMALL.sequence_length * 12 // 4
    assert found["stack_0_mha_q@0"] == TOKENS * WIDTH + WIDTH**2 // 4 + activation
    assert found["stack_0_mha_qk@0"] == 8 * activation + activation + scores
    assert found["stack_0_ffn_x2@0"] == (TOKENS + WIDTH) * INNER // 4 + TOKENS * WIDTH
    assert found["stack_0_mha_res@0"] == 3 * activation
    assert found["stack_0_mha_norm@0"] == 2 * activation
