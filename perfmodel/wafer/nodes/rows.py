"""Rows of the node level: operations with what each node does in each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Amounts = NDArray[Any]
"""Something that broadcasts to (nodes, steps)."""

QUANTITIES = ("macs", "flops", "footprint", "reads", "writes", "sent", "received")
SIZES = ("rows", "inner", "outer", "instances")

KINDS = (
    "embedding",
    "linear",
    "grouped_linear",
    "attention",
    "latent_attention_naive",
    "latent_attention_absorbed",
    "all_reduce",
    "all_gather",
    "all_to_all",
    "multicast",
    "unicast",
    "send",
    "barrier",
    "add",
    "reduce_scatter",
)


@dataclass
class Operation:
    """An operation of the model on all nodes.

    Attributes
    ----------
    layer : str
        ``decode3``, ``lm_head``, …
    component : str
        ``attention.wkv_a``, ``moe.dispatch``, …
    kind : str
        One of `KINDS`.
    group : tuple of array of int
        First node, stride and size of each node's group, arrays of shape (nodes,).
    needs : tuple of int
        Earlier operations whose result it takes, of the same node.
    joins : bool
        It takes those of all nodes of its group.
    values : dict of str to array
        `QUANTITIES` and `SIZES` (rows, inner, outer: M, K, N of a product; queries, width, keys of
        attention; instances: products of a group), each broadcastable to (nodes, steps).
    """

    layer: str
    component: str
    kind: str
    group: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
    needs: tuple[int, ...] = ()
    joins: bool = False
    values: dict[str, Amounts] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Layer and component."""
        return f"{self.layer}.{self.component}"


class OperationRows:
    """Collects operations in the order in which they run.

    Parameters
    ----------
    nodes : int
    """

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.operations: list[Operation] = []
        node = np.arange(nodes)
        self.alone = (node, np.ones(nodes, np.int64), np.ones(nodes, np.int64))

    def add(
        self,
        layer: str,
        component: str,
        kind: str,
        needs: tuple[int, ...] = (),
        group: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None,
        **values: Any,
    ) -> int:
        """Add an operation and return its number.

        A product's ``flops`` are twice its ``macs`` unless they are given.
        """
        arrays = {key: np.asarray(value) for key, value in values.items()}
        if "macs" in arrays and "flops" not in arrays:
            arrays["flops"] = 2.0 * arrays["macs"]
        place = self.alone if group is None else group
        self.operations.append(
            Operation(layer, component, kind, place, needs, group is not None, arrays)
        )
        return len(self.operations) - 1

    def again(self, first: int, last: int, layer: str, inputs: dict[int, int]) -> dict[int, int]:
        """Add operations once more for another layer that does the same.

        Parameters
        ----------
        first, last : int
            Those to repeat: from `first` to before `last`.
        layer : str
        inputs : dict of int to int
            What stands for operations before `first`.

        Returns
        -------
        dict of int to int
            Number of each -> number of its copy, `inputs` included.
        """
        copies = dict(inputs)
        for number in range(first, last):
            one = self.operations[number]
            needs = tuple(copies[need] for need in one.needs)
            self.operations.append(
                Operation(layer, one.component, one.kind, one.group, needs, one.joins, one.values)
            )
            copies[number] = len(self.operations) - 1
        return copies
