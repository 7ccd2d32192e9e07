"""Names and numbers of collectives: those of the kernels, of stored files, of each other."""

from __future__ import annotations

import importlib

import pytest

from perfmodel.base.collectives import (
    ALGORITHMS,
    ALGORITHMS_OF,
    COLLECTIVE_OF_WORD,
    COLLECTIVES,
    PROTOCOLS,
    SIMULATED,
    TRACED,
    WORDS,
)
from perfmodel.workloads.formats import astra_machine

ASTRA_TOPOLOGY = {"Ring": "RING_TOPOLOGY", "FullyConnected": "FULLY_CONNECTED", "Switch": "SWITCH"}
ASTRA_ALGORITHM = {"halvingDoubling": "HALVING_DOUBLING"}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("collective.algorithms", COLLECTIVES),
        ("collective.algorithms", ALGORITHMS),
        ("collective.tuning", PROTOCOLS),
        ("workloads.astra.phase", SIMULATED),
        (
            "workloads.astra.phase",
            [ASTRA_ALGORITHM.get(name, name) for name in astra_machine.ALGORITHMS],
        ),
        (
            "workloads.astra.phase",
            [ASTRA_TOPOLOGY[name] for name in astra_machine.UNAWARE_TOPOLOGIES],
        ),
    ],
)
def test_a_position_is_the_number_in_the_kernels(module, names):
    kernel = importlib.import_module(f"perfmodel.kernels.{module}")
    assert [getattr(kernel, name.upper()) for name in names] == list(range(len(names)))


def test_positions_in_traces_are_those_of_chakra():
    # enum CollectiveCommType of et_def.proto, mlcommons/chakra
    numbers = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6}
    numbers |= {"reduce_scatter": 7, "barrier": 9}
    assert {name: TRACED.index(name) for name in numbers} == numbers


def test_every_collective_has_algorithms_and_every_algorithm_a_collective():
    assert set(ALGORITHMS_OF) == set(COLLECTIVES)
    assert {name for names in ALGORITHMS_OF.values() for name in names} == set(ALGORITHMS)


def test_words_of_text_workloads_go_both_ways():
    assert WORDS["reduce_scatter"] == "REDUCESCATTER"
    assert {COLLECTIVE_OF_WORD[word]: word for word in WORDS.values()} == WORDS
