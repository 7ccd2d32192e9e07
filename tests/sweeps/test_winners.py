"""Counts and winners of blocks, put together, are those of the whole sweep."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np

from perfmodel.store.results import best, best_of_each
from perfmodel.store.scaling import scaling
from perfmodel.sweeps import winners as module
from perfmodel.sweeps.winners import BlockResult, Summary, joined, tally, winners
from tests.sweeps.block_sweeps import assert_same, whole

TOP = 4


def pieces():
    count = whole().sizes["strategy"]
    cuts = [0, 7, 100, 101, 300, count]
    parts = [whole().isel(strategy=slice(a, b)) for a, b in itertools.pairwise(cuts)]
    return [BlockResult(i, tally(part), winners(part, TOP)) for i, part in enumerate(parts)]


def summary(results):
    found = Summary(TOP)
    for result in results:
        found.add(result)
    return found


def numbered(table, rows):
    return [{**row, "strategy": int(table["strategy"].values[row["strategy"]])} for row in rows]


def test_winners_of_parts_answer_what_the_whole_answers():
    table = summary(pieces()).table()
    assert table.sizes["strategy"] < whole().sizes["strategy"] / 2
    assert numbered(table, best(table, TOP)) == list(best(whole(), TOP))
    apart = ["model", "framework", "hardware"]
    assert numbered(table, best_of_each(table, apart)) == list(best_of_each(whole(), apart))
    assert numbered(table, scaling(table)) == list(scaling(whole()))


def test_counts_add_up():
    counts = summary(pieces()).counts
    assert counts == tally(whole())
    finite = np.isfinite(whole()["step_time"].values)
    assert counts.possible == finite.sum(axis=0).tolist()
    assert counts.lacking[0] > 0 == counts.lacking[1]  # A100 has no rate for fp8
    assert counts.possible[0] + counts.lacking[0] == whole().sizes["strategy"]
    memory = np.where(finite, whole()["memory_total"].values, np.inf)
    assert counts.least_memory == memory.min(axis=0).tolist()


def test_the_order_in_which_blocks_come_changes_nothing(monkeypatch):
    expected = summary(pieces()).table()
    shuffled = pieces()
    random.Random(3).shuffle(shuffled)
    monkeypatch.setattr(module, "MOST_KEPT", 20)  # winnowed on the way
    assert_same(summary(shuffled).table(), expected)


def test_a_line_of_json_has_every_digit():
    for result in pieces():
        line = result.to_json()
        assert "\n" not in line
        read = BlockResult.from_json(json.loads(line), whole().isel(strategy=[0]))
        assert (read.number, read.tally) == (result.number, result.tally)
        assert_same(read.winners, result.winners)


def test_nothing_that_fits_leaves_what_is_possible():
    table = whole()
    none = table.isel(strategy=np.flatnonzero(~table["fits"].values.any(axis=1))[:5])
    kept = winners(none, TOP)
    assert kept.sizes["strategy"] > 0
    assert tally(none).fitting == [0, 0]
    assert_same(joined([none]), none)
