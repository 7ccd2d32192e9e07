"""A calendar of events, the next one first: the binary heap of every simulation here.

Of events at one time the one made first goes first, and of those the one scheduled first.
A calendar is one table of ``room + 1`` rows; its times are whole numbers or not, as the table
is. Row 0 counts and is 0 at first, the heap begins at row 1. Where only numbers wait, `push` and
`remove` keep them in a plain array.
"""

from __future__ import annotations

import numpy as np

from perfmodel.kernels._jit import jit_lean

# Columns of an event.
TIME = 0
MADE = 1
NUMBER = 2
WHAT = 3
COLUMNS = 4

# Columns of row 0: events that wait, events scheduled so far, and the time, if the simulation
# keeps it there.
WAITING = 0
SCHEDULED = 1
CLOCK = 2


@jit_lean
def schedule(calendar, time, made, what):
    """Put an event into the calendar.

    Parameters
    ----------
    calendar : int64 or float64[room + 1, COLUMNS]
        With room for one more.
    time : number
        At which it happens.
    made : number
        Of events at one time the smallest goes first.
    what : int
        What happens.
    """
    place = np.int64(calendar[0, WAITING]) + 1
    number = calendar[0, SCHEDULED]
    calendar[0, WAITING] = place
    calendar[0, SCHEDULED] = number + 1
    # The new event is the last scheduled: it passes those alone that are later or made later.
    while place > 1:
        above = place >> 1
        before = calendar[above, TIME]
        if before < time or (before == time and calendar[above, MADE] <= made):
            break
        _move(calendar, above, place)
        place = above
    calendar[place, TIME] = time
    calendar[place, MADE] = made
    calendar[place, NUMBER] = number
    calendar[place, WHAT] = what


@jit_lean
def next_event(calendar):
    """Take the first event out of a calendar that is not empty.

    Returns
    -------
    time, made : number
    what : int
        As they were scheduled.
    """
    time = calendar[1, TIME]
    made = calendar[1, MADE]
    what = np.int64(calendar[1, WHAT])
    last = np.int64(calendar[0, WAITING])
    calendar[0, WAITING] = last - 1
    # The gap goes down to a leaf, past the earlier child each time, and the last event, which
    # is a late one as a rule, goes up from there: half the comparisons of the way down.
    place = 1
    child = 3
    while child < last:
        if _before(calendar, child - 1, child):
            child -= 1
        _move(calendar, child, place)
        place = child
        child = 2 * place + 1
    if child == last:
        _move(calendar, child - 1, place)
        place = child - 1
    while place > 1 and _before(calendar, last, place >> 1):
        _move(calendar, place >> 1, place)
        place >>= 1
    _move(calendar, last, place)
    return time, made, what


@jit_lean
def _move(calendar, source, place):
    """Copy an event to another place."""
    for column in range(COLUMNS):
        calendar[place, column] = calendar[source, column]


@jit_lean
def _before(calendar, first, second):
    """Whether one event comes before another."""
    if calendar[first, TIME] != calendar[second, TIME]:
        return calendar[first, TIME] < calendar[second, TIME]
    if calendar[first, MADE] != calendar[second, MADE]:
        return calendar[first, MADE] < calendar[second, MADE]
    return calendar[first, NUMBER] < calendar[second, NUMBER]


@jit_lean
def push(heap, size, entry):
    """Add a number to a heap of `size` numbers, the smallest first."""
    at = size
    while at > 0 and heap[(at - 1) >> 1] > entry:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = entry


@jit_lean
def remove(heap, size, at):
    """Remove the number at a place of a heap of `size` numbers."""
    entry = heap[size - 1]
    while at > 0 and heap[(at - 1) >> 1] > entry:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    while 2 * at + 1 < size - 1:
        child = 2 * at + 1
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry
