"""Strategy fields and the column form in which sets of strategies are kept.

A strategy is everything that the user may choose for a run. A set of them is a
struct of arrays: one 1-D column per field, so that millions cost megabytes and
no Python object per strategy ever exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import StrategyError, did_you_mean

IntColumn = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StrategyField:
    """One thing that the user may choose.

    Attributes
    ----------
    name : str
        Column and coordinate name.
    option : str
        Spelling on the command line, without the dashes.
    kind : {"int", "bool", "choice"}
        How values are written and stored.
    default : int or str or bool
        Value where nothing is said.
    description : str
        One line for help pages and ``long_name``.
    choices : tuple of str
        Labels of a ``choice`` field; the column stores the index.
    minimum : int
        Smallest value of an ``int`` field.
    """

    name: str
    option: str
    kind: str
    default: int | str | bool
    description: str
    choices: tuple[str, ...] = ()
    minimum: int = 1


RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32")
PIPELINE_SCHEDULES = ("gpipe", "1f1b", "interleaved")
CONTEXT_PARALLEL_KINDS = ("ring", "all_to_all", "all_gather")
MAPPINGS = ("tensor-context-data-pipeline", "tensor-context-pipeline-data")

FIELDS: tuple[StrategyField, ...] = (
    StrategyField("tensor_parallel", "tp", "int", 1, "tensor-parallel degree"),
    StrategyField(
        "sequence_parallel", "sp", "bool", True, "sequence parallelism in the tensor-parallel group"
    ),
    StrategyField("context_parallel", "cp", "int", 1, "context-parallel degree"),
    StrategyField(
        "context_parallel_kind",
        "cp-kind",
        "choice",
        "ring",
        "how context parallelism moves keys and values",
        CONTEXT_PARALLEL_KINDS,
    ),
    StrategyField("pipeline_parallel", "pp", "int", 1, "pipeline-parallel degree"),
    StrategyField("virtual_pipeline", "vpp", "int", 1, "model chunks per pipeline stage"),
    StrategyField(
        "pipeline_schedule", "schedule", "choice", "1f1b", "pipeline schedule", PIPELINE_SCHEDULES
    ),
    StrategyField("data_parallel", "dp", "int", 1, "data-parallel degree (replicas of the batch)"),
    StrategyField(
        "zero_stage",
        "zero",
        "int",
        1,
        "ZeRO stage: 1 shards the optimizer, 2 gradients too, 3 parameters too (FSDP)",
        minimum=0,
    ),
    StrategyField(
        "shard_group",
        "shard-group",
        "int",
        0,
        "devices that share one ZeRO shard set (HSDP); 0: the whole data-parallel group",
        minimum=0,
    ),
    StrategyField("expert_parallel", "ep", "int", 1, "expert-parallel degree"),
    StrategyField(
        "expert_tensor_parallel", "etp", "int", 1, "tensor-parallel degree inside experts"
    ),
    StrategyField("micro_batch_size", "micro-batch", "int", 1, "sequences per micro-batch"),
    StrategyField("global_batch_size", "global-batch", "int", 1, "sequences per step"),
    StrategyField("sequence_length", "seq-len", "int", 1, "tokens per sequence"),
    StrategyField(
        "recompute", "recompute", "choice", "none", "activation recomputation", RECOMPUTE
    ),
    StrategyField(
        "precision", "precision", "choice", "bf16", "number format of matrix products", PRECISIONS
    ),
    StrategyField(
        "mapping",
        "mapping",
        "choice",
        MAPPINGS[0],
        "order of the parallel axes over the devices, innermost first",
        MAPPINGS,
    ),
)
FIELD_BY_NAME: Mapping[str, StrategyField] = {item.name: item for item in FIELDS}


def encode(name: str, value: Any) -> int:
    """Turn one written value of a field into the integer that its column stores.

    Raises
    ------
    StrategyError
        Unknown field, label or type, or a value below the field's minimum.
    """
    if name not in FIELD_BY_NAME:
        raise StrategyError(f"unknown strategy field '{name}'{did_you_mean(name, FIELD_BY_NAME)}")
    spec = FIELD_BY_NAME[name]
    if spec.kind == "choice":
        if isinstance(value, str) and value in spec.choices:
            return spec.choices.index(value)
        raise StrategyError(f"{name}: '{value}' is not one of {', '.join(spec.choices)}")
    if spec.kind == "bool":
        if isinstance(value, bool | np.bool_) or value in (0, 1):
            return int(value)
        raise StrategyError(f"{name}: '{value}' is neither true nor false")
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise StrategyError(f"{name}: {value!r} is not a whole number")
    if value < spec.minimum:
        raise StrategyError(f"{name}: {value} is below {spec.minimum}")
    if value > 2**40:
        raise StrategyError(f"{name}: {value} is larger than any run; check the number")
    return int(value)


def decode(name: str, code: int) -> int | bool | str:
    """Inverse of `encode` for one stored integer."""
    spec = FIELD_BY_NAME[name]
    if spec.kind == "choice":
        return spec.choices[int(code)]
    return bool(code) if spec.kind == "bool" else int(code)


@dataclass(frozen=True, slots=True)
class StrategyGrid:
    """Columns of strategies for one number of devices.

    Attributes
    ----------
    devices : int
        Devices of the run; the same for every strategy.
    columns : mapping of str to ndarray, shape (strategies,)
        One integer column per field of `FIELDS`.
    status : ndarray of uint8, shape (strategies,)
        0 where a strategy is possible, else the code of the rule that it breaks
        (`perfmodel.strategy_rules`).
    """

    devices: int
    columns: Mapping[str, IntColumn]
    status: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return int(self.columns["tensor_parallel"].size)

    def __getitem__(self, name: str) -> IntColumn:
        return self.columns[name]

    def row(self, index: int) -> dict[str, int | bool | str]:
        """Return one strategy with labels, for printing."""
        return {name: decode(name, column[index]) for name, column in self.columns.items()}

    def take(self, index: NDArray[Any] | slice) -> StrategyGrid:
        """Return the strategies at `index` (positions, mask or slice)."""
        return StrategyGrid(
            self.devices,
            {name: column[index] for name, column in self.columns.items()},
            self.status[index],
        )


def columns_from_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, IntColumn]:
    """Turn written strategies (field -> value) into columns; missing fields get defaults."""
    columns = {}
    for spec in FIELDS:
        values = (row.get(spec.name, spec.default) for row in rows)
        columns[spec.name] = np.fromiter(
            (encode(spec.name, value) for value in values), np.int64, count=len(rows)
        )
    unknown = {name for row in rows for name in row} - set(FIELD_BY_NAME)
    if unknown:
        encode(sorted(unknown)[0], 0)
    return columns


def axis_values(name: str, values: Any) -> IntColumn:
    """Turn the values of one axis (scalar or iterable) into a column without repeats."""
    listed: Iterable[Any] = (
        [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else values
    )
    encoded = list(dict.fromkeys(encode(name, value) for value in listed))
    if not encoded:
        raise StrategyError(f"{name}: the list of values is empty")
    return np.asarray(encoded, np.int64)
