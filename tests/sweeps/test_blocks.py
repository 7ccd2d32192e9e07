"""The tables of blocks are those of the whole sweep, cut into pieces."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import xarray as xr

from perfmodel.base.errors import DataError, StrategyError
from perfmodel.store.cost import add_cost
from perfmodel.store.results import decide_safely
from perfmodel.sweeps.blocks import Journal, PartsStore, ZarrStore, described, differences
from perfmodel.sweeps.several import enumerate_problems
from perfmodel.sweeps.stored import joined
from tests.sweeps.block_sweeps import (
    AXES,
    BLOCK,
    asked,
    assert_same,
    at_once,
    blocks,
    small_whole,
    whole,
)


def test_choices_that_are_one_text_are_written_as_others_are(tmp_path):
    like = small_whole()
    for store in (ZarrStore(tmp_path), PartsStore(tmp_path)):
        store.create(like, 140, 70)
        for number in (0, 1):
            assert store.holds(number) == isinstance(store, ZarrStore)
            store.write(number, 70 * number, like.isel(strategy=slice(0, 70)))
            assert store.holds(number)
    found = xr.open_zarr(tmp_path / "results.zarr", consolidated=False).load()
    for name in ("mapping", "status", "recompute", "pipeline_schedule"):
        assert found[name][:70].values.tolist() == found[name][70:].values.tolist()
        assert found[name][70:].values.tolist() == like[name].labelled()[:70].tolist()
    document = json.loads((tmp_path / "results.zarr" / "zarr.json").read_text())
    assert "unfinished" in document["attributes"]


QUESTION = {"model": "llama", "tensor_parallel": [1, 2], "facts": {"layers": list(range(100))}}


def written(tmp_path, lines=('{"block": 0}',), question=QUESTION, resume=False):
    journal = Journal(tmp_path / "out.zarr")
    with journal.opened(question, resume) as done:
        for line in lines:
            journal.add(line)
    return journal, done


def test_what_is_done_is_found_again(tmp_path):
    journal, done = written(tmp_path)
    assert done == []
    assert written(tmp_path, ['{"block": 2}'], resume=True)[1] == [{"block": 0}]
    assert written(tmp_path, [], resume=True)[1] == [{"block": 0}, {"block": 2}]
    assert journal.folder == tmp_path / "out.zarr.partial"


def test_a_line_that_was_cut_off_is_not_done(tmp_path):
    journal, _ = written(tmp_path)
    with (journal.folder / "journal").open("a") as file:
        file.write('{"block": 1, "ta')
    assert written(tmp_path, ['{"block": 1}'], resume=True)[1] == [{"block": 0}]
    assert written(tmp_path, [], resume=True)[1] == [{"block": 0}, {"block": 1}]


def test_without_a_block_nothing_stays(tmp_path):
    written(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def test_what_is_finished_goes(tmp_path):
    journal = Journal(tmp_path / "out.nc")
    with journal.opened(QUESTION, False):
        journal.add('{"block": 0}')
        journal.finished = True
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_refused(tmp_path):
    written(tmp_path)
    with (
        Journal(tmp_path / "out.zarr").opened(QUESTION, True),
        pytest.raises(DataError, match=r"out\.zarr' is being written by another run"),
        Journal(tmp_path / "out.zarr").opened(QUESTION, True),
    ):
        pass
    assert written(tmp_path, [], resume=True)[1] == [{"block": 0}]


def test_what_is_left_is_not_overwritten_unasked(tmp_path):
    written(tmp_path)
    with pytest.raises(DataError, match="holds an unfinished sweep; --resume goes on with it"):
        written(tmp_path)


def test_another_question_is_told_by_what_differs(tmp_path):
    written(tmp_path)
    other = {"model": "llama", "tensor_parallel": [1, 4], "facts": {"layers": [1] * 100}, "x": 3}
    with pytest.raises(DataError) as error:
        written(tmp_path, question=other, resume=True)
    text = str(error.value)
    assert "with other options: tensor_parallel ([1, 2] then, [1, 4] now); facts; x (" in text
    assert "not given then, 3 now" in text
    assert written(tmp_path, [], resume=True)[1] == [{"block": 0}]


def test_long_values_are_told_by_digest_only():
    told = described(QUESTION)
    assert told["facts"].startswith("#")
    assert len(told["facts"]) == 17
    assert differences(told, told) == []


def test_a_damaged_journal_is_one_line(tmp_path):
    journal, _ = written(tmp_path)
    (journal.folder / "journal").write_text("not JSON\n")
    with pytest.raises(DataError, match="is damaged; remove"):
        written(tmp_path, resume=True)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "out.zarr.partial").write_text("a file of that name")
    with pytest.raises(DataError, match="cannot write"):
        written(tmp_path)
    assert (tmp_path / "out.zarr.partial").read_text() == "a file of that name"


def test_blocks_are_the_sweep_cut_into_pieces():
    sweep = blocks()
    assert sweep.count == whole().sizes["strategy"] > 2 * BLOCK
    assert sweep.count % BLOCK  # so that the last is shorter, and problems begin within blocks
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), whole())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_costs_safety_and_number_types_hold_in_every_block(dtype):
    costs = {"tokens": 1e12, "price": {"dgx-h100": 2.5}, "goodput": True}
    sweep = blocks(costs=costs, safe=True, dtype=dtype)
    expected = at_once(dtype=dtype)
    decide_safely(expected)
    expected = add_cost(expected, **costs)
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), expected)


def test_one_problem_has_no_coordinates_of_problems():
    one = {"frameworks": asked()["frameworks"][:1], "devices": [8], "keep_impossible": True}
    sweep = blocks(**one)
    expected = at_once(**one)
    del expected.attrs["scaling"]
    tables = [sweep.table(*sweep.bounds(number)) for number in range(sweep.blocks)]
    assert_same(joined(tables), expected)
    assert "framework" not in tables[0]


def test_numbers_that_need_64_bits_have_them_in_every_block():
    axes = {**AXES, "global_batch_size": [64, 2**32]}
    one = {"axes": axes, "frameworks": asked()["frameworks"][:1], "devices": [8]}
    sweep = blocks(**one)
    assert sweep.table(0, 1)["global_batch_size"].values.dtype == np.int64
    assert sweep.table(0, 1)["tensor_parallel"].values.dtype == np.int8
    assert sweep.table(0, 1)["tensor_parallel"].labelled().dtype == np.int32


def test_what_is_impossible_is_counted_as_by_one_enumeration():
    given = asked(axes={**AXES, "tensor_parallel": [3, 16], "pipeline_parallel": 1})
    sweep, found = blocks(axes=given["axes"]), enumerate_problems(**given)
    assert sweep.rejected == found.rejected
    assert sweep.possible == found.possible
    assert set(sweep.empty) == set(found.empty) == {("llama-3.1-8b", 8)}


def test_it_is_small_to_send():
    assert len(pickle.dumps(blocks())) < 300_000


def test_models_of_one_name_are_refused():
    with pytest.raises(StrategyError, match="two models are called"):
        blocks(models=asked()["models"] * 2)
