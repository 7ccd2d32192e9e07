"""What would be possible instead: checked by asking for it."""

from __future__ import annotations

import re

import pytest

from perfmodel.analysis.single import one_strategy
from perfmodel.base.errors import StrategyError
from perfmodel.model.presets import load_model
from perfmodel.strategy.enumerate import enumerate_strategies, possible_instead, strategy_grid
from perfmodel.strategy.grid import VALID
from perfmodel.strategy.nearby import virtual_degrees

RUN = {"sequence_length": 4096, "global_batch_size": 256}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama-3.1-405b", {"tensor_parallel": 8, "pipeline_parallel": 16}),  # 126 + 2 layers
        ("llama-3.1-8b", {"pipeline_parallel": 4}),
        ("llama-3.1-8b", {"pipeline_parallel": 8, "global_batch_size": 96}),
    ],
)
def test_every_virtual_degree_named_is_possible(model, changes):
    spec, axes = load_model(model), RUN | changes
    devices = axes.get("tensor_parallel", 1) * axes["pipeline_parallel"] * 4
    found = virtual_degrees(spec, one_strategy(spec, devices, axes))
    assert found == sorted(found)
    assert found
    for degree in found:
        assert one_strategy(spec, devices, axes | {"virtual_pipeline": degree}).status[0] == VALID


def test_there_is_nothing_to_interleave_without_a_pipeline_or_enough_batches():
    spec = load_model("llama-3.1-8b")
    assert virtual_degrees(spec, one_strategy(spec, 8, RUN)) == []
    few = RUN | {"pipeline_parallel": 8, "global_batch_size": 4}
    assert virtual_degrees(spec, one_strategy(spec, 8, few)) == []


@pytest.mark.parametrize(
    ("devices", "axes"),
    [
        (1000, {"global_batch_size": 2048}),
        (100, {"tensor_parallel": 8}),
        (24, {"tensor_parallel": 4, "pipeline_parallel": 4, "micro_batch_size": 1}),
    ],
)
def test_what_is_named_instead_is_possible(devices, axes):
    model, axes = load_model("llama-3.1-8b"), RUN | axes
    assert not len(enumerate_strategies(model, devices, axes).grid)
    text = possible_instead(model, devices, axes)
    counts = re.search(r"--devices ([\d, or]+)", text)
    batches = re.search(r"--global-batch ([\d, or]+)", text)
    assert counts
    for number in _numbers(counts.group(1)):
        assert len(enumerate_strategies(model, number, axes).grid)
    for number in _numbers(batches.group(1)) if batches else ():
        assert len(enumerate_strategies(model, devices, axes | {"global_batch_size": number}).grid)


def _numbers(text):
    return [int(item.replace(",", "")) for item in re.findall(r"\d[\d,]*\d|\d", text)]


def test_python_is_told_as_well():
    with pytest.raises(StrategyError, match=r"; --devices 512 or 1,024, or --global-batch"):
        strategy_grid("llama-3.1-70b", 1000, sequence_length=8192, global_batch_size=2048)


def test_nothing_is_named_where_nothing_near_is_possible():
    axes = RUN | {"tensor_parallel": 7}
    assert possible_instead(load_model("llama-3.1-8b"), 7, axes) == ""
