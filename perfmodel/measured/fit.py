"""The fit behind `perfmodel calibrate`: few physical numbers, robust, held by a prior.

Every parameter is a place between its bounds: 0 at ``low``, 1 at ``high``, in the
logarithm where the bounds are far apart. The fit minimises

    sum_i rho(ln(predicted_i / measured_i)) + sum_k rho(NOISE (x_k - x0_k) / PRIOR_SPREAD),

``rho`` being soft-L1 with `NOISE` as its width (SciPy's ``loss="soft_l1"``): rows that are
off by more count by their absolute, not their squared error. A parameter that leaves its
prior ``x0`` by a quarter of its range thus costs what one row costs that is off by 10 %:
a handful of rows outweighs the prior wherever they have something to say, and where they
have nothing to say the parameter stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats

LogRatios = Callable[[Floats], Floats]
"""Values of the parameters -> ln(predicted / measured) of every row."""

NOISE = 0.1
"""Scatter of one row around a good model: measurements of one kernel by several libraries
differ by 2 to 10 %."""
PRIOR_SPREAD = 0.25
"""Standard deviation of the prior as a share of the range between the bounds."""
STEP = 0.01
"""Finite differences, as a share of the range: wider than the small jumps where another
tile becomes the fastest."""
WIDE = 10.0  # bounds whose ratio exceeds this are a range of the logarithm
EVALUATIONS = 60
RESOLVED = 0.5


@dataclass(frozen=True, slots=True)
class Scale:
    """Places between the bounds of parameters, and back.

    Attributes
    ----------
    low, high : ndarray, shape (parameter,)
        Bounds; ``low < high``.
    """

    low: Floats
    high: Floats

    @property
    def _logarithmic(self) -> NDArray[np.bool_]:
        positive = self.low > 0.0
        return positive & (self.high > WIDE * np.where(positive, self.low, 1.0))

    def places(self, values: Floats) -> Floats:
        """Return the places (0 to 1) of values."""
        log = self._logarithmic
        low = np.where(log, self.low, 1.0)
        logarithmic = np.log(np.where(log, values, 1.0) / low) / np.log(self._ratio)
        return np.where(log, logarithmic, (values - self.low) / (self.high - self.low))

    def values(self, places: Floats) -> Floats:
        """Return the values at places, never outside the bounds."""
        low = np.where(self._logarithmic, self.low, 1.0)
        linear = self.low + places * (self.high - self.low)
        found = np.where(self._logarithmic, low * self._ratio**places, linear)
        return np.clip(found, self.low, self.high)

    def slopes(self, places: Floats) -> Floats:
        """Return the derivative of `values`."""
        logarithmic = self.values(places) * np.log(self._ratio)
        return np.where(self._logarithmic, logarithmic, self.high - self.low)

    @property
    def _ratio(self) -> Floats:
        log = self._logarithmic
        return np.where(log, self.high / np.where(log, self.low, 1.0), np.e)


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted parameters; every array has shape (parameter,).

    Attributes
    ----------
    values : ndarray
    uncertainty : ndarray
        Standard deviation of each value, the others being fitted too.
    resolution : ndarray
        1 where the data decide, 0 where the prior does.
    evaluations : int
        How often all rows were priced.
    """

    values: Floats
    uncertainty: Floats
    resolution: Floats
    evaluations: int

    @property
    def informed(self) -> NDArray[np.bool_]:
        """Parameters on which the data say more than the prior."""
        return self.resolution >= RESOLVED


def fit(log_ratios: LogRatios, kept: Floats, prior: Floats, scale: Scale) -> Fit:
    """Fit parameters to measurements.

    Parameters
    ----------
    log_ratios : callable
        See `LogRatios`; a row without a number is left out of account.
    kept : ndarray, shape (parameter,)
        Values of parameters on which the data say less than the prior.
    prior : ndarray, shape (parameter,)
        Where the fit starts, and what holds it.
    scale : Scale
        Bounds.

    Returns
    -------
    Fit
    """
    free, evaluations = _sensitive(log_ratios, prior, scale)
    uncertainty, resolution = np.zeros(kept.size), np.zeros(kept.size)
    values = kept.copy()
    while free.any():
        found = _fit_free(log_ratios, kept, prior, scale, free)
        evaluations += found.evaluations
        values = kept.copy()
        values[free] = found.values
        uncertainty[free], resolution[free] = found.uncertainty, found.resolution
        settled = free & (resolution >= RESOLVED)
        if (settled == free).all():
            break
        free, values = settled, kept.copy()
    return Fit(values, uncertainty, resolution, evaluations)


