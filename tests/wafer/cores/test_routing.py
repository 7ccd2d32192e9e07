"""Experts from files and drawn ones."""

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.wafer.cores.routing import core_routing, read_routing
from tests.wafer.cores.examples import setting


def test_a_file_counts_for_all_steps(tmp_path: Path) -> None:
    made = setting("absorbed")
    experts = np.argsort(np.random.default_rng(1).random((5, 1, 256)))[..., :8]
    np.savez(tmp_path / "one.npz", experts=experts)
    routing = core_routing(made, str(tmp_path / "one.npz"))
    assert (routing(0, 3) == experts).all()
    assert (routing(4, 60) == experts).all()


def test_draws_differ_by_layer_and_seed_only() -> None:
    made = setting("absorbed")
    one, other = core_routing(made, "two_level", 1), core_routing(made, "two_level", 2)
    assert (one(0, 3) == core_routing(made, "two_level", 1)(0, 3)).all()
    assert (one(0, 3) != one(0, 4)).any()
    assert (one(0, 3) != one(1, 3)).any()
    assert (one(0, 3) != other(0, 3)).any()
    # DeepSeek-V3 routes a token to 4 of 8 groups of experts.
    assert max(len(set(row)) for row in (one(0, 3)[:, 0] // 32).tolist()) <= 4


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"a": np.zeros((5, 1, 8), int), "b": np.zeros(3)}, "no array 'experts'"),
        ({"experts": np.tile(np.arange(8), (4, 1, 1))}, "asked for are 58"),
        ({"experts": np.tile(np.arange(8), (2, 5, 1, 1))}, "asked for are 58"),
        ({"experts": np.zeros((5, 1, 8), int)}, "twice"),
        ({"experts": np.tile(np.arange(8) + 250, (5, 1, 1))}, "0 to 255"),
        ({"experts": np.zeros((5, 1, 8))}, "whole numbers"),
        ({"experts": np.zeros((5, 8), int)}, "4 dimensions"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict, word: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=word):
        core_routing(setting("absorbed"), str(tmp_path / "bad.npz"))


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "no.npz").write_text("no")
    with pytest.raises(DataError, match="cannot be read"):
        read_routing(tmp_path / "no.npz", 8)
    with pytest.raises(DataError, match="No such file"):
        read_routing(tmp_path / "missing.npz", 8)
    np.save(tmp_path / "array.npy", np.zeros((1, 1, 1), int))
    with pytest.raises(DataError, match=r"\.npz"):
        read_routing(tmp_path / "array.npy", 8)
    with pytest.raises(DataError, match="has no experts"):
        core_routing(setting("stages"), "file.npz")
