"""System files of ASTRA-sim 1.0: reading, writing, and what is refused.

Keys and values are those of ``Sys::parse_var`` (astra-sim, branch ASTRA-sim-1.0 07d5d19).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, HardwareError, PerfModelError
from perfmodel.workloads.formats.astra_text.system import (
    IDLE_KEYS,
    REQUIRED,
    SPELLINGS,
    NativeSystem,
    read_native_system,
)

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


def refusal(system, content):
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


def test_a_file_is_read(system):
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
    assert f"system.txt:1: key '{key}' is missing" in refusal(system, without(key))


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ("LIFO", "LILO", "system.txt:1: unknown scheduling-policy 'LILO'; did you mean"),
        ("LIFO", "", "system.txt:1: 'scheduling-policy:' should be a key, a colon and one value"),
        ("LIFO", "LIFO FIFO", "system.txt:1: 'scheduling-policy: LIFO FIFO' should be"),
        ("policy: ", "policy ", "system.txt:1: 'scheduling-policy LIFO' should be a key, a colon"),
        ("policy: ", "policy:", "system.txt:1: 'scheduling-policy:LIFO' should be a key, a colon"),
        ("policy: ", "polcy: ", "system.txt:1: unknown key 'scheduling-polcy'; did you mean sch"),
        ("delay: 10", "delay: -1", "system.txt:2: endpoint-delay is '-1'; it should be a whole"),
        ("delay: 10", "delay: 1.5", "system.txt:2: endpoint-delay is '1.5'"),
        ("delay: 10", "delay: nan", "system.txt:2: endpoint-delay is 'nan'"),
        ("delay: 10", "delay: ١٠", "system.txt:2: endpoint-delay is '١٠'"),
        ("delay: 10", f"delay: {2**31}", f"endpoint-delay is {2**31}; it should be at most"),
        ("delay: 10", "delay: " + "9" * 5000, "system.txt:2: endpoint-delay is '999"),
        ("delay: 10", "delay: 1\0", "system.txt:2: endpoint-delay is '1\\x00'"),
        ("dimension: 2", "dimension: 0", "system.txt:3: active-chunks-per-dimension is 0; it sho"),
        ("splits: 64", "splits: 0", "system.txt:4: preferred-dataset-splits is 0; it should be"),
        ("boost-mode: 1", "splits: 4", "system.txt:5: unknown key 'splits'"),
        ("boost-mode: 1", "endpoint-delay: 3", "system.txt:5: key 'endpoint-delay' is given twi"),
        ("boost-mode: 1", "model-shared-bus: 1", "system.txt:5: model-shared-bus is on; only 0"),
        ("direct_ring_h", "direct__h", "system.txt:6: unknown collective implementation ''"),
        ("direct_ring_h", "direct_rnig_h", "system.txt:6: unknown collective implementation 'rn"),
        ("direct_ring_h", "direct_direct0_h", "unknown collective implementation 'direct0'"),
        ("localBWAware", "localBwAware", "system.txt:10: unknown collective-optimization 'local"),
        ("SCF", "scf", "system.txt:11: unknown intra-dimension-scheduling 'scf'"),
        ("themis", "thymus", "system.txt:12: unknown inter-dimension-scheduling 'thymus'"),
    ],
)
def test_errors_say_line_and_key(system, wrong, right, words):
    assert wrong in TEXT
    message = refusal(system, TEXT.replace(wrong, right, 1))
    assert words in message
    assert len(message) < 400


@pytest.mark.parametrize("line_end", ["\r\n", "\r"])
def test_lines_are_counted_whatever_their_ends(system, line_end):
    text = TEXT.replace("SCF", "scf").replace("\n", line_end)
    assert "system.txt:11: " in refusal(system, text)


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
    message = refusal(system, content)
    assert words in message
    assert len(message) < 1000


def test_missing_files(tmp_path):
    for path in (tmp_path / "system.txt", tmp_path):
        with pytest.raises(FormatError, match="cannot read"):
            read_native_system(path)


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
def test_records_check_what_files_check(system, change, words):
    with pytest.raises(HardwareError, match=words):
        replace(system(TEXT), **change)


# --- Properties --------------------------------------------------------------------------


@settings(max_examples=80)
@given(st.data())
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-system.txt"
    content = TEXT.encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 12))
        content = content[:at] + data.draw(st.binary(max_size=4)) + content[at + cut :]
    path.write_bytes(content)
    message = ""
    try:
        assert len(read_native_system(path).all_to_all_implementation) > 0
    except PerfModelError as error:
        message = str(error)
        assert str(path) in message
    assert message.isprintable()
    assert len(message) < 1000
