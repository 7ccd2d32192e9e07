"""System files of ASTRA-sim 1.0: reading, writing, and what is refused.

Keys and values are those of ``Sys::parse_var`` (astra-sim, branch ASTRA-sim-1.0 07d5d19).
"""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, HardwareError, PerfModelError
from perfmodel.workloads.formats.astra_text_machine import (
    DIMENSION_TYPES,
    IDLE_KEYS,
    MOST_DIMENSIONS,
    NETWORK_KEYS,
    OTHER_NETWORK_KEYS,
    REQUIRED,
    SPELLINGS,
    NativeNetwork,
    NativeSystem,
    read_native_network,
    read_native_system,
)
from tests.amount import cases
from tests.data import table_of

# A published system, with the keys that change no time.
TEXT = """\
scheduling-policy: LIFO
endpoint-delay: 10
active-chunks-per-dimension: 2
preferred-dataset-splits: 64
boost-mode: 1
all-reduce-implementation: direct_ring_halvingDoubling
all-gather-implementation: direct_ring_halvingDoubling
reduce-scatter-implementation: direct_ring_halvingDoubling
all-to-all-implementation: direct_direct_direct
collective-optimization: localBWAware
intra-dimension-scheduling: SCF
inter-dimension-scheduling: themis
"""


@pytest.fixture
def system(tmp_path):
    """Return a function that reads a text or bytes."""
    path = tmp_path / "system.txt"

    def read(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_native_system(path)

    return read


def refused_system(system, content):
    """The one line with which a file is refused."""
    with pytest.raises(FormatError) as caught:
        system(content)
    message = str(caught.value)
    assert "\n" not in message
    assert "system.txt" in message
    return message


def without(key):
    """The text without a key's line."""
    return "".join(line for line in TEXT.splitlines(True) if not line.startswith(f"{key}:"))


# --- What a file says --------------------------------------------------------------------


def test_of_systems_a_file_is_read(system):
    three = ("direct", "ring", "halvingDoubling")
    assert system(TEXT) == NativeSystem(
        all_reduce_implementation=three,
        all_gather_implementation=three,
        reduce_scatter_implementation=three,
        all_to_all_implementation=("direct",) * 3,
        preferred_dataset_splits=64,
        active_chunks_per_dimension=2,
        endpoint_delay_nanoseconds=10,
        scheduling_policy="LIFO",
        collective_optimization="localBWAware",
        intra_dimension_scheduling="SCF",
        inter_dimension_scheduling="themis",
    )


def test_defaults_of_keys_that_may_be_left_out(system):
    plain = system(
        "".join(line for line in TEXT.splitlines(True) if line.split(":")[0] in REQUIRED)
    )
    assert plain.endpoint_delay_nanoseconds == 10
    assert plain.active_chunks_per_dimension == 1
    assert plain.intra_dimension_scheduling == "FIFO"
    assert plain.inter_dimension_scheduling == "baseline"


def test_other_spellings(system):
    for word, meant in SPELLINGS.items():
        text = TEXT.replace("SCF" if meant == "SCF" else "themis", word)
        read = system(text)
        assert meant in (read.intra_dimension_scheduling, read.inter_dimension_scheduling)


def test_keys_without_effect(system):
    for key in IDLE_KEYS:
        assert system(without("boost-mode") + f"{key}: 0\n") == system(TEXT)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT.replace("\n", "\r\n", 3),
        TEXT.replace(": ", ":\t  "),
        TEXT.replace("\n", "  \n\n"),
        TEXT.removesuffix("\n"),
        "\ufeff" + TEXT,
        "".join(reversed(TEXT.splitlines(True))),
    ],
)
def test_white_space_and_order_are_all_alike(system, text):
    assert system(text) == system(TEXT)


def test_implementations_are_found_by_collective(system):
    assert system(TEXT).implementation("all_to_all") == ("direct",) * 3
    with pytest.raises(HardwareError, match="unknown collective 'all_two_all'; did you mean"):
        system(TEXT).implementation("all_two_all")


