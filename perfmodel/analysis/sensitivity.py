"""Sensitivity of a projection to every number and every switch that it depends on.

Elasticities are central differences of logarithms, ``d ln(T) / d ln(p)``: -0.3 for a bandwidth
means that 1 % more of it makes a step 0.3 % shorter. What halving and doubling a number does is
projected, not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.analysis.case import Case, Change, Outcome
from perfmodel.analysis.parameters import KINDS, Parameter, parameter, parameters
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.table import Column, Table, described, flags
from perfmodel.store.subject import SENSITIVITY

if TYPE_CHECKING:
    from collections.abc import Callable

    import xarray as xr

    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.framework import Framework

STEP = 0.01
FACTORS = (0.5, 2.0)
USUAL = ("hardware", "software", "strategy")
"""Kinds of parameters that are varied where nobody says: all but fitted constants."""
GROUP = 6
"""Numbers that are changed together at first: where nothing moves, none of them does."""
KINK = 0.1
"""Share of the larger of two one-sided elasticities by which they differ where there is a kink;
beside what curvature explains."""
NOISE = 1e-4  # elasticities that nobody could tell from 0


@dataclass(slots=True)
class Effect:
    """What one parameter does.

    Attributes
    ----------
    parameter : Parameter
    elasticity, below, above : float
        Central difference, and one-sided ones [1]; NaN for switches, numbers that are 0
        and whole ones too small for the step.
    kink : bool
        Whether the one-sided ones disagree: a choice of the software changes here, or what was
        hidden shows.
    low, high : Outcome or None
        Where the number is multiplied by the smaller and the larger factor; a switch has `high`
        alone. None where the number cannot be that.
    values : tuple of (float or None)
        The number there.
    """

    parameter: Parameter
    elasticity: float = math.nan
    below: float = math.nan
    above: float = math.nan
    kink: bool = False
    low: Outcome | None = None
    high: Outcome | None = None
    values: tuple[float | None, float | None] = (None, None)

    def size(self, base: float) -> float:
        """Return what effects are sorted by: the elasticity, or the logarithm of a what-if."""
        if math.isfinite(self.elasticity):
            return abs(self.elasticity)
        values = (it.value for it in (self.low, self.high) if it is not None)
        return max((abs(math.log(it / base)) for it in values if it > 0.0), default=0.0)


def sensitivity(
    model: ModelSpec | str,
    hardware: Hardware | str,
    devices: int,
    *,
    sequence_length: int,
    global_batch_size: int,
    framework: str | Framework = "megatron",
    mtp: str = "none",
    by: str = "step_time",
    cost: Mapping[str, Any] | None = None,
    reoptimise: bool = False,
    only: Sequence[str] = (),
    kinds: Sequence[str] = USUAL,
    step: float = STEP,
    factors: tuple[float, float] = FACTORS,
    **strategy: Any,
) -> xr.Dataset:
    """Say what the training step of a strategy depends on, and how much.

    Parameters
    ----------
    model, hardware, devices, sequence_length, global_batch_size, framework, mtp, cost, **strategy
        As of `perfmodel.project`.
    by : str
        Variable that counts, such as ``tokens_per_second_per_device`` or ``cost_per_token``.
    reoptimise : bool
        Choose the best strategy anew for every value: fields that are not given take every
        sensible value, as of `perfmodel.strategy_grid`.
    only : sequence of str
        Paths of the numbers and switches that are asked for; empty for all of some kinds.
    kinds : sequence of str
        Which of ``hardware``, ``constant``, ``software`` and ``strategy``.
    step : float
        Relative step of the central difference [1].
    factors : tuple of float
        What numbers are multiplied by for the two what-ifs.

    Returns
    -------
    xarray.Dataset
        Dimension ``parameter``, the strongest first: ``elasticity`` and what the two what-ifs do
        (``low_change``, ``high_change``); docs/sensitivity.md has all columns.

    Raises
    ------
    PerfModelError
        As of `perfmodel.project`; no such path, or a step or factors that mean nothing.

    Examples
    --------
    >>> found = sensitivity("llama-3.1-8b", "dgx-h100", 8, sequence_length=8192,
    ...                     global_batch_size=64, zero_stage=3, only=["device.tdp"])
    >>> found["parameter"].values.tolist()
    ['device.tdp']
    """
    from perfmodel.analysis.case import TrainingCase
    from perfmodel.analysis.single import one_strategy
    from perfmodel.hwprofiles import load_hardware
    from perfmodel.model.presets import load_model
    from perfmodel.software.framework import load_framework
    from perfmodel.strategy.enumerate import strategy_grid

    spec = load_model(model, mtp=mtp)
    device = load_hardware(hardware) if isinstance(hardware, str) else hardware
    software = load_framework(framework)
    fields: dict[str, Any] = {
        "sequence_length": sequence_length,
        "global_batch_size": global_batch_size,
    }
    fields |= strategy
    if reoptimise:
        grid = strategy_grid(spec, devices, hardware=device, framework=software, **fields)
    else:
        grid = one_strategy(spec, devices, fields, software, hardware=device)
    case = TrainingCase(spec, grid, device, software, by=by, costs=cost, reoptimise=reoptimise)
    table = sensitivity_table(case, only=only, kinds=kinds, step=step, factors=factors)
    return table.to_xarray()


def effects(
    case: Case,
    wanted: Sequence[Parameter],
    base: Outcome,
    *,
    step: float = STEP,
    factors: tuple[float, float] = FACTORS,
    progress: Callable[[int], None] | None = None,
) -> list[Effect]:
    """Return what every parameter does; see `sensitivity_table`."""
    found = [Effect(it) for it in wanted]
    switches = [it for it in found if it.parameter.is_switch]
    numbers = [it for it in found if not it.parameter.is_switch and it.parameter.value]
    changes = [{it.parameter.path: it.parameter.other} for it in switches]
    for effect, outcome in zip(switches, case.vary(changes), strict=True):
        effect.high = outcome
    if progress:
        progress(len(switches))
    moving = _screened(case, numbers, base, factors)
    if progress:
        progress(len(numbers) - len(moving))
    for effect in moving:
        if effect.parameter.is_coarse(step):
            effect.elasticity = effect.below = effect.above = math.nan
    moving = [effect for effect in moving if not effect.parameter.is_coarse(step)]
    ends = [(effect, effect.parameter.times(1.0 + by)) for effect in moving for by in (-step, step)]
    there = [(effect, value) for effect, value in ends if value is not None]
    outcomes = iter(case.vary([{effect.parameter.path: value} for effect, value in there]))
    nearby = {(effect.parameter.path, value): next(outcomes).value for effect, value in there}
    for (effect, below), (_, above) in zip(ends[::2], ends[1::2], strict=True):
        path = effect.parameter.path
        own = {value: found for (other, value), found in nearby.items() if other == path}
        _differentiate(effect, base, below, above, own)
    if progress:
        progress(len(moving))
    return found


def _screened(
    case: Case, numbers: Sequence[Effect], base: Outcome, factors: tuple[float, float]
) -> list[Effect]:
    """Multiply numbers by both factors; return those that do something.

    Changed in groups at first: where every time of every strategy stays the same to the last bit,
    nothing depends on any of a group. The others are halved until they are alone.
    """
    for effect in numbers:
        effect.elasticity = effect.below = effect.above = 0.0
        effect.values = (effect.parameter.times(factors[0]), effect.parameter.times(factors[1]))
        effect.low, effect.high = (None if it is None else base for it in effect.values)
    moving: list[Effect] = []
    groups = _grouped(numbers)
    while groups:
        asked: list[tuple[int, int]] = []
        changes: list[Change] = []
        for place, group in enumerate(groups):
            for end in (0, 1):
                values = {it.parameter.path: it.values[end] for it in group}
                change = {path: value for path, value in values.items() if value is not None}
                if change:
                    asked.append((place, end))
                    changes.append(change)
        outcomes = dict(zip(asked, case.vary(changes), strict=True))
        halves: list[list[Effect]] = []
        for place, group in enumerate(groups):
            own = {end: it for (at, end), it in outcomes.items() if at == place}
            moved = any(it.mark != base.mark for it in own.values())
            if len(group) == 1:
                group[0].low, group[0].high = own.get(0), own.get(1)
                # A constant that may have no other value is still varied a little.
                if moved or not own:
                    moving.append(group[0])
            elif moved or len(own) < 2:
                half = len(group) // 2
                halves += [group[:half], group[half:]]
        groups = halves
    order = {id(effect): place for place, effect in enumerate(numbers)}
    return sorted(moving, key=lambda effect: order[id(effect)])


def _grouped(numbers: Sequence[Effect]) -> list[list[Effect]]:
    """Part numbers into groups of one kind and table."""
    tables: dict[str, list[Effect]] = {}
    for effect in numbers:
        tables.setdefault(effect.parameter.path.rpartition(".")[0], []).append(effect)
    return [them[i : i + GROUP] for them in tables.values() for i in range(0, len(them), GROUP)]


def _differentiate(
    effect: Effect,
    base: Outcome,
    below: float | None,
    above: float | None,
    nearby: Mapping[float, float],
) -> None:
    """Fill the elasticities of a number from the outcomes on either side of it."""
    centre = float(effect.parameter.value), base.value
    ends = [(it, nearby[it]) for it in (below, above) if it is not None]
    ends = [(value, found) for value, found in ends if math.isfinite(found)]
    sides = dict.fromkeys(("below", "above"), math.nan)
    for end in ends:
        sides["below" if end[0] < centre[0] else "above"] = _slope(end, centre)
    effect.below, effect.above = sides["below"], sides["above"]
    if len(ends) < 2:
        effect.elasticity = next(filter(math.isfinite, sides.values()), math.nan)
        return
    effect.elasticity = _slope(*ends)
    allowed = KINK + 2.0 * abs(math.log(ends[1][0] / ends[0][0]))  # curvature of one term
    larger = max(abs(effect.below), abs(effect.above))
    effect.kink = abs(effect.above - effect.below) > allowed * larger + NOISE


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Elasticity between two points (number, outcome)."""
    return math.log(other[1] / one[1]) / math.log(other[0] / one[0])


