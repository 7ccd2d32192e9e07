"""STAGE workloads: arguments and operations against its rules.

Formulas are those that STAGE's sharding spreadsheets state (branch ``recomp``, 0b44904).
"""

from __future__ import annotations

import ast
import csv
import operator
from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.parity.stage.arguments import (
    SPELLINGS,
    StageArguments,
    stage_arguments,
)
from perfmodel.parity.stage.operations import Collective, operations, size_of, splitters
from perfmodel.parity.stage.traces import stage_traces

# Numbers without common factors where possible, so that no two formulas agree by chance.
SMALL = StageArguments(
    data_parallel=2,
    tensor_parallel=4,
    sequence_parallel=8,
    input_size=44,
    output_size=52,
    hidden_size=192,
    feed_forward_size=320,
    heads=12,
    sequence_length=24 * 8,
    batch=2 * 7,
    layers=3,
)
TOKENS = SMALL.batch * SMALL.sequence_length // 16  # of one rank
WIDTH = SMALL.hidden_size
INNER = SMALL.feed_forward_size


def total(arguments: StageArguments, *kinds: str) -> int:
    """Return the operations of the first layer of some kinds, updates of weights excluded."""
    return sum(
        found.num_ops
        for found in operations(arguments)
        if found.kind in kinds and found.name.startswith("stack_0") and found.name.endswith("@0")
    )


# --- Operations --------------------------------------------------------------------------


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


def collectives(arguments: StageArguments) -> Counter:
    """Return how often a layer does each collective."""
    return Counter(
        collective
        for found in operations(arguments)
        if found.name.startswith("stack_0")
        for collective in (*found.first, *found.second)
    )


