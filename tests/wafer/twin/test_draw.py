"""The generator's own draw of experts, against those that it kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.twin.draw import GeneratorDraw
from tests.data import ROUTING_COUNTS, SHARED, needed

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
    monkeypatch.setattr("perfmodel.wafer.twin.draw.NUMBERS_AT_ONCE", 3 * 16)
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
