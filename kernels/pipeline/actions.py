"""What pipeline schedules consist of: actions of ranks, in order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.kernels._jit import jit_lean

# Kinds of actions of a stage on a micro-batch.
FORWARD = 0
BACKWARD = 1  # all of it
INPUT = 2  # the part that the stage before waits for: gradients of the input
WEIGHT = 3  # the rest: gradients of the weights
KINDS = 4

# Where stages lie, as `perfmodel.base.pipelines` calls it.
LOOP = "loop"  # stage c on rank c mod p
WAVE = "wave"  # down the ranks, up again, and so on; with two chunks per rank a V
BIDIRECTIONAL = "bidirectional"  # a second copy of the model runs from the last rank to the first

# Columns of a table of actions that is being written.
KIND = 0
STAGE = 1
MICRO_BATCH = 2
PAIRED = 3
COLUMNS = 4


class Order(NamedTuple):
    """Actions of all ranks; those of rank r are ``first[r]`` to ``first[r + 1] - 1``.

    Stages are numbered in the order of the forward pass. A second copy of the model has stages
    and micro-batches of its own, numbered after those of the first.
    """

    first: np.ndarray  # int64[ranks + 1]
    kind: np.ndarray  # int64[actions]
    stage: np.ndarray  # int64[actions]
    micro_batch: np.ndarray  # int64[actions]
    paired: np.ndarray  # bool[actions]: runs together with the action after it
    rank_of: np.ndarray  # int64[stages]
    copies: int  # of the model, each with stages / copies of the stages
    micro_batches: int  # of all copies together


@jit_lean
def put(actions, at, kind, stage, micro_batch, paired):
    """Write an action, and return where the next one goes."""
    actions[at, KIND] = kind
    actions[at, STAGE] = stage
    actions[at, MICRO_BATCH] = micro_batch
    actions[at, PAIRED] = paired
    return at + 1


def place_stages(placement: str, ranks: int, chunks: int) -> np.ndarray:
    """Return the rank of every stage, int64[stages].

    Parameters
    ----------
    placement : str
        `LOOP`, `WAVE` or `BIDIRECTIONAL`.
    ranks, chunks : int
        Ranks of the pipeline, and stages that each of them has of one copy of the model.
    """
    copies = 2 if placement == BIDIRECTIONAL else 1
    way, place = np.divmod(np.arange(copies * ranks * chunks), ranks)
    turned = (way % 2 == 1) & (placement != LOOP)
    return np.where(turned, ranks - 1 - place, place)
