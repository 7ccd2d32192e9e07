"""What must hold of every collective: bounds, monotone in size and links, degree 1 is free."""

from __future__ import annotations

import itertools
import math

import pytest

from perfmodel.kernels.collective.algorithms import (
    AGGREGATED_TREES,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    IN_NETWORK,
    IN_NETWORK_TREE,
    MULTICAST,
    REDUCE_SCATTER,
    RING,
    traffic,
)
from perfmodel.kernels.collective.choice import AUTO
from perfmodel.kernels.collective.times import collective_time
from tests.kernels.collective.networks import (
    EVERY,
    INNER,
    KINDS,
    OUTER,
    PROTOCOLS,
    algorithm_time,
    copy_of,
    innermost,
    nodes_of_eight,
)


@pytest.mark.parametrize("kind", KINDS)
def test_one_member_or_nothing_to_send_takes_no_time(kind, realistic):
    assert collective_time(kind, 1e9, 1, 1, realistic) == 0.0
    assert collective_time(kind, 0.0, 8, 1, realistic) == 0.0


@pytest.mark.parametrize("members", [2, 3, 8, 16, 40])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_reduce_scatter_and_all_gather_make_a_ring_all_reduce(members, size):
    table = innermost(nodes_of_eight())
    table.levels[0].domains = 0
    parts = sum(
        collective_time(kind, size, members, 1, table) for kind in (REDUCE_SCATTER, ALL_GATHER)
    )
    whole = collective_time(ALL_REDUCE, size, members, 1, table)
    assert whole == pytest.approx(parts, rel=1e-12)
    assert traffic(ALL_REDUCE, size, members) == pytest.approx(
        traffic(REDUCE_SCATTER, size, members) + traffic(ALL_GATHER, size, members)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 3, 8, 12, 64])
@pytest.mark.parametrize("stride", [1, 2, 8])
def test_never_beats_the_bandwidth_bound(kind, members, stride):
    table = nodes_of_eight()
    for size in (1e4, 1e7, 1e10):
        bound = traffic(kind, size, members) / INNER
        assert collective_time(kind, size, members, stride, table) >= bound


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER])
def test_bytes_between_nodes_meet_the_hierarchical_bound(kind):
    # m nodes of 8 must exchange (m-1)/m of every shard of S/8 through each adapter.
    passes = 2 if kind == ALL_REDUCE else 1
    for nodes in (2, 4, 16):
        bound = passes * (nodes - 1) / nodes * 1e9 / 8 / OUTER
        assert collective_time(kind, 1e9, 8 * nodes, 1, nodes_of_eight()) >= bound


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_no_algorithm_beats_what_must_cross_a_border(kind, algorithm, realistic):
    # Bytes that every port must carry at least: (m-1)/m S of m nodes through 8 ports each, and
    # the whole result into every rank (Chan et al. 2007, table 1).
    for nodes in (1, 2, 4, 16):
        members = 8 * nodes
        for size in (1e4, 1e6, 1e9):
            if nodes == 1:
                least = (1 - 1 / members) * size / INNER
            elif kind == ALL_TO_ALL:  # every rank's own bytes leave through its own port
                least = (members - 8) / members * size / OUTER
            else:
                least = (1 - 1 / nodes) * size / 8 / OUTER
            for protocol in PROTOCOLS:
                time = algorithm_time(kind, algorithm, protocol, size, members, 1, realistic)
                assert time >= least


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
@pytest.mark.parametrize(("members", "stride"), [(2, 1), (8, 1), (16, 1), (64, 8), (12, 1)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_algorithm_grows_with_size(kind, algorithm, members, stride, protocol, realistic):
    times = [
        algorithm_time(kind, algorithm, protocol, 2.0**e, members, stride, realistic)
        for e in range(8, 36)
    ]
    assert all(a <= b for a, b in itertools.pairwise(times))


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_every_algorithm_gains_from_bandwidth_and_lower_latency(kind, algorithm, realistic):
    faster = copy_of(realistic)
    for name in ("bandwidth", "in_network_bandwidth"):
        faster.levels[name] *= 2
    sooner = copy_of(realistic)
    for name in ("low_latency_hop", "low_latency_128_hop", "simple_hop"):
        sooner.levels[name] /= 2
    for members, stride in ((2, 1), (8, 1), (24, 1), (64, 4)):
        for size in (1e3, 1e6, 1e9):
            group = (size, members, stride)
            base = algorithm_time(kind, algorithm, AUTO, *group, realistic)
            assert algorithm_time(kind, algorithm, AUTO, *group, faster) <= base
            assert algorithm_time(kind, algorithm, AUTO, *group, sooner) <= base


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("members", "stride"), [(2, 1), (8, 1), (16, 1), (64, 8), (12, 1)])
def test_time_grows_with_size(kind, members, stride, realistic):
    times = [collective_time(kind, 2.0**e, members, stride, realistic) for e in range(8, 36)]
    assert all(a <= b for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 8, 64])
