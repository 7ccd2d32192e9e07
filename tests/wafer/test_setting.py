"""What is asked, and what is refused of it."""

import dataclasses

import pytest

from perfmodel import load_model
from perfmodel.base.errors import ModelError, PerfModelError, StrategyError
from perfmodel.wafer.setting import CoreSetting, key_starts
from perfmodel.wafer.system import WaferSystem
from tests.wafer.cores.examples import LATENT, setting


def test_groups_of_a_cluster() -> None:
    made = setting("absorbed")
    assert made.group(5, "cluster") == (4, 5, 6, 7)
    assert made.group(5, "tensor") == (4, 5)
    assert made.group(5, "sequence") == (5, 7)
    assert [int(made.local_batch[node]) for node in (0, 4)] == [3, 2]
    stages = setting("stages")
    assert (stages.stage_layers(0), stages.stage_layers(7)) == (range(16), range(16, 32))
    assert stages.group(6, "stage") == (4, 5, 6, 7)


def test_pages_are_of_one_size_but_the_last() -> None:
    assert key_starts(setting("absorbed"), 9).tolist() == [0, 5, 9]
    assert key_starts(setting("absorbed"), 1).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"batch": 0}, "'batch'"),
        ({"batch": True}, "'batch'"),
        ({"batch": 2**31}, "exceed"),
        ({"input_length": 0}, "'input_length'"),
        ({"input_length": 10**6}, "positions"),
        ({"speculative": -1}, "'speculative'"),
        ({"phase": "both"}, "'phase'"),
        ({"system": dataclasses.replace(LATENT, core_grid=(999, 999))}, "'core_grid'"),
        (
            {"system": WaferSystem(5000, (50, 100), data_parallel=5000, expert_parallel=5000)},
            "node",
        ),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, object], word: str) -> None:
    with pytest.raises(StrategyError, match=word):
        dataclasses.replace(setting("absorbed"), **changes)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "mamba-2.8b", "t5-11b"])
def test_models_without_a_rule_say_why(name: str) -> None:
    try:
        model = load_model(name)
    except PerfModelError:
        pytest.skip(f"no preset {name}")
    with pytest.raises(ModelError, match="core level"):
        CoreSetting(model, LATENT, "decode", 8, 16)
