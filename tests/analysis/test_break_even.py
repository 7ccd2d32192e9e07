"""Values at which two projections change places."""

from __future__ import annotations

import math

import pytest

from perfmodel import PerfModelError, load_hardware, project
from perfmodel.analysis.break_even import KEPT, LADDER, break_even, hiding_bandwidths
from tests.analysis.toy_case import formula, hidden_behind, training


def test_the_bandwidth_is_where_communication_takes_as_long_as_compute() -> None:
    compute, size = 0.5, 100e9
    case = formula(hidden_behind(compute, size))  # 2 s of it at 50 GB/s
    (exact,) = hiding_bandwidths(case, 0.0)
    assert exact.communication == "data_parallel"
    assert exact.level_name == "infiniband"
    assert exact.exposed == pytest.approx(1.5)
    assert exact.hiding_bandwidth == pytest.approx(size / compute, rel=1e-5)
    assert exact.factor == pytest.approx(4.0, rel=1e-5)
    # With 1 % of the step to spare: total - compute = 0.01 (1 + total).
    (near,) = hiding_bandwidths(case, 0.01)
    total = (compute + 0.01) / 0.99
    assert near.hiding_bandwidth == pytest.approx(size / total, rel=1e-5)
    assert near.verdict == "at"


def test_what_latency_alone_keeps_showing_is_said_to_be_so() -> None:
    case = formula(hidden_behind(0.001, 1e9, latency=1e6))
    (found,) = hiding_bandwidths(case)
    assert found.verdict == "latency"
    assert math.isinf(found.hiding_bandwidth)
    messages = 1e6 * case.hardware.system.network[1].latency
    assert found.remaining == pytest.approx(messages - 0.001, rel=1e-3)


def test_what_always_hides_says_up_to_where_that_was_tried() -> None:
    (found,) = hiding_bandwidths(formula(hidden_behind(100.0, 1e9)))
    assert (found.verdict, found.factor, found.remaining) == ("always", LADDER[0], 0.0)


@pytest.mark.parametrize("tolerance", [0.01, 0.001])
def test_at_the_bandwidth_a_real_step_hides_it_and_below_not(tolerance: float) -> None:
    case = training(keep=KEPT, tensor_parallel=4)
    found = [it for it in hiding_bandwidths(case, tolerance) if it.verdict == "at"]
    assert found
    for it in found:
        path = f"system.network.{it.level}.bandwidth"
        there, below = case.vary(
            [{path: it.hiding_bandwidth}, {path: it.hiding_bandwidth * (1 - 1e-3)}]
        )
        name = f"{it.communication}_exposed"
        assert there.results[name] <= tolerance * there.results["step_time"]
        assert below.results[name] > tolerance * below.results["step_time"]


def test_a_tolerance_is_a_share_and_a_case_keeps_its_times() -> None:
    with pytest.raises(PerfModelError, match="no share"):
        hiding_bandwidths(training(keep=KEPT), 1.5)
    with pytest.raises(PerfModelError, match="training step"):
        hiding_bandwidths(training())


MEMORY = "device.memory.bandwidth"


def test_two_lines_cross_where_worked_out_by_hand() -> None:
    # 6e12 / x = 1 + 2e12 / x  where  x = 4e12
    a = formula(lambda row: {"step_time": 6e12 / row.device.memory.bandwidth})
    b = formula(lambda row: {"step_time": 1.0 + 2e12 / row.device.memory.bandwidth})
    found = break_even(a, b, MEMORY)
    (crossing,) = found.crossings
    assert crossing.value == pytest.approx(4e12, rel=1e-9)
    assert crossing.a == pytest.approx(1.5)
    assert (found.better, crossing.better, crossing.exact) == ("b", "a", True)
    # Varied in A alone, B stays as it is.
    alone = break_even(a, b, MEMORY, sides="a")
    here = b.base().value
    assert alone.crossings[0].value == pytest.approx(6e12 / here, rel=1e-9)


