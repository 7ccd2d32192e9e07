"""The fit itself: places between bounds, what data decide, folds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.measured.fit import Scale, fit, folds


@given(
    low=st.one_of(st.just(0.0), st.floats(1e-15, 1e3)),
    width=st.floats(1e-3, 1e6),
    place=st.floats(0.0, 1.0),
)
def test_places_and_values_are_inverse_within_the_bounds(
    low: float, width: float, place: float
) -> None:
    scale = Scale(np.array([low]), np.array([low + width]))
    value = scale.values(np.array([place]))
    assert low <= value[0] <= low + width
    assert scale.places(value)[0] == pytest.approx(place, abs=1e-6)


def test_slopes_are_the_derivative_of_values() -> None:
    scale = Scale(np.array([0.0, 1e-7, 0.5]), np.array([1.0, 1e-5, 1.0]))
    places, step = np.array([0.3, 0.4, 0.9]), 1e-6
    numeric = (scale.values(places + step) - scale.values(places - step)) / (2 * step)
    assert scale.slopes(places) == pytest.approx(numeric, rel=1e-5)


def test_a_line_with_known_noise_has_the_textbook_uncertainty() -> None:
    """One parameter, rows = x + noise: the standard error is s / sqrt(n)."""
    random = np.random.default_rng(3)
    noise = 0.02 * random.standard_normal(4000)
    scale = Scale(np.array([0.0]), np.array([1.0]))
    found = fit(lambda x: x[0] - 0.4 + noise, np.array([0.5]), np.array([0.5]), scale)
    assert found.values[0] == pytest.approx(0.4, abs=0.002)
    assert found.uncertainty[0] == pytest.approx(0.02 / np.sqrt(4000), rel=0.1)
    assert found.resolution[0] > 0.99


def test_folds_keep_groups_together_and_are_even() -> None:
    groups = [i // 4 for i in range(100)]
    fold = folds(groups, 5)
    for group in set(groups):
        assert len({fold[i] for i in range(100) if groups[i] == group}) == 1
    assert np.bincount(fold).tolist() == [20] * 5
    assert folds(["same"] * 7, 5).tolist() == [0] * 7
