"""The busiest rank of an expert-parallel group."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.base.errors import DataError
from perfmodel.model.build import moe_model
from perfmodel.operations.mlp_block import SCATTER_FLOP, busiest_ranks
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
    Stream,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.software.framework import load_framework
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.sweeps.several import sweep
from tests.operations.counting import number


def test_loads_of_real_routing_are_those_that_were_measured() -> None:
    """58 layers of DeepSeek-V3 on MMLU, imbalance of 8 to 64 ranks: docs/routing.md."""
    found = busiest_ranks("two_level", 256, 8, np.array([8.0, 16.0, 32.0, 64.0]))
    np.testing.assert_allclose(found, [1.285, 1.467, 1.762, 2.324], rtol=0.11)  # five draws


def test_balanced_loads_and_single_ranks_wait_for_nobody() -> None:
    ranks = np.array([1.0, 8.0])
    np.testing.assert_array_equal(busiest_ranks("balanced", 64, 8, ranks), 1.0)
    assert busiest_ranks("two_level", 64, 8, ranks)[0] == 1.0


def test_more_ranks_wait_longer() -> None:
    found = busiest_ranks("two_level", 128, 8, np.array([2.0, 4.0, 8.0, 16.0, 32.0]))
    assert np.all(np.diff(found) > 0.0)


def test_a_step_with_real_routing_takes_longer(small_moe) -> None:
    row = {"expert_parallel": 8, "data_parallel": 8, "sequence_length": 2048}
    grid = strategies_from_rows(small_moe, 8, [{**row, "global_batch_size": 64}])

    def step(**changes: str) -> float:
        framework = load_framework("megatron", graph_launch=True, **changes)
        return float(
            sweep(small_moe, grid, "dgx-h100", framework=framework, dtype="float64")[
                "step_time"
            ].item()
        )

    assert step(routing="two_level") > step()


def test_a_distribution_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="routing"):
        busiest_ranks("two_levels", 64, 8, np.array([8.0]))


def moved(operations, phase):
    """Bytes of what puts tokens in order, beside the sorting of the choices."""
    names = ("mlp.repeat", "mlp.permute", "mlp.unpermute", "mlp.weigh")
    return sum(
        number(x.bytes_read + x.bytes_written)
        for x in operations
        if isinstance(x, Stream) and x.name in names and x.phase == phase
    )


def test_gathers_alone_move_what_is_routed_once_more_each_way():
    """Repeated rows are written and read on top, and so are results that are still apart."""
    model = model_of(2)
    found = {
        alone: layer(model, load_framework("megatron", gathers_alone=alone), expert_parallel=1)
        for alone in (False, True)
    }
    routed = 4096 * 2 * 1024 * 2.0  # B
    for phase in ("forward", "backward_input"):
        fused, apart = moved(found[False], phase), moved(found[True], phase)
        assert apart - fused >= 4 * routed
    assert not [x for x in found[False] if x.name == "mlp.order"]
    assert [x for x in found[True] if x.name == "mlp.order"]


def masks(operations):
    return [x for x in operations if isinstance(x, Gemm) and "permute" in x.name]


@pytest.mark.parametrize("capacity", [1.0, 1.25])
def test_masks_cost_the_square_of_a_sequence(capacity):
    """Two products forwards, three backwards: of S x (S k c) x h each, in every sequence."""
    model = model_of(2)
    framework = load_framework("maxtext", expert_dispatch="einsum", capacity_factor=capacity)
    found = masks(layer(model, framework, micro_batch_size=3))
    flops = [number(2 * x.m * x.n * x.k * x.batch) for x in found]
    assert np.allclose(flops, 3 * 2 * 4096 * (4096 * 2 * capacity) * 1024)
    assert sorted(x.phase for x in found) == ["backward_input"] * 3 + ["forward"] * 2


def test_without_a_capacity_every_expert_takes_every_token():
    model = model_of(2)
    found = layer(model, load_framework("maxtext", expert_dispatch="einsum"), micro_batch_size=1)
    assert not masks(found)
    up = next(x for x in found if x.name == "mlp.experts_up")
    assert (number(up.m), number(up.batch)) == (4096, 16)


def test_places_travel_and_nothing_is_sorted_or_counted():
    model = model_of(2)
    framework = load_framework("maxtext", expert_dispatch="einsum", capacity_factor=1.5)
    found = [x for x in layer(model, framework, expert_parallel=4) if np.any(x.count)]
    names = {x.name for x in found}
    assert not names & {"mlp.sort", "mlp.unsort", "mlp.order", "mlp.dispatch.counts"}
    exchanges = [x for x in found if isinstance(x, Communication) and x.axis == "expert"]
    assert {x.name for x in exchanges} == {"mlp.dispatch.all_to_all", "mlp.combine.all_to_all"}
    assert {number(x.size) for x in exchanges} == {4096 * 2 * 1.5 * 1024 * 2.0}


def keys_of(**fields):
    columns = columns_from_rows([{"sequence_length": 4096, **fields}])
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def model_of(experts_per_token):
    return moe_model(
        "small",
        layers=2,
        hidden_size=1024,
        heads=8,
        vocab_size=1024,
        experts=16,
        experts_per_token=experts_per_token,
        expert_intermediate_size=512,
    )


@pytest.fixture(scope="module")
def small():
    return model_of(2)


def layer(model, framework, **fields):
    return part_operations(model, model_parts(model)[0], keys_of(**fields), framework, Machine())


@pytest.mark.parametrize("what", ["cheap", "cheap moe", "mlp"])
def test_layers_of_experts_are_repeated_whole(what, small):
    """Router, exchanges and products once more; of other modules what is cheap, or nothing."""
    framework = load_framework("megatron", selective_recompute=what)
    operations = layer(small, framework, expert_parallel=8, recompute="selective")
    names = {
        phase: {x.name for x in operations if x.phase == phase and np.any(x.count)}
        for phase in ("forward", "recompute")
    }
    ahead = {"attention.norm", "mlp.norm"}
    cheap = {*ahead, "mlp.experts_activation"} if "cheap" in what else set()
    whole = {x for x in names["forward"] if x.startswith("mlp.")} - {"mlp.residual"}
    exchanges = {"mlp.dispatch.all_to_all", "mlp.combine.all_to_all"}
    assert whole - {"mlp.norm"} >= {"mlp.router", "mlp.experts_up", *exchanges}
    assert names["recompute"] == (cheap | whole if "moe" in what else cheap)


def test_queries_keys_and_values_may_be_all_that_is_not_repeated(small):
    framework = load_framework("maxtext", selective_recompute="save_qkv_proj")
    names: dict[str, set[str]] = {"forward": set(), "recompute": set()}
    for item in layer(small, framework, expert_parallel=8, recompute="selective"):
        if item.phase in names and np.any(item.count):
            names[item.phase].add(item.name)
    made = {"attention.qkv", "attention.split_qkv", "attention.rope"}
    # The last residual addition only leads to the next layer's input, which is kept.
    assert names["forward"] - names["recompute"] == made & names["forward"] | {"mlp.residual"}


def test_one_launch_or_one_product_per_expert(small):
    def products(grouped):
        operations = layer(
            small, load_framework("megatron", grouped_gemm=grouped), expert_parallel=8
        )
        return [
            item
            for item in operations
            if isinstance(item, Gemm) and item.name == "mlp.experts_up" and item.phase == "forward"
        ]

    (together,), (apart,) = products(True), products(False)
    assert (float(together.batch[0]), float(together.count)) == (2.0, 1.0)
    assert (float(apart.batch), float(apart.count[0])) == (1.0, 2.0)
    flops = [float(np.ravel(2 * x.m * x.n * x.k * x.batch * x.count)[0]) for x in (together, apart)]
    assert flops[0] == flops[1]


def test_with_a_capacity_experts_take_so_many_tokens_and_nobody_counts(small):
    def rows(**changes):
        operations = layer(small, load_framework("megatron", **changes), expert_parallel=8)
        assert not [x for x in operations if x.name.endswith("counts")] or not changes
        return next(float(x.m[0]) for x in operations if x.name == "mlp.experts_up")

    assert rows(capacity_factor=1.0) == rows()
    assert rows(capacity_factor=1.25) == 1.25 * rows()
    # Popular experts drop what is beyond: real routing costs no more than the capacity.
    assert rows(capacity_factor=1.25, routing="two_level") == 1.25 * rows()


def optimizer_bytes(model, devices, **row):
    from perfmodel import load_hardware, sweep
    from perfmodel.strategy.enumerate import strategies_from_rows

    fields = {"sequence_length": 4096, "global_batch_size": devices, **row}
    grid = strategies_from_rows(model, devices, [fields])
    assert grid.status[0] == 0
    framework = load_framework("megatron", pads_vocabulary_to=1)
    results = sweep(model, grid, load_hardware("dgx-h100"), framework=framework, dtype="float64")
    return float(results["memory_optimizer"].values[0, 0])


def split_parameters(model):
    experts = sum(
        3 * model.hidden_size * layer.mlp.expert_intermediate_size * layer.mlp.experts
        for layer in model.layers
    )
    return model.parameter_count() - experts, experts


@pytest.mark.parametrize("degree", [1, 2, 8])
def test_expert_state_is_sharded_over_all_ranks_that_hold_an_expert(small, degree):
    # 32 devices: dense state over 4 data ranks of 8 tensor ranks each, expert state over
    # 32 / degree copies of each expert.
    found = optimizer_bytes(small, 32, tensor_parallel=8, expert_parallel=degree)
    dense, experts = split_parameters(small)
    exact = 12 * (dense / 8 / 4 + experts / degree / (32 / degree))
    assert found == pytest.approx(exact, rel=0.05)  # norms and router are not tensor-sharded


def test_a_shard_set_holds_each_expert_once_where_experts_fill_it(small):
    # 16 devices, experts over 8, shard sets of 8: two sets, one copy of an expert in each,
    # so the experts' state is not sharded at all.
    found = optimizer_bytes(small, 16, expert_parallel=8, shard_group=8, zero_stage=3)
    dense, experts = split_parameters(small)
    assert found == pytest.approx(12 * (dense / 8 + experts / 8), rel=1e-9)


@pytest.mark.parametrize(("dispatch", "copies"), [("all_to_all", 2), ("deepep", 2), ("deepep", 1)])
def test_pytorch_adds_up_copies_element_by_element(dispatch, copies):
    """Each sum is read and written beside the row that is added to it; kernels for it need none."""

    def merges(sorts):
        model = model_of(copies)
        framework = load_framework("megatron", expert_dispatch=dispatch, sorts_chunks=sorts)
        operations = layer(model, framework, expert_parallel=8)
        return [item for item in operations if item.name == "mlp.merge"]

    assert not merges(False)
    forward, backward = merges(True)
    rows = 4096.0 * copies * 1024.0
    assert float(forward.bytes_read[0]) == float(backward.bytes_read[0]) == 2.0 * rows
    assert float(forward.flops[0]) == SCATTER_FLOP * rows


def rows_of(operations, name):
    return next(float(np.ravel(x.m)[0]) for x in operations if x.name == name)


def test_tiles_on_the_borders_of_experts_are_computed_for_both(small):
    """Four experts of a rank have three borders: three tiles of rows on top."""

    def rows(tile):
        framework = load_framework("maxtext", expert_tile_rows=tile)
        return 4 * rows_of(layer(small, framework, expert_parallel=4), "mlp.experts_up")

    assert rows(256) - rows(0) == 3 * 256
    alone = load_framework("maxtext", expert_tile_rows=256)
    plain = load_framework("maxtext", expert_tile_rows=0)
    names = [
        rows_of(layer(small, each, expert_parallel=16), "mlp.experts_up") for each in (alone, plain)
    ]
    assert names[0] == names[1]  # one expert, no border


@pytest.mark.parametrize(
    ("degree", "buffer", "held"),
    [(1, 1e9, 1), (4, 1e9, 4), (16, 1e9, 8), (16, 2.0, 2), (4, 1.0, 1)],
)
def test_a_buffer_holds_what_may_come_and_products_what_comes(small, degree, buffer, held):
    """At most all tokens of the group, or each token once per expert of the rank: 16 / 2."""
    framework = load_framework("maxtext", expert_buffer=buffer)
    plain = load_framework("maxtext", expert_buffer=1.0)
    found, base = (layer(small, each, expert_parallel=degree) for each in (framework, plain))

    def read(operations, name):
        return next(float(np.ravel(x.bytes_read)[0]) for x in operations if x.name == name)

    for name in ("mlp.sort", "mlp.unsort", "mlp.experts_activation"):
        assert read(found, name) == held * read(base, name)
    assert rows_of(found, "mlp.experts_up") == rows_of(base, "mlp.experts_up")
