"""Synthetic traces: run times that follow from pencil and paper."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.workloads.convert.synthetic import (
    SCHEDULES,
    Work,
    consecutive_groups,
    dependent_compute,
    pipeline,
    repeated_collectives,
)
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import EVERYBODY, TraceSet
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.workloads.twins.astra.networks import simulate_collective

PASS, BACK = 1_000_000, 2_000_000  # ns


def ring(devices, **settings):
    network = AstraNetwork(("Ring",), (devices,), (50.0,), (500.0,))
    return network, uniform_system(["ring"], **settings)


def walls(traces, **settings):
    """Wall times [ns] by rank on a ring of 50 GiB/s and 500 ns."""
    return simulate(traces, AstraCosts(*ring(traces.devices, **settings))).ticks("wall_time")


def message_time(size):
    """Time of one message between neighbours [ns]."""
    one = pipeline(2, 1, Work(1e-6), Work(1e-6), size)
    return (max(walls(one)) - 4000) // 2


def test_a_chain_of_computation_takes_the_sum_of_its_nodes():
    assert walls(dependent_compute(4, 10, duration=5e-6)) == (50_000,) * 4


def test_a_chain_is_priced_by_the_roofline_where_operations_are_stated():
    # 2e6 FLOP on 3000 B, 1600 GB/s, 900 TFLOP/s: 2e6 / min(1.07e15, 9e14) = 2.2 ns, cut to 2.
    traces = dependent_compute(2, 7, num_ops=2_000_000, tensor_size=3000)
    roofline = {"roofline_enabled": True, "peak_performance_teraflops": 900.0}
    assert walls(traces, **roofline) == (14, 14)


@pytest.mark.parametrize("chained", [True, False])
def test_collectives_take_their_number_times_one_collective(chained):
    # All-reduce of 1 MiB on 16 devices: 53,710 ns (RUN of ASTRA-sim af2492b).
    assert (
        walls(repeated_collectives(16, "all_reduce", 2**20, 5, chained=chained))
        == (5 * 53_710,) * 16
    )


def test_only_the_chain_orders_its_collectives():
    chain = repeated_collectives(2, "all_gather", 64, 3).traces[0]
    free = repeated_collectives(2, "all_gather", 64, 3, chained=False).traces[0]
    assert [list(chain.data_parents[i]) for i in range(3)] == [[], [0], [1]]
    assert len(free.data_parents.values) == 0
    assert chain.parent_positions().values.tolist() == [0, 1]
    assert set(chain.group.tolist()) == {EVERYBODY}


def test_groups_run_beside_each_other_and_ranks_in_none_do_nothing():
    traces = repeated_collectives(8, "all_reduce", 2**20, 3, [[0, 2, 4, 6], [3, 1]])
    times = walls(traces)
    assert times[0] == times[6] > times[1] == times[3] > 0
    assert times[5] == times[7] == 0
    assert traces.members(3, 0) == (3, 1)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_every_kind_of_collective_takes_what_the_network_model_says(kind):
    network, system = ring(8)
    one = simulate_collective(network, system, kind, 2**16).slowest_nanoseconds
    assert walls(repeated_collectives(8, kind, 2**16, 2)) == (2 * one,) * 8


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_single_micro_batch_takes_all_passes_and_all_messages(schedule, stages):
    traces = pipeline(stages, 1, Work(1e-3), Work(2e-3), 1024, schedule)
    if stages == 1:
        traces = TraceSet(traces.traces * 2)  # a network needs two devices
    expected = stages * (PASS + BACK) + 2 * (stages - 1) * message_time(1024)
    assert max(walls(traces)) == expected


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (3, 7)])
def test_gpipe_takes_the_bubble_and_one_way_there_and_back(stages, micro_batches):
    traces = pipeline(stages, micro_batches, Work(1e-3), Work(2e-3), 1024, "gpipe")
    expected = (micro_batches + stages - 1) * (PASS + BACK)
    assert max(walls(traces)) == expected + 2 * (stages - 1) * message_time(1024)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 2)])
def test_1f1b_takes_the_bubble_and_at_most_two_messages_per_slot(stages, micro_batches):
    traces = pipeline(stages, micro_batches, Work(1e-3), Work(2e-3), 1024)
    slots = micro_batches + stages - 1
    over = max(walls(traces)) - slots * (PASS + BACK)
    assert 2 * (stages - 1) * message_time(1024) <= over <= 2 * slots * message_time(1024)


def test_1f1b_keeps_at_most_as_many_micro_batches_as_stages_follow():
    traces = pipeline(4, 8, Work(1e-3), Work(2e-3), 0)
    for stage, trace in enumerate(traces.traces):
        passes = [name for name in trace.names if name.startswith("COMP")]
        alive = np.cumsum([1 if "forward" in name else -1 for name in passes])
        assert (alive.max(), alive[-1]) == (4 - stage, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dependent_compute(0, 1), "devices is 0"),
        (lambda: dependent_compute(1, 0), "number of nodes is 0"),
        (lambda: dependent_compute(1, 10**12), "number of nodes"),
        (lambda: dependent_compute(1, 1, duration=float("nan")), "duration is nan"),
        (lambda: dependent_compute(1, 1, num_ops=-2), "num_ops is -2"),
        (lambda: repeated_collectives(2, "all_redcue", 1, 1), "did you mean all_reduce"),
        (lambda: repeated_collectives(2, "all_reduce", -1, 1), "size is -1"),
        (lambda: repeated_collectives(2, "all_reduce", 1, 1, [[0, 2]]), "rank of group 1 is 2"),
        (lambda: repeated_collectives(2, "all_reduce", 1, 1, [[0], [0]]), "rank 0 is in two"),
        (lambda: pipeline(2, 0, Work(), Work(), 1), "micro_batches is 0"),
        (lambda: pipeline(1000, 10**6, Work(), Work(), 1), "should be asked for"),
        (lambda: pipeline(2, 1, Work(), Work(), 1, "2f2b"), "schedule '2f2b'"),
        (lambda: pipeline(2, 1.5, Work(), Work(), 1), "should be a whole number"),
    ],
)
def test_numbers_out_of_bounds_are_refused_in_one_line(call, message):
    with pytest.raises(DataError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_groups_of_consecutive_ranks_come_out_even():
    assert consecutive_groups(6, 3) == [range(3), range(3, 6)]
    assert consecutive_groups(6, None) == []
    with pytest.raises(StrategyError, match="--devices 6 is not a multiple of --group-size 4"):
        consecutive_groups(6, 4)


def test_a_backward_pass_is_twice_the_work_that_is_stated():
    assert Work(1e-3, 10, 7).twice() == Work(2e-3, 20, 14)
    assert Work(1e-3).twice() == Work(2e-3)
