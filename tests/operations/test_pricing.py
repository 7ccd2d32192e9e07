"""Prices of operations: those of the kernel models, whatever other keys are priced with them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.precisions import PRECISIONS
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.recurrence import recurrence_times
from perfmodel.compute.sparse_attention import indexer_times, sparse_attention_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.rows import matrix_rates
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Attention,
    Communication,
    Gemm,
    Indexer,
    LayerKeys,
    Machine,
    Recurrence,
    SparseAttention,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.operations.pricing import (
    price_attention,
    price_indexers,
    price_operations,
    price_recurrences,
    price_sparse_attention,
)
from perfmodel.software.framework import load_framework
from tests.operations.counting import MEGATRON, keys_of
from tests.operations.layers import LAYERS, model_of

KEYS = keys_of()


@pytest.mark.parametrize(("backward", "phase"), [(False, "forward"), (True, "backward")])
def test_a_recurrence_takes_the_time_of_its_chain_times_its_count(h100, backward, phase):
    shape = {"heads": 32.0, "key_heads": 16.0, "key_dim": 128.0, "value_dim": 128.0, "chunk": 64.0}
    calls = [
        Recurrence("x", "forward", kind, 2.0, 4096.0, **shape, backward=backward, count=3.0)
        for kind in ("gated_delta", "mamba2")
    ]
    for item, kind in zip(
        price_recurrences(h100, calls, KEYS), ("gated_delta", "mamba2"), strict=True
    ):
        one = recurrence_times(h100, "bf16", kind=kind, batch=2, length=4096, phase=phase, **shape)
        assert item.time[0] == pytest.approx(3 * one.time[0], rel=1e-12)
        assert item.flops[0] == pytest.approx(3 * one.flops[0], rel=1e-12)
        assert item.traffic[0] == pytest.approx(3 * one.memory_traffic[0], rel=1e-12)


@pytest.mark.parametrize(("backward", "phase"), [(False, "forward"), (True, "backward")])
def test_sparse_attention_and_indexers_take_the_times_of_their_kernels(h100, backward, phase):
    lengths = {"batch": 1.0, "query_length": 4096.0, "key_length": 4096.0}
    shape = {"heads": 128.0, "key_value_heads": 1.0, "head_dim_qk": 576.0, "head_dim_v": 512.0}
    call = SparseAttention("x", "forward", **lengths, **shape, selected=2048.0, backward=backward)
    (found,) = price_sparse_attention(h100, [call], KEYS, MEGATRON)
    one = sparse_attention_times(
        h100, "bf16", **lengths, **shape, selected=2048, phase=phase, steady=True
    )
    assert found.time[0] == pytest.approx(one.time[0], rel=1e-12)
    assert found.flops[0] == pytest.approx(one.flops[0], rel=1e-12)
    shape = {"heads": 64.0, "head_dim": 128.0, "top_k": 2048.0}
    call = Indexer("x", "forward", **lengths, **shape, backward=backward)
    (found,) = price_indexers(h100, [call], KEYS)
    one = indexer_times(h100, **lengths, **shape, phase=phase, steady=True)
    assert found.time[0] == pytest.approx(one.time[0], rel=1e-12)


MIXER_ROWS = [
    {
        "sequence_length": 4096,
        "tensor_parallel": tensor,
        "sequence_parallel": tensor > 1,
        "context_parallel": context,
        "context_parallel_kind": kind,
        "recompute": "full",
        "precision": precision,
    }
    for tensor, precision in ((1, "bf16"), (4, "fp8"))
    for context, kind in ((1, "ring"), (2, "ring"), (2, "all_gather"), (2, "all_to_all"))
]


def mixers_priced(name, hardware, rows):
    columns = columns_from_rows(rows)
    keys = LayerKeys({field: columns[field] for field in LAYER_KEY_FIELDS})
    model = model_of(name)
    operations = part_operations(model, model_parts(model)[0], keys, MEGATRON, Machine())
    return price_operations(hardware, operations, keys, MEGATRON)


@pytest.mark.parametrize("name", LAYERS)
def test_everything_that_runs_takes_time(name, h100):
    for item in mixers_priced(name, h100, MIXER_ROWS):
        count = np.broadcast_to(np.asarray(item.operation.count, np.float64), (len(MIXER_ROWS),))
        assert np.isfinite(item.time).all()
        assert ((item.time > 0) == (count > 0)).all(), item.operation.name
        assert (item.exposed <= item.time * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", ["gated delta", "mamba1", "sparse latent", "compressed"])
def test_each_key_of_a_mixer_is_priced_as_if_alone(name, h100):
    together = mixers_priced(name, h100, MIXER_ROWS)
    for i, row in enumerate(MIXER_ROWS):
        alone: dict[tuple[str, str], float] = {}
        for item in mixers_priced(name, h100, [row]):
            slot = item.operation.name, item.operation.phase
            alone[slot] = alone.get(slot, 0.0) + float(item.time[0])
        both: dict[tuple[str, str], float] = {}
        for item in together:
            slot = item.operation.name, item.operation.phase
            both[slot] = both.get(slot, 0.0) + float(item.time[i])
        for slot, time in both.items():
            assert alone.get(slot, 0.0) == pytest.approx(time, rel=1e-12), slot


@pytest.mark.parametrize("name", LAYERS)
def test_more_devices_never_compute_longer(name, h100):
    def compute(row):
        items = mixers_priced(name, h100, [{"sequence_length": 8192, **row}])
        return sum(float(x.time[0]) for x in items if not isinstance(x.operation, Communication))

    one = compute({})
    assert compute({"tensor_parallel": 2, "sequence_parallel": True}) <= one
    assert compute({"context_parallel": 2}) <= one


@pytest.mark.parametrize(
    ("width", "dropout", "backward", "slower"),
    [
        (128.0, False, False, 1.0),
        (192.0, False, False, 1.18),
        (128.0, True, False, 1.18),
        (128.0, True, True, 3.0),
    ],
)
def test_calls_that_the_best_kernels_do_not_take(width, dropout, backward, slower):
    """AMD's assembly kernels: no dropout, values as wide as keys; most is lost backward."""
    profile = load_hardware("mi355x")
    phase = "backward_input" if backward else "forward"
    shape = (4.0, 4096.0, 4096.0, 32.0, 32.0, width, 128.0)
    call = Attention("x", phase, *shape, True, backward=backward)
    of_2025 = {"dropout": dropout, "best_attention_one_width": True}
    turbo, stock = (
        price_attention(profile, [call], KEYS, framework)[0].time[0]
        for framework in (
            load_framework("primus-turbo", dropout=dropout),
            load_framework("primus", **of_2025),
        )
    )
    assert stock == pytest.approx(slower * turbo, rel=1e-12)


