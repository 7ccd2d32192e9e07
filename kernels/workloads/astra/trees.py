"""All-reduce over a double binary tree, as a member of ASTRA-sim's machine does it.

A chunk goes whole up one of two trees, added to on the way, and down again. A leaf sends after the
endpoint delay; others after that delay and the reduction of each of their children's parts. Down,
an inner node takes both again and a leaf the delay. Root and inner nodes are done when they send
down, leaves when they have worked.

Numbering of the trees as in :func:`perfmodel.kernels.workloads.astra.ranks.tree_chunk`.
astra-sim/system: DoubleBinaryTreeAllReduce.cc, BinaryTree.cc, DoubleBinaryTreeTopology.cc.
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.workloads.astra.machine_state import (
    CHUNK_TAG,
    CREDIT,
    HANDLED,
    NONE,
    PACKET_REDUCTION,
    PACKET_SIZE,
    PHASE,
    PHASE_DELAY,
    PHASE_MEMBERS,
    PHASE_PACKET,
    PHASE_STRIDE,
    RANK,
    RANKS,
    RECEIVED,
    SENT,
)
from perfmodel.kernels.workloads.astra.ticks import A_CHUNK, KINDS_OF_WHO, wait
from perfmodel.kernels.workloads.astra.transport import expect, launch

# What a chunk waits for on a member: its column HANDLED. CREDIT: whether the last member is the
# root; SENT: whether the first of two children's parts has been added.
FROM_CHILDREN, TO_GO_UP, FROM_PARENT, TO_GO_DOWN = 0, 1, 2, 3


@jit_lean
def begin_tree(state, now, chunk, last_is_root):
    """Begin a chunk on a member."""
    state.cell[chunk, CREDIT] = last_is_root
    number, members, lowest = _place(state, chunk)
    if lowest == 1:
        state.cell[chunk, HANDLED] = TO_GO_UP
        _work(state, now, chunk, False)
        return
    state.cell[chunk, HANDLED] = FROM_CHILDREN
    _expect(state, now, chunk, number - lowest // 2)
    if number < members:
        _expect(state, now, chunk, number + lowest // 2)


@jit_lean
def receive_in_tree(state, now, chunk):
    """Work on a part that a child sent, or on what the parent did."""
    number, members, lowest = _place(state, chunk)
    if state.cell[chunk, HANDLED] == FROM_PARENT:
        state.cell[chunk, HANDLED] = TO_GO_DOWN
        _work(state, now, chunk, lowest > 1)
        return
    state.cell[chunk, RECEIVED] += 1
    _work(state, now, chunk, True)
    if number == members:
        state.cell[chunk, HANDLED] = TO_GO_DOWN
    elif state.cell[chunk, RECEIVED] == 2:
        state.cell[chunk, HANDLED] = TO_GO_UP


@jit_lean
def work_in_tree(state, now, chunk):
    """Go on after a piece of work; return whether the member is done with the chunk."""
    number, members, lowest = _place(state, chunk)
    inner = lowest > 1 and number < members
    if inner and state.cell[chunk, SENT] == 0:
        state.cell[chunk, SENT] = 1  # the other child's part is still to come
        return False
    if state.cell[chunk, HANDLED] == TO_GO_UP:
        state.cell[chunk, HANDLED] = FROM_PARENT
        parent = (number ^ lowest) | (2 * lowest)
        _send(state, now, chunk, parent)
        _expect(state, now, chunk, parent)
        return False
    if lowest > 1:
        _send(state, now, chunk, number - lowest // 2)
        if inner:
            _send(state, now, chunk, number + lowest // 2)
    return True


@jit_lean
def _place(state, chunk):
    """Number of a member in its tree, members, and the lowest bit of the number."""
    phase = state.cell[chunk, PHASE]
    members = state.facts[phase + PHASE_MEMBERS]
    place = state.cell[chunk, RANK] // state.facts[phase + PHASE_STRIDE] % members
    number = 1 + (place + (0 if state.cell[chunk, CREDIT] else members - 1)) % members
    return number, members, number & -number


@jit_lean
def _device(state, chunk, number):
    """Device of a number in a chunk's tree."""
    own, members, _ = _place(state, chunk)
    first = 0 if state.cell[chunk, CREDIT] else 1
    apart = (number - 1 + first) % members - (own - 1 + first) % members
    stride = state.facts[state.cell[chunk, PHASE] + PHASE_STRIDE]
    return state.cell[chunk, RANK] + apart * stride


@jit_lean
def _work(state, now, chunk, adds):
    facts = state.facts
    phase = state.cell[chunk, PHASE]
    reduction = facts[facts[phase + PHASE_PACKET] + PACKET_REDUCTION] if adds else NONE
    who = KINDS_OF_WHO * chunk + A_CHUNK
    wait(state, now + facts[phase + PHASE_DELAY], state.cell[chunk, RANK], who, reduction)


@jit_lean
def _send(state, now, chunk, number):
    packet = state.facts[state.cell[chunk, PHASE] + PHASE_PACKET]
    target = _device(state, chunk, number)
    launch(state, now, state.cell[chunk, RANK], target, packet, state.cell[chunk, CHUNK_TAG], NONE)


@jit_lean
def _expect(state, now, chunk, number):
    facts = state.facts
    size = facts[facts[state.cell[chunk, PHASE] + PHASE_PACKET] + PACKET_SIZE]
    pair = _device(state, chunk, number) * facts[RANKS] + state.cell[chunk, RANK]
    expect(state, now, state.cell[chunk, CHUNK_TAG], pair, size, KINDS_OF_WHO * chunk + A_CHUNK)
