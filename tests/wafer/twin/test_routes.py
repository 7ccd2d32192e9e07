"""Buffers between nodes and experts: every token once, in the generator's order."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.twin import routes as module
from perfmodel.wafer.twin.routes import Routes, digest
from tests.wafer.twin.examples import ITERATIONS, routed


@pytest.fixture(params=["clusters", "guessed", "multicast"])
def routes(request):
    iteration = ITERATIONS[request.param]
    return Routes(iteration, routed(iteration).of_layer(0))


def test_places_count_within_buffers(routes):
    nodes = range(routes.iteration.system.nodes)
    for source in nodes:
        for target in nodes:
            sent = routes.sent(source, target)
            assert sent == sorted(sent)
            assert len(sent) == routes.pairs[source, target]
            assert [routes.place[token, target] for token in sent] == list(range(len(sent)))
            back = routes.returned(source, target)
            assert len(back) == routes.back[source, target]
            assert [routes.back_place[at] for at in back] == list(range(len(back)))
            assert all(routes.owner[token] == target for token, _ in back)


def test_experts_take_tokens_by_rank_first(routes):
    for expert, tokens in enumerate(routes.of_expert):
        ranks = [routes.token_experts[token].tolist().index(expert) for token in tokens]
        order = list(zip(ranks, tokens.tolist(), strict=True))
        assert order == sorted(order)
        places = [routes.expert_place[token, rank] for rank, token in order]
        assert places == list(range(len(places)))
    assert sum(map(len, routes.of_expert)) == routes.tokens * 3


def test_shared_tokens_and_own_ones_are_contiguous(routes):
    nodes = range(routes.iteration.system.nodes)
    assert [token for node in nodes for token in routes.own(node)] == list(range(routes.tokens))
    for node in nodes:
        if tokens := routes.shared_tokens(node):
            first = routes.shared_start(node)
            assert tokens == list(range(first, first + len(tokens)))


def test_starts_of_experts_within_their_node(routes):
    starts, homes = routes.expert_starts(), routes.iteration.expert_nodes
    for expert, home in enumerate(homes):
        before = [e for e in range(expert) if homes[e] == home]
        assert starts[expert] == sum(len(routes.of_expert[e]) for e in before)


def test_names_and_their_digest(routes):
    length = routes.iteration.length
    assert routes.names[:2] == (["0.0", "1.0"] if length == 1 else ["0.0", "0.1"])
    assert digest(["5.0"]) == "336669DB"  # out_small of the generator
    assert digest(["7.0", "3.0"]) == "426CF50D"


def test_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 10)
    iteration = ITERATIONS["clusters"]
    with pytest.raises(DataError, match="rows of 7 tokens on 8 nodes are too many"):
        Routes(iteration, routed(iteration).of_layer(0))


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        (np.zeros((7, 1, 2), int), r"shape \(7, 1, 2\); batch, length .* are \(7, 1, 3\)"),
        (np.zeros((6, 1, 3), int), r"shape \(6, 1, 3\)"),
        (np.full((7, 1, 3), 12), "experts should be 0 to 11"),
        (np.full((7, 1, 3), -1), "experts should be 0 to 11"),
    ],
)
def test_wrong_routing(experts, said):
    with pytest.raises(DataError, match=said):
        Routes(ITERATIONS["clusters"], experts)
