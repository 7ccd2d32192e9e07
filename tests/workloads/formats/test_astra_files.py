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
        ("Ring, Ring, Switch", "Ring, Rign, Switch", "network.yml:1: unknown topology 'Rign'"),
        ("[ 2, 4, 2 ]", "[ 2, 4 ]", "network.yml:2: npus_count has 2 entries, but topology has 3"),
        ("[ 2, 4, 2 ]", "[ 2, 1, 2 ]", "network.yml:2: npus_count is 1; it should be a whole"),
        ("[ 2, 4, 2 ]", "[ 2, 4.0, 2 ]", "network.yml:2: npus_count is '4.0'"),
        ("[ 2, 4, 2 ]", "8", "network.yml:2: npus_count should be a list"),
        ("[ 2, 4, 2 ]", "[]", "network.yml:2: npus_count should be a list"),
        ("[ 2, 4, 2 ]", "[ [2], 4, 2 ]", "network.yml:2: npus_count has an entry that is itself"),
        ("50.0, 25.0", "-50.0, 25.0", "network.yml:4: bandwidth is -50.0; it should be a finite"),
        ("50.0, 25.0", "0, 25.0", "network.yml:4: bandwidth is 0.0"),
        ("50.0, 25.0", "nan, 25.0", "network.yml:4: bandwidth is nan"),
        ("50.0, 25.0", ".nan, 25.0", "network.yml:4: bandwidth is '.nan'"),
        ("50.0, 25.0", "1_0, 25.0", "network.yml:4: bandwidth is '1_0'"),
        ("2e2", "fast", "network.yml:7: latency is 'fast'; it should be a finite number >= 0"),
        ("2e2", "inf", "network.yml:7: latency is inf"),
        ("npus_count", "npu_count", "unknown key 'npu_count'; did you mean npus_count?"),
        ("npus_count: [ 2, 4, 2 ]\n", "", "key 'npus_count' is missing; it should be a list"),
        ("latency:", "bandwidth:", "network.yml:5: key 'bandwidth' is given twice (first on line"),
        ("[ 2, 4, 2 ]", "[ 2, 4, 2", "network.yml:4: not valid YAML"),
        ("", "[ 1, 2 ]", "network.yml:1: should be keys: topology, npus_count"),
        ("", "# nothing\n", "network.yml: is empty"),
        ("", "a: \x07", "not valid YAML"),
        ("", "topology: " + "[" * 5000 + "]" * 5000, "network.yml: nested too deeply"),
        ("topology:", "[a]:", "network.yml:1: a key is itself a list or has keys"),
        ("[ 2, 4, 2 ]", f"[ {'9' * 5000}, 4, 2 ]", "…; it should be a whole number >= 2"),
        ("[ 2, 4, 2 ]", "[ 65536, 65536, 2 ]", "network.yml:2: npus_count of 3 dimensions multip"),
    ],
)
def test_wrong_networks_say_where(network_file, old, new, words):
    assert words in refusal(read_network, network_file(old, new))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"LIFO"', '"LILO"', "system.json:2: unknown scheduling-policy 'LILO'; did you mean LIFO"),
        ("10,", "-1,", "system.json:3: endpoint-delay is -1; it should be a whole number >= 0"),
        ("10,", "1.5,", "system.json:3: endpoint-delay is 1.5"),
        ("10,", "true,", "system.json:3: endpoint-delay is True"),
        ('splits": 4', 'splits": 0', "system.json:5: preferred-dataset-splits is 0"),
        ('"ring", "direct"]', '"ring", "rings"]', "system.json:6: unknown collective implementat"),
        ('["ring", "direct"]', '"ring"', "system.json:6: all-reduce-implementation is"),
        ('["ring", "direct4"]', '["ring", 4]', "system.json:9: unknown collective implementation"),
        ("localBWAware", "local", "system.json:10: unknown collective-optimization 'local'"),
        ("1600", "NaN", "system.json:11: local-mem-bw is nan; it should be a finite number > 0"),
        ("1600", '"1600"', "system.json:11: local-mem-bw is '1600'"),
        ('enabled": 1', 'enabled": 2', "system.json:13: roofline-enabled is 2; it should be 0"),
        ("endpoint-delay", "endpoint-dealy", "system.json:3: unknown key 'endpoint-dealy'; did"),
        ("local-mem-bw", "local-memory-bw", "'local-memory-bw' on line 11 should probably be it"),
        ('  "local-mem-bw": 1600,\n', "", "system.json:1: key 'local-mem-bw' is missing"),
        ('"boost-mode": 0', '"local-mem-bw": 9', "system.json:12: key 'local-mem-bw' is given tw"),
        ('"LIFO",', '"LIFO"', "system.json:3: not valid JSON"),
        ("", "[]", "system.json:1: should be a JSON object"),
        ("", "[" * 100_000, "not usable JSON: nested too deeply"),
        ('  "local-mem-bw": 1600,\n', "", 'it should be there, as in "local-mem-bw": 1600'),
        ('"boost-mode": 0', '"boost-mode": NaN', "system.json:12: boost-mode holds NaN"),
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
