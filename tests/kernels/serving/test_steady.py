"""One phase of a static batch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.kernels.serving import tables
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.steady import close_phase
from perfmodel.kernels.serving.tables import ROWS
from tests.kernels.serving.cases import deployment, load, pass_tables


def closed(deployments, loads, *, decoding: bool, **changes):
    out = np.full((len(ROWS), deployments.layout.size, loads.concurrency.size), -1.0)
    close_phase(pass_tables(**changes), deployments, loads, decoding, out)
    return tables.ServingRows(*out)


def test_decoding_takes_the_pass_of_its_batch_halfway_through_the_answers() -> None:
    loads = load(input_length=1000.0, output_length=200.0, concurrency=[8.0, 9.0])
    found = closed(deployment(ranks=2.0, devices=4.0), loads, decoding=True)
    for j, batch in enumerate((4.0, 5.0)):  # of the fuller of two ranks
        parts = pass_times(pass_tables(), 0, 0.0, 0.0, 0.0, batch, 1100.0, 1.0, 0.0)
        assert found.time_per_output_token_mean[0, j] == parts[0]
        assert found.batch[0, j] == batch
    assert found.tokens_per_second_per_user[0] == pytest.approx(
        1.0 / found.time_per_output_token_mean[0]
    )
    assert found.tokens_per_second_per_device[0] == pytest.approx(
        loads.concurrency / found.time_per_output_token_mean[0] / 4.0
    )
    assert np.isnan(found.time_to_first_token_mean).all()


def test_drafts_that_are_taken_shorten_a_token_not_a_pass() -> None:
    plain, drafted = (
        closed(
            deployment(draft_length=length, acceptance=0.5),
            load(concurrency=8.0),
            decoding=True,
        )
        for length in (0.0, 1.0)
    )
    ratio = drafted.inter_token_latency_mean / drafted.time_per_output_token_mean
    assert ratio[0, 0] == pytest.approx(1.5)
    assert drafted.inter_token_latency_mean > plain.inter_token_latency_mean


@pytest.mark.parametrize(("length", "batch", "passes"), [(1000, 8, 1), (3000, 8, 4), (9000, 3, 6)])
def test_prompts_fill_passes_or_are_cut(length: int, batch: int, passes: int) -> None:
    loads = load(input_length=float(length), concurrency=float(batch))
    found = closed(deployment(token_budget=8000.0), loads, decoding=False)
    if length <= 8000:
        held = min(8000 // length, batch)
        times = [pass_times(pass_tables(), 0, held, length, 0, 0, 0, 1, held)[0]] * passes
    else:
        first = pass_times(pass_tables(), 0, 1, 8000, 0, 0, 0, 1, 0)[0]
        times = [first, pass_times(pass_tables(), 0, 1, length - 8000, 8000, 0, 0, 1, 1)[0]] * batch
    assert len(times) == passes
    assert found.time_to_first_token_mean[0, 0] == pytest.approx(sum(times))
    parts = sum(getattr(found, f"{name}_time")[0, 0] for name in (*tables.PARTS, "host"))
    assert passes * parts == pytest.approx(sum(times))


def test_stages_run_different_passes_at_once() -> None:
    loads = load(input_length=3000.0, concurrency=8.0)
    one, four = (
        closed(deployment(token_budget=8000.0, stages=p), loads, decoding=False) for p in (1.0, 4.0)
    )
    ratio = four.time_to_first_token_mean / one.time_to_first_token_mean
    assert ratio[0, 0] == pytest.approx((1 + 3 / 4) / 4)


def test_a_batch_beyond_the_cache_has_no_room() -> None:
    loads = load(input_length=1600.0, output_length=1600.0, concurrency=[1.0, 2.0, 3.0])
    for decoding, valid in ((True, 1), (False, 2)):
        found = closed(deployment(blocks=200.0, block_tokens=16.0), loads, decoding=decoding)
        assert (found.status[0] == tables.STABLE).sum() == valid
        assert math.isnan(found.batch[0, 2])
