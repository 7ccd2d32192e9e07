"""What results are about: training steps, served models, wafers, sensitivities; what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.base import serving_variables, wafer_variables
from perfmodel.base.variables import COSTS, RATE, SCHEMA_VERSION, Variable
from perfmodel.serving import fields as serving_fields
from perfmodel.strategy.fields import FIELDS
from perfmodel.wafer import fields as wafer_fields

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
        What `perfmodel.sweeps.cost.add_cost` adds.
    verb : str
        Command that makes such results.
    schema : str
        Version of their layout ("1.2"), which files state.
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
)
WAFER = Subject(
    ("mapping", "hardware", "phase"),
    ("phase", *wafer_fields.FIELD_BY_NAME),
    # One user's rate stands where the others have that of a device.
    {RATE: "tokens_per_second", "layout": "cache_layout"},
    "latency",
    frozenset({"latency", "sram_used", "status"}),
    ("model",),
    {},
    "wafer",
    wafer_variables.SCHEMA_VERSION,
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
    "1.0",
)


def subject_of(results: Table | xr.Dataset | Any) -> Subject:
    """Return what some results are about."""
    if "mapping" in results.sizes:
        return WAFER
    if "parameter" in results.sizes:
        return SENSITIVITY
    return SERVING if "deployment" in results.sizes else TRAINING
