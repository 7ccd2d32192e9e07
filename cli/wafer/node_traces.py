"""What nodes of a wafer do in a step, as execution traces of Chakra: one of every node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfmodel.base.collectives import TRACED
from perfmodel.base.columns import Integers
from perfmodel.wafer.export import WrittenNodes, first_step
from perfmodel.wafer.nodes.rows import Operation
from perfmodel.wafer.setting import CoreSetting
from perfmodel.workloads.formats.chakra.files import make_folder_of, write_traces
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet

TRACES = "chakra/nodes"
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "multicast": "all_to_all",
    "unicast": "all_to_all",
    "barrier": "barrier",
}
"""Kind of an operation -> collective of a trace; rows that tokens choose go to all."""


def write_node_traces(
    folder: str | os.PathLike[str], setting: CoreSetting, written: WrittenNodes
) -> list[Path]:
    """Write ``chakra/nodes.N.et`` of the first step; return the files.

    Parameters
    ----------
    folder : str or path
    setting : CoreSetting
    written : WrittenNodes
        With its graph.

    Raises
    ------
    DataError
        They cannot be written.
    """
    place = Path(folder) / TRACES
    traces = node_traces(setting, written.operations, written.done)
    make_folder_of(str(place), traces)
    return write_traces(traces, place)


def node_traces(setting: CoreSetting, operations: Sequence[Operation], done: Integers) -> TraceSet:
    """Return one execution trace per node, of the first step.

    Exchanges of tokens are all-to-alls of what the busiest node of the group sends; a collective's
    size is that of its vector, an all-gather's that of a node's share.

    Parameters
    ----------
    setting : CoreSetting
    operations : sequence of Operation
    done : array of int, shape (operations, nodes)
        From `perfmodel.wafer.nodes.rows.working`.
    """
    count = setting.system.nodes
    values = {
        name: first_step(operations, name, count)
        for name in ("flops", "reads", "writes", "sent", "received")
    }
    groups: dict[str, tuple[int, ...]] = {}
    traces = []
    for node in range(count):
        builder = TraceBuilder()
        places: dict[int, int] = {}
        for at, one in enumerate(operations):
            if not done[at, node]:
                continue
            first, stride, size = (int(part[node]) for part in one.group)
            members = tuple(first + one * stride for one in range(size))
            needs = [places[need] for need in one.needs if need in places]
            sent, received = values["sent"][at, node], values["received"][at, node]
            if one.kind == "send":
                gap = setting.system.stage_nodes
                if received:
                    places[at] = builder.add(
                        one.name, RECEIVE, source=node - gap, destination=node,
                        communication_size=int(received), tag=at, data=needs,
                    )  # fmt: skip
                if sent:
                    places[at] = builder.add(
                        one.name, SEND, source=node, destination=node + gap,
                        communication_size=int(sent), tag=at, data=needs,
                    )  # fmt: skip
            elif one.kind in COLLECTIVES and size > 1:
                name = f"{first}:{stride}:{size}"
                groups.setdefault(name, members)
                most = float(values["sent"][at, list(members)].max())
                if one.kind == "all_reduce":
                    most = most * size / (2 * (size - 1))
                elif one.kind == "reduce_scatter":
                    most = most * size / (size - 1)
                elif one.kind == "all_gather":
                    most = most / (size - 1)
                places[at] = builder.add(
                    one.name,
                    COLLECTIVE,
                    collective=TRACED.index(COLLECTIVES[one.kind]),
                    communication_size=max(int(most), 1),
                    group=name,
                    data=needs,
                )
            else:
                places[at] = builder.add(
                    one.name,
                    COMPUTE,
                    num_ops=int(values["flops"][at, node]),
                    tensor_size=int(values["reads"][at, node] + values["writes"][at, node]),
                    data=needs,
                )
        traces.append(builder.build())
    return TraceSet(tuple(traces), groups)
