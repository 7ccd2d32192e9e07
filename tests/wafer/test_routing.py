"""Experts from files and drawn ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.model.presets import load_model
from perfmodel.wafer.routing import core_routing, read_routing, write_routing
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem
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


def setting_of(model: str = "mixtral-8x7b", phase: str = "decode", length: int = 40) -> CoreSetting:
    system = WaferSystem(nodes=4, node_grid=(2, 2), data_parallel=4, expert_parallel=4)
    return CoreSetting(load_model(model), system, phase, 6, length)


def test_written_routing_is_read_as_it_was(tmp_path: Path) -> None:
    setting, path = setting_of(), tmp_path / "routing.npz"
    drawn = core_routing(setting, "two_level", 3)
    write_routing(path, setting, drawn, (0, 9))
    read = core_routing(setting, str(path))
    for step in (0, 9):
        for layer in (0, 31):
            assert (read(step, layer) == drawn(step, layer)).all()
    with pytest.raises(DataError, match="has steps 0, 9, not 4"):
        read(4, 0)


def test_popularity_stays_from_step_to_step() -> None:
    """Tokens are drawn anew, from the same experts' popularity."""
    system = WaferSystem(nodes=1, node_grid=(1, 1))
    setting = CoreSetting(load_model("mixtral-8x7b"), system, "decode", 4000, 40)
    routing = core_routing(setting, "two_level")
    first, other, layer = (
        np.bincount(routing(*at).ravel(), minlength=8) for at in ((0, 0), (1, 0), (0, 1))
    )
    assert (routing(0, 0) != routing(1, 0)).any()
    assert abs(first - other).max() < 200 < abs(first - layer).max()


def test_drawn_tokens_stand_for_a_prompt() -> None:
    setting = setting_of(phase="prefill")
    assert core_routing(setting, "uniform", 0, 60)(0, 0).shape == (6, 10, 2)
    assert core_routing(setting, "uniform", 0, 2)(0, 0).shape == (6, 1, 2)
    assert core_routing(setting, "uniform")(0, 0).shape == (6, 40, 2)


def test_steps_need_a_side(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, experts=np.tile([1, 2], (6, 1, 1)), steps=np.array([0]))
    with pytest.raises(DataError, match="should be steps x"):
        core_routing(setting_of(), str(path))


def test_written_where_it_can_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"end in \.npz"):
        write_routing(
            tmp_path / "routing.txt", setting_of(), core_routing(setting_of(), "uniform"), (0,)
        )
    dense = setting_of("llama-3.1-8b")
    with pytest.raises(DataError, match="has no experts"):
        write_routing(tmp_path / "routing.npz", dense, core_routing(dense, "uniform"), (0,))
