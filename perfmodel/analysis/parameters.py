"""Numbers and switches that a projection depends on: of hardware, constants, software, strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.analysis.case import SOFTWARE, Case, TrainingCase
from perfmodel.base.errors import DataError, PerfModelError, did_you_mean
from perfmodel.base.fields import Field, facts_of
from perfmodel.hwprofiles.hardware import canonical_path, get_value, known_paths, unit_of

KINDS = ("hardware", "constant", "software", "strategy")
"""What a parameter belongs to: vendor facts, fitted constants, facts of the software, choices."""
NUMBERS = ("number", "count")
SWITCHED_FIELDS = (
    *("sequence_parallel", "context_parallel_kind", "pipeline_schedule", "zero_stage"),
    *("recompute", "precision"),
)
"""Fields of a strategy whose other values are tried; degrees, batches and lengths are what sweeps
are for."""
ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that can be varied, or a switch and what it could be set to.

    Attributes
    ----------
    path : str
        As ``--set`` takes it, or the name of a strategy's field.
    kind : str
        One of `KINDS`.
    unit : str
        SI unit; "1" for pure numbers.
    value : float or str or bool
        As it is.
    other : float or str or bool, optional
        Of a switch: another value.
    least, most : float
        Of a number: limits; those of a constant are what is physical.
    whole : bool
        Whether a number is a whole one.
    """

    path: str
    kind: str
    unit: str
    value: Any
    other: Any = None
    least: float = -math.inf
    most: float = math.inf
    whole: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether there are other values rather than larger and smaller ones."""
        return self.other is not None

    @property
    def label(self) -> str:
        """The path; of a switch with the value that it is set to."""
        return f"{self.path}={written(self.other)}" if self.is_switch else self.path

    def is_coarse(self, step: float) -> bool:
        """Tell whether a whole number has no neighbour that is about one relative step away."""
        return self.whole and self.value * step < 0.5

    def times(self, factor: float) -> float | None:
        """Return a number that is about as many times the value; None where there is no other."""
        value = min(max(float(self.value) * factor, self.least), self.most)
        if self.whole:
            value = round(value)
            if value == self.value:
                value += 1 if factor > 1.0 else -1
            value = value if self.least <= value <= self.most else self.value
        return None if value == self.value or value <= 0.0 else value


def written(value: Any) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def parameters(case: Case) -> list[Parameter]:
    """Return every number and every switch that a case could depend on, kind by kind."""
    return [*_of_hardware(case), *_of_software(case), *_of_strategy(case)]


def parameter(case: Case, path: str) -> list[Parameter]:
    """Return what a path names: one number, or a switch with each of its other values.

    Raises
    ------
    HardwareError, DataError
        Nothing is called so, with the nearest names; or it is a text without choices.
    """
    known = parameters(case)
    name = path.strip().replace("-", "_")
    options = {spec.option.replace("-", "_"): spec.name for spec in case.fields.values()}
    name = options.get(name, name)
    if not name.startswith(SOFTWARE) and "." in name:
        name = canonical_path(case.hardware, path)
    found = [it for it in known if it.path == name]
    if not found:
        paths = dict.fromkeys(it.path for it in known)
        hint = did_you_mean(name, paths) or "; 'perfmodel hardware show' lists numbers"
        raise DataError(f"'{path}' is neither a number nor a switch that can be varied{hint}")
    return found


def _of_hardware(case: Case) -> Iterator[Parameter]:
    hardware = case.hardware
    for path, field in known_paths(hardware).items():
        value = get_value(hardware, path)
        kind = "constant" if path.startswith("calibration.") else "hardware"
        if field.kind == "flag":
            yield Parameter(path, kind, "1", value, not value)
        if field.kind not in NUMBERS:
            continue
        least, most = field.minimum, field.maximum
        if kind == "constant":
            _, group, key = path.split(".", 2)
            entry = hardware.calibration[group][key]
            least, most = entry.low, entry.high
        unit = unit_of(hardware, path)
        yield Parameter(
            path, kind, unit, value, least=least, most=most, whole=field.kind == "count"
        )


def _of_software(case: Case) -> Iterator[Parameter]:
    from perfmodel.software import engine, framework

    training = isinstance(case, TrainingCase)
    fixed = (*framework.IDENTITY, *framework.OF_MEASURED_RUNS) if training else engine.IDENTITY
    kind: type = type(case.software)
    for name, fact in facts_of(kind).items():
        value = getattr(case.software, name)
        if name in fixed or fact.depth or fact.several:
            continue
        if fact.kind == "flag":
            yield Parameter(SOFTWARE + name, "software", "1", value, not value)
        elif fact.kind == "text":
            for other in fact.choices:
                if other != value:
                    yield Parameter(SOFTWARE + name, "software", "1", value, other)
        else:
            yield _fact_number(name, fact, value)


def _fact_number(name: str, fact: Field, value: float) -> Parameter:
    whole = fact.kind == "count"
    return Parameter(
        SOFTWARE + name, "software", fact.unit or "1", value, least=fact.minimum, whole=whole
    )


def _of_strategy(case: Case) -> Iterator[Parameter]:
    """Yield switches of the strategy; where the best is chosen anew, they are chosen too."""
    if case.reoptimise or not isinstance(case, TrainingCase):
        return
    row: Mapping[str, Any] = case.choices.row(0)
    for name in SWITCHED_FIELDS:
        for other in _values(case.fields[name]):
            if other != row[name] and _possible(case, name, other):
                yield Parameter(name, "strategy", "1", row[name], other)


def _values(spec: Field) -> tuple[Any, ...]:
    if spec.kind == "bool":
        return False, True
    return spec.choices or ZERO_STAGES


def _possible(case: Case, name: str, other: Any) -> bool:
    """Tell whether a value means something: what its degree is 1 of does nothing."""
    if name == "precision":
        try:
            case.hardware.device.peak(other)
        except PerfModelError:
            return False
    return not (name == "pipeline_schedule" and other == "table")
