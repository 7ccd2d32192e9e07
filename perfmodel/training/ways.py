"""Ways to recompute that come to the same, such as more layers of a chunk than it has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers, distinct_keys
from perfmodel.base.pipelines import BIDIRECTIONAL, schedule_facts
from perfmodel.model.build import ModelSpec
from perfmodel.strategy.factors import Space
from perfmodel.strategy.fields import RECOMPUTE_METHODS
from perfmodel.training.best_layout import BEST
from perfmodel.training.layout import stage_layout
from perfmodel.training.schedule import chunk_stages


class Ways(NamedTuple):
    """Distinct ways to recompute the layers of every layout of a space.

    Attributes
    ----------
    row : ndarray of int64, shape (ways,)
        Of `Space.layers`, the first one of each.
    members : list of ndarray
        Rows of all that are the same.
    single : ndarray of int64
        Ways of single layers, which every layout has.
    offset : ndarray of int64, shape (kinds + 1,)
        All others of layouts of kind k are ways ``offset[k]:offset[k + 1]``.
    kind : ndarray of int64, shape (layouts,)
        Of every layout.
    """

    row: Integers
    members: list[Integers]
    single: Integers
    offset: Integers
    kind: Integers

    @property
    def counts(self) -> Integers:
        """Rows for which every way stands."""
        return np.array([rows.size for rows in self.members], np.int64)


def distinct_ways(space: Space, split: str) -> Ways:
    """Return the ways to recompute that differ, where stages hold layers as `split` says."""
    names = ("pipeline_parallel", "virtual_pipeline", "pipeline_schedule")
    pipelines, pipeline = distinct_keys(space.layouts, names)
    rows = zip(*(column.tolist() for column in pipelines.values()), strict=True)
    placed = schedule_facts("placement").tolist()
    runs = [longest_runs(space.model, p, v, placed[s], split) for p, v, s in rows]
    kinds, kind = np.unique(np.array(runs).reshape(-1, 2), axis=0, return_inverse=True)
    ways = space.layers.columns(space.free, slice(None))
    method, layers = ways["recompute_method"], ways["recompute_num_layers"]
    found = [np.array([row]) for row in np.flatnonzero(method == 0)]
    single = np.arange(len(found))
    offset = [len(found)]
    several = np.flatnonzero(method)
    every = method[several] == RECOMPUTE_METHODS.index("every")
    for chunk, rank in kinds.tolist():
        most = np.where(every, rank + 1, max(chunk, 1))
        meant = np.stack([method[several], np.minimum(layers[several], most)])
        _, same = np.unique(meant, axis=1, return_inverse=True)
        order = np.argsort(same.reshape(-1), kind="stable")
        cuts = np.cumsum(np.bincount(same.reshape(-1)))[:-1]
        found += np.split(several[order], cuts) if several.size else []
        offset.append(len(found))
    first = np.array([rows[0] for rows in found], np.int64)
    return Ways(first, found, single, np.array(offset), kind.reshape(-1)[pipeline])


def longest_runs(
    model: ModelSpec, pipeline: int, virtual: int, placement: str, split: str
) -> tuple[int, int]:
    """Return the most layers of a chunk and of a rank, of which more cannot be recomputed.

    Parameters
    ----------
    model : ModelSpec
    pipeline, virtual : int
    placement : str
        As of `perfmodel.training.schedule.chunk_stages`.
    split : str
        As of `perfmodel.training.layout.stage_layout`; where it is still to be found, all layers.
    """
    if split == BEST:
        return model.num_layers, model.num_layers
    runs = 1 if placement == BIDIRECTIONAL else virtual
    sizes = stage_layout(model, pipeline, runs, split).layers
    ranks = [0] * pipeline
    for stage, size in zip(chunk_stages(placement, pipeline, runs), sizes, strict=True):
        ranks[stage] += size
    return max(sizes), max(ranks) * (2 if placement == BIDIRECTIONAL and pipeline > 1 else 1)
