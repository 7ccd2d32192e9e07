"""The training loop of ASTRA-sim 1.0 on one device; all others do the same.

Source: astra-sim 07d5d19, ``workload/Workload.cc`` (the ``iterate_...`` functions).
"""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean
from perfmodel.kernels.events import CLOCK, SCHEDULED, WAITING
from perfmodel.kernels.workloads.astra.phase import ALL_TO_ALL
from perfmodel.kernels.workloads.astra_text.issue import (
    FIRST_IN_ORDER,
    HIGHEST,
    LAST_IN_ORDER,
    SYSTEM_ORDER,
    end_collective,
    finished_or_wait,
    issue,
)
from perfmodel.kernels.workloads.astra_text.queue import end_phase
from perfmodel.kernels.workloads.astra_text.state import (
    FINISHED,
    FORWARD,
    INPUT_GRADIENT,
    MESSAGE_END,
    NO_CHECKPOINT,
    PAST_THE_END,
    PHASE_END,
    PHASE_STEP,
    RUNNING,
    SET_END,
    STEP,
    STUCK,
    TOO_MANY_EVENTS,
    WEIGHT_GRADIENT,
    next_event,
    schedule,
    stop,
    tick,
)
from perfmodel.kernels.workloads.astra_text.steps import take_step

FORWARD_STATE, WEIGHT_STATE, INPUT_STATE, AGAIN_STATE, END_STATE = 0, 1, 2, 3, 4


@jit_lean
def check_end(state, passes):
    """After the last pass: end the run, or wait for what is still under way.

    The wait is noted for the first layer's weight gradient alone.
    """
    if state.cursor.iteration < passes:
        return
    state.cursor.where = END_STATE
    if state.cursor.ended == state.cursor.injected:
        state.cursor.status = FINISHED
    elif state.cursor.subscribed == 0:
        state.cursor.subscribed = 1
        finished_or_wait(state, WEIGHT_GRADIENT, 0)


@jit_lean
def compute(state, facts, phase):
    """Compute a phase of the layer, once per visit; return whether it takes time from now."""
    if state.cursor.computed == 1:
        return False
    state.cursor.computed = 1
    time = facts.calls[phase][state.cursor.layer].compute
    state.collective[phase][state.cursor.layer].compute += time
    if time == 0:
        return False
    schedule(state.cursor, state.calendar, state.calendar[0, CLOCK] + time, float(time), STEP, 0)
    return True


@jit_lean
def change(state, where, layer):
    """Go to a state and a layer; that takes 1 ns."""
    state.cursor.where = where
    state.cursor.layer = layer
    state.cursor.computed = 0
    state.cursor.issued = 0
    schedule(state.cursor, state.calendar, state.calendar[0, CLOCK] + 1.0, 1.0, STEP, 0)


@jit_lean
def end_pass(state):
    """Note the end of a pass and begin the next one."""
    state.pass_end[state.cursor.iteration] = tick(state.calendar)
    state.cursor.iteration += 1
    change(state, FORWARD_STATE, 0)


@jit_lean
def forward_step(state, facts):
    """Go on with a forward layer, the first time or again before a backward pass."""
    layer = state.cursor.layer
    if not finished_or_wait(state, WEIGHT_GRADIENT, layer):
        return
    if compute(state, facts, FORWARD):
        return
    if facts.of.recommender:
        if state.cursor.issued == 0 and facts.calls[FORWARD][layer].kind == ALL_TO_ALL:
            state.cursor.issued = 1
            issue(state, facts, FORWARD, layer, HIGHEST, False)
        elif layer == facts.of.last_bottom and not finished_or_wait(state, FORWARD, 0):
            return
    elif facts.of.forward_blocking and state.cursor.issued == 0:
        state.cursor.issued = 1
        if issue(state, facts, FORWARD, layer, SYSTEM_ORDER, True):
            return
    layer += 1
    if state.cursor.where == AGAIN_STATE:
        if layer == facts.rows.shape[0]:
            stop(state.cursor, PAST_THE_END, layer - 1, FORWARD)
            return
        change(state, INPUT_STATE if facts.rows[layer].initiates else AGAIN_STATE, layer)
    elif layer < facts.rows.shape[0]:
        change(state, FORWARD_STATE, layer)
    elif facts.of.inference:
        end_pass(state)
    else:
        change(state, WEIGHT_STATE if facts.of.weight_first else INPUT_STATE, layer - 1)


