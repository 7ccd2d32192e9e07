"""Collectives of a mesh by name, as the kernels have them."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError, HardwareError
from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.wafer import reduce
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.wafer.collectives import (
    COLLECTIVES,
    Flow,
    mesh_collective_times,
    reduction,
    simulated_cycles,
)


def summed(flows: list[Flow], cores: int) -> list[set[int]]:
    """Whose vectors each core has added in the end, as flows are carried out in order."""
    held = [{core} for core in range(cores)]
    sent: list[set[int]] = []
    for flow in flows:
        sent.append(set(held[flow.source]))
        for need in (*flow.needs, *flow.streams):
            assert flow.source in flows[need].targets
            sent[-1] |= sent[need]
        for target in flow.targets:
            held[target] |= sent[-1]
    return held


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "ring"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 2), (1, 13), (7, 1), (4, 6)])
def test_all_cores_have_the_sum_of_all(name: str, rows: int, columns: int) -> None:
    cores = rows * columns
    flows = reduction(name, rows, columns, 8)
    assert summed(flows, cores) == [set(range(cores))] * cores
    roots = [held for held in summed(reduction(name, rows, columns, 8, to_all=False), cores)]
    assert set(range(cores)) in roots


def test_chunks_of_a_ring_go_around_twice() -> None:
    flows = reduction("ring", 1, 6, 24)
    assert len(flows) == 6 * 10
    assert all(flow.wavelets == 2 for flow in flows)
    assert max(abs(flow.source - flow.targets[0]) for flow in flows) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("chian", 1, 4, 8), "did you mean chain"),
        (("chain", 0, 4, 8), "'rows'"),
        (("chain", 1, 2.5, 8), "'columns'"),
        (("chain", 1, 4, -8), "'elements'"),
        (("chain", 1000, 1000, 1000), "exceed"),
        (("ring", 3, 4, 8), "not over a rectangle"),
        (("ring", 1, 4, 8, 2, False), "no root"),
    ],
)
def test_wrong_sums_are_refused(arguments, message: str) -> None:
    with pytest.raises(DataError, match=message):
        reduction(*arguments)


@pytest.mark.parametrize(
    ("flow", "options", "message"),
    [
        (Flow(0, (9,), 1), {}, "cores 0 to 3"),
        (Flow(0, (0,), 1), {}, "other than its source"),
        (Flow(0, (1,), 1, needs=(0,)), {}, "earlier flows"),
        (Flow(0, (1,), 10**9), {}, "too many"),
        (Flow(0, (1,), 1), {"hop_cycles": 0}, "'hop_cycles'"),
        (Flow(0, (1,), 1), {"stage_cycles": -1}, "'stage_cycles'"),
    ],
)
def test_wrong_flows_are_refused(flow: Flow, options, message: str) -> None:
    with pytest.raises(DataError, match=message):
        simulated_cycles([flow], 2, 2, **options)


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
