"""Collectives of ASTRA-sim's machine on every rank: chunk by chunk, and over trees.

Collectives of ASTRA-sim's machine, chunk by chunk on every rank.

A rank handles the steps of a chunk in order. A step begins when a message has arrived (the first
ones when the chunk starts), takes the endpoint delay and, where the message is to be added, the
local reduction, and then lets the rank send one message more and expect one more. A queue works
on so many chunks at once; when one ends its phase on this rank, the rank starts the next one,
whatever others do.

astra-sim/system: Ring.cc, AllToAll.cc, HalvingDoubling.cc, PacketBundle.cc, MemBus.cc, Sys.cc
(``generate_collective``, ``proceed_to_next_vnet_baseline``, ``SchedulerUnit``).

All-reduce over a double binary tree, as a member of ASTRA-sim's machine does it.

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
    ACTIVE,
    CALL_CHUNKS,
    CALL_COUNTER,
    CALL_MEMBERS,
    CALL_PHASE,
    CALL_PHASES,
    CALL_TAG,
    CHUNK_TAG,
    CREDIT,
    DOUBLE_TREE,
    HANDLED,
    NEXT,
    NONE,
    PACKET_COLUMNS,
    PACKET_REDUCTION,
    PACKET_SIZE,
    PHASE,
    PHASE_ADDING,
    PHASE_ALGORITHM,
    PHASE_BARRIER,
    PHASE_COLUMNS,
    PHASE_DELAY,
    PHASE_KIND,
    PHASE_MEMBERS,
    PHASE_PACKET,
    PHASE_PARALLEL,
    PHASE_QUEUE,
    PHASE_SENDS,
    PHASE_STRIDE,
    QUEUE_COLUMNS,
    QUEUE_FIRST,
    QUEUE_LAST,
    QUEUE_RUNNING,
    RANK,
    RANK_BEGUN,
    RANK_CALL,
    RANK_LEFT,
    RANK_NODE,
    RANK_PLACE,
    RANK_QUEUES,
    RANK_STARTED,
    RANK_TAG,
    RANK_TREES,
    RANKS,
    RECEIVED,
    SENT,
    take,
)
from perfmodel.kernels.workloads.astra.phase import (
    ALL_GATHER,
    ALL_REDUCE,
    HALVING_DOUBLING,
    REDUCE_SCATTER,
)
from perfmodel.kernels.workloads.astra.transport import (
    A_CHUNK,
    A_NODE,
    KINDS_OF_WHO,
    expect,
    launch,
    wait,
)

# Steps ---------------------------------------------------------------------------


@jit_lean
def receive(state, now, chunk):
    """Begin the step of a chunk for which a message has come."""
    if state.facts[state.cell[chunk, PHASE] + PHASE_ALGORITHM] == DOUBLE_TREE:
        receive_in_tree(state, now, chunk)
        return
    state.cell[chunk, RECEIVED] += 1
    _begin_step(state, now, chunk)


@jit_lean
def _begin_step(state, now, chunk):
    facts = state.facts
    phase = state.cell[chunk, PHASE]
    step = state.cell[chunk, HANDLED]
    state.cell[chunk, HANDLED] = step + 1
    reduction = NONE
    if _adds(facts, phase, step):
        reduction = facts[_packet_of(facts, phase, step) + PACKET_REDUCTION]
    time = now + facts[phase + PHASE_DELAY]
    wait(state, time, state.cell[chunk, RANK], KINDS_OF_WHO * chunk + A_CHUNK, reduction)


@jit_lean
def _adds(facts, phase, step):
    """Whether what a step received is added to local memory (Ring.cc, ``insert_packet``).

    Steps come in turns of some that go out as they are and some that add; an all-reduce adds in
    every other turn only.
    """
    kind = facts[phase + PHASE_KIND]
    if kind != REDUCE_SCATTER and kind != ALL_REDUCE:
        return False
    plain = facts[phase + PHASE_PARALLEL]
    length = plain + facts[phase + PHASE_ADDING]
    return step % length >= plain and (kind == REDUCE_SCATTER or step // length % 2 == 0)


@jit_lean
def _packet_of(facts, phase, step):
    """Message of a step: all are alike, but for those of halving and doubling."""
    packet = facts[phase + PHASE_PACKET]
    if facts[phase + PHASE_ALGORITHM] == HALVING_DOUBLING:
        packet += step * PACKET_COLUMNS
    return packet


@jit_lean
def complete_step(state, now, chunk):
    """Send what a completed step allows; return whether the chunk's phase is over."""
    facts = state.facts
    phase = state.cell[chunk, PHASE]
    if facts[phase + PHASE_ALGORITHM] == DOUBLE_TREE:
        return work_in_tree(state, now, chunk)
    sends = facts[phase + PHASE_SENDS]
    parallel = facts[phase + PHASE_PARALLEL]
    barrier = facts[phase + PHASE_BARRIER]
    state.cell[chunk, CREDIT] += 1
    tries = 1
    if barrier > 0 and sends - state.cell[chunk, SENT] <= barrier:
        if state.cell[chunk, RECEIVED] < barrier:
            return False
        tries = parallel
    for _ in range(tries):
        if not _send(state, now, chunk, phase, sends):
            break
    return state.cell[chunk, SENT] == sends and state.cell[chunk, CREDIT] == parallel