# --- What is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("key", REQUIRED)
def test_keys_that_are_needed(system, key):
    assert f"system.txt:1: key '{key}' is missing" in refused_system(system, without(key))


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        *table_of(__file__, "of_systems_errors_say_line_and_key"),
        ("delay: 10", f"delay: {2**31}", f"endpoint-delay is {2**31}; it should be at most"),
        ("delay: 10", "delay: " + "9" * 5000, "system.txt:2: endpoint-delay is '999"),
    ],
)
def test_of_systems_errors_say_line_and_key(system, wrong, right, words):
    assert wrong in TEXT
    message = refused_system(system, TEXT.replace(wrong, right, 1))
    assert words in message
    assert len(message) < 400


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_lines_are_counted_whatever_their_ends(system, line_end):
    text = TEXT.replace("SCF", "scf").replace("\n", line_end)
    assert "system.txt:11: " in refused_system(system, text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "system.txt:1: key 'scheduling-policy' is missing"),
        ("\n\n", "system.txt:1: key 'scheduling-policy' is missing"),
        ("{}", "system.txt:1: '{}' should be a key"),
        (b"\xff\xfe\0", "not UTF-8 text"),
        (b"\0\0\0\0", "system.txt:1: '????' should be a key"),
        ("x" * 10**6, "should be a key, a colon and one value"),
        (":: 1", "system.txt:1: unknown key ':'"),
        (": 1", "system.txt:1: unknown key ''"),
    ],
)
def test_files_that_are_no_systems(system, content, words):
    message = refused_system(system, content)
    assert words in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"all_reduce_implementation": ()}, "all_reduce has no implementation"),
        ({"all_gather_implementation": ("rings",)}, "unknown collective implementation 'rings'"),
        ({"preferred_dataset_splits": 0}, "preferred-dataset-splits is 0"),
        ({"preferred_dataset_splits": True}, "preferred-dataset-splits is True"),
        ({"preferred_dataset_splits": 2**31}, "at most 2147483647"),
        ({"active_chunks_per_dimension": 1.0}, "active-chunks-per-dimension is 1.0"),
        ({"endpoint_delay_nanoseconds": -1}, "endpoint-delay is -1"),
        ({"scheduling_policy": "EXPLICIT"}, "unknown scheduling-policy 'EXPLICIT'"),
        ({"collective_optimization": None}, "unknown collective-optimization None"),
        ({"intra_dimension_scheduling": "smallestFirst"}, "unknown intra-dimension-scheduling"),
        ({"inter_dimension_scheduling": "ascending"}, "unknown inter-dimension-scheduling"),
    ],
)
def test_of_systems_records_check_what_files_check(system, change, words):
    with pytest.raises(HardwareError, match=words):
        replace(system(TEXT), **change)


DOCUMENT = {
    "topology-name": "Hierarchical",
    "topologies-per-dim": ["Ring", "FullyConnected", "Switch"],
    "dimension-type": ["T", "N", "PP"],
    "dimensions-count": 3,
    "units-count": [2, 8, 4],
    "links-count": [4, 14, 1],
    "link-latency": [50, 200.5, 500],
    "link-bandwidth": [50, 25, 12.5],
    "nic-latency": [0, 1, 2],
    "router-latency": [0, 0, 30],
    "hbm-latency": [500, 500, 500],
    "hbm-bandwidth": [370, 370, 370],
    "hbm-scale": [0, 0, 1],
}


@pytest.fixture
def network(tmp_path):
    """Return a function that reads a document, a text or bytes."""
    path = tmp_path / "network.json"

    def read(content):
        if isinstance(content, dict):
            content = json.dumps(content, indent=1)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_native_network(path)

    return read


def refused_network(network, content):
    """The one line with which a file is refused."""
    with pytest.raises(FormatError) as caught:
        network(content)
    message = str(caught.value)
    assert "\n" not in message
    assert "network.json" in message
    return message


def line_of(key, document=DOCUMENT):
    """Line of a key in the file that `network` writes."""
    lines = json.dumps(document, indent=1).splitlines()
    return 1 + next(i for i, line in enumerate(lines) if f'"{key}"' in line)


# --- What a file says --------------------------------------------------------------------


