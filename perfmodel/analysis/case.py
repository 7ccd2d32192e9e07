"""A projection whose numbers and switches can be changed: a training step, or a served model."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.errors import DataError, PerfModelError, StrategyError, did_you_mean
from perfmodel.base.fields import Field
from perfmodel.base.served_fields import DEPLOYMENT_FIELD_BY_NAME, LOAD_FIELD_BY_NAME
from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.base.table import Table
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import COSTS, STEP_VARIABLES, VARIABLES, Variable
from perfmodel.store.results import LARGER_IS_BETTER
from perfmodel.store.subject import SERVING, TRAINING, Subject

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.spec import ModelSpec
    from perfmodel.serving.grid import DeploymentGrid, LoadGrid
    from perfmodel.software.engine import Engine
    from perfmodel.software.framework import Framework
    from perfmodel.strategy.grid import StrategyGrid

SOFTWARE = "software."
"""Begins the path of a fact of the software."""
AT_ONCE = 1 << 28
"""Bytes of results that are held at a time."""
GOODPUT = ("goodput", "checkpoint_time", "checkpoint_interval", "failure_interval")
OF_TOKENS = ("training_time", "device_time", "training_energy", "training_cost")
Change = Mapping[str, Any]
"""Path -> its value: values of the hardware, facts of the software (``software.…``), or fields of
the strategy; of one of the three."""


class Outcome(NamedTuple):
    """What comes out of one change.

    Attributes
    ----------
    value : float
        Of the variable that is asked for; NaN where there is no answer.
    fits : bool
        Whether it fits in memory.
    mark : bytes
        Equal to another's where no time differs, of any strategy.
    chosen : mapping of str to value
        The strategy or deployment that it is of; empty where that is the only one.
    results : mapping of str to float
        Variables of it that a case was told to keep.
    reason : str
        Why there is no answer.
    tight : bool
        Whether it fits by less than the measured error of memory.
    """

    value: float
    fits: bool
    mark: bytes
    chosen: Mapping[str, Any] = {}
    results: Mapping[str, float] = {}
    reason: str = ""
    tight: bool = False


def nothing(reason: str) -> Outcome:
    """Return that there is no answer, and why."""
    return Outcome(math.nan, False, reason.encode(), reason=reason)


class Case(ABC):
    """What is projected, and which variable of it counts.

    Parameters
    ----------
    hardware : Hardware
    software : Framework or Engine
        What trains or serves.
    choices : StrategyGrid or DeploymentGrid
        One strategy or deployment, or those among which there is a choice.
    by : str
        Variable; short spellings are understood.
    costs : mapping, optional
        What `perfmodel.store.cost.add_cost` takes; a price becomes that of the hardware, so that
        it can be varied.
    reoptimise : bool
        Take the best that fits, anew for every change; otherwise the only one.
    keep : sequence of str
        Variables that outcomes hold besides.

    Raises
    ------
    DataError
        No such variable.
    StrategyError
        Several strategies without a choice, or none.
    """

    subject: Subject
    variables: Mapping[str, Variable]
    fields: Mapping[str, Field]
    described: Mapping[str, Field]
    default: str

    def __init__(
        self,
        hardware: Hardware,
        software: Any,
        choices: Any,
        *,
        by: str = "",
        costs: Mapping[str, Any] | None = None,
        reoptimise: bool = False,
        keep: Sequence[str] = (),
    ) -> None:
        known = {**self.variables, **self.subject.costs}
        name = self.subject.aliases.get(by, by) or self.default
        if name not in known or name in ("fits", "tight", "status"):
            raise DataError(f"no variable '{by}'{did_you_mean(by, known)}")
        self.costs = dict(costs or {})
        price = self.costs.pop("price", None)
        if isinstance(price, Mapping):
            price = price.get(hardware.name)
        self.hardware = hardware if price is None else hardware.with_values({"system.price": price})
        self.software, self.choices, self.by = software, choices, name
        self.variable, self.keep, self.reoptimise = known[name], tuple(keep), reoptimise
        if not len(choices):
            raise StrategyError("there is no strategy to vary")
        if len(choices) > 1 and not reoptimise:
            raise StrategyError(
                f"{len(choices):,} strategies have no sensitivity together: pick one, or let the "
                "best be chosen anew (reoptimise)"
            )

    @property
    @abstractmethod
    def watched(self) -> tuple[str, ...]:
        """Variables that say whether a change does anything."""

    def label(self, row: Mapping[str, Any]) -> str:
        """Return a strategy or deployment as options, those left out that say nothing."""
        words = []
        for name, value in row.items():
            spec = self.described.get(name)
            if spec is not None and value != spec.default:
                words.append(f"{spec.option}={str(value).lower()}")
        return " ".join(words)

    @abstractmethod
    def _table(self, software: Sequence[Any], choices: Any, rows: Sequence[Hardware]) -> Table:
        """Project choices on rows of hardware, with one software after another."""

    @property
    @abstractmethod
    def model(self) -> ModelSpec:
        """What is trained or served."""

    @abstractmethod
    def _with_facts(self, facts: Mapping[str, Any]) -> Any:
        """Return the software with other facts."""

    @abstractmethod
    def _with_fields(self, change: Change) -> Case:
        """Return the case with other fields of the strategy, where that is possible."""

    def better(self, value: float, other: float) -> bool:
        """Tell whether a value is better than another one."""
        return value > other if self.by in LARGER_IS_BETTER else value < other

    def base(self) -> Outcome:
        """Return the outcome without any change.

        Raises
        ------
        DataError
            There is no answer.
        """
        (found,) = self._evaluated([self.software], [self.hardware])
        if not math.isfinite(found.value):
            raise DataError(f"'{self.by}' has no value: {found.reason}")
        return found

    def vary(self, changes: Sequence[Change]) -> list[Outcome]:
        """Return the outcome of every change; all values of hardware are one grid.

        Values that cannot be have no outcome, and say why.
        """
        found = [nothing("")] * len(changes)
        rows: dict[int, Hardware] = {}
        software: dict[int, Any] = {}
        for place, change in enumerate(changes):
            try:
                if any(path in self.fields for path in change):
                    (found[place],) = self._with_fields(change)._evaluated([self.software], None)
                elif all(path.startswith(SOFTWARE) for path in change):
                    facts = {path.removeprefix(SOFTWARE): it for path, it in change.items()}
                    software[place] = self._with_facts(facts)
                else:
                    rows[place] = self.hardware.with_values(change)
            except PerfModelError as error:
                found[place] = nothing(str(error))
        of_rows = self._evaluated([self.software], list(rows.values()))
        of_software = self._evaluated(list(software.values()), None)
        for places, outcomes in ((rows, of_rows), (software, of_software)):
            for place, outcome in zip(places, outcomes, strict=True):
                found[place] = outcome
        return found

    def _evaluated(self, software: Sequence[Any], rows: Sequence[Hardware] | None) -> list[Outcome]:
        """Project one software on rows of hardware, or some on the case's own."""
        rows = [self.hardware] if rows is None else rows
        variables = len(self.variables) + len(self.subject.costs)
        most = max(AT_ONCE // (8 * variables * len(self.choices)), 1)
        found: list[Outcome] = []
        for start in range(0, len(software) * len(rows), most):
            part = slice(start, start + most)
            some = (software, rows[part]) if len(software) == 1 else (software[part], rows)
            found += self._tried(*some)
        return found

    def _tried(self, software: Sequence[Any], rows: Sequence[Hardware]) -> list[Outcome]:
        """Project all at once, or one by one where some cannot be projected."""
        try:
            table = self._table(software, self.choices, rows)
        except PerfModelError as error:
            if len(software) * len(rows) == 1:
                return [nothing(str(error))]
            return [it for one in software for row in rows for it in self._tried([one], [row])]
        each = [(one, row) for one in range(len(software)) for row in range(len(rows))]
        return [self._outcome(table, *places) for places in each]

    def _outcome(self, table: Table, software: int, row: int) -> Outcome:
        """Read one outcome from a table of all."""
        count = len(self.choices)
        part = slice(software * count, (software + 1) * count)

        def column(name: str) -> Any:
            values = table[name].values[part]
            return (values if values.ndim == 1 else values[:, row]).reshape(count)

        values, fits = column(self.by).astype(np.float64), column("fits").astype(bool)
        digest = hashlib.blake2b(fits.tobytes())
        for name in dict.fromkeys((*self.watched, self.by)):
            digest.update(np.ascontiguousarray(column(name)).tobytes())
        good = np.isfinite(values) & (fits | (not self.reoptimise))
        if not good.any():
            possible = np.isfinite(values).any()
            why = "no strategy fits in memory" if possible else self._why(table, part, row)
            return Outcome(math.nan, False, digest.digest(), reason=why)
        sign = -1.0 if self.by in LARGER_IS_BETTER else 1.0
        at = int(np.argmin(np.where(good, sign * values, np.inf)))
        return Outcome(
            float(values[at]),
            bool(fits[at]),
            digest.digest(),
            dict(self.choices.row(at)) if self.reoptimise else {},
            {name: float(column(name)[at]) for name in self.keep},
            tight=bool(column("tight")[at]),
        )

    def _why(self, table: Table, part: slice, row: int) -> str:
        """Say why no strategy of a table has a value."""
        if self.by in self.subject.costs:
            from perfmodel.store.cost import unknown_costs

            if unknown := unknown_costs(table):
                return "; ".join(unknown)
        labels = table["status"].labels or ()
        code = int(np.asarray(table["status"].values[part, row]).flat[0])
        return labels[code].replace("_", " ") if code < len(labels) else "no answer"


class TrainingCase(Case):
    """The training step of one strategy, or of the best of a grid.

    Parameters
    ----------
    model : ModelSpec
    grid : StrategyGrid
    hardware : Hardware
    framework : Framework
    **options
        As of `Case`; the default of `by` is ``step_time``.
    """

    subject, default = TRAINING, "step_time"
    variables, fields, described = VARIABLES, FIELD_BY_NAME, FIELD_BY_NAME

    def __init__(
        self,
        model: ModelSpec,
        grid: StrategyGrid,
        hardware: Hardware,
        framework: Framework,
        **options: Any,
    ) -> None:
        super().__init__(hardware, framework, grid, **options)
        if self.by in OF_TOKENS and "tokens" not in self.costs:
            raise DataError(f"'{self.by}' needs tokens (--tokens), those to train on")
        self._model = model

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        return self._model

    def label(self, row: Mapping[str, Any]) -> str:
        """Return a strategy as options; what its degrees imply is left out."""
        implied = {"sequence_parallel": row["tensor_parallel"] > 1}
        if row["virtual_pipeline"] > 1:
            implied["pipeline_schedule"] = "interleaved"
        return super().label({name: it for name, it in row.items() if implied.get(name) != it})

    @property
    def watched(self) -> tuple[str, ...]:
        """All times; what of them is hidden, too."""
        times = (it.name for it in STEP_VARIABLES if it.units == "s")
        return tuple(name for name in times if not name.endswith(("_low", "_high")))

    def _table(self, software: Sequence[Any], choices: Any, rows: Sequence[Hardware]) -> Table:
        from perfmodel.store.cost import add_cost
        from perfmodel.sweeps.sweep import Problem, sweep_problems

        problems = [Problem(self.model, it, choices) for it in software]
        table = sweep_problems(problems, rows, provenance=self.by in COSTS)
        if self.by not in COSTS:
            return table
        return add_cost(table, **({"goodput": True} if self.by in GOODPUT else {}), **self.costs)

    def _with_facts(self, facts: Mapping[str, Any]) -> Framework:
        from perfmodel.software.framework import load_framework

        return load_framework(self.software, **facts)

    def _with_fields(self, change: Change) -> TrainingCase:
        from perfmodel.base.axes import axis_values
        from perfmodel.strategy.grid import VALID, StrategyGrid
        from perfmodel.strategy.rules import RULES, STATUS_REASONS, TABLE_RULES, strategy_status

        grid = self.choices
        columns = dict(grid.columns)
        for name, value in change.items():
            columns[name] = np.repeat(axis_values(name, value, FIELD_BY_NAME), len(grid))
        rules = RULES if grid.table is None else TABLE_RULES
        status = strategy_status(columns, self.model, grid.devices, rules)
        changed = StrategyGrid(grid.devices, columns, status, grid.table).take(status == VALID)
        if not len(changed):
            raise StrategyError(STATUS_REASONS[int(status[0])])
        return TrainingCase(
            self.model,
            changed,
            self.hardware,
            self.software,
            by=self.by,
            costs=self.costs,
            reoptimise=self.reoptimise,
            keep=self.keep,
        )


class ServingCase(Case):
    """One served model under one load, or the best of a grid of deployments.

    Parameters
    ----------
    deployments : DeploymentGrid
        Of one engine.
    loads : LoadGrid
        One load.
    hardware : Hardware
    method : str
        As of `perfmodel.sweeps.serving.serve`.
    **options
        As of `Case`; the default of `by` is ``time_per_output_token_mean``.
    """

    subject, default = SERVING, "time_per_output_token_mean"
    variables = serving_variables.VARIABLES
    fields: Mapping[str, Field] = {}
    described: Mapping[str, Field] = {**DEPLOYMENT_FIELD_BY_NAME, **LOAD_FIELD_BY_NAME}

    def __init__(
        self,
        deployments: DeploymentGrid,
        loads: LoadGrid,
        hardware: Hardware,
        method: str = "closed",
        **options: Any,
    ) -> None:
        if len(loads) != 1 or len(deployments.engines) != 1:
            raise StrategyError("a served model is varied under one load, with one engine")
        super().__init__(hardware, deployments.engines[0], deployments, **options)
        self.loads, self.method = loads, method

    @property
    def model(self) -> ModelSpec:
        """What is served."""
        model: ModelSpec = self.choices.model
        return model

    def label(self, row: Mapping[str, Any]) -> str:
        """Return a deployment and its load as options."""
        return super().label({**row, **self.loads.row(0)})

    @property
    def watched(self) -> tuple[str, ...]:
        """All that a point is told by."""
        names = (it.name for it in serving_variables.ROW_VARIABLES)
        return tuple(name for name in names if not name.endswith(("_low", "_high")))

    def _table(self, software: Sequence[Any], choices: Any, rows: Sequence[Hardware]) -> Table:
        from perfmodel.store.cost import add_cost
        from perfmodel.sweeps.serving import serve_table

        count = len(software)
        columns = {name: np.tile(it, count) for name, it in choices.columns.items()}
        columns["engine"] = np.repeat(np.arange(count), len(choices))
        status = np.tile(choices.status, count)
        grid = replace(choices, engines=tuple(software), columns=columns, status=status)
        table = serve_table(choices.model, grid, self.loads, rows, method=self.method)
        return add_cost(table, **self.costs) if self.by in self.subject.costs else table

    def _with_facts(self, facts: Mapping[str, Any]) -> Engine:
        from perfmodel.software.engine import load_engine

        return load_engine(self.software, **facts)

    def _with_fields(self, change: Change) -> Case:
        raise StrategyError("fields of deployments are not varied")