def test_collectives_of_a_layer():
    part, full, long = TOKENS * WIDTH // 4, TOKENS * WIDTH, 8 * TOKENS * WIDTH // 4
    reduced = Counter()
    for weight, count in ((WIDTH**2 // 4, 3), (WIDTH * INNER // 4, 2)):
        for degree in ("dp", "sp"):
            reduced[Collective("all_reduce", degree, weight)] = count
    plain = {
        Collective("all_gather", "tp", part): 4 + 6,
        Collective("reduce_scatter", "tp", full): 1 + 4,
        Collective("all_gather", "sp", part): 1 + 3,
        Collective("reduce_scatter", "sp", long): 1 + 2,
    }
    assert collectives(SMALL) == Counter(plain) + reduced
    again = collectives(replace(SMALL, activation_recompute=True)) - collectives(SMALL)
    assert again == {
        Collective("all_gather", "tp", part): 4,
        Collective("all_gather", "sp", part): 1,
    }


@pytest.mark.parametrize("degree", ["data_parallel", "tensor_parallel", "sequence_parallel"])
def test_a_degree_of_1_needs_no_collective(degree):
    word = {ours: spelling for spelling, ours in SPELLINGS.items()}[degree]
    for sharded in (False, True):
        arguments = replace(SMALL, weight_sharded=sharded)
        assert word in {each.degree for each in collectives(arguments)}
        without = collectives(replace(arguments, **{degree: 1}))
        assert word not in {each.degree for each in without}
        trace = stage_traces(replace(arguments, **{degree: 1})).traces[0]
        assert len(trace.group_names) == 2


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


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def value_of(text: str, symbols: dict[str, int]) -> float:
    """Return the value of a formula of sums, products and powers of symbols."""

    def walk(part: ast.AST) -> float:
        match part:
            case ast.Expression():
                return walk(part.body)
            case ast.Constant(value=int() | float()):
                return part.value
            case ast.Name():
                return symbols[part.id]
            case ast.BinOp():
                return OPERATORS[type(part.op)](walk(part.left), walk(part.right))
        raise AssertionError(f"not a formula: {ast.dump(part)}")

    return walk(ast.parse(text, mode="eval"))


@pytest.mark.parametrize(
    ("template", "sharded", "recompute"),
    [
        ("plain", False, False),
        ("recomp", False, True),
        ("fsdp_plain", True, False),
        ("fsdp_recomp", True, True),
    ],
)
def test_every_operation_is_that_of_the_generator(development_table, template, sharded, recompute):
    """Each symbolic size of STAGE's own graph, evaluated; order and groups included."""
    arguments = replace(SMALL, weight_sharded=sharded, activation_recompute=recompute)
    with development_table("astra/stage_ops.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["template"] == template]
    reference = [
        (
            row["node"],
            row["coll"],
            row["group_dim"],
            value_of(row["num_ops_or_bytes(sym)"], arguments.symbols),
            value_of(row["tensor_size(sym)"] or "0", arguments.symbols),
        )
        for row in rows
    ]
    ours = []
    for found in operations(arguments):
        ours.append((found.name, found.kind, "", found.num_ops, found.tensor_size))
        ours += [
            (found.name, each.collective, each.degree, each.size, 0)
            for each in (*found.first, *found.second)
        ]
    assert len(reference) >= 86
    assert ours == reference


# --- Arguments ---------------------------------------------------------------------------


def test_both_spellings():
    words = SMALL.command_line()
    assert words[:4] == ["--dp", "2", "--tp", "4"]
    given = dict(zip([word.removeprefix("--") for word in words[::2]], words[1::2], strict=True))
    assert stage_arguments(given) == SMALL
    assert stage_arguments({"dp": "2", "weight_sharded": "Yes"}) == StageArguments(
        data_parallel=2, weight_sharded=True
    )
    ours = {item.name: getattr(SMALL, item.name) for item in fields(StageArguments)}
    assert stage_arguments(ours) == SMALL
    assert set(SPELLINGS.values()) == set(ours)
    assert stage_arguments({"num_stacks": 2, "heads": "64"}).layers == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dp": 0}, r"data_parallel \(dp\) is 0; it should be a whole number from 1"),
        ({"tp": -2}, r"tensor_parallel \(tp\) is -2"),
        ({"seq": 1.5}, r"sequence_length \(seq\) is 1.5"),
        ({"seq": float("nan")}, "sequence_length .* is nan"),
        ({"batch": True}, r"batch \(batch\) is True"),
        ({"batch": 2**40}, "batch .* is 1099511627776; it should be a whole number from 1 to"),
        ({"batch": "12e3"}, r"batch \(batch\) is '12e3'"),
        ({"batch": "9" * 40}, "should be a whole number"),
        ({"head": None}, "heads .* is None"),
        ({"weight_sharded": 1}, "weight_sharded is '1'; it should be true or false"),
        ({"weight_sharded": "maybe"}, "weight_sharded is 'maybe'; it should be true or false"),
        ({"num_stacks": 1}, r"layers \(num_stacks\) is 1; it should be from 2 to"),
        ({"num_stacks": 10**6}, "it should be from 2 to 10000"),
        ({"pp": 35}, "32 layers and two embeddings fill at most 34 stages"),
        ({"dp": 3}, r"batch \(batch\) is 1024; it should be divisible by data_parallel \(dp\) = 3"),
        ({"sp": 3}, "sequence_length .* should be divisible by sequence_parallel"),
        ({"tp": 3}, "hidden_size .* should be divisible by tensor_parallel"),
        ({"tp": 64, "dff": 4100}, "feed_forward_size .* should be divisible by tensor_parallel"),
        ({"head": 1000}, "hidden_size .* is 25600; it should be divisible by heads"),
        ({"dp": 1024, "tp": 1024}, "1048576 devices; at most 65536 are covered"),
        ({"dp": 1024, "pp": 2, "num_stacks": 8192}, "nodes; at most 20000000 are covered"),
        ({"batch": 2**30, "seq": 2**30}, "counts beyond 2"),
        (
            {"batch": 1, "seq": 1, "din": 3, "dmodel": 64, "dff": 64, "head": 64, "tp": 64},
            "the tokens before the input embedding, 3 elements, should be divisible by",
        ),
        (
            {"weight_sharded": True, "dp": 512, "dmodel": 4, "dff": 4, "head": 2, "din": 1},
            r"a weight of hidden_size × input_size, 4 elements, .* = 512 \(weight_sharded\)",
        ),
        ({"dpp": 2}, "unknown argument 'dpp'; did you mean"),
        ({"dp": 2, "data_parallel": 2}, "'data_parallel' is given twice"),
    ],
)
def test_wrong_arguments_are_refused(change, words):
    with pytest.raises(StrategyError, match=words) as caught:
        stage_arguments(change)
    assert "\n" not in str(caught.value)


def test_vocabulary_and_heads_need_no_whole_share():
    """50257 words and 96 heads on 64 ranks: every tensor is whole, as STAGE requires."""
    gpt = StageArguments(
        tensor_parallel=64,
        input_size=50257,
        output_size=50257,
        hidden_size=12288,
        feed_forward_size=49152,
        heads=96,
        sequence_length=1024,
        batch=512,
        layers=2,
    )
    found = {each.name: each.num_ops for each in operations(gpt)}
    assert found["out_emb_dx@0"] == found["out_emb_y@0"] == 512 * 1024 * 12288 * 50257 // 64


@settings(max_examples=30)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            spelling: st.one_of(
                st.integers(-2, 64), st.sampled_from([2**31, "x", "8", None, 0.5, True])
            )
            for spelling in SPELLINGS
        },
    )
)
def test_any_values_give_a_trace_or_one_line(values):
    message = ""
    try:
        arguments = stage_arguments({"num_stacks": 2} | values)
    except StrategyError as error:
        message = str(error)
    assert "\n" not in message
    if not message and arguments.devices <= 256:
        traces = stage_traces(arguments)
        assert traces.devices == arguments.devices
        traces.traces[-1].parent_positions()
