"""The bandwidth at which each kind of communication hides behind compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.errors import DataError

if TYPE_CHECKING:
    from perfmodel.analysis.case import Case, Outcome

COMMUNICATION = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline",
    "data_parallel",
)
"""Kinds of communication, of which a step has ``<kind>_exposed`` and ``<kind>_total``."""
KEPT = ("step_time", *(f"{kind}_{what}" for kind in COMMUNICATION for what in ("exposed", "total")))
"""What a case has to keep."""
TOLERANCE = 0.01
LADDER = tuple(4.0**power for power in range(-5, 11))
"""Times today's bandwidth, at which it is looked first."""
PRECISE = 1e-6  # of a bandwidth that is found
EXPLAINED = 0.05
"""Part of what remains that a cause may leave where it is named for it."""


@dataclass(frozen=True, slots=True)
class Hiding:
    """Where one kind of communication hides, as one level of the network gets faster.

    Attributes
    ----------
    level, level_name : int, str
        Of the network, the innermost being 0.
    communication : str
        One of `COMMUNICATION`.
    bandwidth : float
        Of the level, as it is [B/s].
    total, exposed : float
        Time of it per step, and what of that shows, as it is [s].
    share : float
        The exposed part of the step [1].
    verdict : {"at", "always", "latency", "other level", "other"}
        "at": it hides from `hiding_bandwidth` on. "always": at every bandwidth that was tried
        (`hiding_bandwidth` is the least of them). Otherwise it never does: what remains goes
        away with latencies and fixed times of messages; with the bandwidth of other levels; or
        with nothing about the network.
    hiding_bandwidth, factor : float
        The least from which on its exposed time is within the tolerance [B/s], and over today's;
        infinite for never.
    remaining : float
        What shows there, or at the highest bandwidth that was tried [s].
    """

    level: int
    level_name: str
    communication: str
    bandwidth: float
    total: float
    exposed: float
    share: float
    verdict: str
    hiding_bandwidth: float
    factor: float
    remaining: float


def hiding_bandwidths(case: Case, tolerance: float = TOLERANCE) -> list[Hiding]:
    """Find, for every level of the network, from which bandwidth on communication hides.

    Parameters
    ----------
    case : Case
        Of a training step; keeps `KEPT`.
    tolerance : float
        Share of the step up to which exposed time counts as hidden, >= 0 [1].

    Returns
    -------
    list of Hiding
        Level by level, of all communication that takes time and depends on the level.

    Raises
    ------
    DataError
        No training step, or a tolerance that means nothing.
    """
    if not 0.0 <= tolerance < 1.0:
        raise DataError(f"hidden: {tolerance:g} is no share of a step")
    if not set(KEPT) <= set(case.keep):
        raise DataError("bandwidths at which communication hides are those of a training step")
    base = case.base()
    found = []
    for level in range(len(case.hardware.system.network)):
        found += _of_level(case, level, base, tolerance)
    return found


def _of_level(case: Case, level: int, base: Outcome, tolerance: float) -> list[Hiding]:
    """Find where each kind of communication hides that depends on one level."""
    network = case.hardware.system.network
    today = network[level].bandwidth
    path = f"system.network.{level}.bandwidth"
    outcomes = case.vary([{path: factor * today} for factor in LADDER])
    if not all(outcome.results for outcome in outcomes):
        return []
    found = []
    for kind in COMMUNICATION:
        totals = np.array([outcome.results[f"{kind}_total"] for outcome in outcomes])
        if not totals.any() or np.ptp(totals) <= PRECISE * totals.max():
            continue  # there is none, or it does not pass this level
        excess = [_excess(outcome, kind, tolerance) for outcome in outcomes]
        shows = [place for place, value in enumerate(excess) if value > 0.0]
        verdict, factor, last = "at", math.inf, outcomes[-1]
        if not shows:
            verdict, factor, last = "always", LADDER[0], outcomes[0]
        elif shows[-1] == len(LADDER) - 1:
            verdict = _why(case, level, kind, max(tolerance, _left(last, kind)))
        else:
            ends = LADDER[shows[-1]], LADDER[shows[-1] + 1]
            factor, last = _crossing(case, path, today, kind, tolerance, ends)
        results = base.results
        exposed = results[f"{kind}_exposed"]
        found.append(
            Hiding(
                level,
                network[level].name,
                kind,
                today,
                results[f"{kind}_total"],
                exposed,
                exposed / results["step_time"],
                verdict,
                factor * today,
                factor,
                last.results[f"{kind}_exposed"],
            )
        )
    return found


def _excess(outcome: Outcome, kind: str, tolerance: float) -> float:
    """Return exposed time beyond what counts as hidden [s]; above 0 where it shows."""
    results = outcome.results
    return results[f"{kind}_exposed"] - tolerance * results["step_time"]


def _left(outcome: Outcome, kind: str) -> float:
    """Return the share of a step below which what shows in an outcome is explained."""
    return EXPLAINED * outcome.results[f"{kind}_exposed"] / outcome.results["step_time"]


def _crossing(
    case: Case, path: str, today: float, kind: str, tolerance: float, ends: Sequence[float]
) -> tuple[float, Outcome]:
    """Return the least factor between two from which on communication is hidden."""
    from scipy.optimize import brentq

    def outcome(logarithm: float) -> Outcome:
        (found,) = case.vary([{path: math.exp(logarithm) * today}])
        return found

    def excess(logarithm: float) -> float:
        found = outcome(logarithm)
        value = _excess(found, kind, tolerance)
        # Without a tolerance, what is hidden is flat: a root of it is no change of sign.
        return value if value > 0.0 or tolerance else -1e-3 * found.results["step_time"]

    low, high = map(math.log, ends)
    root = brentq(excess, low, high, xtol=PRECISE / 4, rtol=1e-12)
    for power in range(12):  # to the side on which it is hidden, across a jump too
        at = root + (PRECISE * 4.0**power if power else 0.0)
        found = outcome(at)
        if _excess(found, kind, tolerance) <= 0.0:
            return math.exp(at), found
    return ends[1], outcome(high)


def _why(case: Case, level: int, kind: str, tolerance: float) -> str:
    """Say what keeps communication from hiding at any bandwidth of a level."""
    far = LADDER[-1]
    network = case.hardware.system.network
    fast = {f"system.network.{i}.bandwidth": far * it.bandwidth for i, it in enumerate(network)}
    latencies = {f"system.network.{i}.latency": it.latency for i, it in enumerate(network)}
    fixed = {path: value / far for path, value in latencies.items() if value}
    for key, entry in case.hardware.calibration.get("network", {}).items():
        if entry.unit == "s" and entry.value:
            fixed[f"calibration.network.{key}"] = entry.value / far
    own = f"system.network.{level}.bandwidth"
    alone = {own: fast[own]}
    own_level, others, both = case.vary([alone | fixed, fast, fast | fixed])
    for verdict, outcome in (("latency", own_level), ("other level", others), ("latency", both)):
        if outcome.results and _excess(outcome, kind, tolerance) <= 0.0:
            return verdict
    return "other"
