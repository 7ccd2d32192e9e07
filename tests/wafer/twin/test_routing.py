"""The generator's own draw of experts, against those that it kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.model.presets import load_model
from perfmodel.wafer.twin import routing as module
from perfmodel.wafer.twin.routing import GeneratorDraw, GeneratorRouting, Routes, digest
from tests.data import ROUTING_COUNTS, SHARED, WAFER, needed
from tests.wafer.twin.examples import ITERATIONS, LATENT, routed, system
from tests.wafer.twin.examples import iteration as iteration_of

LAYER = 7  # decode10, the eighth of DeepSeek-V3's layers with experts


@pytest.mark.parametrize(
    ("configuration", "empirical"), [("d07", False), ("d10", False), ("d16", True)]
)
def test_equals_what_the_generator_drew(configuration, empirical):
    with np.load(needed(SHARED / "wse/ref_routings_decode10.npz")) as kept:
        reference = kept[configuration]
    probabilities = np.ones((LAYER + 1, 256))
    if empirical:
        counts = json.loads(needed(ROUTING_COUNTS).read_text())
        probabilities = np.array([counts[str(layer)] for layer in range(LAYER + 1)])
    experts = GeneratorDraw(probabilities, 8).next_step(reference[0].size)
    assert (experts[LAYER].T.reshape(reference.shape) == reference).all()


def test_first_draw_of_torch():
    # torch.manual_seed(42); torch.multinomial(torch.ones(8), 3), three times (torch 2.13)
    drawn = GeneratorDraw(np.ones((3, 8)), 3).next_step(1)
    assert drawn[:, 0].tolist() == [[3, 0, 1], [0, 1, 2], [4, 0, 7]]


def test_parts_and_steps_continue_one_stream(monkeypatch):
    whole = GeneratorDraw(np.ones((1, 16)), 4).next_step(10)
    monkeypatch.setattr("perfmodel.wafer.twin.routing.NUMBERS_AT_ONCE", 3 * 16)
    draw = GeneratorDraw(np.ones((1, 16)), 4)
    parts = np.concatenate([draw.next_step(4), draw.next_step(6)], axis=1)
    assert (parts == whole).all()
    assert draw.next_step(0).shape == (1, 0, 4)


@pytest.mark.parametrize(
    ("probabilities", "top_k", "message"),
    [
        (np.ones(4), 2, "layers x experts"),
        (np.array([[1.0, np.nan]]), 1, "finite"),
        (np.array([[1.0, -1.0]]), 1, "not negative"),
        (np.array([[1.0, 0.0]]), 2, "2 experts of 1"),
        (np.ones((1, 4)), 5, "5 experts of 4"),
    ],
)
def test_refuses(probabilities, top_k, message):
    with pytest.raises(DataError, match=message):
        GeneratorDraw(probabilities, top_k)


def test_refuses_a_draw_without_end():
    with pytest.raises(DataError, match="at most"):
        GeneratorDraw(np.ones((1, 4)), 1).next_step(2**40)


DEEPSEEK = load_model("deepseek-v3")


def test_distributed_as_the_generator_does():
    with np.load(needed(WAFER / "ref_routings_decode10.npz")) as kept:
        reference = kept["d01"]
    iteration = iteration_of(DEEPSEEK, system(1), 32, 1, 1024)
    experts = GeneratorRouting({0: iteration}, "identical")(0).of_layer(7)
    assert (experts.transpose(2, 0, 1) == reference).all()


def test_steps_continue_one_stream():
    iteration = ITERATIONS["clusters"]
    both = GeneratorRouting({0: iteration, 9: iteration}, "uniform")
    first, last = both(0).experts, both(9).experts
    assert first.shape == (2, 7, 1, 3)
    assert (first != last).any()
    skipped = GeneratorRouting({0: iteration, 9: iteration}, "uniform")
    assert (skipped(9).experts == last).all()
    with pytest.raises(DataError, match="step 0 was drawn before"):
        skipped(0)


def test_wrong():
    iteration = ITERATIONS["clusters"]
    with pytest.raises(DataError, match="the generator has no 'two_level'; known: identical"):
        GeneratorRouting({0: iteration}, "two_level")
    with pytest.raises(DataError, match="needs counts per expert"):
        GeneratorRouting({0: iteration}, "empirical")
    with pytest.raises(DataError, match=r"counts of shape \(1, 12\); the model has \(2, 12\)"):
        GeneratorRouting({0: iteration}, "empirical", np.ones((1, 12)))
    with pytest.raises(DataError, match="7 tokens x 3 experts do not go evenly into 12"):
        GeneratorRouting({0: iteration}, "identical")(0)
    many = iteration_of(LATENT, iteration.system, 32, 1, 9)
    with pytest.raises(DataError, match="names the same expert twice"):
        GeneratorRouting({0: many}, "identical")(0)


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
