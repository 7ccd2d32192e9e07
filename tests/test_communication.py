"""The labelled form of the collective kernels: profiles, checks, measured data."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from perfmodel.communication import (
    COLLECTIVES,
    CONSTANTS,
    collective_times,
    members_per_domain,
    network_table,
    outermost_level,
    overlap_compute_tax,
)
from perfmodel.errors import HardwareError, StrategyError
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels import collective as kernel

GB = 1e9


@pytest.fixture(scope="module")
def h100():
    return load_hardware("dgx-h100")


def test_names_and_codes_agree():
    for code, name in enumerate(COLLECTIVES):
        assert getattr(kernel, name.upper()) == code


def bus_bandwidth(hardware, kind, size, members, stride=1):
    factor = 2 if kind == "all_reduce" else 1
    time = collective_times(hardware, kind, size, members, stride)[0]
    return factor * (members - 1) / members * size / time


@pytest.mark.parametrize(
    ("profile", "kind", "members", "published", "tolerance"),
    [
        ("dgx-h100", "all_reduce", 8, 480 * GB, 0.06),  # nccl-tests issue 212, NVLS
        ("dgx-h100", "all_gather", 8, 370 * GB, 0.10),  # nccl-tests issue 212, ring
        ("mi355x-server", "all_reduce", 8, 396 * GB, 0.05),  # mit-orcd/amd-benchmarks
        ("mi355x-server", "all_gather", 4, 168 * GB, 0.05),  # mit-orcd/amd-benchmarks
        ("mi355x-server", "all_reduce", 6, 47.7 * GB, 0.05),  # mit-orcd/amd-benchmarks
        ("mi355x-server", "all_reduce", 16, 381 * GB, 0.05),  # mit-orcd/amd-benchmarks
        ("mi355x-server", "all_to_all", 16, 89.6 * GB, 0.05),  # mit-orcd/amd-benchmarks
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


def test_swept_bandwidth_and_latency_reach_the_kernel(h100):
    slower = h100.with_values({"system.network.1.bandwidth": 25e9})
    base, slow = (collective_times(h, "all_gather", 1e10, 64)[0] for h in (h100, slower))
    assert slow == pytest.approx(2 * base, rel=0.02)
    halved = h100.with_values({"system.network.1.oversubscription": 2.0})
    assert collective_times(halved, "all_gather", 1e10, 64)[0] == slow
    later = h100.with_values({"system.network.0.latency": 5e-6})
    assert collective_times(later, "all_reduce", 1e3, 8) > collective_times(
        h100, "all_reduce", 1e3, 8
    )


def test_every_profile_has_a_network_table():
    from perfmodel.hwprofiles import list_hardware

    for entry in list_hardware():
        name = getattr(entry, "name", entry)
        table = network_table(load_hardware(name))
        assert np.all(np.isfinite(table)), name
        assert np.all(table[:, 1] > 0), name


def test_placement_of_groups(h100):
    counts = members_per_domain(h100, [8, 64, 64, 1], [1, 4, 8, 1])
    assert counts.tolist() == [[8, 2, 1, 1], [8, 64, 64, 1]]
    assert outermost_level(h100, [8, 64, 64, 1], [1, 4, 8, 1]).tolist() == [0, 1, 1, -1]


def test_overlap_taxes_only_running_collectives(h100):
    node, mixed, adapters, alone = overlap_compute_tax(h100, [8, 64, 64, 1], [1, 4, 8, 1])
    assert alone == 0.0
    assert 0.0 < adapters < node < 0.3
    assert mixed == node


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reducee", 1e6, 8, 1), "did you mean all_reduce"),
        ((9, 1e6, 8, 1), "codes are whole numbers 0 to 5"),
        (("all_reduce", -1.0, 8, 1), "finite and >= 0"),
        (("all_reduce", float("nan"), 8, 1), "finite and >= 0"),
        (("all_reduce", 1e6, 0, 1), "members of a group is 0"),
        (("all_reduce", 1e6, 2.5, 1), "members of a group is 2.5"),
        (("all_reduce", 1e6, 8, 0), "stride of a group is 0"),
        (("all_reduce", 1e6, "eight", 1), "whole numbers"),
        (("all_reduce", [1e6, 2e6], [2, 4, 8], 1), "broadcast together"),
    ],
)
def test_wrong_requests_say_what_would_be_right(h100, arguments, message):
    with pytest.raises(StrategyError, match=message):
        collective_times(h100, *arguments)


def test_a_profile_without_constants_is_named(h100):
    from dataclasses import replace

    bare = replace(h100, calibration={})
    with pytest.raises(HardwareError, match="dgx-h100"):
        collective_times(bare, "all_reduce", 1e6, 8)
    network = dict(h100.calibration["network"])
    del network[CONSTANTS[0]]
    partial = replace(h100, calibration={"network": network})
    with pytest.raises(HardwareError, match=CONSTANTS[0]):
        network_table(partial)


@pytest.mark.parametrize("system", ["A100_SXM", "H100_SXM", "B200"])
def test_measured_nccl_of_training_sizes(development_table, system):
    with development_table("measured/collective.csv").open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["hardware"] == system
            and row["impl"] == "nccl"
            and row["source"].startswith("aiconfigurator")
            and float(row["bytes"]) >= 2**24
        ]
    names = ["all_to_all" if row["op"] == "alltoall" else row["op"] for row in rows]
    measured = np.array([float(row["time_us"]) * 1e-6 for row in rows])
    modelled = collective_times(
        load_hardware(system),
        names,
        [float(row["bytes"]) for row in rows],
        [int(row["n_gpus"]) for row in rows],
    )
    error = modelled / measured - 1
    assert np.median(np.abs(error)) < 0.06
    assert abs(np.median(error)) < 0.03
