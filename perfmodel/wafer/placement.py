"""Where the nodes of tensor, sequence, data and pipeline groups stand on a wafer.

Every side of the node grid is spread over the axes of parallelism, in every order of nesting, so
that groups are rectangles, perhaps with gaps. What an axis costs depends on its own factors and
gaps alone, so each is counted once, message by message on XY routes.

What a layer makes those nodes send is counted here too, by axis.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from functools import lru_cache
from math import ceil, isfinite, prod
from typing import NamedTuple

import numpy as np

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.kernels.work import kernel_work
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.layers import MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.wafer.system import Grid, WaferSystem

AXES = ("tensor", "sequence", "data", "pipeline")
ALONE = -1  # of `perfmodel.kernels.wafer.routes`
MOST_NODES = 2048


@dataclass(frozen=True)
class GroupBytes:
    """What a node sends in a layer [B].

    Attributes
    ----------
    tensor, sequence, data : float
        Vector of which groups of the axis make a sum, by a ring.
    pipeline : float
        What passes to the same node of the next stage.
    experts : float
        What a node sends to the others of its stage together, as much to each.
    """

    tensor: float = 0.0
    sequence: float = 0.0
    data: float = 0.0
    pipeline: float = 0.0
    experts: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not (isfinite(value) and value >= 0):
                raise StrategyError(f"key '{one.name}': bytes, not {value!r}")


class AxisCost(NamedTuple):
    """What the messages of an axis load."""

    busiest: float  # bytes over the busiest link, one step after the other [B]
    hops: float  # bytes times links [B]

    def plus(self, other: AxisCost) -> AxisCost:
        """Return the cost of both, one after the other."""
        return AxisCost(self.busiest + other.busiest, self.hops + other.hops)


@dataclass(frozen=True)
class Placement:
    """Places of nodes.

    Attributes
    ----------
    places : array of int, shape (nodes,)
        Place in the node grid, counted row by row, of every node in the order of `WaferSystem`.
    blocks : mapping of str to (int, int)
        Rows and columns over which the members of a group of each axis are spread.
    cost : AxisCost
        Of all axes in a layer.
    given : AxisCost
        The same where node n stands at place n, as the wafer workload generator has it.
    """

    places: Integers
    blocks: dict[str, Grid]
    cost: AxisCost
    given: AxisCost


def place_groups(system: WaferSystem, sent: GroupBytes) -> Placement:
    """Find the places of nodes whose messages load the busiest link least.

    Parameters
    ----------
    system : WaferSystem
    sent : GroupBytes

    Returns
    -------
    Placement
        Sums of the busiest link's bytes over all steps count first, bytes times hops second;
        node n at place n where nothing is better.

    Raises
    ------
    StrategyError
        More than `MOST_NODES` nodes.
    """
    if system.nodes > MOST_NODES:
        raise StrategyError(f"key 'nodes': {system.nodes} exceed {MOST_NODES}, too many to place")
    degrees = (
        system.tensor_parallel,
        system.sequence_parallel,
        system.data_parallel,
        system.pipeline_parallel,
    )
    volumes = (sent.tensor, sent.sequence, sent.data, sent.pipeline)
    plain = np.arange(system.nodes)
    pairs = system.stage_nodes if sent.experts else 0
    with kernel_work(mesh_flows=(100.0 + 2.0 * pairs) * system.nodes):
        given = placement_cost(plain, system.node_grid, degrees, volumes, sent.experts)
        best: tuple[AxisCost, _Lines] | None = None
        for lines in _all_lines(system.node_grid, degrees):
            cost = AxisCost(0.0, 0.0)
            for axis, volume in enumerate(volumes):
                if degrees[axis] > 1 and volume:
                    cost = cost.plus(
                        _axis_cost(lines.of(axis), system.node_grid, volume, AXES[axis])
                    )
            if sent.experts and system.stage_nodes > 1:
                cost = cost.plus(_stage_cost(lines.of(3), system.node_grid, sent.experts))
            if best is None or cost < best[0]:
                best = cost, lines
    if best is None or not best[0] < given:
        return Placement(plain, _blocks_of(plain, system.node_grid, degrees), given, given)
    places = _places(best[1], volumes, system.node_grid)
    return Placement(places, _blocks_of(places, system.node_grid, degrees), best[0], given)


def placement_cost(
    places: Integers,
    grid: Grid,
    degrees: tuple[int, ...],
    volumes: tuple[float, ...],
    experts: float,
) -> AxisCost:
    """Count what the messages of all axes load where nodes stand at given places.

    Parameters
    ----------
    places : array of int, shape (nodes,)
    grid : (int, int)
        Nodes.
    degrees, volumes : tuple
        By `AXES`; a sum's vector, and what passes to the next stage [B].
    experts : float
        As of `GroupBytes`.
    """
    shaped = places.reshape(degrees[::-1]).transpose()  # by axis, in the order of AXES
    cost = AxisCost(0.0, 0.0)
    for axis, (degree, volume) in enumerate(zip(degrees, volumes, strict=True)):
        if degree > 1 and volume:
            groups = np.moveaxis(shaped, axis, -1).reshape(-1, degree)
            cost = cost.plus(_group_cost(groups, grid, volume, AXES[axis]))
    stage = shaped.reshape(-1, degrees[-1]).transpose()
    if experts and stage.shape[1] > 1:
        cost = cost.plus(_exchange_cost(stage, grid, experts))
    return cost


def _group_cost(groups: Integers, grid: Grid, volume: float, axis: str) -> AxisCost:
    """Sums over groups by rings, all groups at once; or what passes along a pipeline."""
    degree = groups.shape[1]
    if axis == "pipeline":
        load = _loads(groups[:, :-1], groups[:, 1:], grid, volume)
        return AxisCost(*load)
    steps = 2 * (degree - 1)
    load = _loads(groups, np.roll(groups, -1, axis=1), grid, volume / degree)
    return AxisCost(steps * load[0], steps * load[1])


def _exchange_cost(stages: Integers, grid: Grid, volume: float) -> AxisCost:
    """Every node of a stage to every other, as much to each."""
    each = volume / (stages.shape[1] - 1)
    sources = np.repeat(stages, stages.shape[1], axis=1)
    targets = np.tile(stages, (1, stages.shape[1]))
    return AxisCost(*_loads(sources, targets, grid, each))


def _loads(sources: Integers, targets: Integers, grid: Grid, volume: float) -> tuple[float, float]:
    """Bytes over the busiest link, and bytes times links, of messages of one size."""
    from perfmodel.kernels.wafer import routes

    count = sources.size
    loads, _, hops, _ = routes.flow_loads(
        grid[0],
        grid[1],
        np.ascontiguousarray(sources.reshape(-1)),
        np.ascontiguousarray(targets.reshape(-1)),
        np.full(count, volume),
        np.full(count, ALONE),
    )
    return float(loads[: routes.UP].max()), float(hops)


class _Lines(NamedTuple):
    """Parts of every axis along rows and columns, and nodes from one part to the next."""

    row_parts: tuple[int, ...]
    row_strides: tuple[int, ...]
    column_parts: tuple[int, ...]
    column_strides: tuple[int, ...]

    def of(self, axis: int) -> _Lines:
        """Return those of one axis."""
        return _Lines(*((part[axis],) for part in self))


def _all_lines(grid: Grid, degrees: tuple[int, ...]) -> list[_Lines]:
    """List every way to spread the rows and the columns of a grid to axes of these degrees."""
    found: dict[_Lines, None] = {}
    for parts in itertools.product(*(_divisors(degree) for degree in degrees)):
        if prod(parts) != grid[0]:
            continue
        columns = tuple(degree // part for degree, part in zip(degrees, parts, strict=True))
        for row_strides in _strides(parts):
            for column_strides in _strides(columns):
                found[_Lines(parts, row_strides, columns, column_strides)] = None
    return list(found)


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _strides(parts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Strides of every order of nesting of the axes that have parts."""
    cut = [axis for axis, part in enumerate(parts) if part > 1]
    found = []
    for order in itertools.permutations(cut):
        strides, inner = [0] * len(parts), 1
        for axis in order:
            strides[axis] = inner
            inner *= parts[axis]
        found.append(tuple(strides))
    return found


