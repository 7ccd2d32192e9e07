"""The generator's own draw of experts, against those that it kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.routing import GeneratorDraw, GeneratorRouting
from tests.data import ROUTING_COUNTS, SHARED, WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, LATENT, system
from tests.wafer.twin.examples import iteration as iteration_of

LAYER = 7  # decode10, the eighth of DeepSeek-V3's layers with experts


@pytest.mark.parametrize(
    ("configuration", "empirical"), [("d07", False), ("d10", False), ("d16", True)]
)
def test_equals_what_the_generator_drew(configuration, empirical):
    with np.load(needed(SHARED / "wse/ref_routings_decode10.npz")) as kept:
        reference = kept[configuration]
    probabilities = np.ones((LAYER + 1, 256))
    if empirical:
        counts = json.loads(needed(ROUTING_COUNTS).read_text())
        probabilities = np.array([counts[str(layer)] for layer in range(LAYER + 1)])
    experts = GeneratorDraw(probabilities, 8).next_step(reference[0].size)
    assert (experts[LAYER].T.reshape(reference.shape) == reference).all()


def test_first_draw_of_torch():
    # torch.manual_seed(42); torch.multinomial(torch.ones(8), 3), three times (torch 2.13)
    drawn = GeneratorDraw(np.ones((3, 8)), 3).next_step(1)
    assert drawn[:, 0].tolist() == [[3, 0, 1], [0, 1, 2], [4, 0, 7]]


def test_parts_and_steps_continue_one_stream(monkeypatch):
    whole = GeneratorDraw(np.ones((1, 16)), 4).next_step(10)
    monkeypatch.setattr("perfmodel.wafer.twin.routing.NUMBERS_AT_ONCE", 3 * 16)
    draw = GeneratorDraw(np.ones((1, 16)), 4)
    parts = np.concatenate([draw.next_step(4), draw.next_step(6)], axis=1)
    assert (parts == whole).all()
    assert draw.next_step(0).shape == (1, 0, 4)


@pytest.mark.parametrize(
    ("probabilities", "top_k", "message"),
    [
        (np.ones(4), 2, "layers x experts"),
        (np.array([[1.0, np.nan]]), 1, "finite"),
        (np.array([[1.0, -1.0]]), 1, "not negative"),
        (np.array([[1.0, 0.0]]), 2, "2 experts of 1"),
        (np.ones((1, 4)), 5, "5 experts of 4"),
    ],
)
def test_refuses(probabilities, top_k, message):
    with pytest.raises(DataError, match=message):
        GeneratorDraw(probabilities, top_k)


def test_refuses_a_draw_without_end():
    with pytest.raises(DataError, match="at most"):
        GeneratorDraw(np.ones((1, 4)), 1).next_step(2**40)


DEEPSEEK = load_model("deepseek-v3")


def test_distributed_as_the_generator_does():
    with np.load(needed(WAFER / "ref_routings_decode10.npz")) as kept:
        reference = kept["d01"]
    iteration = iteration_of(DEEPSEEK, system(1), 32, 1, 1024)
    experts = GeneratorRouting({0: iteration}, "identical")(0).of_layer(7)
    assert (experts.transpose(2, 0, 1) == reference).all()


def test_steps_continue_one_stream():
    iteration = ITERATIONS["clusters"]
    both = GeneratorRouting({0: iteration, 9: iteration}, "uniform")
    first, last = both(0).experts, both(9).experts
    assert first.shape == (2, 7, 1, 3)
    assert (first != last).any()
    skipped = GeneratorRouting({0: iteration, 9: iteration}, "uniform")
    assert (skipped(9).experts == last).all()
    with pytest.raises(DataError, match="step 0 was drawn before"):
        skipped(0)


def test_wrong():
    iteration = ITERATIONS["clusters"]
    with pytest.raises(DataError, match="the generator has no 'two_level'; known: identical"):
        GeneratorRouting({0: iteration}, "two_level")
    with pytest.raises(DataError, match="needs counts per expert"):
        GeneratorRouting({0: iteration}, "empirical")
    with pytest.raises(DataError, match=r"counts of shape \(1, 12\); the model has \(2, 12\)"):
        GeneratorRouting({0: iteration}, "empirical", np.ones((1, 12)))
    with pytest.raises(DataError, match="7 tokens x 3 experts do not go evenly into 12"):
        GeneratorRouting({0: iteration}, "identical")(0)
    many = iteration_of(LATENT, iteration.system, 32, 1, 9)
    with pytest.raises(DataError, match="names the same expert twice"):
        GeneratorRouting({0: many}, "identical")(0)
