"""Everything that the user may choose of a served model: one row per field.

Columns, coordinates, command-line options and checks come from these tables. A *deployment* is
what runs where; a *load* is what it is asked to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from perfmodel.base.precisions import (
    ACTIVATION_FORMATS,
    AS_STATED,
    CACHE_FORMATS,
    WEIGHT_FORMATS,
)
from perfmodel.base.strategy_fields import StrategyField

DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
)
"""Degrees of a worker; those of a prefill worker have ``prefill_`` ahead."""

ENGINE_LIMITS = ("token_budget", "max_sequences", "block_tokens", "memory_share")
"""Fields whose value is the engine's where none is stated."""


def _pool(name: str, option: str, text: str) -> StrategyField:
    text = f"{text} of a prefill worker; 0: as of a decode worker"
    return StrategyField(f"prefill_{name}", f"prefill-{option}", "int", 0, text, minimum=0)


DEPLOYMENT_FIELDS: tuple[StrategyField, ...] = (
    StrategyField("tensor_parallel", "tp", "int", 1, "tensor-parallel degree"),
    StrategyField("pipeline_parallel", "pp", "int", 1, "pipeline-parallel degree"),
    StrategyField("expert_parallel", "ep", "int", 1, "expert-parallel degree"),
    StrategyField(
        "attention_data_parallel",
        "dp-attention",
        "int",
        1,
        "attention-data-parallel degree: ranks of a worker with batches of their own",
    ),
    StrategyField(
        "workers", "workers", "int", 1, "copies of the model (of the decode pool, of two pools)"
    ),
    StrategyField(
        "weight_precision",
        "weight-precision",
        "choice",
        AS_STATED,
        "format of weights; stated: as published",
        WEIGHT_FORMATS,
    ),
    StrategyField(
        "activation_precision",
        "activation-precision",
        "choice",
        AS_STATED,
        "format of products; stated: as published",
        ACTIVATION_FORMATS,
    ),
    StrategyField(
        "kv_precision",
        "kv-precision",
        "choice",
        "bf16",
        "format of keys and values",
        CACHE_FORMATS,
    ),
    StrategyField(
        "token_budget",
        "chunk",
        "int",
        0,
        "tokens of a pass at most; 0: the engine's",
        minimum=0,
    ),
    StrategyField(
        "max_sequences",
        "max-sequences",
        "int",
        0,
        "sequences that an attention rank runs at most; 0: the engine's",
        minimum=0,
    ),
    StrategyField(
        "block_tokens",
        "block-tokens",
        "int",
        0,
        "tokens of a block of the cache; 0: the engine's",
        minimum=0,
    ),
    StrategyField(
        "memory_share",
        "memory-share",
        "float",
        0.0,
        "share of memory that the engine takes; 0: the engine's",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "draft_length", "draft-length", "int", 0, "tokens drafted ahead of a pass", minimum=0
    ),
    StrategyField(
        "acceptance",
        "acceptance",
        "float",
        0.0,
        "chance that a drafted token is taken",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "prefill_workers",
        "prefill-workers",
        "int",
        0,
        "workers that run prompts only; 0: one pool for both",
        minimum=0,
    ),
    _pool("tensor_parallel", "tp", "tensor-parallel degree"),
    _pool("pipeline_parallel", "pp", "pipeline-parallel degree"),
    _pool("expert_parallel", "ep", "expert-parallel degree"),
    _pool("attention_data_parallel", "dp-attention", "attention-data-parallel degree"),
)
"""What a deployment is, but for its engine."""

LOAD_FIELDS: tuple[StrategyField, ...] = (
    StrategyField("input_length", "isl", "int", 1024, "tokens of a prompt, at most"),
    StrategyField("output_length", "osl", "int", 1024, "tokens of an answer, at most"),
    StrategyField(
        "length_spread",
        "length-range",
        "float",
        1.0,
        "lengths are uniform from this share of the longest; 1: all alike",
        minimum=0,
        maximum=1,
    ),
    StrategyField(
        "prefix",
        "prefix",
        "float",
        0.0,
        "tokens of a prompt that the cache holds, on average; below 1: that share of it",
        minimum=0,
    ),
    StrategyField(
        "concurrency",
        "concurrency",
        "float",
        0.0,
        "requests that clients keep under way; 0: an open loop",
        minimum=0,
    ),
    StrategyField(
        "rounds",
        "rounds",
        "float",
        0.0,
        "requests that each client of a closed loop makes, the first all at once; 0: so many that "
        "the start does not count",
        minimum=0,
    ),
    StrategyField(
        "arrival_rate",
        "rate",
        "float",
        0.0,
        "requests per second that arrive [1/s]; 0: a closed loop",
        minimum=0,
    ),
    StrategyField(
        "arrival_variation",
        "arrival-variation",
        "float",
        1.0,
        "squared coefficient of variation of the times between arrivals; 1: Poisson",
        minimum=0,
    ),
)

DEPLOYMENT_FIELD_BY_NAME: Mapping[str, StrategyField] = {it.name: it for it in DEPLOYMENT_FIELDS}
LOAD_FIELD_BY_NAME: Mapping[str, StrategyField] = {it.name: it for it in LOAD_FIELDS}

UNITS: Mapping[str, str] = {"arrival_rate": "1/s"}
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
