"""What may be chosen of a model on a mesh of cores, and what its results hold.

Imports nothing heavy, so that the command line can read it at once.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from perfmodel.base.fields import Field
from perfmodel.kernels.variables import RATE, Variable, parts_of
from perfmodel.kernels.wafer.columns import CACHE_LAYOUTS, CLOSED_ROWS
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.store.subject import Subject

MOST_SIDE = 2**14
MOST_TOKENS = 2**27

MAPPING_FIELDS: tuple[Field, ...] = (
    Field("grid_rows", "grid", "int", 1, "rows of cores of a region", maximum=MOST_SIDE),
    Field("grid_columns", "grid", "int", 1, "columns of cores of a region", maximum=MOST_SIDE),
    Field(
        "regions",
        "regions",
        "int",
        0,
        "pipeline regions that share the layers; 0: as many as the mesh holds",
        minimum=0,
        maximum=2**20,
    ),
    Field(
        "context",
        "context",
        "int",
        4096,
        "tokens of the prompt, or those that a decoded token sees",
        maximum=MOST_TOKENS,
    ),
    Field("batch", "batch", "int", 1, "sequences at once", maximum=2**20),
    Field(
        "collective",
        "collective",
        "choice",
        "two_level",
        "how sums over a column of cores are made",
        choices=ALGORITHMS,
    ),
    Field(
        "product",
        "product",
        "choice",
        "mesh_gemm",
        "how tiles of a product of matrices meet",
        choices=PRODUCTS,
    ),
    Field(
        "cache_layout",
        "cache-layout",
        "choice",
        "shifted",
        "keys and values over all rows of cores, or concatenated on one",
        choices=CACHE_LAYOUTS,
    ),
)
"""A mapping's fields; ``grid`` names the first two at once."""

FIELD_BY_NAME: Mapping[str, Field] = {spec.name: spec for spec in MAPPING_FIELDS}
AXES = ("grid", *(spec.name for spec in MAPPING_FIELDS[2:]))


# Every variable of results: name, units and what it means.

SCHEMA_VERSION = "1.0"


def _variables() -> dict[str, list[Variable]]:
    """Read ``variables.csv``: variables by what they are of, with units and what they mean."""
    table = Path(__file__).with_name("variables.csv").read_text(encoding="utf-8")
    found: dict[str, list[Variable]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        found.setdefault(row.pop("of"), []).append(Variable(**row))
    return found


ROW_VARIABLES, OTHER_VARIABLES, PART_VARIABLES = map(tuple, _variables().values())
"""Over mapping, hardware and phase, in the kernels' order; what follows from them; of one phase,
over mapping, hardware and part."""
if tuple(item.name for item in ROW_VARIABLES) != CLOSED_ROWS:
    raise ImportError("variables.csv and the kernels' CLOSED_ROWS differ in names or order")

TIME_COMPONENTS = parts_of("latency", ROW_VARIABLES)
BOTTLENECKS = tuple(name.removesuffix("_time") for name in TIME_COMPONENTS)

VARIABLES: Mapping[str, Variable] = {
    item.name: item for item in (*ROW_VARIABLES, *OTHER_VARIABLES, *PART_VARIABLES)
}


# What `perfmodel.store.subject` says of each kind of results.

SUBJECT = Subject(
    ("mapping", "hardware", "phase"),
    ("phase", *FIELD_BY_NAME),
    # One user's rate stands where the others have that of a device.
    {RATE: "tokens_per_second", "layout": "cache_layout"},
    "latency",
    frozenset({"latency", "sram_used", "status"}),
    ("model",),
    {},
    "wafer",
    SCHEMA_VERSION,
    VARIABLES,
    FIELD_BY_NAME,
    whole="latency",
    parts=TIME_COMPONENTS,
    always=("hardware", "phase", "grid_rows", "grid_columns"),
    results=("latency", "tokens_per_second", "network_time", "bottleneck", "sram_used"),
)
