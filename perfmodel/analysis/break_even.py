"""Values at which something turns: break-evens, and bandwidths at which communication hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.analysis.parameters import parameter
from perfmodel.base.errors import DataError
from perfmodel.store.results import LARGER_IS_BETTER

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


POINTS = 33
"""Values of the range at which both are projected first."""
SPREAD = 100.0
"""Times and parts of today's value, where no range is given."""
FEWER = 64
"""The same of whole numbers of a strategy."""
WHOLES = 4096  # looked at before they get coarser
EQUAL = 1e-9  # relative; what rounding may do
CLOSE = 1e-6  # relative; what a root may miss
Sides = Literal["both", "a", "b"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where two projections change places.

    Attributes
    ----------
    value : float
        Of the number; of whole numbers and jumps the first one at which `better` has changed.
    before : float
        The same but for those: the last one before.
    a, b : float
        The variable of both at `value`.
    better : {"a", "b", "same"}
        Which one is better above it.
    exact : bool
        Whether both are equal there; otherwise one of them jumps, or no whole number lies
        between.
    """

    value: float
    before: float
    a: float
    b: float
    better: str
    exact: bool


@dataclass(frozen=True, slots=True)
class BreakEven:
    """What comes out of a comparison over one number.

    Attributes
    ----------
    path, unit : str
        The number.
    sides : {"both", "a", "b"}
        Which of the two it was varied in.
    variable, units : str
        What was compared.
    values : list of float
        At which both were projected first, ascending.
    a, b : list of float
        The variable there; NaN where one is impossible.
    better : str
        Which is better at the least value: "a", "b" or "same".
    crossings : list of Crossing
        Ascending; empty where one is better throughout.
    """

    path: str
    unit: str
    sides: str
    variable: str
    units: str
    values: list[float]
    a: list[float]
    b: list[float]
    better: str
    crossings: list[Crossing] = field(default_factory=list)


def break_even(
    a: Case,
    b: Case,
    path: str,
    *,
    sides: Sides = "both",
    limits: tuple[float, float] | None = None,
) -> BreakEven:
    """Find the values of a number at which two projections are equally good.

    Parameters
    ----------
    a, b : Case
        Of the same variable.
    path : str
        A number of the hardware or of the software, or a whole one of the strategy, such as
        ``sequence_length``.
    sides : {"both", "a", "b"}
        In which of the two it is varied.
    limits : tuple of float, optional
        Least and largest value; default: a hundredth and a hundred times that of B (of whole
        numbers of a strategy a 64th and 64 times). `POINTS` values between them are projected
        first: two crossings between neighbours are not seen.

    Returns
    -------
    BreakEven

    Raises
    ------
    DataError
        Different variables, no such number, a switch, or a range without two values.
    """
    if a.by != b.by:
        raise DataError(f"'{a.by}' of A and '{b.by}' of B cannot be compared")
    cases = {"both": (a, b), "a": (a,), "b": (b,)}[sides]
    field_name = _field_of(b, path)
    if field_name is not None:
        name, unit = field_name, "1"
        values = _possible_values(cases, name, limits)
    else:
        name, unit, values = _numbers(cases, path, limits)
    pair = _Pair(a, b, name, sides)
    some = values
    if values.dtype.kind == "i":  # a ladder of the whole numbers
        ladder = np.searchsorted(values, np.geomspace(values[0], values[-1], POINTS))
        some = values[np.unique(np.minimum(ladder, values.size - 1))]
    found = pair.compared(some)
    clear = np.flatnonzero(np.abs(found[:, 2]) > EQUAL)  # neither equal nor impossible
    result = BreakEven(
        name,
        unit,
        sides,
        a.variable.name,
        a.variable.units,
        some.astype(float).tolist(),
        found[:, 0].tolist(),
        found[:, 1].tolist(),
        _better(found[clear[0], 2]) if clear.size else "same",
    )
    for one, other in zip(clear[:-1].tolist(), clear[1:].tolist(), strict=True):
        if found[one, 2] * found[other, 2] < 0.0:
            result.crossings.append(pair.crossing(values, some[one], some[other]))
    return result


def _field_of(case: Case, path: str) -> str | None:
    """Return the field of a strategy that a path names, by its name or its option."""
    fields = {spec.option.replace("-", "_"): name for name, spec in case.fields.items()}
    name = path.strip().replace("-", "_")
    name = fields.get(name, name)
    if name not in case.fields:
        return None
    if case.fields[name].kind != "int":
        raise DataError(f"'{path}' is a choice; a break-even needs a number")
    return name


def _numbers(
    cases: Sequence[Case], path: str, limits: tuple[float, float] | None
) -> tuple[str, str, NDArray[Any]]:
    """Return path, unit and the values of a number at which it is looked first."""
    number = [parameter(case, path)[0] for case in cases][-1]
    if number.is_switch:
        raise DataError(f"'{path}' is a switch; a break-even needs a number")
    today = float(number.value)
    if limits is None and not today:
        raise DataError(f"'{path}' is 0 today: say between which values to look (--range)")
    low, high = _checked(limits or (today / SPREAD, today * SPREAD), path)
    if number.whole:
        return number.path, number.unit, _wholes(low, high)
    return number.path, number.unit, np.geomspace(low, high, POINTS)


def _checked(limits: tuple[float, float], path: str) -> tuple[float, float]:
    low, high = limits
    if not 0.0 < low < high < math.inf:
        raise DataError(f"'{path}': {low:g}:{high:g} is no range LOW:HIGH above 0")
    return low, high


def _wholes(low: float, high: float) -> NDArray[np.int64]:
    """Return whole numbers: all of a short range, of a long one multiples that get coarser."""
    last, step = math.floor(high), 1
    first, parts = max(math.ceil(low), 1), [np.zeros(0, np.int64)]
    while first <= last:
        parts.append(np.arange(first, min(last + 1, first + step * WHOLES), step))
        step *= 2
        first = -(-(int(parts[-1][-1]) + 1) // step) * step
    return np.unique(np.concatenate(parts))


def _possible_values(
    cases: Sequence[Case], name: str, limits: tuple[float, float] | None
) -> NDArray[np.int64]:
    """Return the values of a field of a strategy that are possible in all cases."""
    from perfmodel.strategy.grid import VALID
    from perfmodel.strategy.rules import strategy_status

    today = int(cases[-1].choices[name][0])
    low, high = _checked(limits or (max(today / FEWER, 1), today * FEWER), name)
    values = _wholes(low, high)
    for case in cases:
        columns = {key: np.repeat(it[:1], values.size) for key, it in case.choices.columns.items()}
        status = strategy_status(
            {**columns, name: values},
            case.model,
            case.choices.devices,
        )
        values = values[status == VALID]
    if values.size < 2:
        raise DataError(f"'{name}': fewer than two values from {low:g} to {high:g} are possible")
    return values


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two cases, and the number that is varied in one or both of them."""

    a: Case
    b: Case
    name: str
    sides: str

    def compared(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return A, B and the logarithm of how much worse A is, shape (values, 3)."""
        changes = [{self.name: it} for it in values.tolist()]
        columns = []
        for letter, case in (("a", self.a), ("b", self.b)):
            varied = self.sides in ("both", letter)
            outcomes = case.vary(changes) if varied else [case.base()] * len(changes)
            columns.append([outcome.value for outcome in outcomes])
        both = np.array(columns, np.float64)
        worse = np.log(both[0] / both[1])
        sign = -1.0 if self.a.by in LARGER_IS_BETTER else 1.0
        return np.stack((*both, sign * worse), axis=1)

    def worse(self, value: Any) -> float:
        """Return the logarithm of how much worse A is than B."""
        return float(self.compared(np.array([value]))[0, 2])

    def crossing(self, values: NDArray[Any], low: Any, high: Any) -> Crossing:
        """Find where the better one changes between two values."""
        sign = self.worse(low)
        if values.dtype.kind == "i":
            first, last = np.searchsorted(values, [low, high]).tolist()
            while last - first > 1:
                middle = (first + last) // 2
                same = self.worse(values[middle]) * sign > 0.0
                first, last = (middle, last) if same else (first, middle)
            before, value = values[first], values[last]
        else:
            from scipy.optimize import brentq

            root = brentq(
                lambda at: self.worse(math.exp(at)), math.log(low), math.log(high), xtol=1e-13
            )
            before = value = math.exp(root)
        ((a, b, distance),) = self.compared(np.array([value])).tolist()
        exact = abs(distance) <= CLOSE
        return Crossing(float(value), float(before), a, b, _better(-sign), exact)


def _better(distance: float) -> str:
    """Return which one is better, of the logarithm of how much worse A is."""
    return "a" if distance < 0.0 else "b"
