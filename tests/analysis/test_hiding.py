"""Bandwidths at which communication hides, against a formula and the model itself."""

from __future__ import annotations

import math

import pytest

from perfmodel import PerfModelError
from perfmodel.analysis.hiding import KEPT, LADDER, hiding_bandwidths
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
