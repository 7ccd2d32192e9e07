"""Everything that the user may choose of a served model: one row of ``fields.csv`` per field.

Columns, coordinates, command-line options and checks come from these tables. A *deployment* is
what runs where; a *load* is what it is asked to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from perfmodel.base.fields import Field, read_fields
from perfmodel.base.precisions import (
    ACTIVATION_FORMATS,
    CACHE_FORMATS,
    WEIGHT_FORMATS,
)
from perfmodel.base.strategy_fields import TABLE

DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
)
"""Degrees of a worker; those of a prefill worker have ``prefill_`` ahead."""

ENGINE_LIMITS = ("token_budget", "max_sequences", "block_tokens", "memory_share")
"""Fields whose value is the engine's where none is stated."""


_FIELDS = read_fields(
    TABLE,
    {
        "weight_precision": WEIGHT_FORMATS,
        "activation_precision": ACTIVATION_FORMATS,
        "kv_precision": CACHE_FORMATS,
    },
)
DEPLOYMENT_FIELDS: tuple[Field, ...] = _FIELDS["deployment"]
"""What a deployment is, but for its engine."""

LOAD_FIELDS: tuple[Field, ...] = _FIELDS["load"]
DEPLOYMENT_FIELD_BY_NAME: Mapping[str, Field] = {it.name: it for it in DEPLOYMENT_FIELDS}
LOAD_FIELD_BY_NAME: Mapping[str, Field] = {it.name: it for it in LOAD_FIELDS}

UNITS: Mapping[str, str] = {"arrival_rate": "1/s", "cache_bytes": "B"}
"""Units of fields that have one."""

ALIASES: Mapping[str, str] = {
    item.option.replace("-", "_"): item.name
    for item in (*DEPLOYMENT_FIELDS, *LOAD_FIELDS)
    if item.option.replace("-", "_") != item.name
}
"""Short spellings, as on the command line: "isl" for "input_length"."""


class Columns(Protocol):
    """Columns by name: of a grid, a mapping, or the values of one row."""

    def __getitem__(self, name: str, /) -> Any: ...


UNSET = 0
"""What stands in a column of one of `WHERE_UNSET` where nothing is stated; never its value."""

WHERE_UNSET: Mapping[str, str] = {
    **dict.fromkeys(ENGINE_LIMITS, "the engine's"),
    **dict.fromkeys((f"prefill_{name}" for name in DEGREES), "as of a decode worker"),
    "context_length": "the model's, unchecked",
    "cache_blocks": "as memory allows",
    "cache_bytes": "what is left",
    "concurrency": "an open loop",
    "arrival_rate": "a closed loop",
    "rounds": "so many that the start does not count",
}
"""Field that may be left unstated -> what holds then. The 0 of other fields is a value."""


def is_stated(columns: Columns, name: str) -> Any:
    """Whether a field of `WHERE_UNSET` is stated: a mask for columns, a bool for one row.

    Raises
    ------
    KeyError
        A field that always has a value.
    """
    if name not in WHERE_UNSET:
        raise KeyError(f"field {name!r} always has a value; 0 is one")
    return columns[name] != UNSET


def is_closed_loop(loads: Columns) -> Any:
    """Whether clients keep requests under way (closed loop); else requests arrive at a rate.

    Parameters
    ----------
    loads : mapping of str to ndarray or scalar, or LoadGrid
        Columns of loads, or one row.

    Returns
    -------
    ndarray of bool, or bool

    Examples
    --------
    >>> is_closed_loop({"concurrency": 8, "arrival_rate": 0})
    True
    """
    return is_stated(loads, "concurrency")
