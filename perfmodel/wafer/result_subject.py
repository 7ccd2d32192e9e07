"""Results of wafers: what `perfmodel.store.subject` says of each kind of results."""

from __future__ import annotations

from perfmodel.kernels.variables import RATE
from perfmodel.store.subject import Subject
from perfmodel.wafer import fields, variables

SUBJECT = Subject(
    ("mapping", "hardware", "phase"),
    ("phase", *fields.FIELD_BY_NAME),
    # One user's rate stands where the others have that of a device.
    {RATE: "tokens_per_second", "layout": "cache_layout"},
    "latency",
    frozenset({"latency", "sram_used", "status"}),
    ("model",),
    {},
    "wafer",
    variables.SCHEMA_VERSION,
    whole="latency",
    parts=variables.TIME_COMPONENTS,
    always=("hardware", "phase", "grid_rows", "grid_columns"),
    results=("latency", "tokens_per_second", "network_time", "bottleneck", "sram_used"),
)