def test_more_bandwidth_is_never_slower_and_helps_large_messages(kind, members, realistic):
    faster = copy_of(realistic)
    for name in ("bandwidth", "in_network_bandwidth"):
        faster.levels[name] *= 2
    for size in (1e3, 1e6, 1e9):
        slow = collective_time(kind, size, members, 1, realistic)
        fast = collective_time(kind, size, members, 1, faster)
        assert fast <= slow
    assert fast < 0.7 * slow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [2, 4, 8, 32])
def test_a_larger_stride_is_never_faster(kind, members, realistic):
    # Below that a tree over nodes may beat the chain that NCCL makes of a node.
    smallest = 1e6 if kind in (ALL_REDUCE, BROADCAST, MULTICAST) else 1e3
    for size in (smallest, 1e7, 1e8, 1e10):
        times = [
            collective_time(kind, size, members, stride, realistic) for stride in (1, 2, 4, 8, 16)
        ]
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_inside_the_first_level_does_not_see_the_others(kind, realistic):
    for members in (2, 5, 8):
        inside = collective_time(kind, 1e8, members, 1, realistic)
        assert inside == collective_time(kind, 1e8, members, 1, innermost(realistic))


def test_trees_over_reducing_switches_become_the_switch_of_one_node(realistic):
    for members in (2, 5, 8):
        for size in (1e3, 1e6, 1e9):
            alone, joined = (
                algorithm_time(ALL_REDUCE, algorithm, AUTO, size, members, 1, realistic)
                for algorithm in (IN_NETWORK, IN_NETWORK_TREE)
            )
            assert joined == alone
    # What no switch reduces, trees cannot join: one rank of each node, or switches that cannot.
    assert algorithm_time(ALL_REDUCE, IN_NETWORK_TREE, AUTO, 1e6, 16, 8, realistic) == math.inf
    assert (
        algorithm_time(ALL_REDUCE, IN_NETWORK_TREE, AUTO, 1e6, 16, 1, nodes_of_eight()) == math.inf
    )


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 16, 64])
def test_trees_over_reducing_switches_conserve_bytes(nodes, realistic):
    # Every adapter sends S/8 over two nodes, where each is a root and a leaf, 3/2 of that over
    # three, and no more than the 2 (n-1)/n of a ring over more; at least (m-1)/m of S/8.
    members = 8 * nodes
    fast = copy_of(realistic)
    fast.levels[0].in_network_bandwidth = 1e15  # the adapters alone
    fast.levels["simple_hop"] = 0.0  # and no pipeline to fill
    fast.levels["in_network_pipeline_latency"] = 0.0
    small, large = (
        algorithm_time(ALL_REDUCE, IN_NETWORK_TREE, AUTO, size, members, 1, fast)
        for size in (4e9, 8e9)
    )
    sent = (large - small) * OUTER * 8 / 4e9
    expected = {2: 1.0, 3: 1.5}.get(nodes, 2 * (members - 1) / members)
    assert sent == pytest.approx(expected, rel=1e-6)
    assert sent >= (nodes - 1) / nodes
    # Channels of the library carry so much of the traffic of a ring, and no more.
    capped = copy_of(fast)
    capped.facts.in_network_pair_bandwidth = capped.facts.in_network_tree_bandwidth = 20e9
    time = algorithm_time(ALL_REDUCE, IN_NETWORK_TREE, AUTO, 8e9, members, 1, capped)
    assert time >= traffic(ALL_REDUCE, 8e9, members) / (8 * 20e9)


@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER])
def test_aggregated_trees_wait_for_the_logarithm_of_the_ranks(kind):
    # One rank per node: ceil(log2 n) hops of 3 us where a ring makes n - 1, the same bytes.
    table = nodes_of_eight()
    for members in (2, 3, 4, 5, 8, 13, 64, 100, 512):
        short, long = (
            algorithm_time(kind, AGGREGATED_TREES, AUTO, size, members, 8, table)
            for size in (1e-3, 1e9)
        )
        assert short == pytest.approx(math.ceil(math.log2(members)) * 3e-6, rel=1e-6)
        assert long - short == pytest.approx(traffic(kind, 1e9, members) / OUTER, rel=1e-6)
        ring = algorithm_time(kind, RING, AUTO, 1e-3, members, 8, table)
        assert ring == pytest.approx((members - 1) * 3e-6, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "algorithm"), [(ALL_REDUCE, IN_NETWORK_TREE), (ALL_GATHER, AGGREGATED_TREES)]
)
def test_libraries_have_one_protocol_of_such_trees(kind, algorithm, realistic):
    stride = 1 if kind == ALL_REDUCE else 8
    times = {
        algorithm_time(kind, algorithm, protocol, 1e6, 32, stride, realistic)
        for protocol in (AUTO, *PROTOCOLS)
    }
    assert len(times) == 1
