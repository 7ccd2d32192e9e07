"""A slow scheduler of pipelines, written from the rules alone: it asks every rank again and again.

It knows actions as text (``2F5``), as tables of schedules have them, and shares nothing with the
kernels: no links, no sequence, no blocks of cases.
"""

from __future__ import annotations

import functools
import re

KINDS = "FBIW"


class Deadlock(Exception):
    """No rank can go on."""


@functools.cache
def split(name):
    """Return stage, kind and micro-batch of an action."""
    stage, kind, micro_batch = re.fullmatch(r"(\d+)([FBIW])(\d+)", name).groups()
    return int(stage), KINDS.index(kind), micro_batch


def run(rows, rank_of, copies, work, send, together, sender, receiver):
    """Return start and end of every action, and how long every rank was kept by sends.

    `work` and `send` are [kind][stage], `together` is [stage of F][stage of B] or empty.
    """
    depth = len(rank_of) // copies
    begun, ended = {}, {}
    free = [0.0] * len(rows)
    kept = [0.0] * len(rows)
    at = [0] * len(rows)

    @functools.cache
    def neighbour(name):
        """The actions of which one makes what an action needs from another stage."""
        stage, kind, micro_batch = split(name)
        if kind == 0 and stage % depth:
            return [f"{stage - 1}F{micro_batch}"]
        if kind in (1, 2) and (stage + 1) % depth:
            return [f"{stage + 1}B{micro_batch}", f"{stage + 1}I{micro_batch}"]
        return []

    def waits(name):
        made_by = neighbour(name)
        return bool(made_by) and not any(one in ended for one in made_by)

    @functools.cache
    def consumed_elsewhere(name):
        stage, kind, _ = split(name)
        other = {0: stage + 1, 1: stage - 1, 2: stage - 1}.get(kind)
        if other is None or not 0 <= other < len(rank_of) or other // depth != stage // depth:
            return False
        return rank_of[other] != rank_of[stage]

    while any(at[rank] < len(row) for rank, row in enumerate(rows)):
        moved = False
        for rank, row in enumerate(rows):
            if at[rank] == len(row):
                continue
            cell = row[at[rank]]
            names = cell if isinstance(cell, list) else [cell]
            if any(waits(name) for name in names):
                continue
            moved = True
            at[rank] += 1
            if isinstance(cell, list) and together:
                groups = [names]
            else:
                groups = [[name] for name in names]
            for group in groups:
                ready = 0.0
                for name in group:
                    for source in neighbour(name):
                        if source not in ended:
                            continue
                        stage, kind, _ = split(source)
                        takes = send[kind][stage] if rank_of[stage] != rank else 0.0
                        ready = max(ready, ended[source] + takes)
                        if receiver and takes:
                            free[rank] = max(free[rank], ended[source]) + receiver * takes
                            kept[rank] += receiver * takes
                begin = max(ready, free[rank])
                if len(group) == 2:
                    stages = {split(name)[1]: split(name)[0] for name in group}
                    forward = stages.pop(0)
                    takes = together[forward][next(iter(stages.values()))]
                else:
                    stage, kind, _ = split(group[0])
                    takes = work[kind][stage]
                free[rank] = begin + takes
                for name in group:
                    begun[name], ended[name] = begin, begin + takes
                    if consumed_elsewhere(name):
                        stage, kind, _ = split(name)
                        free[rank] += sender * send[kind][stage]
                        kept[rank] += sender * send[kind][stage]
        if not moved:
            raise Deadlock
    return begun, ended, kept
