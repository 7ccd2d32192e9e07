"""Chunks of a collective over several dimensions."""

from __future__ import annotations

from tests.workloads.twins.astra.networks import MIB, time_of, two_dimensions


def test_all_reduce_over_two_dimensions_scatters_then_gathers():
    network, size = two_dimensions(), 3_000_000
    phases = [
        time_of(network, "ring|direct", collective, amount, [inner, not inner])
        for collective, amount, inner in (
            ("reduce_scatter", size, True),
            ("all_reduce", size // 4, False),
            ("all_gather", size // 4, True),
        )
    ]
    assert time_of(network, "ring|direct", "all_reduce", size) == sum(phases)


def test_baseline_reduces_whole_on_each_dimension():
    network, size = two_dimensions(), 3_000_000
    phases = [
        time_of(network, "ring|direct", "all_reduce", size, [inner, not inner])
        for inner in (True, False)
    ]
    optimization = {"collective_optimization": "baseline"}
    assert time_of(network, "ring|direct", "all_reduce", size, **optimization) == sum(phases)
    assert time_of(network, "ring|direct", "all_reduce", size) < sum(phases)


def test_scheduling_policy_orders_collectives_not_chunks():
    times = {
        time_of(two_dimensions(), "ring|ring", "all_reduce", MIB, scheduling_policy=policy)
        for policy in ("LIFO", "FIFO", "EXPLICIT")
    }
    assert len(times) == 1


def test_all_gather_begins_outside():
    network, size = two_dimensions(), 3_000_000
    outer = time_of(network, "ring|direct", "all_gather", size, [False, True])
    inner = time_of(network, "ring|direct", "all_gather", 8 * size, [True, False])
    assert time_of(network, "ring|direct", "all_gather", size) == outer + inner
