"""What nodes send for experts, against a count token by token."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.twin import exchange
from perfmodel.wafer.twin.exchange import exchange_counts
from tests.wafer.twin.examples import ITERATIONS, routed


@pytest.mark.parametrize("name", ["clusters", "guessed", "prefill", "multicast", "allgather"])
def test_counted_token_by_token(name, monkeypatch):
    iteration = ITERATIONS[name]
    experts = routed(iteration).of_layer(0)
    nodes = iteration.system.nodes
    dispatched, tokens, returned, produced = (np.zeros(nodes, int) for _ in range(4))
    pairs = set()
    for sequence in range(iteration.batch):
        owner, shared = iteration.owners[sequence], iteration.shared_nodes[sequence]
        for chosen in experts[sequence]:
            homes = [*iteration.expert_nodes[chosen], shared]
            others = set(homes) - {owner}
            dispatched[owner] += len(others)
            tokens[owner] += bool(others)
            for home in homes:
                produced[home] += 1
                returned[home] += home != owner
                pairs.add((home, owner))
    whole = exchange_counts(iteration, experts)
    monkeypatch.setattr(exchange, "CELLS", 1)  # one sequence at a time
    for counts in (whole, exchange_counts(iteration, experts)):
        assert (counts.loads == np.bincount(experts.ravel(), minlength=12)).all()
        assert (counts.dispatched == dispatched).all()
        assert (counts.sent_tokens == tokens).all()
        assert (counts.returned == returned).all()
        assert (counts.produced == produced).all()
        assert counts.receivers.tolist() == [
            sum(a == node for a, _ in pairs) for node in range(nodes)
        ]


def test_one_node_sends_nothing():
    iteration = ITERATIONS["one node"]
    counts = exchange_counts(iteration, routed(iteration).of_layer(1))
    assert counts.dispatched.sum() == counts.returned.sum() == 0
    assert counts.loads.sum() == 9


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
        exchange_counts(ITERATIONS["clusters"], experts)