@jit_lean
def _send(state, now, chunk, phase, sends):
    """Send the next message of a chunk if it may go, and expect one in turn."""
    step = state.cell[chunk, SENT]
    is_due = step < sends and step < state.cell[chunk, HANDLED]
    if not is_due or state.cell[chunk, CREDIT] == 0:
        return False
    facts = state.facts
    rank = state.cell[chunk, RANK]
    tag = state.cell[chunk, CHUNK_TAG]
    packet = _packet_of(facts, phase, step)
    target, source = _peers(state, rank, phase, step, sends)
    state.cell[chunk, SENT] = step + 1
    state.cell[chunk, CREDIT] -= 1
    launch(state, now, rank, target, packet, tag, NONE)
    size = facts[packet + PACKET_SIZE]
    pair = source * facts[RANKS] + rank
    expect(state, now, tag, pair, size, KINDS_OF_WHO * chunk + A_CHUNK)
    return True


@jit_lean
def _peers(state, rank, phase, step, sends):
    """To whom a step sends, and from whom it expects a message in turn."""
    facts = state.facts
    members = facts[phase + PHASE_MEMBERS]
    stride = facts[phase + PHASE_STRIDE]
    place = rank // stride % members if stride > 0 else state.rank[rank, RANK_PLACE]
    if facts[phase + PHASE_ALGORITHM] == HALVING_DOUBLING:
        kind = facts[phase + PHASE_KIND]
        level = sends - 1 - step  # down, as the second half of an all-reduce
        if kind != ALL_GATHER:
            level = min(step, level) if kind == ALL_REDUCE else step
        after = place ^ (1 << level)
        before = after
    else:
        offset = 1 + step % facts[phase + PHASE_PARALLEL]
        after = (place + offset) % members
        before = (place - offset) % members
    if stride > 0:
        return rank + (after - place) * stride, rank + (before - place) * stride
    first = facts[state.rank[rank, RANK_CALL] + CALL_MEMBERS]
    return facts[first + after], facts[first + before]


# Chunks --------------------------------------------------------------------------


@jit_lean
def begin_collective(state, now, rank, node, call, place):
    """Begin a collective on a rank.

    Parameters
    ----------
    state : State
    now : int
        [ns].
    rank : int
        All whose collective before this one is over.
    node : int
        Which ends with the last chunk.
    call : int
        Where it stands among the facts; without chunks it is over at once.
    place : int
        Of the rank in the collective's list of members.
    """
    facts = state.facts
    chunks = facts[call + CALL_CHUNKS]
    if chunks == 0:
        wait(state, now, rank, KINDS_OF_WHO * node + A_NODE, NONE)
        return
    counter = facts[call + CALL_COUNTER]
    begun = state.rank[rank, RANK_BEGUN]
    if counter != NONE:
        begun = state.counts[counter + place]
        state.counts[counter + place] += chunks
    state.rank[rank, RANK_BEGUN] += chunks
    if facts[facts[call + CALL_PHASE] + PHASE_ALGORITHM] == DOUBLE_TREE:
        state.rank[rank, RANK_TREES] += chunks
    state.rank[rank, RANK_CALL] = call
    state.rank[rank, RANK_PLACE] = place
    state.rank[rank, RANK_NODE] = node
    state.rank[rank, RANK_TAG] = facts[call + CALL_TAG] + begun
    state.rank[rank, RANK_STARTED] = 0
    state.rank[rank, RANK_LEFT] = chunks
    start_chunks(state, now, rank, facts[facts[call + CALL_PHASE] + PHASE_QUEUE])


