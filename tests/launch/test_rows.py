"""What starts a row of results: strategy, nodes and words, from the stored provenance alone."""

from __future__ import annotations

import pytest

from perfmodel import strategy_grid, sweep
from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.launch.rows import chosen_by, filled_nodes, launch_of_row
from perfmodel.store.results import as_table, best


@pytest.fixture(scope="module")
def swept() -> Table:
    run = {"sequence_length": 2048, "global_batch_size": 32, "tensor_parallel": [2, 4]}
    return as_table(sweep("llama-3.1-8b", strategy_grid("llama-3.1-8b", 16, **run), "dgx-h100"))


def test_a_row_is_a_launch_of_its_strategy(swept):
    (row,) = best(swept, 1)
    launch, lines = launch_of_row(swept, row, "s.nc", chosen_by(1, "s.nc", "step_time", "tp > 1"))
    assert launch.strategy["tensor_parallel"] == row["tensor_parallel"]
    assert launch.model.name == "llama-3.1-8b"
    assert (launch.devices, launch.devices_per_node) == (16, 8)
    assert lines[0] == (
        "llama-3.1-8b on 16 devices of dgx-h100: number 1 of s.nc by step_time where tp > 1"
    )
    assert lines[1].startswith("projected as megatron: ")


def test_results_that_do_not_say_what_was_swept_are_refused(swept):
    (row,) = best(swept, 1)
    bare = Table(swept.data_vars, swept.coords, {"provenance": "{}"}, swept.sizes)
    with pytest.raises(DataError, match=r"'s\.nc' does not say what was swept"):
        launch_of_row(bare, row, "s.nc", "")


@pytest.mark.parametrize(
    ("devices", "each", "filled"), [(16, 8, 8), (12, 8, 12), (4, 8, 4), (4, 0, 4)]
)
def test_nodes_are_those_of_the_profile_where_they_are_filled(devices, each, filled):
    assert filled_nodes(devices, each) == filled
