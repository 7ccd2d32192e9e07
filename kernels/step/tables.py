"""Tables, result rows and argument groups of the closing pass (`perfmodel.kernels.step.close`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.kernels.records import record_types
from perfmodel.kernels.variables import STEP_VARIABLES, row_numbers

_RECORDS = record_types(__file__)

# What a part of the model costs per micro-batch, and what a stage of such parts does.
PART = _RECORDS["PART"]
STAGE = _RECORDS["STAGE"]


def blank_parts(keys: int, parts: int) -> np.recarray:
    """Return a part table of zeros, shape (keys, parts)."""
    return np.zeros((keys, parts), PART).view(np.recarray)


def blank_stages(rows: int) -> np.recarray:
    """Return stage sums of zeros, shape (rows,)."""
    return np.zeros(rows, STAGE).view(np.recarray)


ResultRows = row_numbers("ResultRows", STEP_VARIABLES)
"""Class of `ROW`; pickled by name."""
ROW = ResultRows(*range(len(STEP_VARIABLES)))
"""Which row of the result holds a variable, all in SI units."""

# Codes of places where state waits (`perfmodel.base.strategy_fields`).
HOST, NVME, STAGE_PLACE = 0, 1, 2

# What a pipeline schedule is to the closing pass: bits of ``schedule`` of `STRATEGY`.
GPIPE, ONE_F_ONE_B, INTERLEAVED = 1, 2, 4  # the closed form that it has, if any
CLOSED = GPIPE | ONE_F_ONE_B | INTERLEAVED
JOINED_ENDS = 8  # the first and the last chunk lie on one stage
TWO_COPIES = 16  # a second copy of the model runs from the last stage to the first
CLOSED_FORMS = {"": 0, "gpipe": GPIPE, "1f1b": ONE_F_ONE_B, "interleaved": INTERLEAVED}


def schedule_bits(closed_form: str, joins_ends: bool, copies: int) -> int:
    """Return ``schedule`` of `STRATEGY`, of facts of `perfmodel.base.pipelines.Schedule`."""
    found = CLOSED_FORMS[closed_form]
    return found | (JOINED_ENDS if joins_ends else 0) | (TWO_COPIES if copies > 1 else 0)


STRATEGY = _RECORDS["STRATEGY"]
"""A family: strategies that differ in nothing but the batch."""


KEY = _RECORDS["KEY"]


class KeyTables(NamedTuple):
    """What depends on the layer key.

    Attributes
    ----------
    parts : record array of PART, shape (keys, parts)
        Seconds, FLOP, parameters and bytes per part and micro-batch.
    of : record array of KEY, shape (keys,)
    """

    parts: np.recarray
    of: np.recarray


STAGE_KEY = _RECORDS["STAGE_KEY"]


class Stages(NamedTuple):
    """Stages of every stage key: distinct compositions, summed over their parts.

    Attributes
    ----------
    of : record array of STAGE_KEY, shape (stage keys,)
    sums : record array of STAGE, shape (rows,)
        What one micro-batch takes on the stage.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    """

    of: np.recarray
    sums: np.recarray
    counts: np.ndarray


WAIT = _RECORDS["WAIT"]


class Waits(NamedTuple):
    """What pipelines come to whose passes ran one by one, a row for each.

    Attributes
    ----------
    of : record array of WAIT, shape (n,)
    flight : float64, shape (n, distinct compositions)
        Micro-batches whose activations a stage of a composition keeps at most, by their bytes.
    """

    of: np.recarray
    flight: np.ndarray


def no_waits(rows: int = 0, compositions: int = 0) -> Waits:
    """Return `Waits` of zeros, for so many pipelines and compositions of stages."""
    return Waits(np.zeros(rows, WAIT).view(np.recarray), np.zeros((rows, compositions)))


MEMORY_SETTINGS = _RECORDS["MEMORY_SETTINGS"]
"""What the software keeps, and when."""

WIDTHS = _RECORDS["WIDTHS"]

SETTINGS = _RECORDS["SETTINGS"]
"""Numbers that hold for all strategies of one device."""


def settings_of(**values: Any) -> np.record:
    """Return a record of `SETTINGS`; all fields are needed, those of ``memory`` as a mapping."""
    values["memory"] = tuple(values["memory"][name] for name in MEMORY_SETTINGS.names or ())
    row = tuple(values[name] for name in SETTINGS.names or ())
    found: np.record = np.array([row], SETTINGS).view(np.recarray)[0]
    return found
