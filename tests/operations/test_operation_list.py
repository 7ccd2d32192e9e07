"""Lists of operations: matrices of pieces, and sums over tensor ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.model.pieces import Piece, matrix, vector
from perfmodel.operations.operation_list import OperationList, allocated_bytes
from perfmodel.operations.operations import Attention, Gemm, Machine, Stream
from perfmodel.software.framework import load_framework
from tests.operations.counting import MEGATRON, communications, keys_of, number


def listed(pieces, *, own=False, **fields):
    ops = OperationList(keys_of(**fields), MEGATRON, Machine())
    ops.products("x", pieces, own=own)
    return {x.name: x for x in ops.operations if isinstance(x, Gemm) and x.phase == "forward"}


def test_tensor_ranks_split_columns_and_rows():
    pieces = (
        matrix("in", 64, 256, "columns"),
        matrix("out", 256, 64, "rows"),
        matrix("whole", 64, 32, "whole"),
        vector("scale", 64),
        Piece("several", "matrix", 64, 32, copies=4, visited=2),
    )
    fields = {"tensor_parallel": 4, "sequence_parallel": True, "sequence_length": 1024}
    found = listed(pieces, own=True, **fields)
    shapes = {
        name: tuple(number(size) for size in (x.m, x.k, x.n, x.batch)) for name, x in found.items()
    }
    assert shapes == {
        "x.in": (1024, 64, 64, 1),
        "x.out": (1024, 64, 64, 1),
        "x.whole": (256, 64, 32, 1),  # the tokens of this rank's residual stream
        "x.several": (256, 64, 32, 2),
    }
    assert number(listed(pieces, **fields)["x.whole"].m) == 1024


def test_a_single_column_is_computed_by_every_rank():
    found = listed((matrix("narrow", 64, 2, "columns"),), tensor_parallel=4)
    assert number(found["x.narrow"].n) == 1


def test_partial_results_are_summed_both_ways():
    ops = OperationList(keys_of(tensor_parallel=4, sequence_length=1024), MEGATRON, Machine())
    ops.sum_over_tensor("x", 32.0, "y")
    found = communications(ops.operations, "tensor")
    assert [(x.phase, x.collective) for x in found] == [
        ("forward", "all_reduce"),
        ("backward_input", "all_reduce"),
    ]
    assert [number(x.size) for x in found] == [1024 * 32 * 2] * 2
    alone = OperationList(keys_of(), MEGATRON, Machine())
    alone.sum_over_tensor("x", 32.0, "y")
    assert not communications(alone.operations)


@pytest.mark.parametrize(
    ("accumulation", "read", "written"), [("autograd", 4, 2), ("separate", 6, 4)]
)
def test_gradients_that_no_product_adds_are_added_by_a_kernel(accumulation, read, written):
    """Of 16 bits in place; or 16-bit ones to a main gradient of 4 bytes."""
    framework = load_framework("megatron", gradient_accumulation=accumulation)
    ops = OperationList(keys_of(), framework, Machine())
    ops.linear("x", 128.0, 64.0, 32.0)
    (weights,) = [x for x in ops.operations if x.phase == "backward_weight" and x.name == "x"]
    assert (weights.accumulate, weights.output_bytes) == (False, 2.0)
    (added,) = [x for x in ops.operations if x.name == "x.gradient"]
    assert number(added.bytes_read) == read * 64 * 32
    assert number(added.bytes_written) == written * 64 * 32


def test_fused_accumulation_needs_no_kernel():
    ops = OperationList(keys_of(), MEGATRON, Machine())
    ops.linear("x", 128.0, 64.0, 32.0)
    assert "x.gradient" not in [x.name for x in ops.operations]


@pytest.mark.parametrize(
    ("precision", "scaling", "gathers", "agrees"),
    [
        ("fp8", "current", True, True),
        ("fp8", "delayed", True, False),
        ("fp8", "current", False, False),
        ("nvfp4", "delayed", True, True),
        ("mxfp8", "current", True, False),
        ("bf16", "current", True, False),
    ],
)
def test_shards_of_one_operand_agree_on_its_scale(precision, scaling, gathers, agrees):
    """One number forward and one backward, where the scale comes from the tensor itself."""
    framework = load_framework("megatron", scaling=scaling, gathers_quantised=gathers)
    keys = keys_of(tensor_parallel=4, sequence_parallel=True, precision=precision)
    ops = OperationList(keys, framework, Machine())
    ops.enter_tensor_parallel("x", 64.0, "y")
    ops.linear("y", 128.0, 64.0, 32.0)
    ops.leave_tensor_parallel("z", 64.0, "y")
    found = [item for item in communications(ops.operations) if item.name.endswith(".scale")]
    assert [item.phase for item in found] == (["forward", "backward_input"] if agrees else [])
    assert all(number(item.size) == 4.0 and number(item.members) == 4 for item in found)


def test_what_is_allocated_is_filled_first_where_the_framework_does_so():
    filling = load_framework(MEGATRON, fills_allocations=True)
    found = {}
    for framework in (MEGATRON, filling):
        ops = OperationList(keys_of(recompute="full"), framework, Machine())
        ops.linear("x", 8.0, 64.0, 32.0)
        found[framework.fills_allocations] = [(it.name, it.phase) for it in ops.operations]
    fills = [it for it in ops.operations if it.name == "x.fill"]
    # 16-bit outputs and gradients of inputs; main gradients of weights stay where they are.
    assert [(it.phase, it.bytes_written) for it in fills] == [
        ("forward", 8 * 32 * 2),
        ("recompute", 8 * 32 * 2),
        ("backward_input", 8 * 64 * 2),
    ]
    assert [it for it in found[True] if it[0] != "x.fill"] == found[False]


def test_attention_allocates_its_output_and_gradients_of_its_inputs():
    shared = dict(batch=2, query_length=8, key_length=16, heads=4, key_value_heads=1)
    call = Attention("a", "forward", **shared, head_dim_qk=6, head_dim_v=4, causal=True)
    assert allocated_bytes(call) == 2 * 2 * 8 * 4 * 4
    backward = replace(call, backward=True)
    assert allocated_bytes(backward) == 2 * 2 * (8 * 4 * 6 + 16 * (6 + 4))
    assert allocated_bytes(Stream("s", "backward_weight", 8.0, 8.0)) == 0.0