def test_of_networks_a_file_is_read(network):
    read = network(DOCUMENT)
    assert read == NativeNetwork(
        topology=("Ring", "FullyConnected", "Switch"),
        npus_count=(2, 8, 4),
        links_count=(4, 14, 1),
        link_bandwidth_gib_per_second=(50, 25, 12.5),
        link_latency_nanoseconds=(50, 200.5, 500),
        nic_latency_nanoseconds=(0, 1, 2),
        router_latency_nanoseconds=(0, 0, 30),
        memory_latency_nanoseconds=(500, 500, 500),
        memory_bandwidth_gb_per_second=(370, 370, 370),
        memory_scale=(0, 0, 1),
    )
    assert (read.dimensions, read.devices) == (3, 64)


def test_links_that_a_message_uses(network):
    """Both directions of a ring; a full connection shares its links among the peers."""
    read = network(DOCUMENT)
    assert [read.links(dimension) for dimension in range(3)] == [4, 2, 1]
    odd = replace(read, links_count=(5, 20, 3))
    assert [odd.links(dimension) for dimension in range(3)] == [4, 2, 3]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_and_byte_order_marks(network, line_end):
    text = json.dumps(DOCUMENT, indent=1).replace("\n", line_end)
    assert network(text) == network(b"\xef\xbb\xbf" + text.encode()) == network(DOCUMENT)


def test_every_type_of_dimension_is_the_same(network):
    for kind in DIMENSION_TYPES:
        assert network(DOCUMENT | {"dimension-type": [kind] * 3}) == network(DOCUMENT)


# --- What is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("key", DOCUMENT)
def test_every_key_is_needed(network, key):
    message = refused_network(network, {name: DOCUMENT[name] for name in DOCUMENT if name != key})
    assert f"network.json:1: key '{key}' is missing" in message


@pytest.mark.parametrize("key", [*NETWORK_KEYS, "topologies-per-dim", "dimension-type"])
@pytest.mark.parametrize("value", [[], [1], [1, 1, 1, 1], 3, "Ring", None, True, {}, [[1]] * 3])
def test_lists_have_one_entry_per_dimension(network, key, value):
    message = refused_network(network, DOCUMENT | {key: value})
    assert f"network.json:{line_of(key)}: {key} " in message
    assert "list" in message


