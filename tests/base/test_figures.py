"""Colours: told apart whatever one's colour vision, and text on them that can be read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.figures import (
    BLACK,
    PALETTE,
    SHADES,
    WHITE,
    check_plot,
    figure_metadata,
    ink_on,
    shade,
)

# Linear RGB as dichromats see it (Viénot, Brettel and Mollon 1999, table of protan and deutan).
TO_LMS = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
PROTAN = np.array([[0.0, 2.02344, -2.52581], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
DEUTAN = np.array([[1.0, 0.0, 0.0], [0.494207, 0.0, 1.24827], [0.0, 0.0, 1.0]])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("vision", [np.eye(3), PROTAN, DEUTAN])
def test_groups_are_told_apart_by_every_vision(vision):
    seen = [np.linalg.inv(TO_LMS) @ vision @ TO_LMS @ linear(colour) for colour in PALETTE]
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(np.clip(one, 0, 1) - np.clip(other, 0, 1)) > 0.1


def test_shades_grow_lighter_and_are_the_palettes_at_its_places():
    lights = [luminance(shade(at / 100)) for at in range(101)]
    assert lights == sorted(lights)
    assert [shade(at / (len(SHADES) - 1)) for at in range(len(SHADES))] == list(SHADES)
    assert shade(-1.0) == SHADES[0]
    assert shade(2.0) == SHADES[-1]


@pytest.mark.parametrize("share", [at / 20 for at in range(21)])
def test_text_on_shades_has_the_contrast_of_wcag(share):
    colour = shade(share)
    a, b = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (b + 0.05) / (a + 0.05) >= 4.5
    assert ink_on(colour) in (WHITE, BLACK)


def test_files_have_no_dates_and_formats_are_few():
    assert figure_metadata(".svg") == {"Date": None}
    assert figure_metadata(".png") is None
    with pytest.raises(DataError, match=r"ends in \.png, \.svg, \.pdf"):
        check_plot("figure.gif")