def test_none_in_the_range_is_said() -> None:
    a = formula(lambda row: {"step_time": 6e12 / row.device.memory.bandwidth})
    b = formula(lambda row: {"step_time": 7e12 / row.device.memory.bandwidth})
    found = break_even(a, b, MEMORY)
    assert (found.crossings, found.better) == ([], "a")
    crossing = formula(lambda row: {"step_time": 1.0 + 2e12 / row.device.memory.bandwidth})
    assert not break_even(a, crossing, MEMORY, limits=(1e12, 3e12)).crossings


def test_a_jump_is_no_equality() -> None:
    a = formula(lambda row: {"step_time": 2.0 if row.device.memory.bandwidth < 3e12 else 1.0})
    b = formula(lambda row: {"step_time": 1.5})
    (crossing,) = break_even(a, b, MEMORY).crossings
    assert crossing.value == pytest.approx(3e12, rel=1e-9)
    assert not crossing.exact


def test_real_strategies_take_the_same_time_there() -> None:
    a, b = training(), training(tensor_parallel=4, pipeline_parallel=1)
    limits = 90e9, 1.8e12
    found = break_even(a, b, "system.network.nvlink.bandwidth", limits=limits)
    assert found.path == "system.network.0.bandwidth"
    exact = [crossing for crossing in found.crossings if crossing.exact]
    assert exact
    for crossing in exact:
        profile = load_hardware("dgx-h100").with_values({found.path: crossing.value})
        times = [
            project(
                "llama-3.1-8b",
                profile,
                16,
                global_batch_size=32,
                sequence_length=4096,
                tensor_parallel=tensor,
                pipeline_parallel=stages,
                virtual_pipeline=1,
                micro_batch_size=1,
                recompute="none",
            )["step_time"]
            for tensor, stages in ((2, 2), (4, 1))
        ]
        assert times[0] == pytest.approx(times[1], rel=1e-6)
    assert (found.better, found.crossings[-1].better) == ("a", "b")


def test_prices_at_which_machines_cost_the_same() -> None:
    options = {"by": "cost_per_token", "costs": {"price": {"dgx-h100": 2.5, "dgx-b200": 4.0}}}
    a = training(**options)
    b = training(**options, hardware=load_hardware("dgx-b200"))
    (crossing,) = break_even(a, b, "system.price", sides="b").crossings
    # Cost is price over rate: the price is that of A times how much faster B is.
    assert crossing.value == pytest.approx(4.0 * a.base().value / b.base().value, rel=1e-9)
    assert crossing.a == pytest.approx(crossing.b, rel=1e-6)


def test_batches_and_lengths_are_whole_and_possible() -> None:
    a, b = training(), training(pipeline_parallel=1, zero_stage=3)
    found = break_even(a, b, "global-batch", limits=(8, 4096))
    assert found.path == "global_batch_size"
    assert all(value % 8 == 0 for value in found.values)
    for crossing in found.crossings:
        assert crossing.before < crossing.value
        before, after = (
            [case.vary([{"global_batch_size": int(it)}])[0].value for case in (a, b)]
            for it in (crossing.before, crossing.value)
        )
        assert (before[0] < before[1]) != (after[0] < after[1])


@pytest.mark.parametrize(
    ("path", "limits", "words"),
    [
        ("device.memory.bandwith", None, "nearest: device.memory.bandwidth"),
        ("recompute", None, "is a choice"),
        ("system.network.0.in_network_reduction", None, "is a switch"),
        ("device.memory.bandwidth", (2.0, 1.0), "no range"),
        ("device.memory.last_level_cache_bandwidth", None, "is 0 today"),
        ("seq-len", (3.0, 3.5), "fewer than two values"),
    ],
)
def test_bad_input_is_one_line(path: str, limits: tuple[float, float] | None, words: str) -> None:
    with pytest.raises(PerfModelError, match=words) as caught:
        break_even(training(), training(), path, limits=limits)
    assert "\n" not in str(caught.value)


def test_two_variables_cannot_be_compared() -> None:
    with pytest.raises(PerfModelError, match="cannot be compared"):
        break_even(training(), training(by="memory_total"), MEMORY)
