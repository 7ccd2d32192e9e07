"""Measured all-reduces of serving engines, row by row; see `perfmodel.measured.kind` for the rest.

Engines run kernels of their own for small buffers and call the library for others
(`perfmodel.network.collectives.serving_all_reduce_times`). Only calls that are replayed as a
graph are read: others also hold the engine's time on the host.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.hwprofiles import Hardware
from perfmodel.measured.cases import Case, Columns
from perfmodel.measured.kinds import collective
from perfmodel.measured.rows import MeasuredRow, Skip
from perfmodel.network.collectives import serving_all_reduce_times

REPLAYED = ("sglang_graph", "vllm_graph", "trtllm")
"""Cells of ``impl``: engine, and that its calls are replayed (TensorRT-LLM's always are)."""


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    impl = row.lower("impl")
    if impl not in REPLAYED:
        raise Skip("no replayed call of a serving engine", impl, scorable=False)
    case = collective.case_of(row.replaced("impl", ""))
    if case.variant != "all_reduce":
        raise Skip("no all-reduce", row.text("op"), scorable=False)
    return case


def price(hardware: Hardware, variant: str, columns: Columns) -> Columns:
    """Price rows of one system: ``time`` [s]."""
    members = columns["members"].astype(np.int64)
    stride = columns["stride"].astype(np.int64)
    return {"time": serving_all_reduce_times(hardware, columns["size"], members, stride)}


KIND = replace(
    collective.KIND,
    name="serving-all-reduce",
    group_by=("hardware", "impl", "n_gpus", "regime"),
    read=lambda path: None,
    case_of=case_of,
    price=price,
    keys="shot_",
)
