"""What the real ASTRA-sim does with collectives of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.twins.astra.stops import find_stops
from perfmodel.workloads.twins.astra.versions import ALL_FIGURES, NO_FIGURES, VERSIONS
from tests.workloads.simulation.made import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, micros, reduce_of
from tests.workloads.twins.astra.stop_cases import end, everywhere, good, only, stops

TWO = AstraNetwork(("Switch", "Ring"), (2, 2), (50.0, 25.0), (500.0, 500.0))
SPLIT = {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}


def two_groups(first, second):
    def build(builder, rank):
        one = reduce_of(builder, "one", kind=first, group="12"[rank // 2])
        reduce_of(builder, "two", kind=second, group="34"[rank % 2], data=[one])

    return everywhere(build, groups=SPLIT)


def test_main_frees_an_algorithm_of_two_groups_twice():
    """CommunicatorGroup.cc: the rule for all 60 runs of main in the reference data."""
    shared = two_groups(ALL_REDUCE, ALL_REDUCE)
    stop = only(stops(shared))
    assert "rank 0 runs all_reduce in groups 1 and 3" in stop.what
    assert end([stop], shared) == ((-6, -11, 0), (ALL_FIGURES,) * 4)
    assert not stops(shared, "af2492b")  # a ring of its own for each
    assert not stops(two_groups(ALL_REDUCE, ALL_GATHER))
    assert not stops(shared, network=TWO, algorithm=("ring", "ring"))


def test_groups_of_all_ranks_free_nothing():
    whole = {"1": (0, 1, 2, 3), "2": (3, 2, 1, 0)}
    traces = everywhere(
        lambda b, rank: [reduce_of(b, name, group=name) for name in whole], groups=whole
    )
    assert not stops(traces)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("group", "groups", "words", "code"),
    [
        ("7", {}, "names communicator group '7', which has no list of ranks", 1),
        ("7", {"7": (0, 1)}, "names group '7', of which rank 2 is no member", -6),
    ],
)
def test_groups_that_do_not_fit(version, group, groups, words, code):
    traces = everywhere(lambda b, rank: reduce_of(b, "sum", group=group), groups=groups)
    stop = only(stops(traces, version))
    assert words in stop.what
    assert end([stop], traces) == ((code,), (NO_FIGURES,) * 4)


def test_a_group_of_one_rank_never_ends():
    def build(builder, rank):
        good(builder)
        if rank == 3:
            reduce_of(builder, "mine", group="1")

    traces = everywhere(build, groups={"1": (3,)})
    stop = only(stops(traces))
    assert (stop.kind, "rank 3, node 2 (mine)" in stop.what) == ("never ends", True)
    assert end([stop], traces)[0] == (0,)


@pytest.mark.parametrize(
    ("attribute", "version"), [("involved_dim", "main"), ("involve_dims", "af2492b")]
)
def test_collectives_that_involve_no_dimension_never_end(attribute, version):
    """Each version reads its own attribute."""
    traces = everywhere(lambda b, rank: reduce_of(b, "sum", involved=(False,)))
    one = replace(
        traces,
        traces=tuple(replace(trace, involved_attributes=(attribute,)) for trace in traces.traces),
    )
    for name in VERSIONS:
        assert len(stops(one, name)) == (name == version)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_endpoint_delay_aborts_where_a_collective_of_all_ranks_comes_first(version):
    """EventQueue.cpp:33; the rows ASSERT_FAIL of the reference data."""
    first = everywhere(lambda b, rank: reduce_of(b, "sum"))
    stop = only(stops(first, version, endpoint_delay_nanoseconds=0))
    assert end([stop], first) == ((-6,), (NO_FIGURES,) * 4)
    assert not stops(everywhere(good), version, endpoint_delay_nanoseconds=0)
    assert not stops(first, version, endpoint_delay_nanoseconds=1)


def test_halving_doubling_has_no_all_to_all_and_wants_powers_of_two():
    system = replace(uniform_system(["ring"]), all_to_all_implementation=("halvingDoubling",))
    traces = everywhere(lambda b, rank: reduce_of(b, "swap", kind=ALL_TO_ALL))
    network = AstraNetwork(("Ring",), (4,), (50.0,), (500.0,))
    for version in VERSIONS.values():
        stop = only(find_stops(traces, network, system, version))
        assert (stop.kind, stop.exit_codes) == ("refuses", (1,))
    three = everywhere(lambda b, rank: reduce_of(b, "sum"), 3)
    network = AstraNetwork(("Ring",), (3,), (50.0,), (500.0,))
    stop = only(stops(three, network=network, algorithm=("halvingDoubling",)))
    assert "halvingDoubling on 3 devices" in stop.what


def test_subgroups_of_main_have_the_single_algorithm():
    traces = everywhere(
        lambda b, rank: (
            reduce_of(b, "swap", kind=ALL_TO_ALL, group="12"[rank // 2])
            if rank
            else [micros(b, "work", 1), reduce_of(b, "swap", kind=ALL_TO_ALL, group="1")]
        ),
        groups=SPLIT,
    )
    assert only(stops(traces, algorithm=("halvingDoubling",))).kind == "refuses"
    assert not stops(traces, "af2492b", algorithm=("halvingDoubling",))