def _sensitive(log_ratios: LogRatios, prior: Floats, scale: Scale) -> tuple[NDArray[np.bool_], int]:
    """Return which parameters change any row at all, and the evaluations that told."""
    found = np.zeros(prior.size, bool)
    centre = scale.places(prior)
    for k in range(prior.size):
        low, high = centre.copy(), centre.copy()
        low[k], high[k] = 0.05, 0.95
        difference = log_ratios(scale.values(high)) - log_ratios(scale.values(low))
        found[k] = bool((np.abs(np.nan_to_num(difference)) > 1e-12).any())
    return found, 2 * prior.size


def _fit_free(
    log_ratios: LogRatios, base: Floats, prior: Floats, scale: Scale, free: NDArray[np.bool_]
) -> Fit:
    """Fit the parameters that are free; the others stay at `base`."""
    from scipy.optimize import least_squares

    within = Scale(scale.low[free], scale.high[free])
    centre = within.places(prior[free])
    stiffness = NOISE / PRIOR_SPREAD
    known: dict[bytes, Floats] = {}
    evaluations = 0

    def data(places: Floats) -> Floats:
        nonlocal evaluations
        key = places.tobytes()
        if key not in known:
            evaluations += 1
            values = base.copy()
            values[free] = within.values(places)
            known[key] = np.nan_to_num(log_ratios(values), posinf=0.0, neginf=0.0)
        return known[key]

    def residuals(places: Floats) -> Floats:
        return np.concatenate([data(places), stiffness * (places - centre)])

    def slopes(places: Floats) -> Floats:
        columns = []
        for k in range(places.size):
            up, down = places.copy(), places.copy()
            up[k], down[k] = min(places[k] + STEP, 1.0), max(places[k] - STEP, 0.0)
            columns.append((data(up) - data(down)) / (up[k] - down[k]))
        return np.vstack([np.stack(columns, axis=1), stiffness * np.eye(places.size)])

    found = least_squares(
        residuals,
        np.clip(centre, 1e-3, 1.0 - 1e-3),
        jac=slopes,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=NOISE,
        xtol=1e-4,
        ftol=1e-5,
        max_nfev=EVALUATIONS,
    )
    places = np.asarray(found.x)
    off = data(places)
    spread, resolution = _posterior(slopes(places)[: off.size], off, stiffness)
    return Fit(
        within.values(places), spread * within.slopes(places), resolution, evaluations=evaluations
    )


def _posterior(slopes: Floats, off: Floats, stiffness: float) -> tuple[Floats, Floats]:
    """Standard deviations of the places, and how much of each the data decide.

    Notes
    -----
    With W the weights of soft-L1 at the solution, s the robust scatter of the rows
    (1.4826 times their median absolute value) and P the prior's part, the covariance is
    ``s² (JᵀWJ + P)⁻¹`` and the resolution the diagonal of ``(JᵀWJ + P)⁻¹ JᵀWJ``.
    """
    weights = 1.0 / np.sqrt(1.0 + np.square(off / NOISE))
    information = (slopes * weights[:, None]).T @ slopes
    inverse = np.linalg.inv(information + np.square(stiffness) * np.eye(slopes.shape[1]))
    scatter = 1.4826 * float(np.median(np.abs(off)))
    spread = np.minimum(scatter * np.sqrt(np.diag(inverse)), PRIOR_SPREAD)
    return spread, np.clip(np.diag(inverse @ information), 0.0, 1.0)


def folds(groups: Sequence[Hashable], count: int) -> NDArray[np.int64]:
    """Share rows out to folds so that rows of one group stand in one fold.

    Parameters
    ----------
    groups : sequence of hashable
        What near-identical rows have in common.
    count : int
        Folds; fewer where there are fewer groups.

    Returns
    -------
    ndarray of int64, shape (row,)
        Fold of each row: groups in random order, each into the fold with the fewest rows.
    """
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    order = np.random.default_rng(0).permutation(len(members))
    filled = [0] * min(count, len(members))
    fold = np.zeros(len(groups), np.int64)
    listed = list(members.values())
    for g in sorted(order.tolist(), key=lambda g: -len(listed[g])):
        smallest = filled.index(min(filled))
        fold[listed[g]] = smallest
        filled[smallest] += len(listed[g])
    return fold