@jit_lean
def weight_step(state, facts):
    """Go on with a weight gradient."""
    layer = state.cursor.layer
    if compute(state, facts, WEIGHT_GRADIENT):
        return
    if state.cursor.issued == 0 and facts.of.weight_collective:
        state.cursor.issued = 1
        order = FIRST_IN_ORDER if facts.of.weight_first_in else SYSTEM_ORDER
        issue(state, facts, WEIGHT_GRADIENT, layer, order, False)
    if facts.of.weight_waits and not finished_or_wait(state, INPUT_GRADIENT, layer):
        return
    if layer == 0:
        end_pass(state)
    elif facts.of.reorder:
        change(state, WEIGHT_STATE if layer == 1 else INPUT_STATE, layer - 1)
    else:
        change(state, INPUT_STATE, layer if facts.of.weight_first else layer - 1)


@jit_lean
def input_step(state, facts):
    """Go on with an input gradient."""
    layer = state.cursor.layer
    if facts.rows[layer].initiates and state.cursor.again == 0:
        state.cursor.again = 1
        while layer >= 0 and not facts.rows[layer].checkpoint:
            layer -= 1
        if layer < 0:
            stop(state.cursor, NO_CHECKPOINT, state.cursor.layer, INPUT_GRADIENT)
            return
        change(state, AGAIN_STATE, layer)
        return
    if compute(state, facts, INPUT_GRADIENT):
        return
    state.cursor.again = 0
    if facts.of.recommender:
        if layer == facts.of.last_bottom + 1:
            issue(state, facts, INPUT_GRADIENT, 0, HIGHEST, False)
    elif facts.of.input_collective and (layer > 0 or facts.of.first_input_collective):
        issue(state, facts, INPUT_GRADIENT, layer, LAST_IN_ORDER, False)
    change(state, WEIGHT_STATE, layer - 1 if facts.of.weight_first else layer)


@jit_lean
def step(state, facts, passes):
    """Go on with the training loop as far as it comes without waiting."""
    if facts.of.micro:
        while state.cursor.iteration < passes:
            issue(state, facts, WEIGHT_GRADIENT, 0, SYSTEM_ORDER, False)
            state.cursor.iteration += 1
    if state.cursor.status == RUNNING:
        check_end(state, passes)
    if state.cursor.status != RUNNING:
        return
    if state.cursor.where == FORWARD_STATE or state.cursor.where == AGAIN_STATE:
        forward_step(state, facts)
    elif state.cursor.where == WEIGHT_STATE:
        weight_step(state, facts)
    elif state.cursor.where == INPUT_STATE:
        input_step(state, facts)


@jit_lean
def run(state, facts, passes, most_events):
    """Run a workload.

    Parameters
    ----------
    state : State
        `new_state`, which becomes that after the last event: its ``cursor.status`` says how
        the run ended; ``FULL`` with fewer chunks or collectives than were needed.
    facts : Facts
    passes : int
    most_events : int
        The run ends ``TOO_MANY_EVENTS`` beyond.
    """
    step(state, facts, passes)
    while state.cursor.status == RUNNING:
        if state.calendar[0, WAITING] == 0:
            stop(state.cursor, STUCK, 0, 0)
            break
        if state.calendar[0, SCHEDULED] > most_events:
            stop(state.cursor, TOO_MANY_EVENTS, 0, 0)
            break
        kind, item = next_event(state.calendar)
        if kind == STEP:
            step(state, facts, passes)
        elif kind in (PHASE_STEP, MESSAGE_END):
            if take_step(state, facts, item):
                end_phase(state, facts, item)
        elif kind == PHASE_END:
            end_phase(state, facts, item)
        elif kind == SET_END:
            wakes, ended = end_collective(state, facts, item)
            if wakes:
                step(state, facts, passes)
            state.cursor.ended += ended
            if state.cursor.subscribed == 1 and state.cursor.status == RUNNING:
                check_end(state, passes)
