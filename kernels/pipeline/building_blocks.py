"""V-Half and V-Min: a building block, repeated, squeezed and reordered.

Qi et al. 2024, "Pipeline Parallelism with Controllable Memory" (arXiv:2405.15362): how long a
micro-batch lives in the block that is repeated says how much memory the pipeline needs, and
chunks of a rank that lie V-like let blocks live a half or a third as long as those of 1F1B. The
blocks, and how warm-up and cool-down are reordered within that memory, are those of the authors'
scheduler (repository sail-sg/zero-bubble-pipeline-parallelism, ``zbv_greedy.py``).

Time is counted in slots, in each of which a rank does one thing. The first five things are: the
forward passes of the chunk on the way down and of that on the way up, their gradients of the
input in the order in which they come (the chunk on the way up first), and gradients of weights.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit, jit_lean
from perfmodel.kernels.pipeline.actions import BACKWARD, FORWARD, INPUT, WEIGHT, put

HALF = 0
LEAST = 1

PERIOD = 6
PASSES = 4
WEIGHTS = 4  # the fifth thing, twice as many as there are micro-batches
EMPTY = -1
NEVER = 2**62


@jit
def write_blocks(actions, first, ranks, micro_batches, memory):
    """Write V-Half or V-Min.

    Parameters
    ----------
    actions
        Table of actions.
    first : int64[ranks + 1]
        Written: the first action of every rank.
    ranks, micro_batches : int
    memory : int
        `HALF` or `LEAST`, of what 1F1B needs.

    Returns
    -------
    int
        Where the next action would go.
    """
    at_slot = np.empty((ranks, PASSES, micro_batches), np.int64)
    for rank in range(ranks):
        for thing in range(PASSES):
            begin = _block(rank, ranks, thing, memory)
            for micro_batch in range(micro_batches):
                at_slot[rank, thing, micro_batch] = begin + PERIOD * micro_batch
    for weights_wait in (True, False):
        slots, weight_slot = _with_weights(at_slot)
        slots = _reorder(at_slot, weight_slot, slots, weights_wait)
        if not weights_wait:
            slots, weight_slot = _with_weights(at_slot)
        _squeeze(at_slot, slots)
    slots, weight_slot = _with_weights(at_slot)
    return _write(actions, first, slots, ranks, micro_batches)


@jit
def _block(rank, ranks, thing, memory):
    """Return the slot in which the first micro-batch does a thing on a rank.

    The gap before the way back keeps things of a rank from falling together, whatever the
    number of ranks.
    """
    if memory == HALF:
        gap = 3 if ranks % 2 == 0 else 0
        down, up = 2 * rank, 3 * ranks - rank - 2
        back, home = 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - rank - 2
    else:
        gap = 2 if ranks % 3 == 0 else 0
        down, up = rank, 2 * ranks - rank - 1
        back, home = 2 * ranks + gap + rank, 4 * ranks + gap - rank - 1
    if thing < 2:
        return down if thing == 0 else up
    return back if thing == 2 else home


@jit
def _with_weights(at_slot):
    """Return what every rank does in every slot, with gradients of weights in empty ones.

    Each is put into the first empty slot in which one is due. A thing is ``4 micro_batches``
    and more for gradients of weights, else ``micro_batches thing + micro_batch``.

    Returns
    -------
    int64[ranks, slots]
        `EMPTY` where there is nothing to do.
    int64[ranks, 2 micro_batches]
        Slots of the gradients of weights.
    """
    ranks, _, micro_batches = at_slot.shape
    last = 0
    for rank in range(ranks):
        last = max(last, at_slot[rank, 3, micro_batches - 1])
    length = last + 1 + 2 * micro_batches
    slots = np.full((ranks, length), EMPTY)
    weight_slot = np.empty((ranks, 2 * micro_batches), np.int64)
    for rank in range(ranks):
        for thing in range(PASSES):
            for micro_batch in range(micro_batches):
                slot = at_slot[rank, thing, micro_batch]
                slots[rank, slot] = thing * micro_batches + micro_batch
        due = done = 0
        for slot in range(length):
            what = slots[rank, slot]
            if what >= 2 * micro_batches:
                due += 1
            elif what == EMPTY and due > done:
                slots[rank, slot] = WEIGHTS * micro_batches + done
                weight_slot[rank, done] = slot
                done += 1
    return slots, weight_slot


@jit
def _reorder(at_slot, weight_slot, planned, weights_wait):
    """Move what it can to earlier slots, no rank holding more than the one that holds most.

    Warm-up (until the first micro-batch is all through the first rank) and cool-down (after the
    first rank's last forward pass) are reordered, what repeats in between is not.

    Parameters
    ----------
    at_slot : int64[ranks, PASSES, micro_batches]
        Changed.
    weight_slot : int64[ranks, 2 micro_batches]
        Changed where `weights_wait`.
    planned : int64[ranks, slots]
        What is done in every slot, before.
    weights_wait : bool
        Gradients of weights are among what is moved; else they fill empty slots, and only the
        cool-down is reordered.

    Returns
    -------
    int64[ranks, slots]
        What is done in every slot, after; without gradients of weights unless they wait.
    """
    ranks, _, micro_batches = at_slot.shape
    length = planned.shape[1]
    most = 0
    for rank in range(ranks):
        most = max(most, _held(planned[rank], micro_batches, weights_wait))
    # What is left where it was, and what was moved; the rest is still to come.
    now = planned.copy()
    if not weights_wait:
        for rank in range(ranks):
            for slot in range(length):
                if now[rank, slot] >= WEIGHTS * micro_batches:
                    now[rank, slot] = EMPTY
    first_back = cooling = False
    for slot in range(length):
        for rank in range(ranks):
            what = planned[rank, slot]
            if what == EMPTY or (not weights_wait and what >= WEIGHTS * micro_batches):
                continue
            thing = min(WEIGHTS, what // micro_batches)
            micro_batch = what - thing * micro_batches
            if thing == 3 and rank == 0:
                first_back = True
            if first_back and not cooling:
                cooling = thing == 0 and micro_batch == micro_batches - 1
                continue
            if not first_back and not weights_wait:
                continue
            earliest = _earliest(at_slot, weight_slot, rank, thing, micro_batch)
            now[rank, slot] = EMPTY
            place = slot
            for candidate in range(earliest, slot):
                if now[rank, candidate] != EMPTY:
                    continue
                now[rank, candidate] = what
                if _held(now[rank], micro_batches, weights_wait) <= most:
                    place = candidate
                    break
                now[rank, candidate] = EMPTY
            now[rank, place] = what
            if thing == WEIGHTS:
                weight_slot[rank, micro_batch] = place
            else:
                at_slot[rank, thing, micro_batch] = place
    return now


@jit
def _earliest(at_slot, weight_slot, rank, thing, micro_batch):
    """Return the first slot after all that something has to wait for."""
    ranks, _, micro_batches = at_slot.shape
    after = -1
    if thing == WEIGHTS:
        # As many gradients of the input have to be there as there are then of weights.
        of_up = of_down = 0
        for _ in range(micro_batch + 1):
            up = at_slot[rank, 2, of_up] if of_up < micro_batches else NEVER
            down = at_slot[rank, 3, of_down] if of_down < micro_batches else NEVER
            after = min(up, down)
            of_up += up < down
            of_down += down < up
        if micro_batch > 0:
            after = max(after, weight_slot[rank, micro_batch - 1])
        return after + 1
    if thing % 2 == 0 and rank > 0:
        after = max(after, at_slot[rank - 1, thing, micro_batch])
    if thing % 2 == 1 and rank + 1 < ranks:
        after = max(after, at_slot[rank + 1, thing, micro_batch])
    if thing > 0:
        after = max(after, at_slot[rank, thing - 1, micro_batch])
    if micro_batch > 0:
        after = max(after, at_slot[rank, thing, micro_batch - 1])
    return after + 1


@jit
def _held(slots, micro_batches, weights_wait):
    """Return the most chunks that a rank holds at once, from forward pass to weight gradient.

    Where weight gradients do not wait, one that is due runs in every empty slot.
    """
    held = most = due = 0
    for what in slots:
        if what == EMPTY:
            if not weights_wait and due > 0:
                held -= 1
                due -= 1
        elif what < 2 * micro_batches:
            held += 1
        elif what >= WEIGHTS * micro_batches:
            held -= 1
            due -= 1
        else:
            due += 1
        most = max(most, held)
    return most


@jit
def _squeeze(at_slot, slots):
    """Let everything begin as soon as it can in the order of its rank; a slot each."""
    ranks, _, micro_batches = at_slot.shape
    end = np.zeros((ranks, PASSES, micro_batches), np.int64)
    free = np.zeros(ranks, np.int64)
    for slot in range(slots.shape[1]):
        for rank in range(ranks):
            what = slots[rank, slot]
            if what == EMPTY:
                continue
            thing = min(WEIGHTS, what // micro_batches)
            if thing == WEIGHTS:
                free[rank] += 1
                continue
            micro_batch = what - thing * micro_batches
            begin = free[rank]
            if thing % 2 == 0 and rank > 0:
                begin = max(begin, end[rank - 1, thing, micro_batch])
            if thing % 2 == 1 and rank + 1 < ranks:
                begin = max(begin, end[rank + 1, thing, micro_batch])
            end[rank, thing, micro_batch] = free[rank] = begin + 1
            at_slot[rank, thing, micro_batch] = begin


@jit
def _write(actions, first, slots, ranks, micro_batches):
    """Write what ranks do slot after slot; of weight gradients those on the way up first."""
    at = 0
    due = np.zeros(2, np.int64)
    done = np.zeros(2, np.int64)
    for rank in range(ranks):
        first[rank] = at
        for chunk in range(2):
            due[chunk] = done[chunk] = 0
        down, up = rank, 2 * ranks - 1 - rank
        for slot in range(slots.shape[1]):
            what = slots[rank, slot]
            if what == EMPTY:
                continue
            thing = min(WEIGHTS, what // micro_batches)
            if thing == WEIGHTS:
                chunk = 0 if due[0] > done[0] else 1
                at = put(actions, at, WEIGHT, down if chunk else up, done[chunk], False)
                done[chunk] += 1
                continue
            micro_batch = what - thing * micro_batches
            if thing < 2:
                at = put(actions, at, FORWARD, up if thing else down, micro_batch, False)
            else:
                due[thing - 2] += 1
                at = put(actions, at, INPUT, up if thing == 2 else down, micro_batch, False)
    first[ranks] = at
    return at


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
