"""A node that is given operations one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfmodel.wafer.cores.exchange import joined_in_place, meet, ring_all_reduce
from perfmodel.wafer.cores.instructions import Instructions, barrier, joined
from perfmodel.wafer.cores.layout import Layout, along_snake
from perfmodel.wafer.cores.product import product
from perfmodel.wafer.cores.setting import CoreSetting


class CoreOperation(NamedTuple):
    """An operation of a node, on its cores.

    Attributes
    ----------
    name : str
        Such as ``decode10_attn_absorb_wkva``.
    kind : str
        Such as ``Linear``.
    macs : int
        Multiply-adds that are asked for; a core may do more where blocks are masked.
    instructions : Instructions
        Cores and banks are counted over the wafer.
    """

    name: str
    kind: str
    macs: int
    instructions: Instructions


class Node:
    """A node's place, and the making of operations that only it takes part in.

    Parameters
    ----------
    setting : CoreSetting
    number : int
    """

    def __init__(self, setting: CoreSetting, number: int) -> None:
        self.setting = setting
        self.number = number
        self.grid = setting.system.core_grid
        self.cores = setting.system.cores
        self.first_core = number * self.cores
        self.tokens = setting.sequences(number) * setting.length
        self.last: Layout
        """Where the result of a prompt's attention lies."""
        self.finish = barrier("end", along_snake(self.grid))

    def alone(self, name: str, kind: str, macs: int, instructions: Instructions) -> CoreOperation:
        """Return an operation whose instructions count cores from the node's first.

        All cores meet after it, so that the next finds what it wrote.
        """
        whole = joined((instructions, self.finish)).moved(self.first_core)
        return CoreOperation(name, kind, macs, whole.called(name))

    def together(
        self,
        name: str,
        kind: str,
        instructions: Instructions,
        nodes: tuple[int, ...],
    ) -> CoreOperation:
        """Return an operation of several nodes, which meet after it."""
        end = meet("end", nodes, self.number, self.cores)
        return CoreOperation(name, kind, 0, joined((instructions, end)).called(name))

    def linear(
        self,
        name: str,
        source: Layout,
        sizes: tuple[int, int, int],
        groups: int = 1,
        columns: tuple[int, int, int] | None = None,
    ) -> tuple[CoreOperation, Layout]:
        """Return a product of m x k by k x n, or of groups of them."""
        activation = self.setting.activation_bytes
        m, k, n = sizes
        made, layout = product(
            source,
            (groups, m, k, n),
            self.grid,
            (activation, self.setting.weight_bytes, activation, activation),
            columns,
        )
        kind = "GroupedLinear" if groups > 1 else "Linear"
        return self.alone(name, kind, groups * m * k * n, made), layout

    def gated(self, name: str, layout: Layout) -> CoreOperation:
        """Return the product of a gate with what it lets through, in place."""
        made = joined_in_place(layout, self.cores, self.setting.activation_bytes)
        return self.alone(name, "Add", 0, made)

    def all_reduce(self, name: str, layout: Layout, group: tuple[int, ...]) -> CoreOperation:
        """Return this node's part in the sum of a matrix over nodes."""
        made = ring_all_reduce(
            layout, group, self.number, self.cores, self.setting.activation_bytes
        )
        return self.together(name, "AllReduce", made, group)

    def network(
        self, name: str, source: Layout, rows: int, width: int, hidden: int, gated: bool
    ) -> Iterator[tuple[CoreOperation, Layout]]:
        """Yield the products of a feed-forward network or of an expert, and where each lies."""
        made, layout = self.linear(f"{name}_up", source, (rows, hidden, width))
        yield made, layout
        if gated:
            yield self.linear(f"{name}_gate", source, (rows, hidden, width))
            yield self.gated(f"{name}_add", layout), layout
        yield self.linear(f"{name}_down", layout, (rows, width, hidden))
