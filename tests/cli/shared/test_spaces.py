"""What is said where no strategy is possible, or none fits."""

from __future__ import annotations

from typing import Any

from perfmodel.base.strategy_fields import FIELDS
from perfmodel.cli.shared.spaces import nothing_possible, smaller
from perfmodel.hwprofiles import load_hardware
from perfmodel.model.presets import load_model

AXES: dict[str, Any] = {spec.name: None for spec in FIELDS}
PROBLEM = AXES | {"sequence_length": [1024], "global_batch_size": [8]}


def said(devices: int, **axes: Any) -> str:
    asked = {"models": [load_model("gpt2")], "hardware": [load_hardware("dgx-h100")]}
    asked |= {"devices": [devices], "axes": PROBLEM | axes}
    return str(nothing_possible(asked, {"devices_mismatch": 3}))


def test_the_reason_and_what_would_be_possible() -> None:
    text = said(6, tensor_parallel=[4])
    assert text.startswith("no strategy is possible on 6 devices: tensor × context × pipeline")
    assert "(3)" in text


def test_degrees_that_never_multiply_to_the_devices_are_named() -> None:
    text = said(8, tensor_parallel=[2], data_parallel=[2])
    assert text.endswith("with tensor_parallel 2, data_parallel 2; leave out --dp to derive it")


def test_only_what_is_not_tried_yet_would_need_less_memory() -> None:
    assert smaller(PROBLEM) == ["more devices", "or hardware with more memory"]
    tried = PROBLEM | {"recompute": ["full"], "zero_stage": [1], "micro_batch_size": [2]}
    assert smaller(tried)[1:-1] == ["--zero 3", "--micro-batch 1"]
