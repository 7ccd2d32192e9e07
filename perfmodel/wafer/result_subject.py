"""What may be chosen of a model on a mesh of cores, and what its results hold.

Imports nothing heavy, so that the command line can read it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perfmodel.base.fields import Field, read_fields
from perfmodel.kernels.variables import RATE, Variable, parts_of
from perfmodel.kernels.wafer.columns import (
    CACHE_LAYOUTS,
    OTHER_VARIABLES,
    PART_VARIABLES,
    ROW_VARIABLES,
)
from perfmodel.kernels.wafer.products import PRODUCTS
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.store.subject import Subject

MAPPING_FIELDS: tuple[Field, ...] = read_fields(
    Path(__file__).with_name("fields.csv"),
    {"collective": ALGORITHMS, "product": PRODUCTS, "cache_layout": CACHE_LAYOUTS},
)["mapping"]
"""A mapping's fields; ``grid`` names the first two at once."""

FIELD_BY_NAME: Mapping[str, Field] = {spec.name: spec for spec in MAPPING_FIELDS}
MOST_TOKENS = int(FIELD_BY_NAME["context"].maximum)
AXES = ("grid", *(spec.name for spec in MAPPING_FIELDS[2:]))


# Every variable of results: name, units and what it means.

SCHEMA_VERSION = "1.0"


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
