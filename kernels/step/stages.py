"""Sum the parts of every distinct stage once; strategies only look the sums up."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.step.tables import (
    BACKWARD,
    BUSY,
    COLLECTIVE_CLASS,
    COLLECTIVE_WIDTH,
    COMPUTE_WIDTH,
    CONTEXT_EXPOSED,
    EXPERT_EXPOSED,
    EXPERTS,
    FIRST_WIDTH,
    FORWARD,
    HOST,
    LARGEST,
    RECOMPUTE,
    STREAM_CLASS,
    STREAM_WIDTH,
    TENSOR_EXPOSED,
    WEIGHTS,
    WORKING,
)


@jit
def sum_stages(parts, row_key, counts, shared, embedding_part, output_part, sums):
    """Sum the part table over the parts of every stage row.

    Parameters
    ----------
    parts : float64, shape (keys, parts, PART_COLUMNS)
    row_key : int64, shape (rows,)
        Layer key of each stage row.
    counts : float64, shape (rows, parts)
        How many of each part the stage holds.
    shared : float64, shape (keys,)
        Parameters that embedding and output share on a stage that holds both (a tied
        table), 0 for none.
    embedding_part, output_part : int
        Which parts those are. Several heads (multi-token prediction) share one output
        matrix in any case.
    sums : float64, shape (rows, STAGE_COLUMNS)
        Result.
    """
    for row in range(row_key.size):
        table = parts[row_key[row]]
        total = sums[row]
        total[:] = 0.0
        for part in range(counts.shape[1]):
            count = counts[row, part]
            if count == 0.0:
                continue
            kept = min(count, 1.0) if part == output_part else count
            for column in range(FIRST_WIDTH):
                if column == WORKING:
                    total[WORKING] = max(total[WORKING], table[part, WORKING])
                elif column in (WEIGHTS, EXPERTS):
                    total[column] += kept * table[part, column]
                else:
                    total[column] += count * table[part, column]
            total[STREAM_WIDTH] += count * table[part, STREAM_CLASS]
            total[COLLECTIVE_WIDTH] += count * table[part, COLLECTIVE_CLASS]
            total[LARGEST] = max(total[LARGEST], table[part, WEIGHTS] + table[part, EXPERTS])
        for column in range(FIRST_WIDTH, STREAM_CLASS):
            width = 0.0
            for part in range(counts.shape[1]):
                if counts[row, part] > 0.0:
                    width += counts[row, part] * table[part, column]
            total[COMPUTE_WIDTH] += width**2
        total[COMPUTE_WIDTH] = np.sqrt(total[COMPUTE_WIDTH])
        if counts[row, embedding_part] > 0.0 and counts[row, output_part] > 0.0:
            total[WEIGHTS] -= shared[row_key[row]]
        total[BUSY] = (
            total[FORWARD]
            + total[BACKWARD]
            + total[RECOMPUTE]
            + total[TENSOR_EXPOSED]
            + total[CONTEXT_EXPOSED]
            + total[EXPERT_EXPOSED]
            + total[HOST]
        )


@jit
def sum_widths(sums, offset, stages, widths):
    """Sum the half-widths of every stage key over all its stages.

    Parameters
    ----------
    sums : float64, shape (rows, STAGE_COLUMNS)
        Of `sum_stages`.
    offset : int64, shape (stage keys + 1,)
        Rows of stage key j are ``offset[j]:offset[j + 1]``.
    stages : float64, shape (rows,)
        Number of stages of each row's composition.
    widths : float64, shape (stage keys, 3)
        Result, COMPUTE_WIDTH and the two that follow it [s per micro-batch].
    """
    for key in range(offset.size - 1):
        widths[key] = 0.0
        for row in range(offset[key], offset[key + 1]):
            for column in range(3):
                widths[key, column] += stages[row] * sums[row, COMPUTE_WIDTH + column]