@lru_cache(maxsize=4096)
def _path(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Cells of a rectangle, each beside the one before."""
    return tuple(
        (row, column if row % 2 == 0 else columns - 1 - column)
        for row in range(rows)
        for column in range(columns)
    )


@lru_cache(maxsize=4096)
def _cells(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Cells of a rectangle, each beside the one before, the last beside the first if it can be."""
    if rows == 1 or columns == 1:
        line = range(rows * columns)
        folded = [*line[::2], *line[1::2][::-1]]
        return tuple((one, 0) if columns == 1 else (0, one) for one in folded)
    if rows % 2 and not columns % 2:
        return tuple((row, column) for column, row in _cells(columns, rows))
    if not rows % 2:
        there = [
            (row, column if row % 2 == 0 else columns - column)
            for row in range(rows)
            for column in range(1, columns)
        ]
        back = [(row, 0) for row in reversed(range(rows))]
        return (*there, *back)
    return _path(rows, columns)


def _offsets(lines: _Lines, axis: int, grid: Grid, ring: bool) -> Integers:
    """Places of the members of an axis' group beside its first, in the order of their ranks."""
    cells = np.array((_cells if ring else _path)(lines.row_parts[axis], lines.column_parts[axis]))
    rows = cells[:, 0] * lines.row_strides[axis]
    columns = cells[:, 1] * lines.column_strides[axis]
    return np.asarray(rows * grid[1] + columns)


def _places(lines: _Lines, volumes: tuple[float, ...], grid: Grid) -> Integers:
    """Places of all nodes; members that sum nothing, or pass on only, need no ring."""
    places = np.zeros((1,), dtype=np.int64)
    for axis, volume in enumerate(volumes):
        ring = bool(volume) and AXES[axis] != "pipeline"
        places = (_offsets(lines, axis, grid, ring)[:, None] + places[None, :]).reshape(-1)
    return places


@lru_cache(maxsize=4096)
def _axis_cost(line: _Lines, grid: Grid, volume: float, axis: str) -> AxisCost:
    """What all groups of an axis load: the first group, and as many more as cover the grid."""
    (row_parts,), (row_stride,), (column_parts,), (column_stride,) = line
    first = _offsets(line, 0, grid, ring=axis != "pipeline")
    rows, columns = np.arange(grid[0]), np.arange(grid[1])
    begin_rows = rows[rows // max(row_stride, 1) % row_parts == 0]
    begin_columns = columns[columns // max(column_stride, 1) % column_parts == 0]
    begins = (begin_rows[:, None] * grid[1] + begin_columns[None, :]).reshape(-1)
    return _group_cost(begins[:, None] + first[None, :], grid, volume, axis)


@lru_cache(maxsize=1024)
def _stage_cost(line: _Lines, grid: Grid, volume: float) -> AxisCost:
    """What the exchange of experts loads: it depends on where stages stand alone."""
    (row_parts,), (row_stride,), (column_parts,), (column_stride,) = line
    place = np.arange(prod(grid))
    rows, columns = np.divmod(place, grid[1])
    stage = (rows // max(row_stride, 1) % row_parts) * column_parts
    stage += columns // max(column_stride, 1) % column_parts
    order = np.argsort(stage, kind="stable")
    return _exchange_cost(order.reshape(row_parts * column_parts, -1), grid, volume)


def _blocks_of(places: Integers, grid: Grid, degrees: tuple[int, ...]) -> dict[str, Grid]:
    """Rows and columns that the first group of each axis touches."""
    shaped = places.reshape(degrees[::-1]).transpose()
    blocks = {}
    for axis, name in enumerate(AXES):
        group = np.moveaxis(shaped, axis, -1).reshape(-1, degrees[axis])[0]
        rows, columns = np.divmod(group, grid[1])
        blocks[name] = (len(np.unique(rows)), len(np.unique(columns)))
    return blocks


LARGEST_TOKENS = 2**40


def layer_bytes(
    model: ModelSpec,
    system: WaferSystem,
    *,
    batch: int,
    length: int = 1,
    element_bytes: float = 2.0,
) -> GroupBytes:
    """Return what a node of the busiest cluster sends in the model's last layer.

    Parameters
    ----------
    model : ModelSpec
    system : WaferSystem
    batch, length : int
        Sequences of all clusters, and tokens of each in a pass: 1 in decode.
    element_bytes : float
        [B]

    Returns
    -------
    GroupBytes
        Sums over tensor ranks (T h), over sequence ranks (T times the heads of a rank times the
        width of what attention sums: latents of latent attention in decode), the residual stream
        between stages (T h), and of experts what leaves a node and what it sends back: tokens go
        once to each other node that has one of their experts, spread evenly; every expert's row
        comes back by itself. Copies to the ranks of a cluster behind the experts are left out.

    Raises
    ------
    StrategyError
        Sizes that are none.
    """
    for key, value in (("batch", batch), ("length", length)):
        if not isinstance(value, int) or not 0 < value <= LARGEST_TOKENS:
            raise StrategyError(f"key '{key}': a whole number from 1, not {value!r}")
    layer = model.layers[-1]
    tokens = ceil(batch / system.data_parallel) * length
    hidden = tokens * model.hidden_size * element_bytes
    attention = [mixer for mixer in layer.mixers if isinstance(mixer, AttentionSpec)]
    summed = max((_summed_width(one, system, length) for one in attention), default=0)
    mlps = [one for one in layer.mlps if one.experts]
    return GroupBytes(
        tensor=hidden,
        sequence=tokens * summed * element_bytes,
        pipeline=hidden,
        experts=_exchanged(mlps[-1], system, hidden) if mlps else 0.0,
    )


def _summed_width(attention: AttentionSpec, system: WaferSystem, length: int) -> int:
    """Numbers of a token that sequence ranks sum up."""
    heads = ceil(attention.heads / system.tensor_parallel)
    absorbed = attention.kind == "mla" and length == 1
    return heads * (attention.kv_lora_rank if absorbed else attention.value_head_dim)


def _exchanged(mlp: MlpSpec, system: WaferSystem, hidden: float) -> float:
    """Bytes that a node sends to experts and back, where experts are spread evenly."""
    ranks = system.expert_parallel
    own = hidden / system.cluster_nodes
    elsewhere = 1.0 - 1.0 / ranks
    nodes = ranks * (1.0 - elsewhere**mlp.experts_per_token) * elsewhere
    return own * (nodes + mlp.experts_per_token * elsewhere)
