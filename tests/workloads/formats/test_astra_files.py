"""ASTRA-sim's network.yml and system.json: round trips, and what is wrong where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import DataError, FormatError
from perfmodel.workloads.formats.astra_files import (
    read_network,
    read_system,
    write_network,
    write_system,
)
from perfmodel.workloads.formats.astra_machine import (
    TOPOLOGIES,
    AstraNetwork,
)
from tests.data import table_of

# The example files of ASTRA-sim's repository have this form.
NETWORK = """\
topology: [ Ring, Ring, Switch ]  # innermost first
npus_count: [ 2, 4, 2 ]
# GiB/s
bandwidth: [ 450.0, 50.0, 25.0 ]
latency:
  - 50.0
  - 2e2
  - 500
"""
SYSTEM = """\
{
  "scheduling-policy": "LIFO",
  "endpoint-delay": 10,
  "active-chunks-per-dimension": 1,
  "preferred-dataset-splits": 4,
  "all-reduce-implementation": ["ring", "direct"],
  "all-gather-implementation": ["ring", "direct"],
  "reduce-scatter-implementation": ["ring", "direct"],
  "all-to-all-implementation": ["ring", "direct4"],
  "collective-optimization": "localBWAware",
  "local-mem-bw": 1600,
  "boost-mode": 0,
  "roofline-enabled": 1,
  "peak-perf": 900
}
"""


@pytest.fixture
def network_file(tmp_path):
    """Return a function that writes a network.yml, the good one with something replaced."""

    def write(old="", new=""):
        assert old in NETWORK
        path = tmp_path / "network.yml"
        path.write_text(NETWORK.replace(old, new, 1) if old else new or NETWORK, encoding="utf-8")
        return path

    return write


@pytest.fixture
def system_file(tmp_path):
    """Return a function that writes a system.json, the good one with something replaced."""

    def write(old="", new=""):
        assert old in SYSTEM
        path = tmp_path / "system.json"
        path.write_text(SYSTEM.replace(old, new, 1) if old else new or SYSTEM, encoding="utf-8")
        return path

    return write


def refusal(read, path):
    """Return the message with which a file is refused, without the folder."""
    with pytest.raises(FormatError) as error:
        read(path)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


def test_network_is_read(network_file):
    assert read_network(network_file()) == AstraNetwork(
        topology=("Ring", "Ring", "Switch"),
        npus_count=(2, 4, 2),
        bandwidth_gib_per_second=(450.0, 50.0, 25.0),
        latency_nanoseconds=(50.0, 200.0, 500.0),
    )


def test_system_is_read(system_file):
    system = read_system(system_file())
    assert system.all_to_all_implementation == ("ring", "direct4")
    assert system.preferred_dataset_splits == 4
    assert system.local_memory_bandwidth_gb_per_second == 1600
    assert system.peak_performance_teraflops == 900
    assert system.roofline_enabled is True
    assert system.trace_enabled is False
    assert dict(system.other) == {"boost-mode": 0}


def test_files_of_a_real_run(development_table, tmp_path):
    network = read_network(development_table("astra/sanity/network.yml"))
    assert network.npus_count == (2, 4, 2)
    assert network.bandwidth_gib_per_second == (450.0, 50.0, 25.0)
    system = read_system(development_table("astra/sanity/system.json"))
    assert system.track_local_memory is True
    write_network(network, tmp_path / "network.yml")
    assert read_network(tmp_path / "network.yml") == network


positive = st.floats(1e-6, 1e9, allow_nan=False)
dimension = st.tuples(
    st.sampled_from(TOPOLOGIES), st.integers(2, 64), positive, st.floats(0.0, 1e9)
)


@given(dimensions=st.lists(dimension, min_size=1, max_size=5))  # 2^30 devices
def test_networks_survive_a_round_trip(tmp_path_factory, dimensions):
    path = tmp_path_factory.mktemp("round") / "network.yml"
    network = AstraNetwork(*(tuple(column) for column in zip(*dimensions, strict=True)))
    write_network(network, path)
    assert read_network(path) == network


def test_a_system_survives_a_round_trip(system_file, tmp_path):
    system = read_system(system_file())
    write_system(system, tmp_path / "again.json")
    assert read_system(tmp_path / "again.json") == system


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        *table_of(__file__, "wrong_networks_say_where"),
        ("", "topology: " + "[" * 5000 + "]" * 5000, "network.yml: nested too deeply"),
        ("[ 2, 4, 2 ]", f"[ {'9' * 5000}, 4, 2 ]", "…; it should be a whole number >= 2"),
    ],
)
def test_wrong_networks_say_where(network_file, old, new, words):
    assert words in refusal(read_network, network_file(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        *table_of(__file__, "wrong_systems_say_where"),
        ("", "[" * 100_000, "not usable JSON: nested too deeply"),
    ],
)
def test_wrong_systems_say_where(system_file, old, new, words):
    assert words in refusal(read_system, system_file(old, new))


@pytest.mark.parametrize(
    ("read", "name"), [(read_network, "network_file"), (read_system, "system_file")]
)
def test_a_byte_order_mark_is_no_error(read, name, request):
    path = request.getfixturevalue(name)()
    plain = read(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == plain


@pytest.mark.parametrize("read", [read_network, read_system])
def test_unreadable_files(read, tmp_path):
    assert refusal(read, tmp_path / "none").startswith("cannot read 'none'")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8 text" in refusal(read, binary)


def test_nothing_is_left_where_nothing_can_be_written(tmp_path):
    network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    with pytest.raises(DataError):
        write_network(network, tmp_path / "no folder" / "network.yml")
    assert list(tmp_path.iterdir()) == []
