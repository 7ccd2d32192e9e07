"""Power, checkpoints and goodput against published figures and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.training.cost import (
    FAILURES_PER_DEVICE_HOUR,
    HOST_SHARE,
    RESTART_TIME,
    checkpoint_interval,
    device_power,
    goodput,
)

HOUR, MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(
    ("failure_time", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)]
)
def test_daly_2006_figures_3_to_5(failure_time: float, minutes: float) -> None:
    """Checkpoints of 5 minutes, restarts of 10: the optimum is printed in the captions."""
    found = checkpoint_interval(5 * MINUTE, failure_time) / MINUTE
    assert found == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_the_interval_is_the_best_one() -> None:
    times = np.geomspace(1.0, 1e5, 20_001)
    for checkpoint, failure in ((3.0, 1e4), (300.0, 6 * HOUR), (300.0, 24 * HOUR)):
        chosen = goodput(checkpoint_interval(checkpoint, failure), checkpoint, 600.0, failure)
        best = goodput(times, checkpoint, 600.0, failure).max()
        assert 0.9999 * best < chosen <= best * (1 + 1e-8)


def test_youngs_interval_is_the_limit_of_rare_failures() -> None:
    assert checkpoint_interval(1.0, 1e10) == pytest.approx(np.sqrt(2e10), rel=1e-4)


def test_checkpoints_longer_than_the_time_between_failures() -> None:
    assert checkpoint_interval(1e4, 1e3) == 1e3
    lost = goodput(1e3, 1e9, 600.0, 1e3)
    assert lost == 0.0  # and no warning of an overflow


def test_goodput_by_simulation() -> None:
    """Failures drawn at random, segment by segment: a second way to the same share."""
    interval, checkpoint, restart, failure = 900.0, 60.0, 300.0, 3600.0
    draw = np.random.default_rng(1)
    elapsed, segments = 0.0, 20_000
    for _ in range(segments):
        while (survived := draw.exponential(failure)) < interval + checkpoint:
            elapsed += survived
            while (down := draw.exponential(failure)) < restart:
                elapsed += down
            elapsed += restart
        elapsed += interval + checkpoint
    simulated = segments * interval / elapsed
    assert goodput(interval, checkpoint, restart, failure) == pytest.approx(simulated, rel=0.01)


def test_llama_3_405b_was_effective_for_more_than_90_percent() -> None:
    """Llama 3, section 3.3.4; 14 B per parameter at 2 TB/s, restarts as in MegaScale."""
    failure = HOUR / (FAILURES_PER_DEVICE_HOUR * 16384)
    assert failure == pytest.approx(3.1 * HOUR, rel=0.01)
    checkpoint = 405e9 * 14 / 2e12
    share = goodput(checkpoint_interval(checkpoint, failure), checkpoint, RESTART_TIME, failure)
    assert 0.90 < share < 0.95


def test_goodput_falls_with_whatever_takes_time() -> None:
    failure = np.geomspace(1e3, 1e7, 9)
    interval = checkpoint_interval(30.0, failure)
    share = goodput(interval, 30.0, 600.0, failure)
    assert np.all(np.diff(share) > 0)
    assert np.all((share > 0) & (share < 1))
    assert np.all(goodput(interval, 60.0, 600.0, failure) < share)
    assert np.all(goodput(interval, 30.0, 900.0, failure) < share)


def test_a_node_of_eight_h100_draws_what_was_measured() -> None:
    """8.4 kW near full utilisation (Latif et al.), 76 % of 10.2 kW as a rule (Newkirk et al.)."""
    host = HOST_SHARE * (10.2e3 - 8 * 700.0)
    assert 8 * device_power(1.0, 700.0) + host == pytest.approx(8.4e3)
    assert (8 * device_power(0.75, 700.0) + host) / 10.2e3 == pytest.approx(0.76, abs=0.01)


def test_power_lies_between_waiting_and_the_limit() -> None:
    power = device_power(np.linspace(0.0, 1.0, 11), 700.0)
    assert np.all(np.diff(power) > 0)
    assert (power[0], power[-1]) == (350.0, 700.0)
