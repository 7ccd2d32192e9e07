"""Attention on the cores of a node: who has which keys, what travels, softmax over shares."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.work import kernel_work
from perfmodel.wafer.cores.instructions import (
    ADD,
    COLUMNS,
    COPY,
    MOST_ARGUMENTS,
    NOTHING,
    READ,
    WRITE,
    Instructions,
    barrier,
    build,
    joined,
)
from perfmodel.wafer.cores.layout import Layout, along_snake, overlaps, transfers
from perfmodel.wafer.system import Grid, bucket_starts
from perfmodel.wafer.walk import AttentionShape

KEY_CHUNK = 512
"""Keys at a time, as in the generator's ``tiling.json`` (MLAKV, MHAKV)."""
QUERY_BLOCKS = (8, 64)
"""Queries of a prompt at a time, at least and at most: a 32nd of them. A prior: what blocks compute
beyond the causal half is then 3 % at most of prompts of 256 tokens and more."""
MOST_LINES = 2**24
"""Instructions of an attention on a node that are held at once, 80 B each."""
STATISTICS = 2
"""Beside a partial result: the largest score of a row and the sum of its exponents."""


class Part(NamedTuple):
    """Columns of a matrix that belong to heads.

    Attributes
    ----------
    layout : Layout
        Rows are tokens: those of a sequence follow one another.
    first, stride, width : int
        First column of head 0, columns from one head to the next (0: all heads share them), and
        columns of a head.
    """

    layout: Layout
    first: int
    stride: int
    width: int


@dataclass(frozen=True)
class AttentionSizes:
    """Attention of a node.

    Attributes
    ----------
    shape : AttentionShape
    sequences, queries, keys : int
        Queries of a sequence, and keys of it on this node.
    first_key : int
        Of a prompt: which key of the sequence this node's first is. Queries see no later keys.
    window : int
        Of a prompt: keys that a query sees at most, itself included; 0 for all.
    chunked : bool
        Of a prompt: the window is the query's own part of the sequence, and not the last keys.
    activation_bytes, cache_bytes : float
        Of an element [B].
    """

    shape: AttentionShape
    sequences: int
    queries: int
    keys: int
    first_key: int = 0
    window: int = 0
    chunked: bool = False
    activation_bytes: float = 2.0
    cache_bytes: float = 2.0

    def seen(self) -> tuple[Integers, Integers]:
        """Return the first key on this node that each query of a prompt sees, and the end."""
        query = np.arange(self.queries)
        first = np.zeros(self.queries, np.int64)
        if self.window:
            first = query // self.window * self.window if self.chunked else query + 1 - self.window
        return (
            np.clip(first - self.first_key, 0, self.keys),
            np.clip(query + 1 - self.first_key, 0, self.keys),
        )


