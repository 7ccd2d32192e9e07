"""Pieces: what they hold, what a token meets, and what tensor parallelism cuts."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import Piece, matrix, parameters_of, vector


def test_what_a_piece_holds_and_a_token_meets() -> None:
    experts = Piece("expert_up", "matrix", 8, 16, True, "columns", copies=6, visited=2)
    assert experts.parameters == 6 * (8 * 16 + 16)
    assert experts.active_parameters == 2 * (8 * 16 + 16)
    assert experts.products == 2 * 8 * 16
    table = Piece("rows", "table", 100, 8)
    assert (table.parameters, table.products) == (800, 0)
    assert Piece("taps", "convolution", 4, 32, True).products == 4 * 32
    assert parameters_of([table, vector("norm", 8)]) == 808


def test_biases_are_cut_with_the_outputs_only() -> None:
    assert matrix("in", 8, 16, "columns", True).sharded == 8 * 16 + 16
    assert matrix("out", 16, 8, "rows", True).sharded == 8 * 16
    assert matrix("down", 8, 4, "whole", True).sharded == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "key 'name'"),
        ({"kind": "tensor"}, "key 'kind': 'tensor' should be one of matrix, vector"),
        ({"split": "half"}, "key 'split'"),
        ({"inputs": 0}, "key 'inputs': 0 should be a positive integer"),
        ({"visited": 2}, "key 'visited': 2 should be at most 'copies'"),
    ],
)
def test_a_piece_at_fault_names_the_key(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as error:
        Piece(**{"name": "x", **fields})  # type: ignore[arg-type]
    assert message in str(error.value)
