"""Operations of attention: FLOP, keys and values over context ranks, recomputation."""

from __future__ import annotations

import pytest

from perfmodel.model.build import dense_model
from perfmodel.operations.operations import Attention, Gemm, Stream
from perfmodel.software.framework import load_framework
from perfmodel.training.flops import attended_keys
from tests.operations.counting import (
    communications,
    matrix_flops,
    needed_flops,
    number,
    operations_of,
    step_flops,
    total_bytes,
)


@pytest.mark.parametrize("kind", ["ring", "all_gather"])
@pytest.mark.parametrize("window", [512, 2048, 4096, 8192, 20000])
def test_context_ranks_share_the_work_of_windows(kind, window, small_dense):
    """Each rank does the mean work, or a middle rank's: never less, never the full square."""
    model = dense_model(
        "windowed",
        layers=2,
        hidden_size=2048,
        heads=16,
        intermediate_size=4096,
        vocab_size=1024,
        window=window,
    )
    length, degree = 16384, 8
    calls = [
        item
        for item in operations_of(
            model,
            "layer0",
            sequence_length=length,
            context_parallel=degree,
            context_parallel_kind=kind,
        )
        if isinstance(item, Attention) and not item.backward
    ]
    done = sum(matrix_flops(item) for item in calls) / (2.0 * 16 * 256)
    local = length / degree
    mean = local * float(attended_keys(model.layers[0].attention, length, causal=True))
    assert mean * (1 - 1e-12) <= done <= local * min(window, length)


def test_unfused_attention_computes_the_full_square(small_dense, grid_of):
    framework = load_framework("megatron-2022")
    for fields in ({}, {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2}):
        grid = grid_of(small_dense, **fields)
        assert step_flops(small_dense, grid, framework) == pytest.approx(
            needed_flops(small_dense, grid, causal=False), rel=1e-12
        )


@pytest.mark.parametrize(("head_dim", "kind"), [(112, Gemm), (108, Stream), (104, Gemm)])
def test_unfused_products_of_misaligned_heads_leave_the_matrix_cores(head_dim, kind):
    """Matrix cores read matrices aligned to 16 bytes; a head of 108 numbers begins anywhere."""
    model = dense_model(
        "heads",
        **{"layers": 1, "hidden_size": 2048, "heads": 16, "head_dim": head_dim},
        **{"intermediate_size": 4096, "vocab_size": 1024},
    )
    operations = operations_of(model, "layer0", load_framework("megatron-2022"))
    products = [it for it in operations if it.name in ("attention.scores", "attention.values")]
    assert {type(it) for it in products} == {kind}
    one = 2.0 * 16 * 2048 * 2048 * head_dim
    done = [it for it in products if it.phase == "forward"]
    if kind is Stream:
        assert [number(it.flops) for it in done] == [one, one]
    else:
        assert [matrix_flops(it) for it in done] == [one, one]


def test_all_gather_and_ring_move_the_same_keys_and_values(small_dense):
    for degree in (2, 4, 8):
        ring, gather = (
            operations_of(
                small_dense, "layer0", context_parallel=degree, context_parallel_kind=kind
            )
            for kind in ("ring", "all_gather")
        )
        # (c - 1) hops of one rank's keys and values: 8 heads, 128 + 128 numbers, 2 bytes.
        sent = (degree - 1) * 2048 / degree * 8 * 256 * 2.0
        assert total_bytes(ring, "context", ["forward"]) == pytest.approx(sent)
        assert total_bytes(gather, "context", ["forward"]) == pytest.approx(sent)
        # Backward returns a gradient for every key and value.
        assert total_bytes(ring, "context", ["backward_input"]) == pytest.approx(2 * sent)


def test_ulysses_exchanges_queries_keys_values_and_outputs(small_dense):
    # arXiv:2309.14509, section 3.2: volume 4 N h / P per link with as many keys as queries.
    operations = operations_of(
        small_dense, "layer0", context_parallel=4, context_parallel_kind="all_to_all"
    )
    (forward,) = [item for item in communications(operations, "context") if item.phase == "forward"]
    tokens = 2048 / 4
    assert number(forward.size) == tokens * 128 * (2 * 16 + 2 * 8) * 2.0
    assert number(forward.members) == 4


