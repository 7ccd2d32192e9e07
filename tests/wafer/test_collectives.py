"""Collectives of a mesh by name, as the kernels have them."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import reduce
from perfmodel.wafer.collectives import COLLECTIVES, mesh_collective_times

PLAIN = load_mesh("wse-2", {"constants.stage_latency": 0})


def test_rows_are_those_of_the_kernels() -> None:
    found = mesh_collective_times("wse-2", "all_reduce", ["1x420", 64], [128, 1024])
    assert len(found) == 2 * 2 * len(reduce.ALGORITHMS)
    mesh = load_mesh("wse-2")
    stage = mesh.constant("stage_latency")
    for one in found:
        cores = float(one.rows * one.columns)
        code = reduce.ALGORITHMS.index(one.algorithm)
        elements = one.size / 2
        expected = reduce.all_reduce_cycles(code, cores, elements, 2.0, 1.0, stage, 2.0)
        assert one.cycles == expected
        assert one.time == one.cycles / 1.1e9
        assert one.contention == reduce.all_reduce_counts(code, cores, elements, 2.0)[0]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_core_and_no_bytes_take_no_time(collective: str) -> None:
    for grid, size in (((1, 1), 64), ((1, 8), 0)):
        for one in mesh_collective_times("wse-2", collective, [grid], [size], simulated=True):
            assert one.cycles == one.time == 0.0
            assert one.simulated_cycles is None


@pytest.mark.parametrize("collective", ["reduce", "all_reduce"])
def test_what_is_simulated_is_near(collective: str) -> None:
    found = mesh_collective_times(PLAIN, collective, [9, (3, 4)], [24], simulated=True)
    assert {one.rows for one in found} == {1, 3}
    for one in found:
        assert one.cycles == pytest.approx(one.simulated_cycles, rel=0.02)


def test_wider_links_carry_more() -> None:
    narrow, wide = (
        mesh_collective_times(
            load_mesh("wse-2", {"mesh.link_width": width}), "broadcast", ["4x6"], [960]
        )[0].cycles
        for width in (4, 32)
    )
    assert narrow - wide == 240 - 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wse-2", "all_reduc", [4], [8]), "did you mean all_reduce"),
        (("wse-2", "reduce", [4], [8], ["chian"]), "did you mean chain"),
        (("wse-2", "reduce", [4], [8], ["ring"]), "none of ring"),
        (("wse-2", "all_gather", ["4x4"], [8]), "not over 4 x 4"),
        (("wse-2", "reduce", ["1x900"], [8]), "exceeds the 996 x 757"),
        (("wse-2", "reduce", [4], [-8]), "size: 0 to"),
        (("wse-2", "reduce", [4], [8], ["chain"], 8), "the width of a link"),
        (("wse-2", "reduce", ["80x80"], [32], ["chain"], 2, True), "4,000,000 at most"),
        (("dgx-h100", "reduce", [4], [8]), "no mesh of cores"),
        ((load_mesh("wse-2", {"mesh.hop_cycles": 1.5}), "reduce", [4], [8], ["chain"], 2, True),
         "whole cycles"),
    ],
)  # fmt: skip
def test_wrong_collectives_are_refused(arguments, message: str) -> None:
    with pytest.raises((DataError, HardwareError), match=message):
        mesh_collective_times(*arguments)
