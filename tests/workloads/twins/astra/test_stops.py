"""What the real ASTRA-sim refuses while it reads its files."""

from __future__ import annotations

import pytest

from perfmodel.workloads.formats.astra_machine import AstraNetwork
from perfmodel.workloads.trace import TraceBuilder
from perfmodel.workloads.twins.astra.stops import missing_parent
from perfmodel.workloads.twins.astra.versions import NO_FIGURES
from tests.workloads.simulation.made import micros
from tests.workloads.twins.astra.stop_cases import end, everywhere, good, only, stops

TWO = AstraNetwork(("Switch", "Ring"), (2, 2), (50.0, 25.0), (500.0, 500.0))
MESH = AstraNetwork(("Mesh2D",), (4,), (50.0,), (500.0,))
EIGHT = AstraNetwork(("Ring",), (8,), (50.0,), (500.0,))


def lonely(builder, rank):
    micros(builder, "a", 1, data=[7] if rank == 1 else [])


def circle(builder, rank):
    micros(builder, "a", 1, data=[1] if rank == 2 else [])
    micros(builder, "b", 1, data=[0])


def nothing(builder, rank):
    if rank != 3:
        micros(builder, "a", 1)


@pytest.mark.parametrize(
    ("build", "settings", "words", "code"),
    [
        (good, {"network": MESH}, "topology Mesh2D", 255),
        (
            good,
            {"network": TWO, "engine": "congestion-aware", "algorithm": ("ring", "ring")},
            "knows one dimension, and the network has 2",
            255,
        ),
        (good, {"network": EIGHT}, "8 devices, but there are files of 4 ranks", 1),
        (lonely, {}, "rank 1, node 0 .a. waits for node 7, which is not in the file", -6),
        (circle, {}, "every node of rank 2 waits for another one", -6),
        (nothing, {}, "the trace of rank 3 has no node", -6),
    ],
)
@pytest.mark.parametrize("version", ["main", "af2492b"])
def test_files_that_are_refused(build, settings, words, code, version):
    traces = everywhere(build)
    stop = only(stops(traces, version, **settings))
    assert words.replace(".a.", "(a)") in stop.what
    assert end([stop], traces) == ((code,), (NO_FIGURES,) * 4)


def test_more_algorithms_than_dimensions_abort():
    found = stops(everywhere(good), algorithm=("ring", "ring"))
    assert [stop.exit_codes for stop in found] == [(-6,)] * 4
    assert "all-reduce-implementation has 2 entries for 1 dimension" in found[0].what
    assert not stops(everywhere(good), algorithm=("oneRing", "ring"))


@pytest.mark.parametrize(
    ("name", "aborts"),
    [("1", False), ("12 tensor", False), ("tensor", True), ("0", True), ("-3", True)],
)
def test_groups_of_main_are_numbers_above_0(name, aborts):
    """C++'s stoi reads a number at the front, and set_id asserts that it is above 0."""
    traces = everywhere(good, groups={name: (0, 1)})
    assert not stops(traces, "af2492b")
    found = stops(traces, "main")
    assert len(found) == aborts
    if aborts:
        assert found[0].exit_codes == (-6,)
        assert f"'{name}'" in found[0].what


@pytest.mark.parametrize("gap", [False, True])
def test_missing_parents_are_found_whatever_the_identifiers(gap):
    builder = TraceBuilder()
    first = micros(builder, "a", 1)
    second = micros(builder, "b", 1, data=[first], identifier=9 if gap else 1)
    assert missing_parent(builder.build()) is None
    micros(builder, "c", 1, data=[second], control=[5], identifier=10 if gap else 2)
    assert missing_parent(builder.build()) == (2, 5)
