"""What prompts cost those that decode, against sums over passes drawn at random."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.interference import mean_pass, most_of_ranks, prompt_cost
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import FUSED, PREFILL_FIRST
from tests.kernels.serving.test_passes import linear_tables

TABLES = linear_tables()


def test_a_prompt_beside_decoding_adds_its_tokens():
    decode, fixed, each, passes, room = prompt_cost(
        TABLES, 0, FUSED, 1028.0, 256.0, 0.0, 4.0, 300.0, 1.0
    )
    assert decode == pass_times(TABLES, 0, 0.0, 0.0, 0.0, 4.0, 300.0, 1.0, 0.0)[0]
    assert (passes, room) == (1.0, 4.0)
    assert fixed == pytest.approx(0.0, abs=1e-12)
    assert each == pytest.approx(256 * (1e-6 + 1e-8) + 1e-7)


def test_a_long_prompt_takes_more_passes_and_as_much_time():
    whole = prompt_cost(TABLES, 0, FUSED, 2052.0, 2048.0, 0.0, 4.0, 300.0, 1.0)
    parts = prompt_cost(TABLES, 0, FUSED, 516.0, 2048.0, 0.0, 4.0, 300.0, 1.0)
    assert parts[3:] == (4.0, 0.25)
    assert parts[2] == pytest.approx(whole[2] + whole[1], rel=1e-6)


def test_prompts_first_run_in_passes_of_their_own():
    found = prompt_cost(TABLES, 0, PREFILL_FIRST, 1024.0, 256.0, 0.0, 4.0, 300.0, 1.0)
    alone = pass_times(TABLES, 0, 1.0, 256.0, 0.0, 0.0, 0.0, 1.0, 1.0)[0]
    assert found[1] + found[2] == pytest.approx(alone)
    assert found[1] == pytest.approx(1e-3, rel=1e-3)


def test_mean_pass_is_that_of_drawn_passes():
    random = np.random.default_rng(2)
    decode, fixed, each, rate = 5e-3, 3e-3, 8e-3, 25.0
    last, taken = decode, []
    with_prompts = 0
    for _ in range(40_000):
        came = random.poisson(rate * last)
        with_prompts += came > 0
        last = decode + (came > 0) * fixed + came * each
        taken.append(last)
    time, share = mean_pass(decode, fixed, each, 1.0, rate, 1.0)
    assert time == pytest.approx(np.mean(taken), rel=0.02)
    assert share == pytest.approx(with_prompts / 40_000, rel=0.1)


def test_no_prompts_leave_passes_alone():
    assert mean_pass(5e-3, 3e-3, 8e-3, 1.0, 0.0, 8.0) == (5e-3, 0.0)


def test_ranks_in_step_wait_for_each_others_prompts():
    alone = mean_pass(5e-3, 0.0, 8e-3, 1.0, 10.0, 1.0)[0]
    few = mean_pass(5e-3, 0.0, 8e-3, 1.0, 10.0 / 8, 8.0)[0]
    many = mean_pass(5e-3, 0.0, 8e-3, 1.0, 10.0, 8.0)[0]
    assert few == pytest.approx(alone, rel=0.01)
    assert alone < many < mean_pass(5e-3, 0.0, 8e-3, 1.0, 80.0, 1.0)[0]


@pytest.mark.parametrize("mean", [0.1, 1.0, 12.0, 60.0])
def test_the_most_of_ranks_is_that_of_drawn_numbers(mean):
    drawn = np.random.default_rng(4).poisson(mean, (40_000, 8)).max(axis=1)
    assert most_of_ranks(mean, 8.0) == pytest.approx(np.mean(drawn), rel=0.1)
    assert most_of_ranks(mean, 1.0) == mean


def test_prompts_can_take_all_time():
    assert mean_pass(5e-3, 0.0, 8e-3, 1.0, 125.0, 1.0) == (math.inf, 1.0)


@pytest.mark.parametrize(("ranks", "rate"), [(1.0, 0.4), (8.0, 0.06), (8.0, 0.03)])
def test_long_passes_follow_long_passes(ranks: float, rate: float) -> None:
    """Prompts that come during a long pass make the next one long: passes played out."""
    decode, fixed, each = 0.03, 0.2, 1.5
    random = np.random.default_rng(4)
    time, total, with_prompts, count = decode, 0.0, 0, 300_000
    for _ in range(count):
        most = random.poisson(rate * time, int(ranks)).max()
        time = decode + (fixed + each * most if most else 0.0)
        total += time
        with_prompts += most > 0
    found, share = mean_pass(decode, fixed, each, 1.0, rate, ranks)
    assert found == pytest.approx(total / count, rel=0.1)
    assert share == pytest.approx(with_prompts / count, rel=0.1)
