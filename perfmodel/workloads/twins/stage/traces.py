"""Traces and communicator groups as STAGE's generator makes them, stage by stage.

Where STAGE puts the parts of a model: pipeline stages, ranks and communicator groups.

Source: astra-sim/symbolic_tensor_graph, branch ``recomp``, `main.py` and
`symbolic_tensor_graph/graph/graph_distributer.py`.

Traces and communicator groups as STAGE's generator makes them, from the same arguments.

Ranks, numbers, names, dependencies, attributes and tensors are those of STAGE, branch
``recomp`` (0b44904). Source: astra-sim/symbolic_tensor_graph, `main.py`,
`symbolic_tensor_graph/graph/{graph_distributer,convert_chakra,grad_updater,graph}.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.workloads.trace import ABSENT, RECEIVE, SEND, Ragged, Trace, TraceSet
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.blocks import (
    BEFORE,
    BEHIND,
    DEGREES,
    ORIGINS,
    OWN,
    OWNER,
    SENT_BACK,
    SENT_ON,
    Block,
    Copies,
    Node,
    block_of,
    chained,
    ends_of,
    trace_of,
    updates_of,
)
from perfmodel.workloads.twins.stage.operations import (
    ACTIVATION,
    GIVEN,
    GRADIENT,
    INPUT,
    Tensor,
    embedding_tensors,
    layer_tensors,
)


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that crosses pipeline stages, from one place of the model to the next or previous.

    Places are 0: input embedding, 1 to layers: layers, layers + 1: output embedding.
    """

    producer: int
    consumer: int


def stage_order(arguments: StageArguments) -> list[int]:
    """Return pipeline stages in the order of their ranks: as places first name them."""
    last = arguments.layers + 1
    places = [0, last, *range(1, last)]
    return list(dict.fromkeys(place % arguments.pipeline_parallel for place in places))


def stage_places(arguments: StageArguments, stage: int) -> list[int]:
    """Return the places of the model on a stage: layers go round the stages, one by one."""
    last = arguments.layers + 1
    return [place for place in (0, last, *range(1, last)) if stage_of(arguments, place) == stage]


def stage_links(arguments: StageArguments, stages: Sequence[int]) -> list[Link]:
    """Return the tensors that cross stages, in the order of the generator's messages."""
    if arguments.pipeline_parallel == 1:
        return []
    links = []
    for stage in stages:
        for place in stage_places(arguments, stage):
            if place > 0:
                links.append(Link(place - 1, place))
            if place <= arguments.layers:
                links.append(Link(place + 1, place))
    return links


def communicator_groups(arguments: StageArguments) -> dict[str, tuple[int, ...]]:
    """Return the ranks of every group, also of groups with one rank.

    Numbers count on over data-, tensor- and sequence-parallel groups, for each with the
    pipeline stage first (graph_distributer.py, `_create_comm_groups`).
    """
    ranks = _rank_grid(arguments)
    groups = [
        np.moveaxis(ranks, 1 + axis, -1).reshape(-1, ranks.shape[1 + axis]) for axis in range(3)
    ]
    rows = (tuple(row) for group in groups for row in group.tolist())
    return {str(number): row for number, row in enumerate(rows, 1)}


def _rank_grid(arguments: StageArguments) -> Integers:
    """Return the rank at every (stage, dp, tp, sp)."""
    order = stage_order(arguments)
    dp, tp, sp = arguments.degrees.values()
    inside = np.arange(arguments.ranks_per_stage).reshape(sp, tp, dp).transpose(2, 1, 0)
    stages = np.argsort(order)[:, None, None, None]
    return stages * arguments.ranks_per_stage + inside


def group_names(arguments: StageArguments, index: int) -> list[tuple[str, ...]]:
    """Return the names of the groups of every rank of a stage, for degrees above 1."""
    ranks = _rank_grid(arguments)
    names = np.empty((3, arguments.devices), np.int64)
    first = 1
    for axis in range(3):
        rows = np.moveaxis(ranks, 1 + axis, -1).reshape(-1, ranks.shape[1 + axis])
        names[axis, rows] = np.arange(first, first + len(rows))[:, None]
        first += len(rows)
    used = [axis for axis, ways in enumerate(arguments.degrees.values()) if ways > 1]
    start = index * arguments.ranks_per_stage
    chosen = names[used, start : start + arguments.ranks_per_stage].T
    return [tuple(map(str, row)) for row in chosen.tolist()]


def stage_of(arguments: StageArguments, place: int) -> int:
    """Return the pipeline stage of a place."""
    return place % arguments.pipeline_parallel


# Ends of a block that neighbours read: activation, gradient.
OF_LAYER = "ffn_norm", "mha_d_x"
OF_EMBEDDING = "y", "dx"


