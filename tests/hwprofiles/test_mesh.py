"""`MeshHardware` and the mesh of nodes that the wafer workload generator has."""

from __future__ import annotations

import dataclasses

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_mesh, mesh_of_nodes, mesh_paths


def test_a_wafer_as_nodes_of_cores() -> None:
    """The generator's default: 7 x 8 nodes of 6 x 6 cores, which ships as a profile, too."""
    wafer = load_mesh("wse-2")
    nodes = mesh_of_nodes(wafer, (7, 8), (6, 6))
    assert (nodes.chips, nodes.chip_grid, nodes.cores) == (56, (7, 8), 36)
    shipped = load_mesh("wse-2-nodes")
    for path in mesh_paths(shipped):
        assert nodes.value(path) == pytest.approx(shipped.value(path), rel=1e-3), path
    assert nodes.chip_bandwidth == 6 * 4 * 1.1e9
    assert nodes.sram_per_core == wafer.sram_per_core
    assert mesh_of_nodes(wafer, (8, 7), (6, 6), 3e8).sram_per_core == 3e8


@pytest.mark.parametrize(
    ("node_grid", "core_grid", "bank", "message"),
    [
        ((0, 7), (6, 6), None, "node_grid"),
        ((8, 7), (6, 6, 6), None, "core_grid"),
        ((8, 7), (6, 1.5), None, "core_grid"),
        ((800, 700), (60, 60), None, "exceed the 850,000"),
        ((8, 7), (6, 6), float("nan"), "bank_bytes"),
        ((8, 7), (6, 6), -1.0, "bank_bytes"),
    ],
)
def test_wrong_nodes_are_refused(node_grid, core_grid, bank, message) -> None:
    with pytest.raises(HardwareError, match=message):
        mesh_of_nodes(load_mesh("wse-2"), node_grid, core_grid, bank)


def test_what_a_mesh_lacks_is_named() -> None:
    mesh = load_mesh("wse-2")
    with pytest.raises(HardwareError, match=r"no rate for precision 'fp8'.*it has fp16, bf16"):
        mesh.peak_macs("fp8")
    with pytest.raises(HardwareError, match="no constant 'luck'"):
        mesh.constant("luck")
    with pytest.raises(HardwareError, match="2 x 2 chips are not 3"):
        dataclasses.replace(mesh, chips=3, chip_grid=(2, 2))
    assert dataclasses.replace(mesh, chips=3).chip_grid == (1, 3)
    assert mesh.sram_free == 49152
    assert mesh.to_dict()["mesh"]["routes"] == 24