@pytest.mark.parametrize("kind", ["ring", "all_gather", "all_to_all"])
def test_unfused_attention_gets_its_keys_from_the_other_context_ranks(small_dense, kind):
    operations = operations_of(
        small_dense,
        "layer0",
        load_framework("megatron-2022"),
        context_parallel=2,
        context_parallel_kind=kind,
    )
    assert total_bytes(operations, "context", ["forward"]) > 0


def test_selective_recomputation_repeats_the_unfused_attention_matrix(small_dense):
    # Korthikanti et al. 2022, section 5: the scores, their softmax and dropout, and the values.
    framework = load_framework("megatron-2022")
    operations = operations_of(small_dense, "layer0", framework, recompute="selective")
    again = {item.name for item in operations if item.phase == "recompute"}
    assert {
        "attention.scores",
        "attention.softmax",
        "attention.dropout",
        "attention.values",
    } <= again
    assert not {"attention.qkv", "attention.output", "mlp.up", "mlp.down"} & again


@pytest.mark.parametrize("framework", ["nemo@24.09", "megatron-2022", "megatron"])
def test_selective_recomputation_of_attention_and_of_modules(small_dense, framework):
    """Before Megatron-Core 0.13 it is the core of attention alone, which fused kernels run too."""
    facts = load_framework(framework)
    operations = operations_of(small_dense, "layer0", facts, recompute="selective")
    again = {x.name for x in operations if x.phase == "recompute" and number(x.count)}
    if framework == "nemo@24.09":
        assert again == {"attention.core"}
    else:
        assert ("attention.scores" in again) == (framework == "megatron-2022")
        assert ("attention.norm" in again) == (framework == "megatron")


def test_selective_recomputation_of_torchtitan_repeats_every_second_product(small_dense):
    # torchtitan/distributed/activation_checkpoint.py: of a layer's products in turn (queries,
    # keys, values, output, gate, up, down) the even ones; attention and reduce-scatters are kept.
    fields = {"tensor_parallel": 2, "sequence_parallel": True, "sequence_length": 1024}
    framework = load_framework("torchtitan")

    def shares(**more):
        operations = operations_of(
            small_dense, "layer0", framework, recompute="selective", **fields, **more
        )
        of = {(x.name, x.phase): number(x.count) for x in operations}
        return {name: of.get((name, "recompute"), 0.0) for name, phase in of if phase == "forward"}

    spec = small_dense.layers[0].attention
    found = shares()
    keys = spec.key_value_heads * spec.head_dim
    assert found["attention.qkv"] == keys / (spec.heads * spec.head_dim + 2 * keys)
    assert [found[x] for x in ("attention.output", "mlp.up", "mlp.down")] == [1.0, 0.5, 0.0]
    assert found["attention.core"] == 0.0
    assert found["mlp.output.reduce_scatter"] == 0.0
    assert found["mlp.input.all_gather"] == found["mlp.activation"] == 1.0
    # 8-bit products are another operator, which is not in the list.
    assert shares(precision="fp8")["mlp.down"] == 1.0


def test_copies_around_attention_move_keys_values_and_output(small_dense):
    """Joined, turned and turned back; 16 bits read and written each time (nanotron)."""
    plain, copying = (
        operations_of(small_dense, "layer0", load_framework("nanotron", copies_heads=copies))
        for copies in (False, True)
    )
    spec = small_dense.layers[0].attention
    tokens = 2048.0
    joined = tokens * spec.key_value_heads * (spec.head_dim + spec.value_head_dim)
    turned = tokens * spec.heads * spec.value_head_dim

    def moved(operations):
        return sum(
            (number(item.bytes_read) + number(item.bytes_written)) * number(item.count)
            for item in operations
            if isinstance(item, Stream)
        )

    assert moved(copying) - moved(plain) == pytest.approx(12 * joined + 12 * turned)
