"""Sums as flows: who adds what, and what is refused."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import DataError
from perfmodel.kernels.wafer.reduce import ALGORITHMS
from perfmodel.wafer.flows import Flow, reduction, simulated_cycles


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
