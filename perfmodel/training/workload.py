"""What strategies ask of a model: layer keys, compositions of stages, columns of a step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Column, Integers, distinct_keys
from perfmodel.base.pipelines import TABLE, schedule_facts
from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.operations import LAYER_KEY_FIELDS, LayerKeys
from perfmodel.operations.priced import distinct_rows
from perfmodel.strategy.grid import Families, StrategyGrid, families_of
from perfmodel.strategy.mapping import layer_placement
from perfmodel.training.best_layout import BEST, best_splits
from perfmodel.training.flops import model_flops_per_token
from perfmodel.training.schedule import held_parts, recomputed_of, stage_table

if TYPE_CHECKING:
    from perfmodel.kernels.step.tables import KeyTables, Stages


PIPELINE_FIELDS = (
    *("pipeline_parallel", "virtual_pipeline", "pipeline_schedule"),
    *("recompute_method", "recompute_num_layers"),
)
"""What decides which stage holds what; the last two where not all layers are recomputed alike."""


class Workload:
    """What all devices share: layer keys, stage compositions and strategy columns."""

    def __init__(
        self,
        model: ModelSpec,
        grid: StrategyGrid | Families,
        split: str = "even",
        parts: Any = None,
    ) -> None:
        """Reduce a grid to what is distinct; `grid` holds one strategy of each family from here on.

        `split` says which layers a stage holds (`perfmodel.training.layout.stage_layout`). `BEST`
        looks for it, with `parts`, the part table of the layer keys; it is "even" without.
        """
        from perfmodel.kernels.step.tables import STRATEGY, schedule_bits

        self.split = split  # of layers over stages
        self.model = model
        self.families = grid if isinstance(grid, Families) else families_of(grid)
        self.grid = grid = self.families.grid
        self.experts = model.has_experts
        columns = layer_columns(grid.columns)
        distinct, layer_key = distinct_keys(columns, tuple(columns))
        self.keys = LayerKeys(distinct)
        fields = PIPELINE_FIELDS if grid["recompute_method"].any() else PIPELINE_FIELDS[:3]
        pipelines, pipeline_key = distinct_keys(grid.columns, fields)
        both, stage_key = distinct_keys(
            {"layer": layer_key, "pipeline": pipeline_key}, ("layer", "pipeline")
        )
        rows = zip(*(column.tolist() for column in pipelines.values()), strict=True)
        asked = [(p, v, placement_of(s, grid), recomputed_of(*some)) for p, v, s, *some in rows]
        kinds, chosen = [item[:3] for item in asked], [item[3] for item in asked]
        pipeline = both["pipeline"]
        if split == BEST and parts is not None:  # every stage key has a layout of its own
            keys = np.unique(stage_key)
            kinds, chosen = [kinds[i] for i in pipeline], [chosen[i] for i in pipeline]
            splits = best_splits(model, kinds, parts[both["layer"]])
            pipeline = keys
        else:
            splits = ["even" if split == BEST else split] * len(kinds)
        held = [(*kind, own, some) for kind, own, some in zip(kinds, splits, chosen, strict=True)]
        self.parts = held_parts(model, held)
        self.compositions = stage_table(model, held, self.parts)
        self._spread_compositions(both["layer"], pipeline)
        self.strategies = np.zeros(len(grid), STRATEGY).view(np.recarray)
        self.strategies.stage_key, self.strategies.waits = stage_key, -1
        families = self.families
        self.strategies.first, self.strategies.number = families.first, families.number
        self.strategies.behind = families.first + families.size
        for name in FIELD_BY_NAME.keys() & set(STRATEGY.names or ()):
            self.strategies[name] = grid[name]
        about = (schedule_facts(fact).tolist() for fact in ("closed_form", "joins_ends", "copies"))
        bits = np.array(list(map(schedule_bits, *about)))
        self.strategies.schedule = bits[grid["pipeline_schedule"]]

    def _spread_compositions(self, layer: Integers, pipeline: Integers) -> None:
        """Repeat the stage compositions of each pipeline for its layer keys."""
        compositions = self.compositions
        self.stage_pipeline = pipeline
        start = compositions.offset[pipeline]
        count = compositions.offset[pipeline + 1] - start
        self.stage_layer_key = layer
        self.stage_offset = np.concatenate(([0], np.cumsum(count)))
        within = np.arange(self.stage_offset[-1]) - np.repeat(self.stage_offset[:-1], count)
        row = np.repeat(start, count) + within
        self.row_layer_key = np.repeat(layer, count)
        self.counts = compositions.counts[row]
        self.first_stage = compositions.first_stage[row]
        self.stages = compositions.stages[row]
        self.pair = compositions.pair[row] + np.repeat(self.stage_offset[:-1], count)

    def stage_sums(self, tables: Sequence[KeyTables]) -> list[Stages]:
        """Sum the parts of every distinct stage, on every row of hardware that has such tables."""
        from perfmodel.kernels.step import stages as kernel
        from perfmodel.kernels.step.tables import STAGE_KEY, Stages, blank_stages

        kinds = [part.kind for part in self.parts]
        number = np.arange(len(tables))[:, None]
        key, counts, row = self._distinct_stages
        sums = blank_stages(len(tables) * key.size)
        kernel.sum_stages(
            together([table.parts for table in tables]),
            (number * len(self.keys) + key).ravel(),
            np.tile(counts, (len(tables), 1)),
            together([table.of for table in tables]),
            kinds.index("embedding"),
            kinds.index("output"),
            sums,
        )
        found = []
        times = end_times(self, tables)
        for place in range(len(tables)):
            own: Any = sums[place * key.size : (place + 1) * key.size].take(row).view(np.recarray)
            own.first_stage, own.stages, own.pair = self.first_stage, self.stages, self.pair
            of = np.zeros(self.stage_layer_key.size, STAGE_KEY).view(np.recarray)
            of.layer_key = self.stage_layer_key
            of.first, of.behind = self.stage_offset[:-1], self.stage_offset[1:]
            kernel.sum_widths(own, of)
            for name, column in times.items():
                of[name] = column[place]
            found.append(Stages(of, own, self.counts))
        return found

    @cached_property
    def _distinct_stages(self) -> tuple[Integers, NDArray[np.float64], Integers]:
        """Layer keys and counts of stages that differ in them, and which of these each row is."""
        columns = [self.row_layer_key.astype(np.float64), *self.counts.T]
        (key, *counts), row = distinct_rows(columns)
        return key.astype(np.int64), np.stack(counts, axis=1), row

    @cached_property
    def flops(self) -> tuple[Column, Column]:
        """Model FLOP per token of every layer key, causal and not."""
        length = self.keys.document
        causal, other = (
            model_flops_per_token(self.model, length, causal=it) for it in (True, False)
        )
        return causal, other

    def numbered_on(self, ahead: int) -> Workload:
        """Return the same behind other strategies: so many."""
        found = copy.copy(self)
        number = self.families.number + ahead
        found.families = replace(self.families, number=number)
        found.strategies = self.strategies.copy()
        found.strategies.number = number
        return found

    def part(self, rows: Integers) -> Workload:
        """Return some of the families; what all share stays as it is."""
        found = copy.copy(self)
        found.families = self.families.take(rows)
        found.grid = found.families.grid
        found.strategies = self.strategies.take(rows).view(np.recarray)  # far ahead of [rows]
        return found

    def keys_of_pipelines(self) -> list[Integers]:
        """Return the stage keys of every pipeline."""
        count = self.compositions.offset.size - 1
        sizes = np.bincount(self.stage_pipeline, minlength=count)
        return np.split(np.argsort(self.stage_pipeline, kind="stable"), np.cumsum(sizes)[:-1])


def placement_of(schedule: int, grid: StrategyGrid) -> str:
    """Return where chunks lie, as `perfmodel.training.schedule.chunk_stages` takes it.

    Parameters
    ----------
    schedule : int
        Code of a strategy's pipeline schedule.
    grid : StrategyGrid
        Whose `table` says it of schedules that are tables.
    """
    placement = str(schedule_facts("placement")[schedule])
    if placement != TABLE or grid.table is None:
        return placement
    return ",".join(map(str, grid.table.order.rank_of.tolist()))


def layer_columns(columns: Mapping[str, Integers]) -> dict[str, Integers]:
    """Return the strategy columns on which the operations of a layer depend, shape (n,)."""
    return {name: columns[name] for name in LAYER_KEY_FIELDS} | layer_placement(columns)


def together(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return tables one behind another; a single one as it is."""
    return tables[0] if len(tables) == 1 else np.concatenate(tables).view(np.recarray)