@pytest.mark.parametrize(("backward", "slower"), [(False, 1.0), (True, 1.21)])
def test_deterministic_attention_is_declared_by_the_framework(h100, backward, slower):
    phase = "backward_input" if backward else "forward"
    shape = (4.0, 4096.0, 4096.0, 32.0, 32.0, 128.0, 128.0)
    call = Attention("x", phase, *shape, True, backward=backward)
    free, ordered = (
        price_attention(h100, [call], KEYS, load_framework("megatron", **changes))[0].time[0]
        for changes in ({}, {"deterministic_attention": True})
    )
    assert ordered == pytest.approx(slower * free, rel=1e-12)


ROWS = [
    {"sequence_length": 2048, "tensor_parallel": degree, "precision": precision}
    for degree in (1, 2, 4)
    for precision in ("bf16", "fp8")
]


def layer_keys(rows):
    columns = columns_from_rows(rows)
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def priced(model, hardware, rows, **options):
    keys = layer_keys(rows)
    operations = part_operations(model, model_parts(model)[0], keys, MEGATRON, Machine())
    return price_operations(hardware, operations, keys, MEGATRON, **options)


def test_a_product_takes_the_time_of_its_kernel_times_its_count(h100):
    product = Gemm("up", "forward", m=2048.0, n=11264.0, k=2048.0, batch=3.0, count=5.0)
    (found,) = price_operations(h100, [product], layer_keys(ROWS[:1]), MEGATRON)
    one = gemm_times(h100, "bf16", 2048, 11264, 2048, 3, output_bytes=2.0, steady=True)
    assert found.time[0] == pytest.approx(5 * one.time[0], rel=1e-12)
    assert found.flops[0] == 5 * 3 * 2 * 2048 * 11264 * 2048
    assert found.traffic[0] == pytest.approx(5 * one.memory_traffic[0], rel=1e-12)


def test_what_is_not_done_takes_no_time(h100):
    product = Gemm("up", "forward", m=2048.0, n=2048.0, k=2048.0, count=0.0)
    (found,) = price_operations(h100, [product], layer_keys(ROWS[:1]), MEGATRON)
    assert (found.time[0], found.flops[0]) == (0.0, 0.0)


def test_each_key_is_priced_as_if_alone(small_dense, h100):
    together = priced(small_dense, h100, ROWS)
    for i, row in enumerate(ROWS):
        alone = {(x.operation.name, x.operation.phase): x for x in priced(small_dense, h100, [row])}
        for item in together:
            other = alone.pop((item.operation.name, item.operation.phase), None)
            if other is None:  # what a degree of one does not need
                assert item.time[i] == 0.0, item.operation
                continue
            for name in ("time", "exposed", "flops", "traffic", "half_width"):
                assert getattr(item, name)[i] == getattr(other, name)[0], (item.operation, name)
        assert not alone


def test_a_precision_that_the_device_lacks_has_no_price(small_dense, a100):
    assert np.isnan(matrix_rates(a100)[PRECISIONS.index("fp8")])
    products = [
        item for item in priced(small_dense, a100, ROWS) if isinstance(item.operation, Gemm)
    ]
    quantised = [item for item in products if item.operation.quantised]
    assert quantised
    for item in quantised:
        assert np.isnan(item.time).tolist() == [row["precision"] == "fp8" for row in ROWS]


def test_the_slowest_device_slows_computation_and_no_message(small_dense, h100):
    plain = priced(small_dense, h100, ROWS)
    slower = priced(small_dense, h100, ROWS, slowdown=1.25)
    for one, other in zip(plain, slower, strict=True):
        factor = 1.0 if isinstance(one.operation, Communication) else 1.25
        np.testing.assert_allclose(other.time, factor * one.time, rtol=1e-12)


def test_what_is_exposed_is_part_of_the_time(small_dense, h100):
    for item in priced(small_dense, h100, ROWS):
        assert (item.exposed >= 0.0).all()
        assert (item.exposed <= item.time * (1 + 1e-12)).all()