@jit_lean
def start_chunks(state, now, rank, queue):
    """Start chunks that wait in a queue of a rank as long as it may work on more."""
    facts = state.facts
    own = RANK_QUEUES + QUEUE_COLUMNS * queue
    while state.rank[rank, own + QUEUE_RUNNING] < facts[ACTIVE]:
        call = state.rank[rank, RANK_CALL]
        first = facts[call + CALL_PHASE]
        started = state.rank[rank, RANK_STARTED]
        # Chunks before their first phase came first of all, and are made when they start.
        if facts[first + PHASE_QUEUE] == queue and started < facts[call + CALL_CHUNKS]:
            chunk = take(state)
            state.cell[chunk, RANK] = rank
            state.cell[chunk, CHUNK_TAG] = state.rank[rank, RANK_TAG] + started
            _enter_phase(state, chunk, first)
            state.rank[rank, RANK_STARTED] = started + 1
        else:
            chunk = state.rank[rank, own + QUEUE_FIRST]
            if chunk == NONE:
                return
            state.rank[rank, own + QUEUE_FIRST] = state.cell[chunk, NEXT]
        state.rank[rank, own + QUEUE_RUNNING] += 1
        phase = state.cell[chunk, PHASE]
        if facts[phase + PHASE_ALGORITHM] == DOUBLE_TREE:
            # Trees take turns on a rank, from one collective to the next.
            turn = state.rank[rank, RANK_TREES] - facts[call + CALL_CHUNKS] + started
            begin_tree(state, now, chunk, turn % 2 == 0)
            continue
        for _ in range(facts[phase + PHASE_PARALLEL]):
            _begin_step(state, now, chunk)


@jit_lean
def _enter_phase(state, chunk, phase):
    state.cell[chunk, PHASE] = phase
    state.cell[chunk, HANDLED] = 0
    state.cell[chunk, SENT] = 0
    state.cell[chunk, CREDIT] = 0
    state.cell[chunk, RECEIVED] = 0


@jit_lean
def next_phase(state, chunk):
    """Let a chunk that ended a phase wait for its next one; return whose queue, NONE: none."""
    facts = state.facts
    rank = state.cell[chunk, RANK]
    call = state.rank[rank, RANK_CALL]
    phase = state.cell[chunk, PHASE] + PHASE_COLUMNS
    if phase == facts[call + CALL_PHASE] + facts[call + CALL_PHASES] * PHASE_COLUMNS:
        return NONE
    _enter_phase(state, chunk, phase)
    queue = facts[phase + PHASE_QUEUE]
    own = RANK_QUEUES + QUEUE_COLUMNS * queue
    state.cell[chunk, NEXT] = NONE
    if state.rank[rank, own + QUEUE_FIRST] == NONE:
        state.rank[rank, own + QUEUE_FIRST] = chunk
    else:
        state.cell[state.rank[rank, own + QUEUE_LAST], NEXT] = chunk
    state.rank[rank, own + QUEUE_LAST] = chunk
    return queue


@jit_lean
def leave_queue(state, now, rank, old, new):
    """Let a queue that a chunk has left start another one, and then the queue that it joined."""
    state.rank[rank, RANK_QUEUES + QUEUE_COLUMNS * old + QUEUE_RUNNING] -= 1
    start_chunks(state, now, rank, old)
    if new != NONE:
        start_chunks(state, now, rank, new)


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
        _send_in_tree(state, now, chunk, parent)
        _expect(state, now, chunk, parent)
        return False
    if lowest > 1:
        _send_in_tree(state, now, chunk, number - lowest // 2)
        if inner:
            _send_in_tree(state, now, chunk, number + lowest // 2)
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
def _send_in_tree(state, now, chunk, number):
    packet = state.facts[state.cell[chunk, PHASE] + PHASE_PACKET]
    target = _device(state, chunk, number)
    launch(state, now, state.cell[chunk, RANK], target, packet, state.cell[chunk, CHUNK_TAG], NONE)


@jit_lean
def _expect(state, now, chunk, number):
    facts = state.facts
    size = facts[facts[state.cell[chunk, PHASE] + PHASE_PACKET] + PACKET_SIZE]
    pair = _device(state, chunk, number) * facts[RANKS] + state.cell[chunk, RANK]
    expect(state, now, state.cell[chunk, CHUNK_TAG], pair, size, KINDS_OF_WHO * chunk + A_CHUNK)
