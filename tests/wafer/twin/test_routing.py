"""Routing as the generator draws it, against what it kept."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin.facts import generator_model
from perfmodel.wafer.twin.routing import GeneratorRouting
from perfmodel.wafer.twin.setting import Iteration
from tests.data import WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, LATENT, system

DEEPSEEK = generator_model(load_model("deepseek-v3"))


def test_dealt_out_as_the_generator_does():
    with np.load(needed(WAFER / "ref_routings_decode10.npz")) as kept:
        reference = kept["d01"]
    iteration = Iteration(DEEPSEEK, system(1), 32, 1, 1024)
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
    many = Iteration(LATENT, iteration.system, 32, 1, 9)
    with pytest.raises(DataError, match="names the same expert twice"):
        GeneratorRouting({0: many}, "identical")(0)
