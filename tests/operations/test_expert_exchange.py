"""Experts: how often routed tokens travel, and what dispatch and overlap make of it."""

import itertools

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.expert_exchange import moe_exchange_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.build import moe_model
from perfmodel.model.layers import MlpSpec
from perfmodel.operations.expert_exchange import dispatch_copies
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Attention,
    Communication,
    Gemm,
    LayerKeys,
    Machine,
    Stream,
    TokenExchange,
    machine_of,
)
from perfmodel.operations.parts import model_parts, part_operations
from perfmodel.operations.pricing import price_operations
from perfmodel.software.framework import load_framework

DEDUPLICATED = load_framework("megatron", expert_dispatch="deepep")


def keys_of(**fields):
    columns = columns_from_rows([{"sequence_length": 4096, **fields}])
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def copies(experts, chosen, degree, *, domain=8, framework=DEDUPLICATED, groups=(0, 0)):
    mlp = MlpSpec(
        "moe",
        experts=experts,
        experts_per_token=chosen,
        expert_intermediate_size=64,
        expert_groups=groups[0],
        expert_groups_per_token=groups[1],
    )
    ops = OperationList(keys_of(expert_parallel=degree), framework, Machine(domain))
    return float(dispatch_copies(ops, mlp)[0])


def enumerated(experts, chosen, places):
    """Mean number of distinct places over every choice of experts."""
    size = experts // places
    found = [
        len({expert // size for expert in choice})
        for choice in itertools.combinations(range(experts), chosen)
    ]
    return np.mean(found)


@pytest.mark.parametrize(("experts", "chosen", "ranks"), [(8, 2, 4), (8, 3, 2), (16, 4, 8)])
def test_copies_are_the_mean_over_every_choice_of_experts(experts, chosen, ranks):
    assert copies(experts, chosen, ranks) == pytest.approx(enumerated(experts, chosen, ranks))


def test_one_expert_a_rank_is_visited_once_each():
    assert copies(16, 4, 16, domain=64) == pytest.approx(4.0)


def test_between_nodes_a_token_goes_once_to_each_node():
    # 64 ranks on nodes of 8: eight places, not sixty-four.
    assert copies(256, 8, 64) == pytest.approx(copies(256, 8, 8))


def test_routing_limited_to_half_of_the_groups_visits_half_of_the_nodes():
    # DeepSeek-V3: 8 groups, 4 of them per token (arXiv:2412.19437, section 2.1.2).
    limited = copies(256, 8, 64, groups=(8, 4))
    # A group is chosen for its best experts, so each of the four has one of the eight.
    assert limited == pytest.approx(4.0, rel=1e-12)
    # Two groups on each of four nodes: 4 (1 - C(6, 4) / C(8, 4)) of them are met, not two.
    assert copies(256, 8, 32, groups=(8, 4)) == pytest.approx(4 * (1 - 15 / 70), rel=1e-12)


def test_without_deduplication_a_token_is_sent_once_per_expert():
    assert copies(256, 8, 64, framework=load_framework("megatron")) == 8.0


@pytest.fixture(scope="module")
def small():
    return moe_model(
        "small",
        layers=2,
        hidden_size=1024,
        heads=8,
        vocab_size=1024,
        experts=16,
        experts_per_token=2,
        expert_intermediate_size=512,
    )


def layer(model, framework, **fields):
    return part_operations(model, model_parts(model)[0], keys_of(**fields), framework, Machine())


def sent(operations, name, phase):
    found = [
        item
        for item in operations
        if isinstance(item, Communication)
        and item.collective == "all_to_all"
        and item.name.startswith(name)
        and item.phase == phase
    ]
    assert len(found) == 1
    return float(found[0].size[0])


def test_dispatched_bytes_follow_their_format(small):
    whole = layer(small, load_framework("megatron"), expert_parallel=8)
    half = layer(small, load_framework("megatron", dispatch_bytes=1.0), expert_parallel=8)
    # 4,096 tokens, 2 experts each, 1,024 wide, 2 bytes.
    assert sent(whole, "mlp.dispatch", "forward") == 4096 * 2 * 1024 * 2
    assert sent(half, "mlp.dispatch", "forward") == 4096 * 2 * 1024
    # Gradients of what was combined in 2 bytes come back as dispatches do, and conversely.
    assert sent(half, "mlp.combine", "forward") == 4096 * 2 * 1024 * 2
    assert sent(half, "mlp.combine", "backward_input") == 4096 * 2 * 1024


def test_only_a_counting_dispatcher_exchanges_counts(small):
    for framework, expected in ((load_framework("megatron"), 1), (DEDUPLICATED, 0)):
        operations = layer(small, framework, expert_parallel=8)
        counts = [item for item in operations if item.name == "mlp.dispatch.counts"]
        assert len(counts) == expected


def test_overlapped_exchanges_run_beside_what_another_micro_batch_does(small):
    """Dispatches of both passes share the experts; a combine has the other's attention."""
    operations = layer(small, load_framework("megatron-deepep"), expert_parallel=8)
    exchanges = [item for item in operations if isinstance(item, TokenExchange)]
    assert len(exchanges) == 4
    for item in exchanges:
        blocks = {block for block, _ in item.hidden_by}
        phases = {phase for _, phase in item.hidden_by}
        if "dispatch" in item.name:
            assert (blocks, item.hides) == ({"mlp.*"}, 0.5)
            assert phases == {"forward", "backward_input", "backward_weight"}
        else:
            assert (blocks, item.hides) == ({"mixer.*"}, 1.0)
            assert item.phase not in phases


def test_shared_experts_hide_exchanges_up_to_their_own_time():
    """The first product beside the dispatch, the second beside the combine, gradients likewise."""
    model = moe_model(
        "shared",
        layers=2,
        hidden_size=1024,
        heads=8,
        vocab_size=1024,
        experts=16,
        experts_per_token=2,
        expert_intermediate_size=512,
        shared_intermediate_size=512,
    )
    hardware = load_hardware("dgx-h100")
    keys = keys_of(expert_parallel=8)
    exposed, products = [], 0.0
    for beside in (False, True):
        framework = load_framework("megatron", overlap_shared_experts=beside)
        operations = layer(model, framework, expert_parallel=8)
        priced = price_operations(hardware, operations, keys, framework)
        exchanges = [x for x in priced if x.operation.name.endswith("all_to_all")]
        exposed.append(sum(float(x.exposed[0]) for x in exchanges))
        shared = ("mlp.shared.up", "mlp.shared.activation", "mlp.shared.down")
        products = sum(float(x.time[0]) for x in priced if x.operation.name in shared)
        hidden_by = {x.operation.name: x.operation.hidden_by for x in exchanges}
        assert all(bool(found) == beside for found in hidden_by.values())
    assert exposed[1] < exposed[0] <= exposed[1] + products


def test_gradients_of_dispatched_tokens_are_combined_and_conversely(small):
    operations = layer(small, load_framework("megatron-deepep"), expert_parallel=8)
    kinds = {(x.name, x.phase): x.kind for x in operations if isinstance(x, TokenExchange)}
    assert kinds == {
        ("mlp.dispatch.all_to_all", "forward"): "dispatch",
        ("mlp.dispatch.all_to_all", "backward_input"): "combine",
        ("mlp.combine.all_to_all", "forward"): "combine",
        ("mlp.combine.all_to_all", "backward_input"): "dispatch",
    }


def test_deepep_is_priced_by_its_kernels(small):
    """As `moe_exchange_times` says; none where one rank has all experts."""
    framework = load_framework("megatron", expert_dispatch="deepep", exchange_units=24)
    hardware = load_hardware("dgx-h100")
    for degree in (8, 1):
        keys = keys_of(expert_parallel=degree)
        operations = part_operations(
            small, model_parts(small)[0], keys, framework, machine_of(hardware)
        )
        priced = price_operations(hardware, operations, keys, framework)
        times = {
            x.operation.name: x.time[0]
            for x in priced
            if isinstance(x.operation, TokenExchange) and x.operation.phase == "forward"
        }
        if degree == 1:
            assert not times
            continue
        for kind in ("dispatch", "combine"):
            sizes = (4096.0, 1024.0, 2, 16, degree, 1, 24)
            exact = moe_exchange_times(hardware, kind, "normal", *sizes, element_bytes=2.0)
            assert times[f"mlp.{kind}.all_to_all"] == pytest.approx(exact[0])


def test_routing_among_half_of_the_nodes_crosses_fewer_adapters():
    hardware = load_hardware("dgx-h100")
    sizes = ("dispatch", "normal", 4096.0, 7168.0, 8, 256, 64)
    free, limited = (moe_exchange_times(hardware, *sizes, share=share)[0] for share in (1.0, 0.5))
    assert 0.5 * free < limited < free


def test_every_rank_gathers_all_tokens(small):
    framework = load_framework("megatron", expert_dispatch="all_gather")
    operations = layer(small, framework, expert_parallel=8)
    sizes = {
        (x.name, x.phase): float(np.ravel(x.size)[0])
        for x in operations
        if isinstance(x, Communication) and x.axis == "expert"
    }
    whole = 8 * 4096 * 1024 * 2.0
    assert sizes == {
        ("mlp.dispatch.all_gather", "forward"): whole,
        ("mlp.dispatch.reduce_scatter", "backward_input"): whole,
        ("mlp.combine.reduce_scatter", "forward"): whole,
        ("mlp.combine.all_gather", "backward_input"): whole,
    }


@pytest.mark.parametrize("way", ["auto", "direct", "hierarchical", "rail_aligned"])
def test_an_exchange_goes_as_the_software_says(small, way):
    """By the cost model of that algorithm, for dispatch and combine, forward and backward."""
    framework = load_framework("megatron", exchange_algorithm=way)
    hardware = load_hardware("dgx-h100")
    keys = keys_of(expert_parallel=16, data_parallel=16)
    operations = part_operations(
        small, model_parts(small)[0], keys, framework, machine_of(hardware)
    )
    times = [
        x.time[0]
        for x in price_operations(hardware, operations, keys, framework)
        if isinstance(x.operation, Communication) and x.operation.collective == "all_to_all"
    ]
    size = 4096 * 2 * 1024 * 2
    exact = collective_times(hardware, "all_to_all", size, 16, algorithm=way)[0]
    assert times == pytest.approx([exact] * 4)


def test_two_phases_send_fewer_messages_and_wait_for_each_other():
    """Short messages gain by hierarchy, long ones lose; forwarding on rails never loses."""
    hardware = load_hardware("dgx-h100")
    for size, best in ((2.0**16, "hierarchical"), (2.0**30, "direct")):
        times = {
            way: collective_times(hardware, "all_to_all", size, 256, algorithm=way)[0]
            for way in ("direct", "hierarchical", "rail_aligned")
        }
        assert min(("direct", "hierarchical"), key=lambda way: times[way]) == best
        assert times["rail_aligned"] <= 1.01 * times[best]


def test_matrix_kernels_leave_units_of_exchanges_free_throughout(small):
    """arXiv:2412.19437, section 3.2.2: 20 of 132 units; streams are bound by memory."""
    hardware, keys = load_hardware("dgx-h100"), keys_of(expert_parallel=8)

    def times(reserves):
        framework = load_framework("megatron-deepep", reserves_exchange_units=reserves)
        part = model_parts(small)[0]
        listed = part_operations(small, part, keys, framework, machine_of(hardware))
        priced = price_operations(hardware, listed, keys, framework)
        return [(type(it.operation), float(it.time[0])) for it in priced]

    kinds = set()
    for (kind, plain), (_, slow) in zip(times(False), times(True), strict=True):
        matrix = kind in (Gemm, Attention)
        assert slow == pytest.approx(plain * (132 / 112 if matrix else 1.0)), kind
        kinds.add(kind)
    assert {Gemm, Attention, Stream, TokenExchange} <= kinds