def chosen_parameters(
    case: Case, only: Sequence[str] = (), kinds: Sequence[str] = USUAL
) -> list[Parameter]:
    """Return the parameters that are asked for.

    Parameters
    ----------
    case : Case
    only : sequence of str
        Their paths; empty for all.
    kinds : sequence of str
        Which of `KINDS` all are.

    Raises
    ------
    PerfModelError
        As of `perfmodel.analysis.parameters.parameter`.
    """
    if only:
        found = [it for path in dict.fromkeys(only) for it in parameter(case, path)]
        return list({it.label: it for it in found}.values())
    return [it for it in parameters(case) if it.kind in kinds]


def sensitivity_table(
    case: Case,
    *,
    only: Sequence[str] = (),
    kinds: Sequence[str] = USUAL,
    step: float = STEP,
    factors: tuple[float, float] = FACTORS,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Return what every number and every switch does to a projection, the strongest first.

    Parameters
    ----------
    case : Case
        What is projected, and which of its variables counts.
    only : sequence of str
        Paths of the numbers and switches that are asked for; empty for all of some kinds.
    kinds : sequence of str
        Which of `perfmodel.analysis.parameters.KINDS`.
    step : float
        Relative step of the differences [1].
    factors : tuple of float
        What numbers are multiplied by for the finite what-ifs: below and above 1.
    progress : callable, optional
        Called with the number of parameters settled since the last call.

    Returns
    -------
    Table
        Dimension ``parameter``; see `docs/sensitivity.md` for its columns.

    Raises
    ------
    DataError
        A step or factors that mean nothing, no such path, or nothing to vary.
    """
    if not 0.0 < step < 0.5:
        raise DataError(f"step: {step:g} is no relative step between 0 and 0.5")
    if unknown := [it for it in kinds if it not in KINDS]:
        raise DataError(f"no kind of parameters '{unknown[0]}'{did_you_mean(unknown[0], KINDS)}")
    if not 0.0 < factors[0] < 1.0 < factors[1] < math.inf:
        raise DataError(f"factors: {factors[0]:g}, {factors[1]:g} should lie below and above 1")
    base = case.base()
    wanted = chosen_parameters(case, only, kinds)
    found = effects(case, wanted, base, step=step, factors=factors, progress=progress)
    found.sort(key=lambda effect: -effect.size(base.value))
    return _table(case, base, found, step, factors)


def _table(
    case: Case,
    base: Outcome,
    found: Sequence[Effect],
    step: float,
    factors: tuple[float, float],
) -> Table:
    its = [effect.parameter for effect in found]
    target = case.variable
    dim = "parameter"

    def column(values: Any, unit: str, name: str, **more: Any) -> Column:
        return Column(dim, np.asarray(values), {"units": unit, "long_name": name, **more})

    def text(values: Sequence[str], name: str) -> Column:
        return column(np.array([*values], dtype=np.str_), "1", name)

    def number(it: Any) -> float:
        return float(it) if isinstance(it, bool | int | float) else math.nan

    ends = [(effect.low, effect.high) for effect in found]
    # A switch has no lower end: that is as it is.
    ends = [
        (base if effect.parameter.is_switch else low, high)
        for effect, (low, high) in zip(found, ends, strict=True)
    ]

    def of(end: int, read: Callable[[Outcome], Any], without: Any) -> list[Any]:
        found = (it[end] for it in ends)
        return [without if it is None else read(it) for it in found]

    data: dict[str, Column] = {
        "elasticity": column(
            [it.elasticity for it in found],
            "1",
            f"elasticity of {target.name}",
            formula=f"d ln({target.name}) / d ln(parameter), central difference",
        ),
        "elasticity_below": column([it.below for it in found], "1", "the same from below"),
        "elasticity_above": column([it.above for it in found], "1", "the same from above"),
        "kink": column(
            np.array([it.kink for it in found], np.int8),
            "1",
            "whether the two disagree",
            **flags(("false", "true")),
        ),
    }
    for end, side in enumerate(("low", "high")):
        data[f"{side}_value"] = column(
            [math.nan if it.values[end] is None else it.values[end] for it in found],
            "1",
            f"the parameter's {side} value, in its own unit",
        )
        results = np.array(of(end, lambda it: it.value, math.nan), np.float64)
        data[side] = column(results, target.units, f"{target.name} there")
        data[f"{side}_change"] = column(
            results / base.value - 1.0, "1", f"relative change of {target.name} there"
        )
        for name, told in (("fits", "fits in memory"), ("tight", "is tight in memory")):
            data[f"{side}_{name}"] = column(
                np.array(of(end, attrgetter(name), False), np.int8),
                "1",
                f"whether that {told}",
                **flags(("false", "true")),
            )
    coords = {
        dim: text([it.label for it in its], "number, or switch with what it is set to"),
        "path": text([it.path for it in its], "path as of --set, or field of the strategy"),
        "kind": column(
            np.array([KINDS.index(it.kind) for it in its], np.int8),
            "1",
            "what the parameter belongs to",
            **flags(KINDS),
        ),
        "unit": text([it.unit for it in its], "unit of the parameter"),
        "value": column([number(it.value) for it in its], "1", "the parameter, in its own unit"),
        "setting": text([_setting(it.value) for it in its], "the parameter as it is"),
        "other": text([_setting(it.other) for it in its], "what a switch is set to"),
        "reason": text(
            [it.high.reason if it.high else "" for it in found], "why a switch has no answer"
        ),
    }
    if case.reoptimise:
        for end, side in enumerate(("low", "high")):
            label = of(end, lambda it: case.label(it.chosen) if it.chosen else "", "")
            coords[f"{side}_strategy"] = text(label, f"the best strategy at the {side} value")
    return Table(data, coords, _attributes(case, base, step, factors), {dim: len(found)})


def _setting(value: Any) -> str:
    from perfmodel.analysis.parameters import written

    return "" if value is None else written(value)


def _attributes(
    case: Case, base: Outcome, step: float, factors: tuple[float, float]
) -> dict[str, Any]:
    from perfmodel.base.provenance import versions

    model = case.model
    provenance = {
        "hardware": {case.hardware.name: case.hardware.to_dict()},
        "software": case.software.name,
        "cost": case.costs,
        "versions": versions("numpy", "numba"),
    }
    return described(
        f"Sensitivity of {case.variable.name} of {model.name} on {case.hardware.name}",
        SENSITIVITY.schema,
        model=model.name,
        software=case.software.name,
        hardware=case.hardware.name,
        variable=case.variable.name,
        units=case.variable.units,
        base=base.value,
        strategy=case.label(base.chosen or case.choices.row(0)),
        mode="reoptimised" if case.reoptimise else "fixed",
        step=step,
        low_factor=factors[0],
        high_factor=factors[1],
        provenance=provenance,
    )
