"""``perfmodel collective`` and what it is made of: grids and sizes as a user writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES, PROTOCOLS
from perfmodel.base.errors import DataError
from perfmodel.compute.collectives import collective_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.sweeps.collective_grids import collective_grid, strides
from tests.cli.astra_files import NETWORK, SYSTEM
from tests.cli.running import document, run

BASE = ("collective", "all_reduce", "--hardware", "dgx-h100")


def test_the_table_has_a_line_per_size_and_names_what_is_fixed() -> None:
    result = run(*BASE, "--size", "1KiB:1GiB:x32", "--members", "8")
    assert result.exit_code == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split() == ["size", "time", "algbw", "busbw", "algorithm", "protocol"]
    assert [line.split()[:2] for line in lines[:-1]] == [
        *(["1", "KiB"], ["32", "KiB"], ["1", "MiB"], ["32", "MiB"], ["1", "GiB"])
    ]
    assert lines[-1] == "all: hardware dgx-h100 · collective all_reduce · members 8 · stride 1"


def test_json_has_si_units_and_the_conventions_of_nccl_tests() -> None:
    found = document(*BASE, "--size", "64MiB", "--members", "8")
    (row,) = found["rows"]
    assert set(row) == {
        *("hardware", "collective", "algorithm", "protocol", "size", "members", "stride"),
        *("time", "time_low", "time_high", "algorithm_bandwidth", "bus_bandwidth"),
        *("chosen_algorithm", "chosen_protocol", "status"),
    }
    assert found["schema_version"]
    assert found["units"]["time"] == "s"
    assert found["units"]["bus_bandwidth"] == "B/s"
    (time,) = collective_times(load_hardware("dgx-h100"), "all_reduce", 2**26, 8)
    assert row["time"] == pytest.approx(time)
    assert row["time_low"] < row["time"] < row["time_high"]
    assert row["algorithm_bandwidth"] == pytest.approx(2**26 / time)
    assert row["bus_bandwidth"] == pytest.approx(2**26 / time * 14 / 8)
    assert row["chosen_algorithm"] in ALGORITHMS
    assert row["chosen_protocol"] in PROTOCOLS
    assert row["status"] == "ok"


def test_an_algorithm_that_was_asked_for_is_the_one_chosen_and_never_faster_than_the_best() -> None:
    axes = {"collective": ["all_reduce"], "size": [2**10, 2**20, 2**28], "members": [8]}
    asked = {**axes, "algorithm": ["ring", "double_binary_tree", "in_network"]}
    found = collective_grid([load_hardware("dgx-h100")], asked)
    names = np.array(found["chosen_algorithm"].attrs["flag_meanings"].split())
    for algorithm, code, time in zip(
        found["algorithm"].values, found["chosen_algorithm"].values[0], found["time"].values[0],
        strict=True,
    ):  # fmt: skip
        assert names[code] == algorithm
        assert time > 0
    every = collective_grid([load_hardware("dgx-h100")], {**asked, "protocol": PROTOCOLS})
    fastest = every["time"].values.reshape(3, 3, 3)  # algorithm, protocol, size
    assert found["time"].values.reshape(3, 3) == pytest.approx(np.nanmin(fastest, axis=1))
    status = np.array(every["status"].attrs["flag_meanings"].split())[every["status"].values]
    assert set(status[np.isnan(every["time"].values)]) == {"not_with_protocol"}


def test_impossible_combinations_stay_with_their_reason() -> None:
    axes = {
        "collective": ["all_reduce", "all_to_all"],
        "size": [2**20],
        "members": [8],
        "stride": [1, 8],
        "algorithm": ["auto", "in_network"],
    }
    found = collective_grid([load_hardware("dgx-h100"), load_hardware("dgx-a100")], axes)
    names = np.array(found["status"].attrs["flag_meanings"].split())
    status = names[found["status"].values]
    coordinates = (found[name].values for name in ("collective", "algorithm", "stride"))
    cells = list(zip(*coordinates, *status, strict=True))
    assert cells == [
        ("all_reduce", "auto", 1, "ok", "ok"),
        ("all_reduce", "auto", 8, "ok", "ok"),
        ("all_reduce", "in_network", 1, "ok", "no_in_network_reduction"),
        ("all_reduce", "in_network", 8, *["no_in_network_reduction"] * 2),
        ("all_to_all", "auto", 1, "ok", "ok"),
        ("all_to_all", "auto", 8, "ok", "ok"),
        *[("all_to_all", "in_network", stride, *["not_for_collective"] * 2) for stride in (1, 8)],
    ]
    assert (np.isfinite(found["time"].values) == (status == "ok")).all()
    result = run(*BASE, "--size", "1MB", "--members", "2,8", "--algorithm", "rail_aligned,ring")
    assert result.exit_code == 0
    assert result.stdout.count("the algorithm does not do this collective") == 2


def test_members_per_node_is_a_stride() -> None:
    hardware = load_hardware("dgx-h100")
    members = [2, 8, 16, 16, 16, 4, 16, 32]
    inside = [1, 8, 8, 2, 1, 8, 3, 16]
    assert strides(hardware, members, inside).tolist() == [8, 1, 1, 4, 8, 1, 0, 0]
    found = document(*BASE, "--size", "256MiB", "--members", "16", "--members-per-node", "1,3,8")
    apart, uneven, full = found["rows"]
    assert [row["stride"] for row in found["rows"]] == [8, 0, 1]
    assert uneven["status"] == "placement_impossible"
    assert uneven["time"] is None
    assert apart["time"] > full["time"]
    (by_stride,) = document(*BASE, "--size", "256MiB", "--members", "16", "--stride", "8")["rows"]
    assert by_stride["time"] == apart["time"]


def test_a_group_of_one_takes_no_time() -> None:
    (row,) = document(*BASE, "--size", "1MB", "--members", "1")["rows"]
    assert row["time"] == 0
    assert row["bus_bandwidth"] is None
    assert row["chosen_algorithm"] == "none"


def test_netcdf_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "grid.nc"
    result = run(
        *("collective", "all_reduce,all_gather", "--hardware", "dgx-h100,mi355x-server"),
        *("--size", "1KiB:1MiB:x32", "--members", "2,8", "--members-per-node", "1,8"),
        *("--algorithm", "auto,ring", "-o", str(path)),
    )
    assert result.exit_code == 0, result.stderr
    assert f"wrote {path}" in result.stderr
    with xr.open_dataset(path) as found:
        assert dict(found.sizes) == {"hardware": 2, "shape": 2 * 2 * 3 * 2 * 2, "kernel_class": 7}
        assert set(found["constants_trust"].dims) == {"kernel_class", "hardware"}
        assert found["hardware"].values.tolist() == ["dgx-h100", "mi355x-server"]
        assert set(found["collective"].values) == {"all_reduce", "all_gather"}
        assert found["size"].attrs["units"] == "B"
        for name in (*found.data_vars, *found.coords):
            assert found[name].attrs["units"]
            assert found[name].attrs["long_name"]
        meanings = found["chosen_algorithm"].attrs["flag_meanings"].split()
        assert meanings == [*ALGORITHMS, "none"]
        ring = found["algorithm"].values == "ring"
        assert set(found["chosen_algorithm"].values[:, ring].ravel()) == {meanings.index("ring")}
        assert "mi355x" in found.attrs["provenance"]
    assert [child.name for child in tmp_path.iterdir()] == ["grid.nc"]


def test_swept_hardware_makes_rows() -> None:
    found = document(
        *BASE, "--size", "256MB", "--members", "32",
        "--sweep", "system.network.1.bandwidth=25e9,50e9",
    )["rows"]  # fmt: skip
    assert [row["system.network.1.bandwidth"] for row in found] == [25e9, 50e9]
    assert found[0]["time"] > found[1]["time"]
    (fixed,) = document(
        *BASE, "--size", "256MB", "--members", "32", "--set", "system.network.1.bandwidth=25e9"
    )["rows"]
    assert fixed["time"] == found[0]["time"]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB,1KB", [1024, 1000]),
        ("1KiB:1MiB:x32", [1024, 32768, 2**20]),
        ("1KB:1MB:4:log", [1000, 10_000, 100_000, 1_000_000]),
        ("0:1KB:3", [0, 500, 1000]),
    ],
)
def test_ranges_of_sizes(text: str, sizes: list[int]) -> None:
    assert [
        row["size"] for row in document(*BASE, "--size", text, "--members", "2")["rows"]
    ] == sizes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*BASE, "--members", "8"), "Missing option '--size'"),
        ((*BASE, "--size", "1KB"), "Missing option '--members'"),
        (("collective", "all_reduce", "--size", "1KB", "--members", "8"), "option '--hardware'"),
        ((*BASE, "--size", "1KX", "--members", "8"), "'1KX': unknown unit of bytes 'KX'"),
        ((*BASE, "--size", "lots", "--members", "8"), "'lots' should be a size in bytes"),
        ((*BASE, "--size", "1KB:1MB", "--members", "8"), "a range is START:STOP:COUNT"),
        ((*BASE, "--size", "1MB:1KB:x2", "--members", "8"), "should be START:STOP:xFACTOR"),
        ((*BASE, "--size", "1KB", "--members", "0"), "0 is below 1"),
        ((*BASE, "--size", "1KB", "--members", "2.5"), "should be whole numbers"),
        ((*BASE, "--size", "1KB", "--members", "8", "--stride", "0"), "0 is below 1"),
        (
            (*BASE, "--size", "1KB", "--members", "8", "--stride", "1", "--members-per-node", "8"),
            "both place a group",
        ),
        (
            (*BASE, "--size", "1KB", "--members", "8", "--algorithm", "rign"),
            "unknown algorithm 'rign'; did you mean ring",
        ),
        (
            (*BASE, "--size", "1KB", "--members", "8", "--protocol", "LL"),
            "unknown protocol 'LL'",
        ),
        (
            ("collective", "allreduce", *BASE[2:], "--size", "1KB", "--members", "8"),
            "unknown collective 'allreduce'; did you mean all_reduce",
        ),
        (
            (*BASE, "--hardware", "dgx-h101", "--size", "1KB", "--members", "8"),
            "unknown hardware 'dgx-h101'",
        ),
        (
            (*BASE, "--size", "1KB", "--members", "8", "-o", "/nowhere/x.nc"),
            "folder '/nowhere' does not exist",
        ),
        (
            (*BASE, "--size", "0:1000000:100000", "--members", "1:100:100"),
            "at most 5,000,000",
        ),
        ((*BASE, "--size", "1KB", "--members", "8", "--algorithm", ""), "there is an empty value"),
        ((*BASE, "--size", "1KB", "--members", "8", "--protocol", ","), "there is an empty value"),
        (
            (*BASE, "--size", "1KB", "--members", "8", "--engine", "congestion-aware"),
            "--engine goes with --astra-network",
        ),
        ((*BASE, "--size", "1KB:1MB:xnan", "--members", "8"), "START:STOP:xFACTOR"),
        (
            ("collective", "all_reduce", "--size", "1KB", "--astra-network", ""),
            "Missing option '--astra-system'",
        ),
    ],
)
def test_wrong_input_is_one_line_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"collective": []}, "no values of 'collective'"),
        ({"size": [-1]}, "size -1: a number >= 0"),
        ({"size": [float("inf")]}, "size inf: a number >= 0"),
        ({"members": [1.5]}, "members 1.5: a whole number >= 1"),
        ({"stride": [1], "members_per_node": [1]}, "give one of them"),
        ({"sizes": [1]}, "unknown axis 'sizes' of collectives; did you mean size"),
    ],
)
def test_wrong_axes_are_explained(axes: dict[str, list[Any]], message: str) -> None:
    base = {"collective": ["all_reduce"], "size": [1024], "members": [8]}
    with pytest.raises(DataError, match=message):
        collective_grid([load_hardware("dgx-h100")], base | axes)


def test_help_has_examples_and_units() -> None:
    text = run("collective", "--help").stdout
    assert "Examples:" in text
    assert "Units:" in text
    for name in COLLECTIVES:
        assert name in text


@pytest.fixture
def astra(tmp_path: Path) -> tuple[str, ...]:
    """Options that name a network and a system of ASTRA-sim."""
    network, system = tmp_path / "network.yml", tmp_path / "system.json"
    network.write_text(NETWORK, encoding="utf-8")
    system.write_text(json.dumps(SYSTEM), encoding="utf-8")
    return ("--astra-network", str(network), "--astra-system", str(system))


def test_collectives_as_astra_sim_times_them(astra: tuple[str, ...], tmp_path: Path) -> None:
    sizes = ("--size", "1MiB,16MiB")
    found = document("collective", "all_reduce,all_gather", *sizes, *astra)["rows"]
    assert [row["collective"] for row in found] == [*["all_reduce"] * 2, *["all_gather"] * 2]
    # 53,710 ns: all-reduce of 1 MiB in a ring of 16 (example of
    # perfmodel.workloads.twins.astra.collective).
    assert found[0]["time"] == pytest.approx(53710e-9, rel=1e-12)
    assert found[0]["bus_bandwidth"] == pytest.approx(2**20 / 53710e-9 * 30 / 16)
    assert {row["members"] for row in found} == {16}
    # Half of an all-reduce is an all-gather of the same buffer: 15 of 30 steps.
    assert found[2]["time"] == pytest.approx(found[0]["time"] / 2, rel=0.05)
    path = tmp_path / "astra.nc"
    result = run("collective", "all_reduce", *sizes, *astra, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert "implementation ring" in result.stdout
    with xr.open_dataset(path) as stored:
        assert stored["time"].values[0, 0] == found[0]["time"]
        assert stored.attrs["engine"] == "congestion-unaware"
        assert stored["hardware"].values.tolist() == ["network.yml"]


def test_both_engines_of_astra_sim(astra: tuple[str, ...]) -> None:
    times = [
        document("collective", "all_reduce", "--size", "1MiB", *astra, "--engine", engine)["rows"]
        for engine in ("congestion-unaware", "congestion-aware")
    ]
    assert times[0][0]["time"] == pytest.approx(times[1][0]["time"], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", "--size", "1MB", "--hardware", "dgx-h100"), "--hardware does not go with"),
        (("all_reduce", "--size", "1MB", "--members", "8"), "--members does not go with"),
        (("all_reduce", "--size", "1MB", "--algorithm", "ring"), "--algorithm does not go with"),
        (("broadcast", "--size", "1MB"), "ASTRA-sim has no collective 'broadcast'"),
        (("all_gather", "--size", "1MB,1001"), "an all_gather of 1001 B does not divide"),
        (("all_reduce", "--size", "1MB", "--engine", "congested"), "'congested' is not one of"),
    ],
)
def test_what_does_not_go_with_astra_sim(
    astra: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    result = run("collective", *arguments, *astra)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_astra_sim_needs_both_files(astra: tuple[str, ...], tmp_path: Path) -> None:
    result = run("collective", "all_reduce", "--size", "1MB", *astra[:2])
    assert result.exit_code == 2
    assert "Missing option '--astra-system'" in result.stderr
    result = run(
        "collective", "all_reduce", "--size", "1MB", *astra[:2], "--astra-system", "no.json"
    )
    assert result.exit_code == 2
    assert "no.json" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_fits_into_80_columns() -> None:
    assert max(map(len, run("collective", "--help").stdout.splitlines())) <= 80