@pytest.mark.parametrize("key", NETWORK_KEYS)
@pytest.mark.parametrize(
    "value", [-1, float("nan"), float("inf"), "2", True, None, 1e300, 10**4000, "x" * 9999]
)
def test_numbers_that_are_none(network, key, value):
    message = refused_network(
        network, DOCUMENT | {key: [DOCUMENT[key][0], value, DOCUMENT[key][2]]}
    )
    assert f"network.json:{line_of(key)}: {key} of dimension 1 is " in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"units-count": [2, 8.0, 4]}, "units-count of dimension 1 is 8.0; it should be a whole"),
        ({"units-count": [2, 0, 4]}, "units-count of dimension 1 is 0"),
        ({"link-bandwidth": [50, 0, 4]}, "link-bandwidth of dimension 1 is 0"),
        ({"link-bandwidth": [50, 1e-300, 4]}, "link-bandwidth of dimension 1 is 1e-300; it shou"),
        ({"hbm-bandwidth": [50, 5e-324, 4]}, "hbm-bandwidth of dimension 1 is 5e-324; it should"),
        ({"links-count": [1, 14, 1]}, "links-count of dimension 0 is 1; Ring of 2 needs at leas"),
        ({"links-count": [2, 6, 1]}, "links-count of dimension 1 is 6; FullyConnected of 8 need"),
        ({"topologies-per-dim": ["Ring", "Rign", "Switch"]}, "unknown topology 'Rign'"),
        ({"topologies-per-dim": ["Ring", 5, "Switch"]}, "unknown topology 5"),
        ({"dimension-type": ["T", "N", "X"]}, "unknown dimension-type 'X'"),
        ({"dimensions-count": 2}, "should be a list with 2 entries"),
        ({"dimensions-count": 0}, "dimensions-count is 0; it should be a whole number from 1"),
        ({"dimensions-count": True}, "dimensions-count is True"),
        ({"dimensions-count": 3.0}, "dimensions-count is 3.0"),
        ({"dimensions-count": "3"}, "dimensions-count is '3'"),
        ({"dimensions-count": 10**30}, f"dimensions-count is {10**30}"),
        ({"topology-name": "Torus3D"}, "topology-name is 'Torus3D'; it should be 'Hierarchical'"),
        ({"topology-name": None}, "topology-name is None"),
        ({"topology-name": ["Hierarchical"]}, "topology-name is ['Hierarchical']"),
        ({"link-latncy": 3}, "unknown key 'link-latncy'; did you mean link-latency"),
    ],
)
def test_of_networks_errors_say_line_and_key(network, changes, words):
    message = refused_network(network, DOCUMENT | changes)
    key = next(iter(changes)) if "entries" not in words else "topologies-per-dim"
    assert f"network.json:{line_of(key, DOCUMENT | changes)}: " in message
    assert words in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "network.json:1: not valid JSON"),
        ("[]", "network.json:1: should be a JSON object"),
        ("null", "network.json:1: should be a JSON object"),
        ('{\n"units-count": [1,\n}', "network.json:3: not valid JSON"),
        ('{\n"hbm-scale": 1,\n"hbm-scale": 2}', "network.json:3: key 'hbm-scale' is given twice"),
        ('{"units-count": ' + "9" * 5000 + "}", "network.json:1: not usable JSON"),
        ("[" * 100_000, "network.json:1: not usable JSON: nested too deeply"),
        ('{"units-count": ' + "[" * 800 + "]" * 800 + "}", "units-count holds lists or objects"),
        ('{"units-count": {"a": 1}}', "network.json:1: units-count holds lists or objects"),
        ('{"\0": 1}', "network.json:1: not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"\0\0\0\0", "network.json:1: not valid JSON"),
        (json.dumps(DOCUMENT)[:-40], "network.json:1: not valid JSON"),
    ],
)
def test_files_that_are_no_networks(network, content, words):
    assert words in refused_network(network, content)


def test_of_networks_records_check_what_files_check():
    one = (("Ring",), (2,), (2,), (1,), (1,), (0,), (0,), (0,), (1,), (0,))
    assert NativeNetwork(*one).devices == 2
    with pytest.raises(HardwareError, match="2 entries for 1 topologies"):
        NativeNetwork(*one[:1], (2, 2), *one[2:])
    with pytest.raises(HardwareError, match=f"should have 1 to {MOST_DIMENSIONS}"):
        NativeNetwork(*(column * 10 for column in one))
    with pytest.raises(HardwareError, match="0 dimensions"):
        NativeNetwork(*(() for _ in one))
    assert NativeNetwork(*(column * MOST_DIMENSIONS for column in one)).devices == 512
    # One device needs no links.
    assert NativeNetwork(("Ring",), (1,), (1,), *one[3:]).links(0) == 0


def test_every_field_has_a_key():
    named = {field for field, _, _ in NETWORK_KEYS.values()}
    assert named | {"topology"} == {field.name for field in fields(NativeNetwork)}
    assert {*NETWORK_KEYS, *OTHER_NETWORK_KEYS} == set(DOCUMENT)


# --- Properties --------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(0, 10**6), st.floats(0, 1e15, allow_subnormal=False))
POSITIVE = st.one_of(st.integers(1, 10**6), st.floats(1e-9, 1e15))


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9))
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@settings(max_examples=cases(80))
@given(st.sampled_from(sorted(DOCUMENT)), JSON, st.integers(0, 2), st.booleans())
def test_any_value_is_read_or_refused_in_one_line(tmp_path_factory, key, value, entry, whole):
    document = json.loads(json.dumps(DOCUMENT))
    if whole or not isinstance(document[key], list):
        document[key] = value
    else:
        document[key][entry] = value
    path = tmp_path_factory.getbasetemp() / "any-network.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    message = ""
    try:
        assert read_native_network(path).dimensions == 3
    except PerfModelError as error:
        message = str(error)
        assert message.startswith(f"{path}:1: ")
    assert message.isprintable()
