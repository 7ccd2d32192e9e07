"""The training loop of ASTRA-sim 1.0 on one device; all others do the same.

Source: astra-sim 07d5d19, ``workload/Workload.cc`` (the ``iterate_...`` functions).
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit
from perfmodel.kernels.astra.phase import ALL_TO_ALL
from perfmodel.kernels.astra_text.cost import MEMORY_SCALE
from perfmodel.kernels.astra_text.issue import (
    FIRST_IN_ORDER,
    HIGHEST,
    LAST_IN_ORDER,
    SYSTEM_ORDER,
    count_ended,
    end_collective,
    finished_or_wait,
    issue,
)
from perfmodel.kernels.astra_text.queue import end_phase
from perfmodel.kernels.astra_text.state import (
    COMPUTE,
    ENDED,
    FINISHED,
    FORWARD,
    FRACTIONS,
    INJECTED,
    INPUT_GRADIENT,
    MESSAGE_END,
    NO_CHECKPOINT,
    PAST_THE_END,
    PHASE_END,
    PHASE_STEP,
    RUNNING,
    SET_END,
    STATUS,
    STEP,
    STUCK,
    TOO_MANY_EVENTS,
    WEIGHT_GRADIENT,
    new_state,
    next_event,
    schedule,
    stop,
    tick,
)
from perfmodel.kernels.astra_text.steps import take_step
from perfmodel.kernels.events import SCHEDULED, WAITING

FORWARD_STATE, WEIGHT_STATE, INPUT_STATE, AGAIN_STATE, END_STATE = 0, 1, 2, 3, 4

# Entries of the loop's own record.
WHERE = 0  # the state
LAYER = 1
PASS = 2
COMPUTED = 3  # the layer's computation in this state is done
ISSUED = 4  # so is its collective
AGAIN = 5  # the forward pass before this input gradient was run again
SUBSCRIBED = 6  # to the end of chunks
PLACE_ENTRIES = 7


@jit
def check_end(state, place, passes):
    """After the last pass: end the run, or wait for what is still under way.

    The wait is noted for the first layer's weight gradient alone.
    """
    if place[PASS] < passes:
        return
    place[WHERE] = END_STATE
    if state.cursor[ENDED] == state.cursor[INJECTED]:
        state.cursor[STATUS] = FINISHED
    elif place[SUBSCRIBED] == 0:
        place[SUBSCRIBED] = 1
        finished_or_wait(state, WEIGHT_GRADIENT, 0)


@jit
def compute(state, layers, place, phase):
    """Compute a phase of the layer, once per visit; return whether it takes time from now."""
    if place[COMPUTED] == 1:
        return False
    place[COMPUTED] = 1
    time = layers.compute[phase, place[LAYER]]
    state.result[place[LAYER], COMPUTE + phase] += time
    if time == 0:
        return False
    schedule(state, state.clock[0] + time, float(time), STEP, 0)
    return True


@jit
def change(state, place, where, layer):
    """Go to a state and a layer; that takes 1 ns."""
    place[WHERE] = where
    place[LAYER] = layer
    place[COMPUTED] = 0
    place[ISSUED] = 0
    schedule(state, state.clock[0] + 1.0, 1.0, STEP, 0)


@jit
def end_pass(state, place):
    """Note the end of a pass and begin the next one."""
    state.pass_end[place[PASS]] = tick(state)
    place[PASS] += 1
    change(state, place, FORWARD_STATE, 0)


@jit
def forward_step(state, system, layers, loop, place):
    """Go on with a forward layer, the first time or again before a backward pass."""
    layer = place[LAYER]
    if not finished_or_wait(state, WEIGHT_GRADIENT, layer):
        return
    if compute(state, layers, place, FORWARD):
        return
    if loop.recommender:
        if place[ISSUED] == 0 and layers.kind[FORWARD, layer] == ALL_TO_ALL:
            place[ISSUED] = 1
            issue(state, system, layers, FORWARD, layer, HIGHEST, False)
        elif layer == loop.last_bottom and not finished_or_wait(state, FORWARD, 0):
            return
    elif loop.forward_blocking and place[ISSUED] == 0:
        place[ISSUED] = 1
        if issue(state, system, layers, FORWARD, layer, SYSTEM_ORDER, True):
            return
    layer += 1
    if place[WHERE] == AGAIN_STATE:
        if layer == layers.update.shape[0]:
            stop(state, PAST_THE_END, layer - 1, FORWARD)
            return
        change(state, place, INPUT_STATE if layers.initiates[layer] else AGAIN_STATE, layer)
    elif layer < layers.update.shape[0]:
        change(state, place, FORWARD_STATE, layer)
    elif loop.inference:
        end_pass(state, place)
    else:
        change(state, place, WEIGHT_STATE if loop.weight_first else INPUT_STATE, layer - 1)


@jit
def weight_step(state, system, layers, loop, place):
    """Go on with a weight gradient."""
    layer = place[LAYER]
    if compute(state, layers, place, WEIGHT_GRADIENT):
        return
    if place[ISSUED] == 0 and loop.weight_collective:
        place[ISSUED] = 1
        order = FIRST_IN_ORDER if loop.weight_first_in else SYSTEM_ORDER
        issue(state, system, layers, WEIGHT_GRADIENT, layer, order, False)
    if loop.weight_waits and not finished_or_wait(state, INPUT_GRADIENT, layer):
        return
    if layer == 0:
        end_pass(state, place)
    elif loop.reorder:
        change(state, place, WEIGHT_STATE if layer == 1 else INPUT_STATE, layer - 1)
    else:
        change(state, place, INPUT_STATE, layer if loop.weight_first else layer - 1)


@jit
def input_step(state, system, layers, loop, place):
    """Go on with an input gradient."""
    layer = place[LAYER]
    if layers.initiates[layer] and place[AGAIN] == 0:
        place[AGAIN] = 1
        while layer >= 0 and not layers.checkpoint[layer]:
            layer -= 1
        if layer < 0:
            stop(state, NO_CHECKPOINT, place[LAYER], INPUT_GRADIENT)
            return
        change(state, place, AGAIN_STATE, layer)
        return
    if compute(state, layers, place, INPUT_GRADIENT):
        return
    place[AGAIN] = 0
    if loop.recommender:
        if layer == loop.last_bottom + 1:
            issue(state, system, layers, INPUT_GRADIENT, 0, HIGHEST, False)
    elif loop.input_collective and (layer > 0 or loop.first_input_collective):
        issue(state, system, layers, INPUT_GRADIENT, layer, LAST_IN_ORDER, False)
    change(state, place, WEIGHT_STATE, layer - 1 if loop.weight_first else layer)


@jit
def step(state, system, layers, loop, place, passes):
    """Go on with the training loop as far as it comes without waiting."""
    if loop.micro:
        while place[PASS] < passes:
            issue(state, system, layers, WEIGHT_GRADIENT, 0, SYSTEM_ORDER, False)
            place[PASS] += 1
    if state.cursor[STATUS] == RUNNING:
        check_end(state, place, passes)
    if state.cursor[STATUS] != RUNNING:
        return
    if place[WHERE] == FORWARD_STATE or place[WHERE] == AGAIN_STATE:
        forward_step(state, system, layers, loop, place)
    elif place[WHERE] == WEIGHT_STATE:
        weight_step(state, system, layers, loop, place)
    elif place[WHERE] == INPUT_STATE:
        input_step(state, system, layers, loop, place)


@jit
def run(layers, loop, system, passes, chunks, sets, most_events):
    """Run a workload.

    Parameters
    ----------
    layers : Layers
    loop : Loop
    system : System
    passes : int
    chunks, sets : int
        Most chunks and collectives at once; with fewer than needed the run ends ``FULL``.
    most_events : int
        The run ends ``TOO_MANY_EVENTS`` beyond.

    Returns
    -------
    State
        After the last event; its ``cursor[STATUS]`` says how the run ended.
    """
    dims = system.members.shape[0]
    state = new_state(
        layers.update.shape[0],
        dims,
        system.network.shape[0],
        dims * system.queues,
        passes,
        chunks,
        sets,
        system.active,
    )
    fractions = (system.network[:, MEMORY_SCALE] > 0.0).any() and system.fixed.shape[1] == 0
    state.cursor[FRACTIONS] = 1 if fractions else 0
    place = np.zeros(PLACE_ENTRIES, np.int64)
    step(state, system, layers, loop, place, passes)
    while state.cursor[STATUS] == RUNNING:
        if state.calendar[0, WAITING] == 0:
            stop(state, STUCK, 0, 0)
            break
        if state.calendar[0, SCHEDULED] > most_events:
            stop(state, TOO_MANY_EVENTS, 0, 0)
            break
        kind, item = next_event(state)
        if kind == STEP:
            step(state, system, layers, loop, place, passes)
        elif kind in (PHASE_STEP, MESSAGE_END):
            if take_step(state, system, item):
                end_phase(state, system, layers.update, item)
        elif kind == PHASE_END:
            end_phase(state, system, layers.update, item)
        elif kind == SET_END:
            wakes, ended = end_collective(state, layers, item)
            if wakes:
                step(state, system, layers, loop, place, passes)
            count_ended(state, ended)
            if place[SUBSCRIBED] == 1 and state.cursor[STATUS] == RUNNING:
                check_end(state, place, passes)
    return state
