"""The time of one pass from tables: lines between knots, sizes of graphs, waits for the host."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving.passes import (
    captured_size,
    mean_pass,
    most_of_ranks,
    pass_times,
    pass_variation,
    prompt_cost,
    tokens_per_pass,
)
from perfmodel.kernels.serving.tables import FUSED, PARTS, PREFILL_FIRST, PassTables


def linear_tables(**changes: float) -> PassTables:
    """One layout whose parts are linear in everything, so that knots don't matter."""
    knots = np.array([1.0, 8.0, 64.0, 512.0])
    body = np.zeros((1, 4, len(PARTS)))
    body[0, :, 1] = 1e-3 + 1e-6 * knots
    numbers = {
        "eager_time": 0.0,
        "graph_time": 0.0,
        "graph_limit": 0.0,
        "graph_step": 8.0,
        "mixed_graph_limit": 0.0,
        "piecewise_time": 0.0,
        "pass_host": 0.0,
        "sequence_host": 0.0,
        "host_hidden": 0.0,
        "half_width": 0.0,
    }
    return PassTables(
        tokens=knots,
        body=body,
        sequences=knots,
        head=1e-7 * knots[None],
        batches=knots,
        contexts=knots,
        decode=1e-9 * knots[None, :, None] * knots[None, None, :],
        chunks=knots,
        before=np.concatenate(([0.0], knots)),
        prefill=1e-8 * knots[None, :, None] * np.ones((1, 1, 5)),
        draft=np.zeros((1, 4)),
        **{name: np.array([changes.get(name, value)]) for name, value in numbers.items()},
    )


def test_a_pass_is_the_sum_of_its_parts() -> None:
    time, *parts = pass_times(linear_tables(), 0, 2.0, 100.0, 0.0, 5.0, 300.0, 1.0, 1.0)
    assert time == pytest.approx(sum(parts), rel=1e-15)
    assert parts[1] == pytest.approx(1e-3 + 1e-6 * 205)
    assert parts[0] == pytest.approx(1e-8 * 200 + 1e-9 * 5 * 300)
    assert parts[4] == pytest.approx(1e-7 * 6)


def test_lines_go_on_beyond_the_last_knot() -> None:
    found = pass_times(linear_tables(), 0, 1.0, 5000.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert found[2] == pytest.approx(1e-3 + 1e-6 * 5000)


def test_a_captured_pass_runs_at_the_next_size() -> None:
    sizes = [captured_size(n, 32.0, 8.0) for n in (1.0, 3.0, 5.0, 17.0, 32.0, 33.0)]
    assert sizes == [1.0, 4.0, 8.0, 24.0, 32.0, 33.0]


def test_the_device_waits_for_a_host_that_takes_longer() -> None:
    slow = linear_tables(eager_time=0.5)
    assert pass_times(slow, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] == pytest.approx(0.5)
    hidden = linear_tables(pass_host=0.5, host_hidden=1.0)
    assert pass_times(hidden, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] == pytest.approx(0.5)
    apart = linear_tables(pass_host=0.5)
    assert pass_times(apart, 0, 1.0, 8.0, 0.0, 0.0, 1.0, 1.0, 1.0)[0] > 0.501


def test_tokens_of_a_pass_are_those_of_draws() -> None:
    taken = np.random.default_rng(0).random((200_000, 3)) < 0.7
    tokens = 1 + np.cumprod(taken, axis=1).sum(axis=1)
    assert tokens_per_pass(3.0, 0.7) == pytest.approx(tokens.mean(), rel=0.01)
    assert pass_variation(3.0, 0.7) == pytest.approx(tokens.var(), rel=0.02)
    assert tokens_per_pass(3.0, 1.0) == 4.0
    assert tokens_per_pass(0.0, 0.7) == 1.0


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
