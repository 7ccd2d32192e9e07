"""Pictures of wafers: small files, whole files, and what cannot be drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.instructions import ADD, COPY, GEMM, READ, WRITE, build, multicasts
from perfmodel.wafer.figures import (
    Drawn,
    Traffic,
    between_nodes,
    link_loads,
    save_wafer,
    traffic_of,
    wafer_figure,
)
from perfmodel.wafer.system import WaferSystem, core_places, mesh_sides

SYSTEM = WaferSystem(
    nodes=2, node_grid=(1, 2), core_grid=(2, 2), tensor_parallel=2, expert_parallel=2
)


def test_places_count_rows_of_the_whole_wafer() -> None:
    assert mesh_sides(SYSTEM) == (2, 4)
    assert core_places(SYSTEM).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_flows_and_work() -> None:
    one = np.array([1])
    parts = [
        build(READ, one, (4, 100)),
        build(READ, one, (4, 20)),
        build(WRITE, one, (1, 8)),
        build(GEMM, one, (2, 3, 4)),
        build(ADD, one, (5, 2)),
        build(COPY, one, (0, 7, 30)),
        multicasts(np.array([0]), np.array([16]), np.array([4, 6]), np.array([2])),
    ]
    found = traffic_of(parts, 8)
    flows = sorted(zip(found.sources, found.targets, found.sizes, found.trees, strict=True))
    assert flows == [(0, 4, 16, 0), (0, 6, 16, 0), (0, 7, 30, -1), (4, 1, 120, -1)]
    assert (found.macs[1], found.additions[1], found.local[1]) == (24, 10, 8)
    loads = link_loads(found, SYSTEM)
    # Core 4 stands in the third column of the first row, core 1 beside it in the second.
    assert loads.loads[1, 2] == 120
    # The multicast and the copy share the links of the first row; the multicast counts once.
    assert loads.loads[0, :2].tolist() == [46, 46]
    assert loads.busiest == 120
    table = between_nodes(found, SYSTEM)
    assert table.tolist() == [[8, 62], [120, 0]]


def test_a_core_that_is_not_there() -> None:
    with pytest.raises(DataError, match="bank 8 is none of the wafer's 0 to 7"):
        traffic_of([build(READ, np.array([1]), (8, 1))], 8)


def drawn(system: WaferSystem, flows: int, seed: int = 0) -> Drawn:
    """Random traffic on a system."""
    random = np.random.default_rng(seed)
    cores = system.nodes * system.cores
    sources = random.integers(0, cores, flows)
    targets = random.integers(0, cores, flows)
    sizes = 10.0 ** random.uniform(3.0, 6.0, flows)
    work = random.uniform(1e5, 1e6, (3, cores))
    return Drawn(system, Traffic(sources, targets, sizes, np.full(flows, -1), *work), "decode0")


LARGE = WaferSystem(
    nodes=56, node_grid=(7, 8), core_grid=(6, 6), data_parallel=56, expert_parallel=56
)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_of_56_nodes_is_small(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"wafer.{suffix}"
    save_wafer(drawn(LARGE, 3000), path)
    assert path.stat().st_size < (300_000 if suffix == "png" else 3_000_000)


def test_numbers_of_nodes_do_not_touch_each_other() -> None:
    figure = wafer_figure(drawn(LARGE, 50))
    figure.canvas.draw()
    axes = next(axes for axes in figure.axes if len(axes.texts) == 56)
    boxes = [text.get_window_extent() for text in axes.texts]
    for at, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[at + 1 :])
    # Nor a core, nor a link: they stand in the corners between nodes.
    lines = [line for one in axes.collections for line in one.get_paths()]
    assert len(lines) > 56 * 36
    points = axes.transData.transform(np.concatenate([path.vertices for path in lines[56:]]))
    for box in boxes:
        inside = (points > box.min).all(axis=1) & (points < box.max).all(axis=1)
        assert not inside.any()


def test_one_node_has_no_matrix() -> None:
    one = wafer_figure(drawn(WaferSystem(core_grid=(4, 4)), 20))
    four = wafer_figure(drawn(WaferSystem(4, (2, 2), (2, 2), 4, expert_parallel=4), 20))
    titles = [axes.get_title() for axes in four.axes]
    assert "bytes from node to node" in titles
    assert "bytes from node to node" not in [axes.get_title() for axes in one.axes]


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "wafer.png"
    with pytest.raises(DataError, match="could not be read; it shows 20,000 at most"):
        save_wafer(drawn(WaferSystem(core_grid=(200, 200)), 3), path)
    nothing = Traffic(*np.zeros((2, 0), np.int64), *np.zeros((2, 0)), *np.zeros((3, 16)))
    with pytest.raises(DataError, match="nothing moves or computes"):
        save_wafer(Drawn(WaferSystem(core_grid=(4, 4)), nothing, ""), path)
    with pytest.raises(DataError, match="a figure's name ends in"):
        save_wafer(drawn(WaferSystem(core_grid=(4, 4)), 3), tmp_path / "wafer.bmp")
    assert not list(tmp_path.iterdir())