def pass_times(
    tables: Sequence[KeyTables],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what both passes of every part take, each of shape (tables, layer keys, parts) [s]."""
    from perfmodel.kernels.step.stages import BUSY

    parts = np.stack([table.parts for table in tables])
    forward = np.array(parts["forward_pass"])
    return forward, sum(np.asarray(parts[name]) for name in BUSY) - forward


def end_times(work: Workload, tables: Sequence[KeyTables]) -> dict[str, NDArray[np.float64]]:
    """Return what passes of chunks with equal layers take, of shape (tables, stage keys) each [s].

    By name as `perfmodel.kernels.pipeline.closed.Ends` has them.
    """
    table, found = work.compositions, np.zeros((6, len(tables), work.stage_layer_key.size))
    from perfmodel.kernels.pipeline.closed import Ends

    times = pass_times(tables)
    of_layers = np.array([part.layer is not None for part in work.parts])
    for pipeline, own in enumerate(work.keys_of_pipelines()):
        first, last = table.chunk_row[table.place_offset[pipeline : pipeline + 2] - [0, 1]]
        layer = work.stage_layer_key[own]
        for column, passes in enumerate(times):
            held, some = table.chunk_counts[first] * of_layers, passes.take(layer, axis=1)
            found[column, :, own] = (some @ held).T
            for end, chunk in ((2, first), (4, last)):
                beside = table.chunk_counts[chunk] * ~of_layers
                found[end + column, :, own] = (some @ beside).T
    return dict(zip(Ends._fields, found, strict=True))
