"""Variables of training results: the one table of their units, words, parts and order.

The table is ``variables.csv``. Rows of `STEP_VARIABLES` are numbered in this order; the closing
pass takes its row numbers from here (`perfmodel.kernels.step.tables.ROW`). Commands, files, figures
and queries read the rest.
"""

from __future__ import annotations

import csv
from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "1.3"
RATE = "tokens_per_second_per_device"
"""What results are ranked by where nothing else is said."""
SEARCHED_BY = (RATE, "step_time", "model_flops_utilization")
"""What a search can rank by: what follows from the time of a step, once a layout is chosen."""
PHASES = ("forward", "input_gradient", "weight_gradient")
"""Passes of a training step, as text workloads and their results have them."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of results.

    Attributes
    ----------
    name, units, long_name : str
    formula : str
        Where one line says it.
    short : str
        Heading of a narrow column.
    title : str
        Label of an axis; empty where the name in words will do.
    part_of : str
        Variable or sum that this one is a part of; parts are stacked in the order of the table.
    better : {"down", "up"}
        Which way a result improves.
    """

    name: str
    units: str
    long_name: str
    formula: str = ""
    short: str = ""
    title: str = ""
    part_of: str = ""
    better: str = "down"

    def attributes(self) -> dict[str, str]:
        """Return what a labelled column says of itself."""
        found = {"units": self.units, "long_name": self.long_name}
        return found | ({"formula": self.formula} if self.formula else {})


def memory_verdict(row: Mapping[str, Any]) -> str:
    """Return whether a result fits in memory: ``fits``, ``tight`` or ``does not fit``.

    Tight is what fits by less than the measured error of memory; results of earlier versions do not
    tell it apart.
    """
    if not row["fits"]:
        return "does not fit"
    return "tight" if row.get("tight") else "fits"


def parts_of(whole: str, variables: Iterable[Variable]) -> tuple[str, ...]:
    """Return the names of the variables that add up to another one."""
    return tuple(variable.name for variable in variables if variable.part_of == whole)


def larger_is_better(variables: Iterable[Variable]) -> frozenset[str]:
    """Return the names of the variables of which more is better."""
    return frozenset(variable.name for variable in variables if variable.better == "up")


def row_numbers(kind: str, variables: Iterable[Variable], *others: str) -> Any:
    """Return a class of tuples whose fields are the names of variables, and then others."""
    names = [*(variable.name for variable in variables), *others]
    return namedtuple(kind, names)


def read_variables(path: str | Path) -> Mapping[str, tuple[Variable, ...]]:
    """Return the variables of a ``variables.csv``, a row each, by what they are of."""
    found: dict[str, list[Variable]] = {}
    table = Path(path).read_text(encoding="utf-8")
    for row in csv.DictReader(table.splitlines()):  # kernels import nothing else of the package
        given = {key: cell for key, cell in row.items() if cell}
        found.setdefault(given.pop("of"), []).append(Variable(**given))
    return {of: tuple(variables) for of, variables in found.items()}


STEP_VARIABLES, OTHER_VARIABLES, COST_VARIABLES = read_variables(
    Path(__file__).with_name("variables.csv")
).values()
STEP_ROWS = {variable.name: row for row, variable in enumerate(STEP_VARIABLES)}
VARIABLES: Mapping[str, Variable] = {v.name: v for v in STEP_VARIABLES + OTHER_VARIABLES}
COSTS: Mapping[str, Variable] = {v.name: v for v in COST_VARIABLES}
"""What `perfmodel.store.cost.add_cost` adds; the others are there always."""

TIME_COMPONENTS = parts_of("step_time", STEP_VARIABLES)
OPERATION_COMPONENTS = (
    "forward_time",
    "backward_time",
    "recompute_time",
    "tensor_parallel_exposed",
    "context_parallel_exposed",
    "expert_parallel_exposed",
)
"""Those to which operations add."""
HOST_MEMORY: Mapping[str, str] = {
    "memory_host": "memory_capacity",
    "memory_nvme": "nvme_capacity",
}
"""What waits with the host -> what of its profile (``[system.host]``) has to hold it."""
MEMORY_COMPONENTS = parts_of("memory_total", STEP_VARIABLES)
