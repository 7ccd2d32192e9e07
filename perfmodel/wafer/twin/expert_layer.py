"""One layer with experts on one node: what its parts share while their rows are added.

Source: huawei-csl/wse-workload-generator 85e1ae7, ``src/node_level/layers/moe.py``.
"""

from __future__ import annotations

from perfmodel.wafer.twin.routes import Routes
from perfmodel.wafer.twin.rows import Rows, Tensor
from perfmodel.wafer.twin.setting import Iteration

SHARED = "shared"


class ExpertLayer:
    """A layer with experts, its rows and its routes.

    Parameters
    ----------
    rows : Rows
    routes : Routes
    name : str
        Of the layer's experts, such as ``decode10_moe``.
    """

    def __init__(self, rows: Rows, routes: Routes, name: str) -> None:
        self.rows = rows
        self.routes = routes
        self.name = name
        self.iteration: Iteration = routes.iteration
        self.node = rows.node
        self.nodes = range(self.iteration.system.nodes)
        self.hidden = self.iteration.model.hidden
        self.length = self.iteration.length

    @property
    def cluster_start(self) -> int:
        """First sequence of the node's data-parallel cluster."""
        return int(self.iteration.starts[self.node // self.iteration.system.cluster_nodes])

    def served(self) -> dict[str, list[int]]:
        """Return the tokens of each expert that this node holds."""
        found: dict[str, list[int]] = {}
        ranks = self.iteration.expert_nodes
        for expert, tokens in enumerate(self.routes.of_expert):
            if ranks[expert] == self.node and len(tokens):
                found[str(expert)] = [int(token) for token in tokens]
        if shared := self.routes.shared_tokens(self.node):
            found[SHARED] = shared
        return found

    def empty(self, target: int) -> Tensor:
        """Return what goes to a node that nothing goes to."""
        return Tensor(f"{self.name}_empty_tensor_{target}", (0, 1, self.hidden))

    def position(self, token: int) -> tuple[int, int]:
        """Return the sequence of a token and where it stands there."""
        return divmod(token, self.length)

    def all_to_all(self, name: str, sent: list[Tensor], received: list[int]) -> None:
        """Add an exchange of rows; those to itself are not counted."""
        counts = [part.dims[0] for part in sent]
        others = sum(counts) - counts[self.node]
        self.rows.add(
            name,
            "AlltoAll",
            f"{[sum(counts), 1, self.hidden]} -> {counts} -> {received}",
            [part.name for part in sent],
            [f"{target}:{name}_{self.node}" for target in self.nodes],
            kind="AllToAllv",
            sent=others * self.hidden * self.rows.element,
            group=self.nodes,
        )

    def all_gather(self, name: str, x: Tensor) -> None:
        """Add a gathering on all nodes, counted once."""
        self.rows.add(
            name,
            "AllGather",
            f"{list(x.dims)}",
            [x.name],
            [f"{target}:{name}_ag_{self.node}" for target in self.nodes],
            sent=x.size * self.rows.element,
            group=self.nodes,
        )
