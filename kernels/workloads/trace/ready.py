"""Ready operations of ranks: heaps, one for each rank and resource, the smallest number first."""

from __future__ import annotations

from perfmodel.kernels._jit import jit_lean


@jit_lean
def push_ready(ready, first, length, node):
    """Add a node to a heap of ready nodes: the smallest first."""
    place = length
    while place > 0:
        parent = (place - 1) >> 1
        if ready[first + parent] <= node:
            break
        ready[first + place] = ready[first + parent]
        place = parent
    ready[first + place] = node


@jit_lean
def pop_ready(ready, first, length):
    """Remove the smallest of `length` ready nodes."""
    last = length - 1
    node = ready[first + last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and ready[first + child + 1] < ready[first + child]:
            child += 1
        if node <= ready[first + child]:
            break
        ready[first + place] = ready[first + child]
        place = child
    ready[first + place] = node
