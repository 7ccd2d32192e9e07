"""Messages and collectives find their other ends, or are refused in one line."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    TraceSet,
)
from tests.workloads.simulation.made import SUM, built, costs, refused


@pytest.mark.parametrize("kind", [SEND, RECEIVE])
def test_messages_without_other_end(kind):
    ends = {"source": 0, "destination": 1} if kind == SEND else {"source": 1, "destination": 0}
    trace = built(("lonely", kind, {"communication_size": 8, "tag": 5} | ends))
    other = built(("work", COMPUTE, {}))
    text = refused(trace, other)
    verb = "receives" if kind == SEND else "sends"
    assert text.startswith("rank 0, node 0 (lonely)")
    assert f"with tag 5, but rank 1 never {verb} it" in text


def test_messages_of_two_sizes():
    give = built(("give", SEND, {"destination": 1, "communication_size": 8}))
    get = built(("get", RECEIVE, {"source": 0, "communication_size": 9}))
    text = refused(give, get)
    assert "rank 0, node 0 (give) sends 8 B, but rank 1, node 0 (get) receives 9 B" in text


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"source": 1, "destination": 0}, "moves data of rank 1"),
        ({"destination": 9}, "has a peer 9 that is no rank"),
        ({}, "has a peer -1 that is no rank"),
        ({"destination": 1, "communication_size": -1}, "states no comm_size"),
        ({"destination": 1, "communication_size": 0}, "asserts that none is empty"),
    ],
)
def test_wrong_messages(settings, reason):
    trace = built(("give", SEND, {"communication_size": 8} | settings))
    get = built(("get", RECEIVE, {"source": 0}))
    assert reason in refused(trace, get)


def test_collectives_that_differ_between_members():
    one = built(("a", COLLECTIVE, SUM), ("b", COLLECTIVE, SUM))
    two = built(("c", COLLECTIVE, SUM), ("d", COLLECTIVE, SUM | {"communication_size": 7}))
    text = refused(one, two)
    assert "collective 2 of the group of all ranks differs" in text
    assert "rank 0, node 1 (b): all_reduce of 1024 B; rank 1, node 1 (d): all_reduce of 7 B" in text
    fewer = built(("c", COLLECTIVE, SUM))
    assert "rank 1: none" in refused(one, fewer)
    none = built(("work", COMPUTE, {}))
    assert "but rank 1 has no such collective" in refused(one, none)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ({}, "rank 0, node 0 (sum): communicator group 'g' has no list of ranks; known: none"),
        ({"g": (0, 2)}, "names rank 2; the workload has ranks 0 to 1"),
        ({"g": (0, 0)}, "should name different ranks"),
        ({"g": ()}, "should name different ranks"),
        ({"g": (1,)}, "uses group 'g', which has no rank 0; it has 1"),
    ],
)
def test_wrong_groups(groups, reason):
    trace = built(("sum", COLLECTIVE, SUM | {"group": "g"}))
    assert reason in refused(trace, trace, groups=groups)


def test_a_group_of_one_has_nothing_to_do():
    trace = built(("sum", COLLECTIVE, SUM | {"group": "g"}))
    other = built(("work", COMPUTE, {"duration": 1e-6}))
    result = simulate(TraceSet((trace, other), {"g": (0,)}), costs())
    assert result.ticks("wall_time") == (0, 1000)


def test_group_0_and_no_group_are_all_ranks():
    """ASTRA-sim's main branch calls all ranks "0"; one rank may use both names."""
    named = built(
        *[
            (f"n{i}", COLLECTIVE, SUM | {"group": group, "data": [i - 1] if i else []})
            for i, group in enumerate(["", "0", ""])
        ]
    )
    plain = built(*[(f"n{i}", COLLECTIVE, SUM | {"data": [i - 1] if i else []}) for i in range(3)])
    expected = simulate(TraceSet((plain, plain)), costs()).ticks("wall_time")
    for ranks in ((named, named), (named, plain), (plain, named)):
        for symmetry in (True, False):
            result = simulate(TraceSet(ranks), costs(), symmetry=symmetry)
            assert result.ticks("wall_time") == expected
    # A workload that lists ranks of "0" means those.
    other = TraceSet((named, built(("w", COMPUTE, {}))), {"0": (0,)})
    with pytest.raises(FormatError, match="group of all ranks, but rank 1 has no such"):
        simulate(other, costs())


def test_messages_to_oneself_need_both_ends():
    give = ("give", SEND, {"destination": 0, "communication_size": 8})
    get = ("get", RECEIVE, {"source": 0, "communication_size": 8})
    idle = built(("work", COMPUTE, {"duration": 1e-6}))
    result = simulate(TraceSet((built(give, get), idle)), costs())
    assert result.ticks("wall_time") == (0, 1000)
    assert "rank 0 never receives it" in refused(built(give), idle)


def test_messages_of_one_tag_pair_up_in_order():
    sends = [("s", SEND, {"destination": 1, "tag": 3, "communication_size": n}) for n in (8, 16)]
    gets = [("r", RECEIVE, {"source": 0, "tag": 3, "communication_size": n}) for n in (8, 16)]
    assert simulate(TraceSet((built(*sends), built(*gets))), costs()).ticks("wall_time")[0] > 0
    text = refused(built(*sends), built(*gets[::-1]))
    assert "rank 0, node 0 (s) sends 8 B, but rank 1, node 0 (r) receives 16 B" in text
    assert "rank 0, node 1 (s) sends" in refused(built(*sends), built(gets[0]))
    text = refused(built(sends[0]), built(*gets))
    assert "rank 1, node 1 (r) receives" in text
    assert "but rank 0 never sends it" in text
