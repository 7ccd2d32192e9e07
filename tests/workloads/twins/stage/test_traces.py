"""STAGE workloads: arguments and operations against its rules.

Formulas are those that STAGE's sharding spreadsheets state (branch ``recomp``, 0b44904).
"""

from __future__ import annotations

import ast
import csv
import operator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.twins.stage.arguments import (
    SPELLINGS,
    StageArguments,
    stage_arguments,
)
from perfmodel.workloads.twins.stage.operations import operations
from perfmodel.workloads.twins.stage.traces import stage_traces
from tests.amount import cases
from tests.workloads.twins.stage.small import SMALL

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


@settings(max_examples=cases(30))
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
