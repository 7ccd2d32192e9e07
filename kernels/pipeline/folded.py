"""Schedules of ranks with two stages that lie V-like, or run in opposite directions."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT, put


@jit_lean
def _put_if(actions, at, kind, stage, micro_batch, micro_batches):
    """Write an action of a micro-batch that there is."""
    if micro_batch >= micro_batches:
        return at
    return put(actions, at, kind, stage, micro_batch, False)


@jit_lean
def _put_turn(actions, at, stage, forward, backward, micro_batches):
    """Write the forward pass of a micro-batch, and both parts of another's backward pass."""
    at = _put_if(actions, at, FORWARD, stage, forward, micro_batches)
    at = _put_if(actions, at, INPUT, stage, backward, micro_batches)
    return _put_if(actions, at, WEIGHT, stage, backward, micro_batches)


@jit_lean
def write_zb_v(actions, at, rank, ranks, micro_batches):
    """Write ZB-V: two chunks per rank in a V, no bubble where F, I and W take equally long.

    Qi et al. 2024, "Zero Bubble Pipeline Parallelism" (arXiv:2401.10241v2, section 6); in the
    order of PyTorch's ``ScheduleZBVZeroBubble``: that of as many micro-batches as fill the
    pipeline, 2 p - 1, without those that there are not.
    """
    first, second = rank, 2 * ranks - 1 - rank
    filled = max(2 * ranks - 1, micro_batches)
    # Micro-batches whose forward pass, and gradients of the input, are through each chunk.
    f0 = f1 = b0 = b1 = 0
    for _ in range(2 * (ranks - rank) - 1):
        at = _put_if(actions, at, FORWARD, first, f0, micro_batches)
        f0 += 1
    for _ in range(rank):
        at = _put_if(actions, at, FORWARD, second, f1, micro_batches)
        at = _put_if(actions, at, FORWARD, first, f0, micro_batches)
        f0, f1 = f0 + 1, f1 + 1
    for _ in range(ranks - rank):
        at = _put_turn(actions, at, second, f1, b1, micro_batches)
        f1, b1 = f1 + 1, b1 + 1
    while f1 < f0 or f0 < filled:
        at = _put_turn(actions, at, first, f0, b0, micro_batches)
        at = _put_turn(actions, at, second, f1, b1, micro_batches)
        f0 = min(f0 + 1, filled)
        b0, f1, b1 = b0 + 1, f1 + 1, b1 + 1
    w0, w1 = b0, b1
    for _ in range(rank):
        at = _put_if(actions, at, INPUT, first, b0, micro_batches)
        at = _put_if(actions, at, INPUT, second, b1, micro_batches)
        b0, b1 = b0 + 1, b1 + 1
    for _ in range(ranks - rank):
        at = _put_if(actions, at, INPUT, first, b0, micro_batches)
        at = _put_if(actions, at, WEIGHT, first, w0, micro_batches)
        b0, w0 = b0 + 1, w0 + 1
    for micro_batch in range(w1, b1):
        at = _put_if(actions, at, WEIGHT, second, micro_batch, micro_batches)
    for micro_batch in range(w0, b0):
        at = _put_if(actions, at, WEIGHT, first, micro_batch, micro_batches)
    return at


@jit_lean
def write_dualpipe(actions, at, depth, half, near, far, near_batch, far_batch, micro_batches):
    """Write the eight steps of DualPipe, of a rank that is the `depth`-th from an end.

    DeepSeek-AI 2024, DeepSeek-V3 (arXiv:2412.19437, section 3.2.1); repository
    deepseek-ai/DualPipe, ``dualpipe.py`` and ``dualpipev.py``, whose two schedules are one:
    there the other chunk of a rank belongs to a copy of the model that runs the other way,
    here to the way back of a V. PyTorch's ``ScheduleDualPipeV`` is the latter.

    Parameters
    ----------
    actions, at
        Table of actions, and where to write.
    depth, half : int
        Ranks between this one and its end, and ranks of that half of the pipeline.
    near, far : int
        The stage whose micro-batches begin at that end, and the other one.
    near_batch, far_batch : int
        First micro-batches of the two.
    micro_batches : int
        Of each of the two, at least ``2 half``.

    Returns
    -------
    int
        Where the next action goes.
    """
    f0 = f1 = b0 = b1 = 0
    inner = half - depth - 1
    for _ in range(2 * inner):
        at = put(actions, at, FORWARD, near, near_batch + f0, False)
        f0 += 1
    for _ in range(depth + 1):
        at = put(actions, at, FORWARD, near, near_batch + f0, False)
        at = put(actions, at, FORWARD, far, far_batch + f1, False)
        f0, f1 = f0 + 1, f1 + 1
    for _ in range(inner):
        at = put(actions, at, INPUT, far, far_batch + b1, False)
        at = put(actions, at, WEIGHT, far, far_batch + b1, False)
        at = put(actions, at, FORWARD, far, far_batch + f1, False)
        f1, b1 = f1 + 1, b1 + 1
    for step in range(micro_batches - 2 * half + depth + 1):
        # The innermost rank does not wait with its first backward pass for a forward pass.
        paired = step > 0 or inner > 0
        at = put(actions, at, FORWARD, near, near_batch + f0, paired)
        at = put(actions, at, BACKWARD, far, far_batch + b1, False)
        at = put(actions, at, FORWARD, far, far_batch + f1, True)
        at = put(actions, at, BACKWARD, near, near_batch + b0, False)
        f0, b1, f1, b0 = f0 + 1, b1 + 1, f1 + 1, b0 + 1
    for _ in range(inner):
        at = put(actions, at, BACKWARD, far, far_batch + b1, False)
        at = put(actions, at, FORWARD, far, far_batch + f1, True)
        at = put(actions, at, BACKWARD, near, near_batch + b0, False)
        b1, f1, b0 = b1 + 1, f1 + 1, b0 + 1
    return _write_end(actions, at, depth, inner, near, far, near_batch + b0, far_batch + b1)


@jit_lean
def _write_end(actions, at, depth, inner, near, far, near_batch, far_batch):
    """Write the last three steps, in the second half of which weight gradients come later.

    They come in the order in which those of the input did. `near_batch` and `far_batch` are the
    next of the two stages.
    """
    # Backward passes of this step are numbered far, near, far, near; from `split` on they leave
    # their weight gradients behind.
    rounds = depth + 1
    split = 2 * (rounds // 2) + (depth + 1) % 2
    for number in range(2 * rounds):
        kind = BACKWARD if number < split else INPUT
        if number % 2 == 0:
            at = put(actions, at, kind, far, far_batch + number // 2, False)
        else:
            at = put(actions, at, kind, near, near_batch + number // 2, False)
    written = split  # weight gradients, or backward passes that held theirs
    for number in range(inner + rounds):
        if written < 2 * rounds and written % 2 == 0:
            at = put(actions, at, WEIGHT, far, far_batch + written // 2, False)
        elif written < 2 * rounds:
            at = put(actions, at, WEIGHT, near, near_batch + written // 2, False)
        else:
            later = near_batch + rounds + written - 2 * rounds
            at = put(actions, at, WEIGHT, near, later, False)
        written += 1
        if number < inner:
            at = put(actions, at, INPUT, near, near_batch + rounds + number, False)
    return at