class Shares(NamedTuple):
    """Cores of a node by share of the context (or of the queries) and share of the heads."""

    cores: Integers  # (shares, head parts)
    heads: int  # of keys, in a part

    @classmethod
    def of(cls, key_heads: int, grid: Grid) -> Shares:
        """Spread heads as far as they divide evenly, positions to the cores of each part."""
        count = grid[0] * grid[1]
        parts = gcd(key_heads, count)
        return cls(along_snake(grid).reshape(parts, -1).T, key_heads // parts)


def _boxes(parts: tuple[Part, ...], ranges: Integers, heads: tuple[int, int]) -> list[Integers]:
    """Return, per part, boxes (slot, first row, end, first column, end) of rows and heads."""
    found = []
    for part in parts:
        first, end = heads
        if part.stride == 0:
            spans = [(part.first, part.first + part.width)]
        elif part.stride == part.width:
            spans = [(part.first + first * part.width, part.first + end * part.width)]
        else:
            begins = [part.first + head * part.stride for head in range(first, end)]
            spans = [(begin, begin + part.width) for begin in begins]
        rows = np.repeat(ranges, len(spans), axis=0)
        columns = np.tile(np.array(spans, np.int64), (len(ranges), 1))
        found.append(np.hstack((rows, columns)))
    return found


def _brought(
    parts: tuple[Part, ...], ranges: Integers, shares: Shares, group: int, element_bytes: float
) -> Integers:
    """Return bytes that each core (slot) wants of each bank: shape (cores, cores)."""
    count = shares.cores.size
    moved = np.zeros((count, count), np.int64)
    for place in range(shares.cores.shape[1]):
        heads = place * shares.heads * group, (place + 1) * shares.heads * group
        for part, boxes in zip(parts, _boxes(parts, ranges, heads), strict=True):
            boxes[:, 0] = shares.cores[boxes[:, 0], place]
            moved += overlaps(part.layout, boxes, count, count)
    return np.ceil(moved * element_bytes).astype(np.int64)


def _tasks(rows: list[Any]) -> Instructions:
    """Return the instructions of tasks, whose columns `trace_lines` names."""
    tasks = np.ascontiguousarray(np.column_stack(np.broadcast_arrays(*rows)).astype(np.int64))
    with kernel_work(instructions=10 * len(tasks)):
        from perfmodel.kernels.wafer import trace_lines

        count = trace_lines.count_attention_lines(tasks, KEY_CHUNK)
        if count > MOST_LINES:
            raise StrategyError(
                f"key 'sequence_parallel': {count} instructions of one attention on a node exceed "
                f"{MOST_LINES}; share its context or its batch among more nodes"
            )
        lines = np.empty((count, COLUMNS), np.int64)
        arguments = np.empty((count, MOST_ARGUMENTS), np.int64)
        trace_lines.attention_lines(tasks, KEY_CHUNK, lines, arguments)
    return Instructions(lines, arguments, NOTHING.destinations)


def _all(cores: int) -> list[Integers]:
    return [np.array([core]) for core in range(cores)]


def _sizes(size: AttentionSizes, stored_in_cache: bool) -> tuple[float, float]:
    """Bytes of a key and of a value of one head, as they are read [B]."""
    element = size.cache_bytes if stored_in_cache else size.activation_bytes
    return (
        size.shape.depth * element,
        0.0 if size.shape.shared_values else size.shape.values * element,
    )


@functools.lru_cache(maxsize=512)
def decode_attention(
    queries: tuple[Part, ...],
    added: tuple[Part, ...],
    size: AttentionSizes,
    grid: Grid,
    whole: bool,
) -> tuple[Instructions, Layout]:
    """Return the instructions of attention over a cache, and where its result lies.

    The cache lies in equal shares on the cores, one sequence behind the other; heads of keys are
    spread first where they divide evenly. A sequence whose keys lie on several cores is summed up
    by them, each for a share of the heads.

    Parameters
    ----------
    queries : tuple of Part
        Which together are the queries.
    added : tuple of Part
        What is stored of the new tokens; empty where another node stores it.
    size : AttentionSizes
    grid : (int, int)
        Of cores.
    whole : bool
        Whether all keys are on this node; otherwise results go with their statistics.
    """
    cores = grid[0] * grid[1]
    shares = Shares.of(size.shape.key_heads, grid)
    count, parts = shares.cores.shape
    if size.sequences * size.shape.heads > MOST_LINES:
        raise StrategyError(
            f"key 'batch': {size.sequences} sequences of {size.shape.heads} heads on a node exceed "
            f"{MOST_LINES}"
        )
    total = size.sequences * size.keys
    bounds = bucket_starts(total, count)
    starts = np.unique(np.concatenate((bounds, np.arange(size.sequences + 1) * size.keys)))
    starts, ends = starts[:-1], starts[1:]
    share = np.searchsorted(bounds, starts, side="right") - 1
    sequence = starts // size.keys
    members = np.bincount(sequence, minlength=size.sequences)

    ranges = np.column_stack((share, sequence * size.queries, (sequence + 1) * size.queries))
    moved = _brought(queries, ranges, shares, size.shape.group, size.activation_bytes)
    stored = np.zeros(cores, np.int64)
    if added:
        # Who has a sequence's last key gets its new ones.
        last = np.append(sequence[1:] != sequence[:-1], True)
        new = _brought(added, ranges[last], shares, 1, size.activation_bytes)
        moved += new
        stored = (new.sum(axis=0) * (size.cache_bytes / size.activation_bytes)).astype(np.int64)
    result = [transfers(moved, _all(cores)), barrier("queries", np.arange(cores))]
    keeps = np.flatnonzero(stored)
    result.append(build(WRITE, keeps, (keeps, stored[keeps])))

    rows = size.queries * size.shape.group
    split = members[sequence] > 1
    width = size.shape.values + STATISTICS * (split | (not whole))
    key, value = _sizes(size, True)
    written = np.ceil(rows * width * size.activation_bytes)
    read = np.ceil(rows * size.shape.depth * size.activation_bytes)
    facts = [
        shares.heads,
        rows,
        size.shape.depth,
        ends - starts,
        size.shape.values,
        read,
        np.ceil(key),
    ]
    facts += [np.ceil(value), written, ~split & whole]
    result += [_tasks([shares.cores[share, place], *facts]) for place in range(parts)]
    banks = np.empty((size.sequences, size.shape.heads), np.int64)
    per_part = shares.heads * size.shape.group
    first = np.cumsum(members) - members
    sums = []
    for place in range(parts):
        columns = slice(place * per_part, (place + 1) * per_part)
        banks[:, columns] = shares.cores[share[first], place][:, None]
        copied, summed = _shared_sums(
            shares.cores[share, place], first, members, size, per_part, whole, banks[:, columns]
        )
        result.append(copied)
        sums += summed
    if sums:
        result += [barrier("partial results", np.arange(cores)), *sums]
    layout = Layout(
        np.arange(size.sequences + 1) * size.queries,
        np.arange(size.shape.heads + 1) * size.shape.values,
        banks,
    )
    return joined(result), layout


def _shared_sums(
    holder: Integers,
    first: Integers,
    members: Integers,
    size: AttentionSizes,
    heads: int,
    whole: bool,
    banks: Integers,
) -> tuple[Instructions, list[Instructions]]:
    """Sum each sequence that lies on several cores; say in `banks` who has which heads then."""
    copies: list[tuple[int, int, int]] = []
    sums: list[tuple[int, int, int]] = []
    row_bytes = size.queries * (size.shape.values + STATISTICS) * size.activation_bytes
    for sequence in np.flatnonzero(members > 1):
        team = holder[first[sequence] : first[sequence] + members[sequence]]
        begin = bucket_starts(heads, len(team))
        banks[sequence] = np.repeat(team, np.diff(begin))
        for place, core in enumerate(team):
            mine = int(begin[place + 1] - begin[place])
            if mine:
                copies += [
                    (int(one), int(core), int(np.ceil(mine * row_bytes)))
                    for one in team
                    if one != core
                ]
                sums.append((int(core), mine, len(team)))
    if not copies:
        return NOTHING, []
    source, to, moved = np.array(copies, np.int64).T
    core, mine, parts = np.array(sums, np.int64).T
    result = []
    rows = mine * size.queries
    part_bytes = np.ceil(mine * row_bytes).astype(np.int64)
    for step in range(int(parts.max())):
        some = step < parts
        here, high = core[some], rows[some]
        result.append(build(READ, here, (here, part_bytes[some])))
        if step:
            # The larger of both maxima; both scaled to it; their sum.
            result.append(build(ADD, here, (high, STATISTICS), back=1))
            result.append(build(ADD, here, (high, size.shape.values), back=1))
            result.append(build(ADD, here, (high, size.shape.values), back=2))
            result.append(build(ADD, here, (high, size.shape.values + 1), back=2))
    kept = size.shape.values if whole else size.shape.values + STATISTICS
    if whole:
        result.append(build(ADD, core, (rows, size.shape.values), back=1))
    written = np.ceil(rows * kept * size.activation_bytes).astype(np.int64)
    result.append(build(WRITE, core, (core, written), back=1))
    return build(COPY, source, (source, to, moved)), result


@functools.lru_cache(maxsize=512)
def prompt_attention(
    queries: tuple[Part, ...],
    keys: tuple[Part, ...],
    size: AttentionSizes,
    grid: Grid,
    whole: bool,
) -> tuple[Instructions, Layout]:
    """Return the instructions of attention of prompts, causal, and where the result lies.

    Cores get shares of the queries with equally many scores to compute, and the keys and values
    that these see; heads of keys are spread first where they divide evenly. What a core's own
    queries add to the cache is written beside it.

    Parameters
    ----------
    queries, keys : tuple of Part
        Which together are the queries; which together are keys and values, one row per token of
        a prompt.
    size : AttentionSizes
    grid : (int, int)
        Of cores.
    whole : bool
        Whether all keys are on this node; otherwise results go with their statistics.
    """
    cores = grid[0] * grid[1]
    shares = Shares.of(size.shape.key_heads, grid)
    count, parts = shares.cores.shape
    low, high = size.seen()
    before = np.concatenate(([0], np.cumsum(high - low)))
    total = size.sequences * before[-1]
    wanted = bucket_starts(int(total), count)
    inside = wanted % max(before[-1], 1)
    bounds = wanted // max(before[-1], 1) * size.queries
    bounds += np.searchsorted(before, inside, side="right") - 1
    bounds[-1], bounds[0] = size.sequences * size.queries, 0

    block = min(max(size.queries // 32, QUERY_BLOCKS[0]), QUERY_BLOCKS[1])
    blocks = np.arange(0, size.queries, block)
    edges = (np.arange(size.sequences)[:, None] * size.queries + blocks).ravel()
    starts = np.unique(np.concatenate((bounds, edges)))
    starts, ends = starts[:-1], starts[1:]
    share = np.searchsorted(bounds, starts, side="right") - 1
    sequence = starts // size.queries
    begin = low[starts % size.queries]
    visible = high[(ends - 1) % size.queries] - begin

    # What a share of the queries sees of a sequence: from its first query's on to its last's.
    new = np.append(True, (sequence[1:] != sequence[:-1]) | (share[1:] != share[:-1]))
    last = np.append(new[1:], True)
    top = sequence[last] * size.queries + size.first_key
    ranges = np.column_stack((share[last], top + begin[new], top + (begin + visible)[last]))
    moved = _brought(keys, ranges, shares, 1, size.activation_bytes)
    own = np.column_stack((np.arange(count), bounds[:-1], bounds[1:]))
    moved += _brought(queries, own, shares, size.shape.group, size.activation_bytes)
    result = [transfers(moved, _all(cores)), barrier("queries", np.arange(cores))]

    rows = (ends - starts) * size.shape.group
    width = size.shape.values + STATISTICS * (not whole)
    key, value = _sizes(size, False)
    per_token = size.shape.stored * size.cache_bytes / parts
    held = np.clip(bounds[:, None], *_own_keys(size)).T if size.keys else np.zeros((1, 1))
    kept = np.diff(held.sum(axis=0)) if size.keys else np.zeros(count)
    written = np.ceil(kept * per_token).astype(np.int64)
    for place in range(parts):
        core = shares.cores[:, place]
        some = written > 0
        result.append(build(WRITE, core[some], (core[some], written[some])))
        busy = visible > 0
        result.append(
            _tasks(
                [
                    shares.cores[share, place][busy],
                    shares.heads,
                    rows[busy],
                    size.shape.depth,
                    visible[busy],
                    size.shape.values,
                    np.ceil(rows * size.shape.depth * size.activation_bytes)[busy],
                    np.int64(np.ceil(key)),
                    np.int64(np.ceil(value)),
                    np.ceil(rows * width * size.activation_bytes)[busy],
                    whole,
                ]
            )
        )
    per_part = shares.heads * size.shape.group * size.shape.values
    layout = Layout(bounds, np.arange(parts + 1) * per_part, shares.cores)
    return joined(result), layout


def _own_keys(size: AttentionSizes) -> tuple[Integers, Integers]:
    """First row and end of each sequence's keys that this node holds."""
    first = np.arange(size.sequences) * size.queries + size.first_key
    return first, first + size.keys
