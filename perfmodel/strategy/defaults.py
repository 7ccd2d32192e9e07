"""What a run has that nobody names: the one answer of every command, of Python and of tables.

A strategy may leave fields open. Some follow from others: the replicas from the devices, the
schedule from the chunks of a stage. Others are as the software has them where a run does not say:
whether the sequence is sharded, how context ranks exchange keys, the ZeRO stage, recomputation.
What is still open has the default of its field. Sweeps and searches try several values of some
fields (`perfmodel.strategy.enumerate`), always with the one that a single projection has.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.axes import decode, encode
from perfmodel.base.columns import Flags, Integers
from perfmodel.base.pipelines import CHUNKED, CODES, PLAIN, SCHEDULE_FACTS
from perfmodel.base.strategy_fields import CONTEXT_PARALLEL_KINDS, DEFAULT_FRAMEWORK, FIELD_BY_NAME
from perfmodel.model.spec import ModelSpec, run_of_model
from perfmodel.software.framework import Framework, as_run, load_framework
from perfmodel.strategy.grid import StrategyGrid
from perfmodel.strategy.rules import RULES, TABLE_RULES, strategy_status

OF_SOFTWARE = ("sequence_parallel", "context_parallel_kind")
"""Fields of which sweeps, too, have one value where none is named, as the software has it."""
DEGREES = (
    *("tensor_parallel", "context_parallel", "pipeline_parallel", "virtual_pipeline"),
    *("expert_parallel", "expert_tensor_parallel"),
)


class Defaults(NamedTuple):
    """What runs of one model have by default in one software, as codes.

    Attributes
    ----------
    sequence_parallel, context_parallel_kind : int
        With tensor, or context, parallelism.
    zero_stage, pipeline_zero_stage : int
        Without a pipeline, and with one.
    recompute : str
        Empty: the default of the field.
    experts : bool
        Whether the model has experts.
    """

    sequence_parallel: int
    context_parallel_kind: int
    zero_stage: int
    pipeline_zero_stage: int
    recompute: str
    experts: bool

    def replicated(self, columns: Mapping[str, Any]) -> Flags:
        """Tell where several ranks hold the same parameters, those of experts included."""
        data, context, tensor, expert, inner = (
            np.asarray(columns[name], np.float64)  # where absurd degrees cannot overflow
            for name in ("data_parallel", *DEGREES[1::-1], *DEGREES[4:])
        )
        found: Flags = data * context > 1
        if self.experts:
            found = found | (data * context * tensor > expert * inner)
        return found

    def stage(self, columns: Mapping[str, Any]) -> Integers:
        """Return the ZeRO stage of runs that name none; 0 where there is nothing to shard."""
        staged = np.asarray(columns["pipeline_parallel"]) > 1
        stage = np.where(staged, self.pipeline_zero_stage, self.zero_stage)
        return np.where(self.replicated(columns), stage, 0)


def defaults_of(framework: str | Framework | None, model: ModelSpec) -> Defaults:
    """Return what runs of a model have by default; None: as of `DEFAULT_FRAMEWORK`."""
    software = as_run(load_framework(framework or DEFAULT_FRAMEWORK), run_of_model(model, "bf16"))
    stage = software.zero_stage
    return Defaults(
        # Experts with tensor parallelism need it (`perfmodel.strategy.rules`).
        int(software.sequence_parallel or model.has_experts),
        CONTEXT_PARALLEL_KINDS.index(software.context_parallel_kind),
        stage,
        min(stage, 2) if software.gathers_once_in_pipeline else stage,
        software.recompute,
        model.has_experts,
    )


def following(
    columns: Mapping[str, Any], devices: int, named: Container[str], defaults: Defaults
) -> dict[str, Integers]:
    """Return the columns of open fields that follow from the degrees, by the software's facts.

    Parameters
    ----------
    columns : mapping of str to int or ndarray
        With all `DEGREES`, and what is named of the others.
    devices : int
    named : container of str
        Fields that are not open.
    defaults : Defaults
    """
    tensor, context, pipeline = (np.asarray(columns[name]) for name in DEGREES[:3])
    virtual = np.asarray(columns["virtual_pipeline"])
    found = {
        # In floating point, where absurd degrees cannot overflow.
        "data_parallel": lambda: np.maximum(
            devices // (tensor.astype(np.float64) * context * pipeline), 1
        ).astype(np.int64),
        "pipeline_schedule": lambda: np.where(virtual > 1, CODES[CHUNKED], CODES[PLAIN]),
        "sequence_parallel": lambda: np.where(tensor > 1, defaults.sequence_parallel, 0),
        "context_parallel_kind": lambda: np.where(context > 1, defaults.context_parallel_kind, 0),
    }
    return {name: fill() for name, fill in found.items() if name not in named}


def completed(row: Mapping[str, Any], devices: int, defaults: Defaults) -> dict[str, Any]:
    """Return a strategy with every field that follows from others, or that software decides."""
    degrees = {name: int(encode(name, row.get(name, 1), FIELD_BY_NAME)) for name in DEGREES}
    done = dict(row)
    named = SCHEDULE_FACTS.get(str(row.get("pipeline_schedule")))
    if named and "virtual_pipeline" not in row and degrees["pipeline_parallel"] > 1:
        done["virtual_pipeline"] = degrees["virtual_pipeline"] = named.fewest_chunks
    found: dict[str, Any] = following(degrees, devices, row, defaults)
    done |= {name: decode(name, int(value)) for name, value in found.items()}
    if "zero_stage" not in row:
        data = encode("data_parallel", done["data_parallel"], FIELD_BY_NAME)
        done["zero_stage"] = int(defaults.stage({**degrees, "data_parallel": data}))
    if defaults.recompute:
        done.setdefault("recompute", defaults.recompute)
    return done


def as_software_has_it(
    grid: StrategyGrid, model: ModelSpec, framework: str | Framework
) -> StrategyGrid:
    """Return strategies with what they leave open (`StrategyGrid.open`) as a software has it."""
    if not grid.open:
        return grid
    held = grid.families.grid if grid.families is not None else grid
    named = {*held.columns} - grid.open
    changed = following(held.columns, grid.devices, named, defaults_of(framework, model))
    if all(np.array_equal(held[name], column) for name, column in changed.items()):
        return grid
    columns = {**held.columns, **changed}
    rules = RULES if grid.table is None else TABLE_RULES
    status = strategy_status(columns, model, grid.devices, rules)
    found = StrategyGrid(grid.devices, columns, status, grid.table, open=grid.open)
    if grid.families is None:
        return found
    return replace(replace(grid.families, grid=found).listed(), open=grid.open)


def unlike_software(row: Mapping[str, Any], framework: Framework, model: ModelSpec) -> list[str]:
    """Return the fields of a complete strategy that are not as they would be were they open."""
    degrees = {name: row[name] for name in DEGREES}
    devices = math.prod(row[name] for name in (*DEGREES[:3], "data_parallel"))
    usual = {"recompute": FIELD_BY_NAME["recompute"].default}
    usual |= completed(degrees, devices, defaults_of(framework, model))
    names = (*OF_SOFTWARE, "zero_stage", "recompute")
    return [name for name in names if row[name] != usual[name]]
