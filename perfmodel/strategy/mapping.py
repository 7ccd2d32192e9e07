"""Which parallel axis lies on which network dimension, and what its groups cross.

A mapping is an order of the axes tensor, context, data and pipeline over the devices,
innermost first; neighbours share the innermost network level. The stride of an axis
is the product of the degrees of the axes inside it. Data × context ranks hold the same
dense parameters; experts lie over the tensor, context and data ranks of a pipeline
stage, innermost first: the ranks that share one expert, then the expert-parallel
ranks, then the copies (`perfmodel.kernels.step.placement` has the arithmetic).

Numba is imported inside the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Integers
from perfmodel.base.errors import StrategyError
from perfmodel.base.strategy_fields import MAPPING_AXES, MAPPINGS
from perfmodel.strategy.grid import StrategyGrid

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

# Columns that place the groups inside a layer, where the default order does not say it.
LAYER_PLACEMENT = ("tensor_stride", "context_stride", "stage_block", "stage_jump")
_DEGREES = tuple(f"{axis}_parallel" for axis in MAPPING_AXES)
# Up to this code orders begin with tensor and context: only expert groups can lie elsewhere.
USUAL_INSIDE = MAPPINGS.index("tensor-context-pipeline-data")


def axis_order(mapping: int | str) -> tuple[str, ...]:
    """Return the axes of a mapping (label or code), innermost first.

    Raises
    ------
    StrategyError
        No such mapping.

    Examples
    --------
    >>> axis_order("data-tensor-context-pipeline")
    ('data', 'tensor', 'context', 'pipeline')
    """
    label = mapping
    if not isinstance(mapping, str) and 0 <= mapping < len(MAPPINGS):
        label = MAPPINGS[mapping]
    if label not in MAPPINGS:
        raise StrategyError(
            f"mapping: {mapping!r} is not an order of {', '.join(MAPPING_AXES)}, joined by '-'"
        )
    return tuple(str(label).split("-"))


def axis_strides(mapping: int | str, degrees: Mapping[str, int]) -> dict[str, int]:
    """Return the stride of every axis: the product of the degrees of the axes inside it.

    Parameters
    ----------
    mapping : int or str
        Label or code.
    degrees : mapping of str to int
        Degree of each of tensor, context, data and pipeline.

    Raises
    ------
    StrategyError
        No such mapping.
    """
    strides, stride = {}, 1
    for axis in axis_order(mapping):
        strides[axis] = stride
        stride *= degrees[axis]
    return strides


def layer_placement(columns: Mapping[str, Integers]) -> dict[str, Integers]:
    """Return the columns that place the groups inside a layer.

    Parameters
    ----------
    columns : mapping of str to ndarray of int64, shape (n,)
        Strategy columns.

    Returns
    -------
    dict of str to ndarray, shape (n,)
        ``tensor_stride`` and ``context_stride``; the ranks of a pipeline stage lie in
        blocks of ``stage_block`` consecutive devices, ``stage_jump`` apart (1 and 1: all
        consecutive, as far as the expert groups of the strategy can tell). Empty where
        all of this follows from the default order.
    """
    mapping = columns["mapping"]
    latest = int(mapping.max(initial=0))
    experts = ("expert_parallel", "expert_tensor_parallel")
    if latest == 0:
        return {}
    if latest <= USUAL_INSIDE and all(columns[name].max(initial=1) <= 1 for name in experts):
        return {}
    from perfmodel.kernels.step import placement as kernel
    from perfmodel.kernels.work import kernel_work

    out = np.empty((len(LAYER_PLACEMENT), mapping.size), np.int64)
    with kernel_work(placements=mapping.size):
        kernel.place_layers(*_contiguous(columns, ("mapping", *_DEGREES, *experts)), out)
    return dict(zip(LAYER_PLACEMENT, out, strict=True))


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """Where the groups of one axis lie.

    Attributes
    ----------
    axis : str
        "tensor", "context", "data", "pipeline", "data × context" (who holds the same
        dense parameters), "expert tensor", "expert" or "expert copies".
    members : int
        Ranks of a group.
    stride : int
        Distance between neighbours, in devices; inside a block where there are several.
    blocks : int
        1, or the number of equal blocks in which the members lie.
    block_stride : int
        Distance between blocks, in devices; 0 with one block.
    inside : tuple of int
        Members inside one domain of every network level, innermost first.
    level : int
        Outermost network level that the group crosses.
    level_name : str
        Its name in the hardware profile.
    """

    axis: str
    members: int
    stride: int
    blocks: int
    block_stride: int
    inside: tuple[int, ...]
    level: int
    level_name: str


def placement(grid: StrategyGrid, hardware: Hardware) -> list[GroupPlacement]:
    """Return where the groups of every axis of the first strategy lie, innermost axis first.

    Parameters
    ----------
    grid : StrategyGrid
        Its first strategy must be possible.
    hardware : Hardware

    Returns
    -------
    list of GroupPlacement
        Axes of degree 1 are left out, and data × context where one of the two is 1.

    Raises
    ------
    StrategyError
        The strategy is impossible.
    """
    from perfmodel.kernels.step.placement import data_row, split, stage_row

    if grid.status[0]:
        raise StrategyError("an impossible strategy has no placement")
    mapping = int(grid["mapping"][0])
    degrees = {axis: int(grid[f"{axis}_parallel"][0]) for axis in MAPPING_AXES}
    strides = axis_strides(mapping, degrees)
    inner = int(grid["expert_tensor_parallel"][0])
    spread = int(grid["expert_parallel"][0]) * inner
    t, c, d, p = (degrees[axis] for axis in MAPPING_AXES)
    groups = [
        (axis, split(degrees[axis], 1, degrees[axis], strides[axis], degrees[axis] * strides[axis]))
        for axis in axis_order(mapping)
    ]
    if c > 1 and d > 1:
        block, stride, jump = data_row(c, strides["context"], d, strides["data"])
        groups.append(("data × context", split(c * d, 1, block, stride, jump)))
    if spread > 1:
        block, jump = stage_row(t, c, d, p, strides["pipeline"])
        for axis, members, step in (
            ("expert tensor", inner, 1),
            ("expert", spread // inner, inner),
            ("expert copies", t * c * d // spread, spread),
        ):
            groups.append((axis, split(members, step, block, 1, jump)))
    return [_describe(axis, group, hardware) for axis, group in groups if group[0] * group[2] > 1]


def _describe(axis: str, group: tuple[int, int, int, int], hardware: Hardware) -> GroupPlacement:
    from perfmodel.kernels.step.placement import members_in_domain

    inner, stride, blocks, jump = group
    levels = hardware.system.network
    inside, domain = [], 1
    for network in levels[:-1]:
        domain *= network.size
        inside.append(int(members_in_domain(inner, stride, blocks, jump, domain)))
    inside.append(inner * blocks)
    level = inside.index(inner * blocks)
    return GroupPlacement(
        axis,
        inner * blocks,
        stride,
        blocks,
        jump if blocks > 1 else 0,
        tuple(inside),
        level,
        levels[level].name,
    )


def _contiguous(columns: Mapping[str, Integers], names: Sequence[str]) -> list[Integers]:
    return [np.ascontiguousarray(columns[name], np.int64) for name in names]


def cut_expert_groups(columns: Mapping[str, Integers]) -> NDArray[np.bool_]:
    """Tell which strategies have expert groups that the pipeline axis cuts unequally.

    Shape (n,); only orders with the pipeline between other axes can have them.
    """
    broken = np.zeros(columns["mapping"].shape, np.uint8)
    if columns["mapping"].any():
        from perfmodel.kernels.step import placement as kernel
        from perfmodel.kernels.work import kernel_work

        names = ("mapping", *_DEGREES, "expert_parallel", "expert_tensor_parallel")
        with kernel_work(placements=broken.size):
            kernel.cut_expert_groups(*_contiguous(columns, names), broken)
    return broken.astype(bool)


def cut_shard_sets(columns: Mapping[str, Integers], has_experts: bool) -> NDArray[np.bool_]:
    """Tell which strategies have ZeRO shard sets that other axes cut unequally, shape (n,)."""
    broken = np.zeros(columns["mapping"].shape, np.uint8)
    if columns["mapping"].any() and columns["shard_group"].any():
        from perfmodel.kernels.step import placement as kernel
        from perfmodel.kernels.work import kernel_work

        spread = columns["expert_parallel"] * columns["expert_tensor_parallel"]
        with kernel_work(placements=broken.size):
            kernel.cut_shard_sets(
                *_contiguous(columns, ("mapping", *_DEGREES)),
                np.ascontiguousarray(spread, np.int64),
                *_contiguous(columns, ("shard_group",)),
                has_experts,
                broken,
            )
    return broken.astype(bool)
