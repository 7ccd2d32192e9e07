"""Measured all-reduces of serving engines, row by row; see `perfmodel.measured.kind` for the rest.

Engines run kernels of their own for small buffers and call the library for others
(`perfmodel.serving.communication.all_reduce_times`). Only calls that are replayed as a graph are
read: their constants are fitted to these, others also hold the engine's time on the host.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.measured.cases import Case
from perfmodel.measured.kinds import collective
from perfmodel.measured.rows import MeasuredRow, Skip


def case_of(row: MeasuredRow) -> Case:
    """Turn a row into what the model needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    case = collective.case_of(row)
    if not isinstance(case.variant, collective.EngineCall) or case.variant.from_host:
        impl = row.lower("impl")
        raise Skip("no replayed call of a serving engine", impl, scorable=False)
    return case


KIND = replace(
    collective.KIND,
    name="serving-all-reduce",
    group_by=("hardware", "impl", "n_gpus", "regime"),
    read=lambda path: None,
    case_of=case_of,
    keys="shot_",
)
