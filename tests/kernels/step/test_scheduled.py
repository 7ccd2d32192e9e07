"""What strategies ask of the passes of their pipelines, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import load_hardware, load_model, strategy_grid
from perfmodel.base.pipelines import SCHEDULES
from perfmodel.compute.network import network_table
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT
from perfmodel.kernels.step.scheduled import (
    LOGIT_GRADIENTS,
    SHARD,
    Chunks,
    Shards,
    alone_passes,
    flights,
    heads_in_flight,
    kept_bytes,
    least_makespans,
    shard_prices,
    work_of_cases,
)
from perfmodel.kernels.step.tables import PART
from perfmodel.software.framework import load_framework
from perfmodel.strategy.pipelines import named_pipeline
from perfmodel.training.project import closing_settings, key_tables, laid_out
from perfmodel.training.scheduled import run_cases
from perfmodel.training.workload import Workload
from tests.kernels.pipeline.cases import random_pipeline


@pytest.fixture(scope="module")
def asked():
    """Arguments for strategies of ZeRO 1 and 3 with two global batches and two mappings."""
    model, hardware = load_model("llama-3.1-8b"), load_hardware("dgx-h100")
    grid = strategy_grid(
        model, 64, sequence_length=4096, global_batch_size=[256, 512], tensor_parallel=[1, 2],
        pipeline_parallel=1, zero_stage=[1, 3], micro_batch_size=[1, 2], mapping="all",
    )  # fmt: skip
    framework = load_framework("fsdp")
    work = laid_out(Workload(model, grid), hardware, framework)
    layer_key = work.stage_layer_key[work.strategies.stage_key]
    settings = closing_settings(work, hardware, framework)
    keys = key_tables(work, hardware, framework)
    return work.strategies, layer_key, keys, settings, network_table(hardware)


def test_only_sharded_parameters_have_a_row(asked):
    shards = shard_prices(*asked)
    assert ((shards.row >= 0) == (asked[0].zero_stage == 3)).all()
    of_all = [family.size for family in (shards.row, shards.row[shards.row >= 0])]
    assert 0 < shards.parts.shape[0] <= of_all[1] < of_all[0]
    for name in SHARD.names:
        assert np.isfinite(shards.parts[name]).all()
    assert (shards.parts.exposed <= shards.parts.total).all()


def test_each_strategy_alone_costs_the_same(asked):
    strategies, layer_key, *rest = asked
    shards = shard_prices(*asked)
    for i in np.flatnonzero(strategies.zero_stage == 3)[::7]:
        alone = shard_prices(strategies[i : i + 1], layer_key[i : i + 1], *rest)
        np.testing.assert_array_equal(shards.parts[shards.row[i]], alone.parts[0])


CHUNKS = Chunks(
    np.array([[1.0, 3.0, 0.0], [0.0, 4.0, 0.0], [0.0, 2.0, 1.0]]),  # embedding, layers, output
    np.array([0, 1, 1, 2]),
    np.array([0, 1, 1, 2]),
)


@pytest.fixture
def parts():
    """A layer takes 1 s forward and 2.5 s backward, of which 1 s is of weights."""
    found = np.zeros(3, PART).view(np.recarray)
    found["forward"][1], found["forward_pass"][1] = 1.0, 1.0
    found["backward"][1], found["recompute"][1], found["weight_pass"][1] = 2.0, 0.5, 1.0
    found["activations"] = [0.0, 10.0, 4.0]
    found["logits"][2] = 30.0
    return found


def kept(order, parts):
    return flights(order, CHUNKS, parts[None], 3)[0].tolist()


def test_passes_take_what_their_layers_take(parts):
    shards = Shards(np.zeros(0, np.int64), np.zeros((0, 3), SHARD).view(np.recarray))
    work, work_of = work_of_cases(np.arange(4), parts[None], np.array([-1]), CHUNKS, shards)
    work = work[:, work_of, 0]
    layers = np.array([3.0, 4.0, 4.0, 2.0])
    np.testing.assert_allclose(work[FORWARD], layers)
    np.testing.assert_allclose(work[BACKWARD], 2.5 * layers)
    np.testing.assert_allclose(work[WEIGHT], layers)
    np.testing.assert_allclose(work[INPUT] + work[WEIGHT], work[BACKWARD])


def test_stages_of_1f1b_keep_as_many_as_come_after_them(parts):
    order = named_pipeline("1f1b", 4, 8).order
    assert kept(order, parts) == [4.0, 3.0, 1.0]  # of a composition, the stage that keeps most
    assert heads_in_flight(order) == pytest.approx(1.0)


def test_gpipe_keeps_every_micro_batch(parts):
    order = named_pipeline("gpipe", 4, 8).order
    assert kept(order, parts) == [8.0, 8.0, 8.0]
    assert heads_in_flight(order) == pytest.approx(8.0)


def test_bytes_kept_are_those_of_the_parts(parts):
    order = named_pipeline("zb_h1", 4, 8).order
    until_input, until_weight = kept_bytes(order, CHUNKS, parts)
    np.testing.assert_allclose(until_input + until_weight, [30.0, 40.0, 40.0, 54.0])
    assert until_input[:3].tolist() == [0.0, 0.0, 0.0]  # activations wait for the weights
    assert until_input[3] == pytest.approx((1.0 - LOGIT_GRADIENTS) * 30.0)


def test_only_both_directions_run_passes_in_pairs():
    assert alone_passes(named_pipeline("1f1b", 4, 8).order) == 1.0
    assert alone_passes(named_pipeline("zb_v", 4, 8).order) == 1.0
    order = named_pipeline("dualpipe", 4, 16).order
    passes = np.count_nonzero(order.kind != WEIGHT)
    assert alone_passes(order) == pytest.approx(1.0 - 2.0 * order.paired.sum() / passes)
    assert alone_passes(order) < 0.7


def random_work(random, stages):
    """Passes of eight cases of uneven stages; either part of a backward pass may be nothing."""
    work = random.uniform(0.1, 2.0, (KINDS, stages, 8))
    work[INPUT] = work[BACKWARD] * random.choice([0.0, 0.3, 0.5, 1.0])
    work[WEIGHT] = work[BACKWARD] - work[INPUT]
    return work


def makespans(pipeline, work, sends=0.0):
    """Return how long it takes without sends, and with sends that keep their sender."""
    cases, stages = np.full(work.shape[2], sends), np.arange(work.shape[1])
    return run_cases(pipeline, work, stages, cases, 1.0, False)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_pipeline_is_faster_than_its_bound(schedule):
    random = np.random.default_rng(11)
    for _ in range(6):
        pipeline = random_pipeline(random, schedule)
        order = pipeline.order
        work = random_work(random, order.rank_of.size)
        least, growth = least_makespans(order, work)
        assert (least > 0.0).all()
        assert (growth > 0.0).all()
        found = makespans(pipeline, work, random.uniform(0.0, 0.5))
        assert (least <= found * (1.0 + 1e-12)).all()


@pytest.mark.parametrize("schedule", ["interleaved", "zb_h1", "zb_v", "dualpipe"])
@pytest.mark.parametrize("more", [1, 3])
def test_the_bound_grows_no_faster_than_the_pipeline(schedule, more):
    random = np.random.default_rng(more)
    few, many = (named_pipeline(schedule, 4, batches) for batches in (8, 8 + 4 * more))
    work = random_work(random, few.order.rank_of.size)
    least, growth = least_makespans(few.order, work)
    bound = least + more * growth
    assert (bound <= least_makespans(many.order, work)[0] + 1e-12).all()  # another rank may lead
    assert (bound <= makespans(many, work) + 1e-12).all()


def test_the_bound_is_exact_where_nothing_waits():
    random = np.random.default_rng(5)
    one = named_pipeline("1f1b", 1, 7)
    work = random_work(random, 1)
    np.testing.assert_allclose(
        least_makespans(one.order, work)[0], 7 * (work[FORWARD, 0] + work[BACKWARD, 0])
    )
    even = np.ones((KINDS, 4, 1))
    even[BACKWARD] = 2.0
    order = named_pipeline("1f1b", 4, 8).order
    assert least_makespans(order, even)[0].tolist() == [33.0]  # (8 + 3) * (1 + 2)
