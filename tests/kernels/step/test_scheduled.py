"""What strategies ask of the passes of their pipelines, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from perfmodel.kernels.pipeline.events import KINDS
from perfmodel.kernels.pipeline.held import fullest
from perfmodel.kernels.step.scheduled import (
    LOGIT_GRADIENTS,
    Chunks,
    alone_passes,
    chunk_rows,
    fill_work,
    heads_in_flight,
    kept_bytes,
    write_flight,
)
from perfmodel.kernels.step.shards import SHARD, Shards
from perfmodel.kernels.step.tables import PART
from perfmodel.kernels.work import kernel_work
from perfmodel.strategy.pipelines import named_pipeline

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


def flights(order, parts):
    found = np.zeros(3)
    write_flight(found, order, *fullest(order, chunk_rows(order, CHUNKS), 3), CHUNKS, parts)
    return found.tolist()


def test_passes_take_what_their_layers_take(parts):
    work = np.zeros((KINDS, 4))
    with kernel_work():
        shards = Shards(np.zeros(0, np.int64), np.zeros((0, 3), SHARD).view(np.recarray))
        fill_work(work, np.arange(4), CHUNKS, parts, shards, -1)
    layers = np.array([3.0, 4.0, 4.0, 2.0])
    np.testing.assert_allclose(work[FORWARD], layers)
    np.testing.assert_allclose(work[BACKWARD], 2.5 * layers)
    np.testing.assert_allclose(work[WEIGHT], layers)
    np.testing.assert_allclose(work[INPUT] + work[WEIGHT], work[BACKWARD])


def test_stages_of_1f1b_keep_as_many_as_come_after_them(parts):
    order = named_pipeline("1f1b", 4, 8).order
    assert flights(order, parts) == [4.0, 3.0, 1.0]  # of a composition, the stage that keeps most
    assert heads_in_flight(order) == pytest.approx(1.0)


def test_gpipe_keeps_every_micro_batch(parts):
    order = named_pipeline("gpipe", 4, 8).order
    assert flights(order, parts) == [8.0, 8.0, 8.0]
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