def stage_traces(arguments: StageArguments, first_tag: int = 0) -> TraceSet:
    """Return what all ranks do in one step, as STAGE's generator would write it.

    Without a pipeline, all ranks share their columns, with the numbers of rank 0 (STAGE
    counts on from rank to rank; the order is the same); only the names of their groups
    differ. With a pipeline, numbers are STAGE's.

    Parameters
    ----------
    arguments : StageArguments
    first_tag : int, optional
        Label of the first message between stages; STAGE draws it at random, up to 10⁶.

    Returns
    -------
    TraceSet

    Raises
    ------
    StrategyError
        `first_tag` is not a whole number from 0 on.

    Examples
    --------
    >>> traces = stage_traces(StageArguments(data_parallel=2, layers=4))
    >>> traces.devices, traces.traces[0].nodes, traces.groups["1"]
    (2, 190, (0, 1))
    """
    if isinstance(first_tag, bool) or not isinstance(first_tag, int) or not 0 <= first_tag < 2**30:
        raise StrategyError(f"first_tag is {first_tag}; it should be from 0 to 2**30 - 1")
    stages = stage_order(arguments)
    links = stage_links(arguments, stages)
    parts = _Parts(arguments)
    shared = [_stage_trace(parts, stage, links) for stage in stages]
    if len(stages) == 1:
        trace = _counted_from_one(shared[0][0])
        ranks = [replace(trace, group_names=names) for names in group_names(arguments, 0)]
    else:
        ranks = list(_pipeline_ranks(arguments, stages, links, shared, first_tag))
    return TraceSet(tuple(ranks), communicator_groups(arguments))


class _Parts:
    """The different blocks of a model, and how they are read by their neighbours."""

    def __init__(self, arguments: StageArguments) -> None:
        self.arguments = arguments
        self.last = arguments.layers + 1
        pipelined = arguments.pipeline_parallel > 1
        embeddings = [embedding_tensors(arguments, block) for block in ("in_emb", "out_emb")]
        layer = layer_tensors(arguments)
        activation = Tensor("", GIVEN, ACTIVATION)
        usual = {INPUT: activation, GRADIENT: activation}
        behind_last = next(tensor for tensor in embeddings[1] if tensor.name == "dx")
        kinds = (
            (embeddings[0], usual, {"y": SENT_ON}),
            (layer, usual, {"ffn_norm": SENT_ON, "mha_d_x": SENT_BACK}),
            (layer, usual | {GRADIENT: behind_last}, {"ffn_norm": SENT_ON, "mha_d_x": SENT_BACK}),
            (embeddings[1], usual, {"dx": SENT_BACK}),
        )
        self.blocks = [
            block_of(tensors, arguments, outside, sent if pipelined else None)
            for tensors, outside, sent in kinds
        ]
        self.updates = [
            updates_of(block, tensors, arguments)
            for block, (tensors, _, _) in zip(self.blocks, kinds, strict=True)
        ]

    def kind(self, place: int) -> int:
        """Return which block stands at a place."""
        return 0 if place == 0 else 3 if place == self.last else 2 if place == self.last - 1 else 1

    def prefix(self, place: int) -> str:
        """Return how the names at a place begin."""
        if place == 0:
            return "in_emb_"
        return "out_emb_" if place == self.last else f"stack_{place - 1}_"

    def read(self, link: Link) -> str:
        """Return the tensor that a link carries."""
        backward = link.producer > link.consumer
        inner = 0 < link.producer < self.last
        return (OF_LAYER if inner else OF_EMBEDDING)[backward]

    def read_tensor(self, link: Link) -> tuple[str, int]:
        """Return name and size of the tensor that a link carries."""
        block = self.blocks[self.kind(link.producer)]
        name, size = block.tensors[block.places[self.read(link)][1]]
        return self.prefix(link.producer) + name, size


