"""Parts priced on a device: the slowest of many, and what of a profile decides on operations."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.axes import columns_from_rows
from perfmodel.compute.collectives import collective_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.operations.operations import (
    LAYER_KEY_FIELDS,
    Communication,
    LayerKeys,
    Stream,
    machine_of,
)
from perfmodel.operations.parts import model_parts
from perfmodel.operations.priced import Priced
from perfmodel.software.framework import load_framework
from perfmodel.training.part_table import (
    CHECK_CALLS,
    CHECK_MESSAGES,
    CHUNK_OPERATORS,
    ROUTER_OPERATORS,
    HostTimes,
    adapter_times,
    arrival_gather,
    drained_pass,
    graphed,
    host_time,
    host_times_of,
    part_table,
    pass_times,
    price_parts,
    sent_bytes,
    slowest_of,
    step_overhead,
)
from tests.training.gpt import keys_of


# Expected maximum of n standard normal deviates (Harter 1961, Biometrika 48, table 1).
@pytest.mark.parametrize(
    ("devices", "deviations"),
    [(2, 0.56419), (5, 1.16296), (10, 1.53875), (50, 2.24907), (100, 2.50759)],
)
def test_the_slowest_device_by_harter_1961(devices, deviations):
    # Blom's formula is an approximation, 2 % near for two and better for more.
    assert slowest_of(devices, 0.01) == pytest.approx(1 + 0.01 * deviations, abs=3e-4)


def test_a_single_device_waits_for_nobody_and_more_wait_longer():
    assert slowest_of(1, 0.05) == 1.0
    assert slowest_of(1000, 0.0) == 1.0
    times = [slowest_of(devices, 0.02) for devices in (1, 2, 8, 1024, 10**6)]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_a_machine_has_the_domain_and_the_layouts_of_its_profile():
    h100, b200 = load_hardware("dgx-h100"), load_hardware("dgx-b200")
    assert machine_of(h100).domain == 8
    assert machine_of(load_hardware("gb200-nvl72")).domain == 72
    assert machine_of(h100).fp8_transposed_copies  # only K-major fp8 operands before Blackwell
    assert not machine_of(b200).fp8_transposed_copies


def test_every_part_is_priced_and_more_devices_slow_computation(small_moe, h100):
    columns = columns_from_rows([{"sequence_length": 2048}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    framework = load_framework("megatron")
    few = price_parts(small_moe, keys, h100, framework, 1)
    many = price_parts(small_moe, keys, h100, framework, 1024)
    assert [part for part, _ in few] == list(model_parts(small_moe))
    factor = slowest_of(1024, h100.calibrated("host", "speed_spread"))
    for (_, one), (_, other) in zip(few, many, strict=True):
        assert one
        total, slower = (sum(np.sum(item.time) for item in items) for items in (one, other))
        assert slower == pytest.approx(factor * total, rel=1e-9)  # a single rank sends nothing


def layer_keys(tensor: list[int], **fields: int) -> LayerKeys:
    rows = [{"tensor_parallel": t, "sequence_length": 2048} | fields for t in tensor]
    columns = columns_from_rows(rows)
    return LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})


def host_of_layer(model, keys, hardware, framework):
    """Seconds in which the host issues one layer, forward and backward, and its collectives."""
    times = host_times_of(hardware, framework)
    parts = price_parts(model, keys, hardware, framework, 16)
    items = next(items for part, items in parts if part.layer is not None)
    collectives = [it for it in items if isinstance(it.operation, Communication)]
    count = sum(it.operation.count for it in collectives)
    return sum(host_time(it, keys, times) for it in items), count * np.ones(len(keys))


def test_checked_collectives_wait_for_every_further_rank(small_dense, h100):
    keys = layer_keys([1, 2, 4, 8], sequence_parallel=1)
    plain, collectives = host_of_layer(small_dense, keys, h100, load_framework("nanotron"))
    checking = load_framework("nanotron", checks_collectives=True)
    checked, _ = host_of_layer(small_dense, keys, h100, checking)
    message = h100.calibrated("host", "peer_message_time")
    call = h100.calibrated("host", "collective_call_time")
    ranks = np.array([0.0, 1.0, 3.0, 7.0])
    assert collectives[1:] == pytest.approx(10.0)  # nanotron: 4 forward, 6 backward
    each = CHECK_CALLS * call * (ranks > 0) + CHECK_MESSAGES * message * ranks
    assert checked - plain == pytest.approx(collectives * each)
    graph = load_framework("nanotron", checks_collectives=True, graph_launch=True)
    assert host_of_layer(small_dense, keys, h100, graph)[0].max() < plain.min()


def test_a_pass_takes_as_long_as_its_host_however_little_work_it_brings(small_dense, h100):
    layer = next(i for i, part in enumerate(model_parts(small_dense)) if part.layer is not None)
    table = [
        part_table(small_dense, layer_keys([2], sequence_length=s), h100, framework, 8)[0, layer]
        for framework in (load_framework("nanotron"), load_framework("maxtext"))
        for s in (64, 128)
    ]
    assert table[0].forward_window == table[1].forward_window
    assert table[0].host > table[1].host > 0.0
    assert table[2].forward_window < table[0].forward_window / 5.0


def test_a_host_that_waits_for_counts_lets_the_device_run_dry(h100):
    """One operation behind the choice of experts, one ahead: both start when they are issued."""
    keys = layer_keys([1])

    def priced(name, time):
        one = np.full(1, time)
        none = np.zeros(1)
        bound = np.zeros(1, np.uint8), ("x",)
        return Priced(Stream(name, "forward", 1.0, 1.0), one, none, none, *bound, one, none)

    times = HostTimes(kernel=2.0, collective=0.0, graphed=0.0, scope="none")
    items = [priced("attention.core", 5.0), priced("mlp.route", 0.5), priced("mlp.experts_up", 1.0)]
    # From the choice on: experts issued at 2, done at 3; attention at 4, done at 9; the choice
    # issued at 6, done at 9.5, when the host may go on.
    assert drained_pass(items, keys, times) == pytest.approx([9.5])
    assert drained_pass(items[:1], keys, times) == pytest.approx([0.0])  # no experts


def test_hosts_that_learn_token_counts_take_longer(small_moe, h100):
    keys = layer_keys([1], sequence_length=512)
    waits, sync_free = (
        part_table(small_moe, keys, h100, load_framework("megatron", expert_counts_on_host=on), 8)
        for on in (True, False)
    )
    experts = max(range(len(waits[0])), key=lambda i: waits[0][i].experts)
    assert waits[0][experts].forward_window > sync_free[0][experts].forward_window
    assert waits[0][experts].backward_window == sync_free[0][experts].backward_window


def test_hosts_that_sort_tokens_chunk_by_chunk_take_longer_with_more_experts(small_moe, h100):
    keys = layer_keys([1], expert_parallel=2)
    parts = model_parts(small_moe)
    layer = next(i for i, it in enumerate(parts) if it.layer and it.layer.mlp.experts)
    windows = []
    for sorts in (False, True):
        framework = load_framework("megatron", sorts_chunks=sorts, expert_counts_on_host=False)
        row = part_table(small_moe, keys, h100, framework, 8)[0, layer]
        windows.append(row.host)
    chunks = small_moe.layers[-1].mlp.experts
    # Besides, the copies of a token are added up by an operator of their own, either way.
    operators = 2.0 * sum(CHUNK_OPERATORS) * chunks + 2.0 * framework.operators_per_kernel
    added = operators * h100.calibrated("host", "launch_time")
    assert 0.0 < windows[1] - windows[0] <= added * (1 + 1e-9)


def host_seconds(model, hardware, **changes):
    """Host's time of one layer, forward and backward, and of a drained forward pass."""
    columns = columns_from_rows([{"sequence_length": 2048, "expert_parallel": 2}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    framework = load_framework("megatron", **changes)
    parts = [items for _, items in price_parts(model, keys, hardware, framework, 1)]
    priced = next(x for x in parts if any(it.operation.name == "mlp.route" for it in x))
    times = host_times_of(hardware, framework)
    issued = sum(float(host_time(item, keys, times)[0]) for item in priced)
    return issued, float(drained_pass(priced, keys, times)[0])


@pytest.mark.parametrize(("operators", "routed"), [(1.5, 1.5), (8.0, ROUTER_OPERATORS)])
def test_operators_of_the_router_and_fills_stand_in_no_module(small_moe, h100, operators, routed):
    launch = h100.calibrated("host", "launch_time")
    framework = load_framework("megatron", fills_allocations=True, operators_per_kernel=operators)
    priced = price_parts(small_moe, layer_keys([1]), h100, framework, 1)
    times, checked = host_times_of(h100, framework), set()
    for item in (it for _, items in priced for it in items):
        each = {"mlp.route": routed, "mlp.route.fill": 1.0}.get(item.operation.name)
        if each:
            launches = item.operation.count * item.operation.launches
            expected = pytest.approx(each * launches * launch)
            assert host_time(item, layer_keys([1]), times) == expected
            checked.add(item.operation.name)
    assert len(checked) == 2


def test_what_is_logged_adds_to_the_step(h100):
    logged = load_framework("megatron", logging_time=0.02)
    added = step_overhead(h100, logged) - step_overhead(h100, load_framework("megatron"))
    assert added == pytest.approx(0.02)


def test_experts_in_a_loop_cost_the_host_one_operation_each(small_moe, h100):
    looped, grouped = (host_seconds(small_moe, h100, grouped_gemm=on)[0] for on in (False, True))
    assert looped > grouped


def test_graphs_hold_what_their_scope_says(small_moe, h100):
    scopes = ("none", "router", "attention", "attention_router")
    found = {scope: host_seconds(small_moe, h100, graph_scope=scope) for scope in scopes}
    whole = host_seconds(small_moe, h100, graph_launch=True)[0]
    saved = {scope: found["none"][0] - issued for scope, (issued, _) in found.items()}
    assert saved["attention_router"] == pytest.approx(saved["attention"] + saved["router"])
    assert 0.0 < saved["router"] < saved["attention_router"] < found["none"][0] - whole
    assert found["attention_router"][1] < found["none"][1]
    held = [name for name in ("attention.qkv", "mlp.route", "mlp.dispatch.all_to_all")]
    assert [graphed(name, "attention_router") for name in held] == [True, True, False]


@pytest.mark.parametrize(
    ("members", "stride", "busy"),
    [(4, 2, 0.0), (4, 4, 3.0), (1, 64, 0.0), (8, 1, 0.0), (16, 1, 3.0)],
)
def test_only_groups_beyond_a_domain_keep_the_adapters(members, stride, busy):
    keys, none = layer_keys([1]), np.zeros(1)

    def priced(phase, time):
        sent = Communication("ring", phase, "context", "all_gather", 1.0, members, stride)
        bound = np.zeros(1, np.uint8), ("x",)
        return Priced(sent, np.full(1, time), none, none, *bound, none, none)

    items = [priced("forward", 3.0), priced("recompute", 1.0), priced("backward_input", 2.0)]
    np.testing.assert_array_equal(adapter_times(items, keys, 8), [[busy], [busy]])


@pytest.mark.parametrize(("context", "shares"), [(8, False), (16, True)])
def test_gathers_of_shards_find_no_room_beside_a_context_ring_over_nodes(
    context, shares, small_dense, h100
):
    framework = load_framework("torchtitan")
    keys = layer_keys([1], context_parallel=context)
    table = part_table(small_dense, keys, h100, framework, 16)
    for index, (part, priced) in enumerate(price_parts(small_dense, keys, h100, framework, 16)):
        window = pass_times(part, priced, keys, host_times_of(h100, framework), framework)[1]
        busy = adapter_times(priced, keys, 8)
        assert bool(busy.any()) == (shares and part.layer is not None)
        assert table[0, index].forward_window == pytest.approx(max(0.0, (window - busy)[0, 0]))


PLAIN = {"tensor_parallel": 8, "pipeline_parallel": 4, "data_parallel": 2, "micro_batches": 8,
         "sequence_parallel": False}  # fmt: skip


def both(**fields):
    """The same step with whole hidden states sent, and with shares."""
    keys = keys_of(**fields)
    return keys, [load_framework("megatron-2021", scatters_sends=it) for it in (False, True)]


@pytest.mark.parametrize(
    ("fields", "share", "gathers"),
    [
        ({"tensor_parallel": 8, "sequence_parallel": False}, 1 / 8, True),
        ({"tensor_parallel": 8, "sequence_parallel": True}, 1.0, False),  # shares already
        ({"tensor_parallel": 1}, 1.0, False),
    ],
)
def test_ranks_send_shares_of_what_each_of_them_holds(fields, share, gathers, small_dense, a100):
    keys, (whole, shares) = both(**fields)
    sent = float(sent_bytes(small_dense, keys, whole)[0])
    assert float(sent_bytes(small_dense, keys, shares)[0]) == sent * share
    found = arrival_gather(small_dense, keys, a100, shares)
    assert (float(found.time[0]) > 0) == gathers
    assert float(arrival_gather(small_dense, keys, a100, whole).time[0]) == 0
    if gathers:
        assert found.time[0] == collective_times(a100, "all_gather", sent, 8)


def test_adapters_carry_every_byte_once(project, a100, small_dense):
    """Narayanan et al. 2021, section 4.1: 1/t over the adapters, and a gather inside the node."""
    _, frameworks = both()
    whole, shares = (project(small_dense, a100, framework=it, **PLAIN) for it in frameworks)
    moved = {name for name in whole if whole[name] != shares[name]}
    assert {"pipeline_exposed", "pipeline_total", "step_time"} <= moved
    assert not any(name.startswith("memory_") or name == "pipeline_bubble" for name in moved)
    faster = whole["pipeline_exposed"] / shares["pipeline_exposed"]
    assert 2 < faster < 8
    saved = whole["pipeline_exposed"] - shares["pipeline_exposed"]
    assert whole["step_time"] - shares["step_time"] == pytest.approx(saved, rel=1e-9)
