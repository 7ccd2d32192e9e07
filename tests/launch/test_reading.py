"""The end of reading: replicas, shard sets, the framework that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.located import Entry
from perfmodel.launch.reading import finished, nearest_framework, with_replicas
from perfmodel.launch.settings import Settings
from perfmodel.launch.table import load_program

DEGREES = {"tensor_parallel": 4, "pipeline_parallel": 2}


def sets(count: int) -> Settings:
    return Settings("file", {"instances": Entry(count, 3)})


def test_replicas_are_what_the_degrees_leave() -> None:
    assert with_replicas(sets(1), DEGREES, 64)["data_parallel"] == 8
    assert "shard_group" not in with_replicas(sets(1), DEGREES, 64)
    assert with_replicas(sets(2), DEGREES, 64, "instances")["shard_group"] == 4


def test_shard_sets_divide_the_ranks() -> None:
    with pytest.raises(FormatError, match=r"file:3: instances '3': should be a divisor of .* = 8"):
        with_replicas(sets(3), DEGREES, 64, "instances")


def test_without_a_number_of_devices_nothing_is_derived() -> None:
    settings = sets(2)
    assert with_replicas(settings, DEGREES, 0, "instances") == DEGREES
    assert "--shard-group says how many" in settings.remarks[0]


def test_devices_that_the_degrees_do_not_divide_are_refused() -> None:
    settings = sets(2)
    settings.fields["tensor_parallel"] = "instances"
    with pytest.raises(FormatError, match="file:3: instances 2, 12 devices: should be a multiple"):
        with_replicas(settings, DEGREES, 12, "instances")


def test_the_framework_that_needs_fewest_changes() -> None:
    presets = ("megatron", "megatron-tuned", "megatron-deepep")
    assert nearest_framework(presets, {"scaling": "delayed"}).name == "megatron"
    tuned = {"scaling": "current", "gradient_reduce_bytes": 2.0}
    assert nearest_framework(presets, tuned).name == "megatron-tuned"
    changed = nearest_framework(presets, {**tuned, "overlap_gradient_reduce": False})
    assert changed.name == "megatron-tuned[overlap_gradient_reduce=False]".replace("False", "false")


def test_what_is_watched_is_remarked_once() -> None:
    settings = Settings("file", {"offload": Entry(True), "rate": Entry(0.1), "off": Entry(False)})
    watched = {"offload": "not modelled", "off": "not modelled"}
    launch = finished(
        settings,
        {"tensor_parallel": 1},
        {},
        None,
        replace(load_program("megatron"), software=(), watched=watched),
        devices=0,
    )
    assert launch.remarks == ("offload: not modelled",)
    assert "data_parallel" not in launch.strategy
