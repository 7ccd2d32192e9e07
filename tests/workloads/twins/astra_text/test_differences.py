"""Why ASTRA-sim 1.0 and our network model differ."""

from __future__ import annotations

import pytest

from perfmodel.workloads.twins.astra_text.comparison import compare_modes
from perfmodel.workloads.twins.astra_text.differences import LONGER, REASONS, RUN_REASONS, SHORTER
from tests.workloads.twins.astra_text.networks import MIB, micro, network_of, system_of, typed

REASONED = [
    ("FullyConnected", 8, 7, "ring", "ALLREDUCE", {}, "one_peer", 7.0),
    ("Switch", 8, 1, "direct", "ALLREDUCE", {}, "shared_port", 1 / 7),
    ("Ring", 8, 2, "ring", "ALLTOALL", {}, "relayed_blocks", 3.5 / 2),
    ("Ring", 8, 2, "direct", "ALLTOALL", {}, "shared_ring", 1 / 8 / 2),
    (
        "Ring",
        8,
        2,
        "ring",
        "ALLREDUCE",
        {"active_chunks_per_dimension": 4},
        "chunks_at_once",
        1 / 4,
    ),
]


@pytest.mark.parametrize(
    ("topology", "members", "links", "algorithm", "collective", "extra", "reason", "factor"),
    REASONED,
)
def test_reasons_have_the_effect_that_follows_from_them(
    topology, members, links, algorithm, collective, extra, reason, factor
):
    """`factor`: ASTRA-sim's time over ours for large messages, by hand."""
    network = network_of((topology, members, links, 25.0), latency=1.0)
    system = system_of(algorithm, preferred_dataset_splits=4, **extra)
    found = compare_modes(micro(collective, 2**30), network, system)
    assert reason in found.reasons[2][0]
    exact, ours = found.exact_collective_time[2, 0], found.physical.collective_time[2, 0]
    assert exact / ours == pytest.approx(factor, rel=1e-2)
    assert found.ratio[2, 0] == pytest.approx(ours / exact)
    assert found.communication_ratio[2, 0] == pytest.approx(ours / exact, rel=1e-6)
    assert found.largest_differences() == [(2, 0)]
    assert (reason in LONGER) == (factor > 1)


def test_every_reason_is_worded_and_given_somewhere():
    assert set(LONGER).isdisjoint(SHORTER)
    assert all(len(text) > 30 for text in (REASONS | RUN_REASONS).values())
    network = network_of(("Ring", 4, 2, 25.0), ("Switch", 4, 1, 25.0), memory_scale=1.0)
    mixed = system_of(
        "halvingDoubling_direct",
        "ring_direct",
        preferred_dataset_splits=8,
        active_chunks_per_dimension=2,
        inter_dimension_scheduling="roundRobin",
    )
    found = compare_modes(typed("MODEL", forward="ALLTOALL"), network, mixed)
    given_reasons = {name for row in found.reasons for names in row for name in names}
    assert given_reasons >= {
        *("serial_chunks", "serial_dimensions", "memory_latency", "relayed_blocks"),
        *("shared_port", "shared_ring", "chunks_at_once", "turning_dimensions", "shared_memory"),
    }
    assert "slow_memory" not in given_reasons
    slow = network_of(("Ring", 4, 2, 200.0), memory_scale=1.0)
    assert "slow_memory" in compare_modes(micro("ALLREDUCE", MIB), slow, system_of()).reasons[2][0]
    assert set(found.run_reasons) == {"chunk_order", "collectives_at_once", "following_dimensions"}
    other = compare_modes(micro("ALLREDUCE", MIB), network_of(("Switch", 8, 1, 25.0)), system_of())
    assert other.reasons[2][0] == ("stated_algorithm",)
    assert other.run_reasons == ()
