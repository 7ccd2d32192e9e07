"""On what the cost of a pass depends beside its tokens: engine, degrees, formats, drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.precisions import ACTIVATION_FORMATS as ACTIVATION_FORMATS
from perfmodel.base.precisions import AS_STATED as AS_STATED
from perfmodel.base.precisions import CACHE_FORMATS
from perfmodel.base.precisions import WEIGHT_FORMATS as WEIGHT_FORMATS
from perfmodel.software.engine import Engine

KV_FORMATS = CACHE_FORMATS

LAYOUT_FIELDS = (
    "engine",
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
    "weight_precision",
    "activation_precision",
    "kv_precision",
    "draft_length",
)


@dataclass(frozen=True)
class Layouts:
    """Distinct layouts, as columns.

    A worker holds the model once, on t·a·p devices: t tensor-parallel devices make an attention
    rank, a attention ranks have batches of their own, p pipeline stages follow each other. The
    experts of a stage are spread over e of its t·a devices, each cut over the t·a/e that are
    left; other feed-forward blocks are cut over t.

    Attributes
    ----------
    engines : sequence of Engine
    columns : dict of str to ndarray of int64, shape (layout,)
        By the names in `LAYOUT_FIELDS`: ``engine`` is a position in `engines`, precisions are
        positions in `WEIGHT_FORMATS`, `ACTIVATION_FORMATS` and `KV_FORMATS`.
    """

    engines: Sequence[Engine]
    columns: dict[str, Integers]

    def __len__(self) -> int:
        return int(self.columns["tensor_parallel"].size)

    def take(self, index: Integers) -> Layouts:
        """Return the layouts at `index`."""
        return Layouts(self.engines, {name: it[index] for name, it in self.columns.items()})

    @property
    def rank_devices(self) -> Integers:
        """Devices of a pipeline stage that share the experts, t·a."""
        return self.columns["tensor_parallel"] * self.columns["attention_data_parallel"]

    @property
    def worker_devices(self) -> Integers:
        """Devices of a worker, t·a·p."""
        return self.rank_devices * self.columns["pipeline_parallel"]

    def by_engine(self, fact: str) -> np.ndarray:
        """Return a fact of each layout's engine, shape (layout,)."""
        return np.array([getattr(item, fact) for item in self.engines])[self.columns["engine"]]
