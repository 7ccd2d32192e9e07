"""The labelled form of the collective kernels: profiles, checks, measured data."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.base.collectives import ALGORITHMS, ALGORITHMS_OF, PROTOCOLS
from perfmodel.base.errors import StrategyError
from perfmodel.compute.collectives import (
    algorithms_of,
    collective_choices,
    collective_times,
    link_occupancies,
    members_per_domain,
    outermost_level,
    overlap_compute_taxes,
    serving_all_reduce_times,
)
from perfmodel.compute.network import network_table
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.kernels.collective.table import link_share
from tests.data import table_of

GB = 1e9


@pytest.fixture(scope="module")
def h100():
    return load_hardware("dgx-h100")


def test_every_algorithm_performs_some_collective(h100):
    for collective, names in ALGORITHMS_OF.items():
        assert algorithms_of(collective) == names
        times = collective_times(h100, collective, 1e6, 8, 1, list(names))
        assert np.all(np.isfinite(times) & (times > 0.0))


def test_a_choice_names_what_runs(h100):
    # NVLS reduces large buffers of a whole H100 node, rings with flags small ones.
    found = collective_choices(h100, "all_reduce", [1e3, 1e9, 0.0], [8, 8, 8])
    assert [ALGORITHMS[code] for code in found.algorithm[:2]] == ["ring", "in_network"]
    assert [PROTOCOLS[code] for code in found.protocol[:2]] == ["low_latency", "simple"]
    assert (found.algorithm[2], found.protocol[2], found.time[2]) == (-1, -1, 0.0)
    named = collective_choices(h100, "all_reduce", 1e9, 8, 1, ["auto", "ring", "in_network"])
    assert named.time[0] == named.time[2] < named.time[1]
    spoken = collective_choices(h100, "all_gather", 1e6, 8, 1, "auto", ["auto", *PROTOCOLS])
    assert spoken.protocol.tolist()[1:] == [0, 1, 2]
    assert spoken.time[0] == spoken.time[1 + spoken.protocol[0]]


def test_engines_use_their_own_kernels_for_small_buffers(h100):
    small, large = serving_all_reduce_times(h100, [1e4, 1e9], 8)
    library = collective_times(h100, "all_reduce", [1e4, 1e9], 8)
    assert small == collective_times(h100, "all_reduce", 1e4, 8, 1, "one_shot")[0] < library[0]
    assert large == library[1]


def test_what_a_network_lacks_takes_forever(h100):
    a100 = load_hardware("dgx-a100")
    assert collective_times(a100, "all_reduce", 1e6, 8, 1, "in_network")[0] == np.inf
    cards = load_hardware("l40s-server")  # no low_latency_128 over PCIe
    assert collective_times(cards, "all_reduce", 1e6, 8, 1, "ring", "low_latency_128")[0] == np.inf


def bus_bandwidth(hardware, kind, size, members, stride=1):
    factor = 2 if kind == "all_reduce" else 1
    time = collective_times(hardware, kind, size, members, stride)[0]
    return factor * (members - 1) / members * size / time


# Points of the tables that the constants were fitted to.
MI355X = pytest.mark.in_sample("collective-mi355x")


@pytest.mark.parametrize(
    ("profile", "kind", "members", "published", "tolerance"),
    [
        ("dgx-h100", "all_reduce", 8, 480 * GB, 0.06),  # nccl-tests issue 212, NVLS
        ("dgx-h100", "all_gather", 8, 370 * GB, 0.10),  # nccl-tests issue 212, ring
        pytest.param(
            "mi355x-server", "all_reduce", 8, 396 * GB, 0.05, marks=MI355X
        ),  # mit-orcd/amd-benchmarks
        pytest.param(
            "mi355x-server", "all_gather", 4, 168 * GB, 0.05, marks=MI355X
        ),  # mit-orcd/amd-benchmarks
        pytest.param(
            "mi355x-server", "all_reduce", 6, 47.7 * GB, 0.05, marks=MI355X
        ),  # mit-orcd/amd-benchmarks
        pytest.param(
            "mi355x-server", "all_reduce", 16, 381 * GB, 0.05, marks=MI355X
        ),  # mit-orcd/amd-benchmarks
        pytest.param(
            "mi355x-server", "all_to_all", 16, 89.6 * GB, 0.05, marks=MI355X
        ),  # mit-orcd/amd-benchmarks
        ("mi300x-server", "all_reduce", 8, 320 * GB, 0.05),  # AMD ROCm blog: 310-330
    ],
)
def test_published_bus_bandwidths(profile, kind, members, published, tolerance):
    modelled = bus_bandwidth(load_hardware(profile), kind, 8 * GB, members)
    assert modelled == pytest.approx(published, rel=tolerance)


def test_rails_of_a_multi_node_all_reduce(h100):
    # nccl-tests issue 290: an NDR adapter carries 46-48 GB/s; eight of them bound the group
    modelled = bus_bandwidth(h100, "all_reduce", 8 * GB, 64)
    assert 8 * 45.5 * GB < modelled < 8 * 48.5 * GB


def test_one_member_costs_nothing_and_rows_broadcast(h100):
    times = collective_times(h100, ["all_reduce", "all_to_all"], 1e6, [1, 8])
    assert times.shape == (2,)
    assert times[0] == 0.0 < times[1]
    by_code = collective_times(h100, [0, 3], 1e6, [1, 8], 1)
    np.testing.assert_array_equal(times, by_code)


def test_no_field_of_a_record_hides_behind_what_records_have():
    """A field named `size` or `base` would be something else where kernels run uncompiled."""
    from perfmodel.kernels.collective.table import FACTS, LEVEL, LIBRARY
    from perfmodel.kernels.step.tables import PART, STAGE

    for name in (*LEVEL.names, *FACTS.names, *LIBRARY.names, *PART.names, *STAGE.names):
        assert not hasattr(np.record, name), name


def test_placement_of_groups(h100):
    counts = members_per_domain(h100, [8, 64, 64, 1], [1, 4, 8, 1])
    assert counts.tolist() == [[8, 2, 1, 1], [8, 64, 64, 1]]
    assert outermost_level(h100, [8, 64, 64, 1], [1, 4, 8, 1]).tolist() == [0, 1, 1, -1]


def test_overlap_taxes_only_running_collectives(h100):
    (found,) = overlap_compute_taxes([h100], [8, 64, 64, 1], [1, 4, 8, 1])
    node, mixed, adapters, alone = found
    assert alone == 0.0
    assert 0.0 < adapters < node < 0.3
    assert mixed == node


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *table_of(__file__, "wrong_requests_say_what_would_be_right"),
        (("all_reduce", float("nan"), 8, 1), "finite and >= 0"),
    ],
)
def test_wrong_requests_say_what_would_be_right(h100, arguments, message):
    with pytest.raises(StrategyError, match=message):
        collective_times(h100, *arguments)


ONE_SOCKET = {"system.network.0.socket_devices": 0, "system.network.0.socket_bandwidth": 0}
BUSES = ["a100-40gb-pcie", "a100-80gb-pcie", "h100-pcie", "l40s-server", "rtx-pro-6000-server"]


@pytest.mark.parametrize("name", [*BUSES, "v100-pcie"])
def test_adapters_take_their_bytes_over_the_same_bus(name):
    # One link of a device carries what stays in the node and what leaves it.
    hardware = load_hardware(name).with_values(ONE_SOCKET)
    bus = hardware.system.network[0]
    sizes = 2.0 ** np.arange(23, 34)  # below, another protocol or trees of fewer hops run
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"):
        passes = 2 if kind == "all_reduce" else 1
        for members in (2, 4, 8):
            if members > bus.size:
                continue
            sent = sizes * (1 if kind == "broadcast" else passes * (members - 1) / members)
            inside = collective_times(hardware, kind, sizes, members)
            for node in (1, 2, 4):
                if node >= members:
                    continue
                across = collective_times(hardware, kind, sizes, members, bus.size // node)
                assert (sent / across < bus.bandwidth).all(), (kind, members, node)
                assert (across >= inside * (1 - 1e-9)).all(), (kind, members, node)


def test_a_bus_is_busy_with_what_passes_it_to_the_adapters():
    hardware = load_hardware("h100-pcie").with_values(ONE_SOCKET)
    inside, _ = link_occupancies(hardware, "all_gather", 1e9, [4], 1)
    across, _ = link_occupancies(hardware, "all_gather", 1e9, [4], 4)
    apart, _ = link_occupancies(hardware, "all_gather", 1e9, [4], 8)
    assert inside[0, 1] == 0
    assert 0 < across[0, 1] < apart[0, 1]
    assert across[0, 0] == pytest.approx(inside[0, 0]) == pytest.approx(apart[0, 0])


@pytest.mark.parametrize("name", list_hardware())
def test_groups_of_any_machine_keep_to_their_links(name: str) -> None:
    # Nothing is faster than its bytes over all links of a device, and a larger group is no faster
    # than what further links of a mesh or torus explain (a v5e once took 2.24 ms with 4 chips and
    # 0.44 with 8).
    hardware = load_hardware(name)
    levels = hardware.system.network
    places = math.prod(level.size for level in levels) or 512
    members = np.array([n for n in (2, 4, 8, 16, 32, 64, 128, 256) if n <= places])
    if len(levels) == 0 or members.size == 0:
        pytest.skip("a device alone")
    links = sum(level.bandwidth for level in levels)
    sizes = np.array([[2.0**10], [2.0**20], [2.0**30]])
    table = network_table(hardware).levels[0]
    inside = members[members <= (levels[0].size or 512)]
    share = np.array([link_share(table, float(n), 1.0, False) for n in inside])
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        times = collective_times(hardware, kind, sizes, members).reshape(3, -1)
        assert (times >= (1.0 - 1.0 / members) * sizes / links).all(), kind
        if kind != "all_to_all" and not levels[0].in_network_reduction:  # switches help the larger
            large = times[2, : inside.size]
            assert (large[1:] / large[:-1] >= 0.97 * share[:-1] / share[1:]).all(), kind