def _stage_trace(parts: _Parts, stage: int, links: Sequence[Link]) -> tuple[Trace, int]:
    """Return the trace of a stage's ranks and how many numbers it uses.

    Numbers begin at 0; sends and receives have negative ones (`_pipeline_ranks`).
    """
    places = stage_places(parts.arguments, stage)
    chain = [(place, parts.blocks[parts.kind(place)]) for place in places]
    chain += [(place, parts.updates[parts.kind(place)]) for place in places]
    starts = ends_of(np.array([block.identifiers for _, block in chain])).tolist()
    tensor_starts = ends_of(np.array([len(block.tensors) for _, block in chain])).tolist()
    at = {place: index for index, place in enumerate(places)}
    received = [link for link in links if stage_of(parts.arguments, link.consumer) == stage]
    link_numbers = {link: number for number, link in enumerate(links)}
    received_at = {link: tensor_starts[-1] + i for i, link in enumerate(received)}

    def origin(link: Link) -> tuple[int, int]:
        """Return number and place of the tensor that a link carries."""
        if link in received_at:
            return _receive_code(link_numbers[link]), received_at[link]
        if link.producer not in at or link.consumer not in at:
            return 0, 0  # nothing of this stage reads it
        block, index = parts.blocks[parts.kind(link.producer)], at[link.producer]
        name = parts.read(link)
        return starts[index] + block.ends[name][1], tensor_starts[index] + block.places[name][1]

    nodes = np.zeros((len(chain), ORIGINS), np.int64)
    tensors = np.zeros((len(chain), ORIGINS), np.int64)
    for index, (place, _) in enumerate(chain):
        before, behind = Link(place - 1, place), Link(place + 1, place)
        nodes[index, OWN], tensors[index, OWN] = starts[index], tensor_starts[index]
        nodes[index, BEFORE], tensors[index, BEFORE] = origin(before)
        nodes[index, BEHIND], tensors[index, BEHIND] = origin(behind)
        nodes[index, OWNER] = starts[at[place]]
        tensors[index, OWNER] = tensor_starts[at[place]]
        for column, target in ((SENT_ON, place + 1), (SENT_BACK, place - 1)):
            sent = Link(place, target)
            nodes[index, column] = _send_code(link_numbers.get(sent, 0))
    copies = []
    for first, end in _runs([id(block) for _, block in chain]):
        prefixes = [parts.prefix(place) for place, _ in chain[first:end]]
        copies.append(Copies(chain[first][1], prefixes, nodes[first:end], tensors[first:end]))
    shadows = [parts.read_tensor(link) for link in received]
    copies += [
        Copies(
            Block([_receive(size, _receive_code(link_numbers[link]), received_at[link])]),
            [f"shadow_{name.partition('@')[0]}@0"],
            np.zeros((1, ORIGINS), np.int64),
            np.zeros((1, ORIGINS), np.int64),
        )
        for link, (name, size) in zip(received, shadows, strict=True)
    ]
    trace = trace_of(copies, [(f"shadow_{name}", size) for name, size in shadows])
    used = [axis for axis, ways in enumerate(parts.arguments.degrees.values()) if ways > 1]
    group: NDArray[np.int32] = np.full(len(DEGREES) + 1, ABSENT, np.int32)  # the last: none
    group[used] = np.arange(len(used))
    trace = replace(trace, group=group[trace.group], control_parents=chained(trace))
    return trace, starts[-1] + len(received)


def _runs(keys: list[int]) -> Iterator[tuple[int, int]]:
    """Yield beginning and end of each run of equal keys."""
    first = 0
    for index in range(1, len(keys) + 1):
        if index == len(keys) or keys[index] != keys[first]:
            yield first, index
            first = index


def _receive(size: int, code: int, place: int) -> Node:
    """Return the node that receives a tensor from another stage."""
    return Node("_Y_RECV", RECEIVE, (OWN, code), communication_size=size, outputs=[(OWN, place)])


def _send_code(link: int) -> int:
    """Return the number that stands for a link's send until ranks are known."""
    return -(2 * link + 1)


def _receive_code(link: int) -> int:
    """Return the number that stands for a link's receive until ranks are known."""
    return -(2 * link + 2)


def _counted_from_one(trace: Trace) -> Trace:
    """Return a trace without messages, its numbers from 1 on."""
    data, control = trace.data_parents, trace.control_parents
    return replace(
        trace,
        identifiers=trace.identifiers + 1,
        data_parents=Ragged(data.offsets, data.values + 1),
        control_parents=Ragged(control.offsets, control.values + 1),
    )


def _pipeline_ranks(
    arguments: StageArguments,
    stages: Sequence[int],
    links: Sequence[Link],
    shared: list[tuple[Trace, int]],
    first_tag: int,
) -> Iterator[Trace]:
    """Yield the ranks of a pipeline.

    STAGE counts nodes from 1 on, rank by rank; then, link by link and rank by rank, a send
    and its receive.
    """
    ranks = arguments.ranks_per_stage
    first_pair = 1 + ranks * sum(count for _, count in shared)
    index_of = {stage: index for index, stage in enumerate(stages)}
    ends = np.array(
        [
            [
                index_of[stage_of(arguments, place)] * ranks
                for place in (link.producer, link.consumer)
            ]
            for link in links
        ],
        np.int64,
    )
    start = 1
    for index, (trace, count) in enumerate(shared):
        sends, receives = trace.kinds == SEND, trace.kinds == RECEIVE
        link = np.where(trace.identifiers < 0, -(trace.identifiers + 1) // 2, 0)
        label = first_tag + link * ranks
        for inside, names in enumerate(group_names(arguments, index)):
            numbers = functools.partial(_final, start=start, pair=first_pair, ranks=(inside, ranks))
            data, control = trace.data_parents, trace.control_parents
            yield replace(
                trace,
                identifiers=numbers(trace.identifiers),
                data_parents=Ragged(data.offsets, numbers(data.values)),
                control_parents=Ragged(control.offsets, numbers(control.values)),
                source=_where(receives, ends[link, 0] + inside),
                destination=_where(sends, ends[link, 1] + inside),
                tag=_where(sends | receives, label + inside),
                group_names=names,
            )
            start += count


def _final(numbers: Integers, start: int, pair: int, ranks: tuple[int, int]) -> Integers:
    """Return the numbers of one rank of a stage: of its nodes, and of sends and receives."""
    inside, count = ranks
    code = -(numbers + 1)
    message = pair + 2 * (code // 2 * count + inside) + code % 2
    return np.where(numbers < 0, message, numbers + start)


def _where(chosen: NDArray[np.bool_], values: Integers) -> NDArray[np.int32]:
    """Return values where chosen, nothing elsewhere."""
    return np.where(chosen, values, ABSENT).astype(np.int32)
