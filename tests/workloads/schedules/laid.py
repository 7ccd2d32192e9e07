"""Times of schedules on a network, step by step: what the closed forms are held against."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.workloads.schedules.schedule import operation_loads, schedule


def link_loads(topology, collective, algorithm, size, groups, **options):
    """Bytes that a collective of several groups of devices brings over every link."""
    groups = np.atleast_2d(groups)
    plan = schedule(collective, algorithm, groups.shape[1], size, **options)
    return sum(operation_loads(topology, plan, group) for group in groups)


def scheduled_time(topology, collective, algorithm, size, groups, *, pipelined=False, **options):
    """Every step takes its busiest link and the latency of its longest route [s].

    Pipelined, in ever smaller chunks, all steps together take their busiest link.
    """
    groups = np.atleast_2d(groups)
    plan = schedule(collective, algorithm, groups.shape[1], size, **options)
    transfer = latency = 0.0
    for step in range(plan.steps):
        part = _part(plan, plan.step == step)
        loads = sum(operation_loads(topology, part, group) for group in groups)
        transfer += topology.load_time(loads)
        latency += max(_longest(topology, part, group) for group in groups)
    if pipelined:
        transfer = topology.load_time(
            sum(operation_loads(topology, plan, group) for group in groups)
        )
    return transfer + latency


def _part(plan, chosen):
    """Some of the messages of a schedule."""
    columns = ("step", "source", "target", "bytes", "reduces")
    return replace(plan, **{name: getattr(plan, name)[chosen] for name in columns})


def _longest(topology, plan, group):
    """Latency of the longest route of a group's messages [s]."""
    offsets, links = topology.routes(group[plan.source], group[plan.target])
    return np.add.reduceat(topology.link_latency[links], offsets[:-1]).max()
