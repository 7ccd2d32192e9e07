"""A grid of operating points in blocks: their results are those of the grid, cut into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.base.workers import PIECES, Workers, cut, whole_work
from perfmodel.serving.grid import DeploymentGrid, LoadGrid
from perfmodel.serving.project import Points, project_points

if TYPE_CHECKING:
    from perfmodel.compute.routing import Routing
    from perfmodel.hwprofiles import Hardware


class Block(NamedTuple):
    """Some deployments under some loads on one row of hardware."""

    hardware: int
    deployments: slice
    loads: slice

    @property
    def points(self) -> int:
        """How many operating points it has."""
        deployments, loads = (it.stop - it.start for it in self[1:])
        return int(deployments * loads)


@dataclass(frozen=True, slots=True)
class ServedGrid:
    """Deployments under loads on hardware; small, so that it can be sent to other processes.

    Attributes
    ----------
    grid : DeploymentGrid
    loads : LoadGrid
    rows : list of Hardware
    method, routing, prefill_hardware
        As of `perfmodel.serving.project.project_points`.
    """

    grid: DeploymentGrid
    loads: LoadGrid
    rows: list[Hardware]
    method: str = "closed"
    routing: Routing | None = None
    prefill_hardware: Hardware | None = None

    def blocks(self, pieces: int = 1) -> list[Block]:
        """Cut it into about so many blocks: of a row of hardware each, and of all loads if it can.

        What passes cost is found for every block, of all its deployments and whatever its loads.
        """
        each = -(-pieces // len(self.rows))
        deployments = cut(len(self.grid), each)
        loads = cut(len(self.loads), -(-each // len(deployments)))
        return [
            Block(row, some, under)
            for row in range(len(self.rows))
            for some in deployments
            for under in loads
        ]

    def points(self, block: Block, **how: Any) -> Points:
        """Project a block; `how` as of `perfmodel.serving.project.project_points`."""
        return project_points(
            self.grid.take(block.deployments),
            self.loads.take(block.loads),
            self.rows[block.hardware],
            method=self.method,
            routing=self.routing,
            prefill_hardware=self.prefill_hardware,
            **how,
        )

    def on_workers(
        self, workers: Workers, progress: Callable[[int], None] | None = None
    ) -> Iterator[tuple[Block, Points]]:
        """Yield blocks that workers have projected, in the order in which they are done."""
        blocks = self.blocks(PIECES * len(workers))
        for place, found in workers.results(_points, self, blocks, _warm):
            if progress is not None:
                progress(blocks[place].points)
            yield blocks[place], found


def _points(asked: ServedGrid, block: Block) -> Points:
    return asked.points(block, threads=1)


def _warm(asked: ServedGrid) -> dict[str, float]:
    """Project one point; others need the same kernels."""
    one = Block(0, slice(0, 1), slice(0, 1))
    deployments = len(asked.grid) * len(asked.rows)
    # What passes cost is found once per deployment at most, and its points one by one.
    return whole_work(lambda: asked.points(one, threads=1), deployments * len(asked.loads))
