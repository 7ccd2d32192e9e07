"""What results are about: training steps, served models, sensitivities; what they share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base import served_fields as serving_fields
from perfmodel.base.fields import Field
from perfmodel.base.strategy_fields import FIELD_BY_NAME, FIELDS
from perfmodel.base.wings import contributions
from perfmodel.kernels.serving import variables as serving_variables
from perfmodel.kernels.variables import (
    COSTS,
    SCHEMA_VERSION,
    TIME_COMPONENTS,
    VARIABLES,
    Variable,
)

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.base.table import Table


@dataclass(frozen=True)
class Subject:
    """Names of one kind of results.

    Attributes
    ----------
    dims : tuple of str
        Dimensions of its main variables.
    fields : tuple of str
        Coordinates that a user chose, in the order in which rows have them.
    aliases : mapping of str to str
        Short spellings, as on the command line: "tp" for "tensor_parallel".
    answer : str
        Variable that is finite where there is an answer.
    required : frozenset of str
        Variables without which a file is none of these results.
    of_all : tuple of str
        Attributes that a table of one problem has once, and one of several as coordinates.
    costs : mapping of str to Variable
        What `perfmodel.store.cost.add_cost` adds.
    verb : str
        Command that makes such results.
    schema : str
        Version of their layout ("1.3"), which files state.
    variables : mapping of str to Variable
        All that such results hold.
    chosen : mapping of str to Field
        What a user chose, by name.
    whole : str
        Time of which `parts` are parts.
    parts : tuple of str
        Variables that add up to it.
    always, results : tuple of str
        Fields and variables that a list of the best shows, whether or not they differ.
    """

    dims: tuple[str, ...]
    fields: tuple[str, ...]
    aliases: Mapping[str, str]
    answer: str
    required: frozenset[str]
    of_all: tuple[str, ...]
    costs: Mapping[str, Variable]
    verb: str
    schema: str
    variables: Mapping[str, Variable] = field(default_factory=dict)
    chosen: Mapping[str, Field] = field(default_factory=dict)
    whole: str = ""
    parts: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    results: tuple[str, ...] = ()

    @property
    def numbered(self) -> tuple[str, ...]:
        """Dimensions whose coordinate is the number of a row."""
        return tuple(dim for dim in self.dims if dim not in ("hardware", "phase", "parameter"))


TRAINING = Subject(
    ("strategy", "hardware"),
    tuple(spec.name for spec in FIELDS),
    {spec.option.replace("-", "_"): spec.name for spec in FIELDS},
    "step_time",
    frozenset({"step_time", "memory_total", "status"}),
    ("model", "framework", "devices"),
    COSTS,
    "sweep",
    SCHEMA_VERSION,
    VARIABLES,
    FIELD_BY_NAME,
    whole="step_time",
    parts=TIME_COMPONENTS,
    always=(
        "hardware",
        "tensor_parallel",
        "pipeline_parallel",
        "data_parallel",
        "micro_batch_size",
    ),
    results=(
        "step_time",
        "tokens_per_second_per_device",
        "model_flops_utilization",
        "memory_total",
    ),
)
SERVING = Subject(
    ("deployment", "hardware", "load"),
    (
        "engine",
        *serving_fields.DEPLOYMENT_FIELD_BY_NAME,
        *serving_fields.LOAD_FIELD_BY_NAME,
    ),
    {**serving_fields.ALIASES, **serving_variables.ALIASES},
    "request_time_mean",
    frozenset({"request_time_mean", "memory_total", "status"}),
    ("model",),
    serving_variables.COSTS,
    "serve",
    serving_variables.SCHEMA_VERSION,
    serving_variables.VARIABLES,
    {**serving_fields.DEPLOYMENT_FIELD_BY_NAME, **serving_fields.LOAD_FIELD_BY_NAME},
    whole="pass_time",
    parts=tuple(serving_variables.TIME_COMPONENTS),
    always=("hardware", "engine", "tensor_parallel", "workers", "devices"),
    results=(
        "time_to_first_token_mean",
        "time_per_output_token_mean",
        "tokens_per_second_per_user",
        "tokens_per_second_per_device",
    ),
)
SENSITIVITY = Subject(
    ("parameter",),
    ("kind", "unit", "value", "setting", "other"),
    {},
    "high",
    frozenset({"elasticity", "low_change", "high_change"}),
    ("model", "software", "hardware", "variable"),
    {},
    "sensitivity",
    "1.1",
)


@functools.cache
def subjects() -> tuple[Subject, ...]:
    """Return every kind of results, those of the wings included."""
    return (
        TRAINING,
        SERVING,
        SENSITIVITY,
        *(wing.SUBJECT for wing in contributions("result_subject")),
    )


def subject_of(results: Table | xr.Dataset | Any) -> Subject:
    """Return what some results are about."""
    for subject in subjects():
        if subject.dims[0] in results.sizes:
            return subject
    return TRAINING
