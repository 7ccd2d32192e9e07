"""nanotron's configuration: the sample, defaults, bad input."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import PerfModelError
from perfmodel.launch.software import parse_launch, read_launch
from tests.data import launch_sample, table_of


def test_the_sample() -> None:
    name, launch = read_launch(launch_sample("nanotron.yaml"))
    assert name == "nanotron"
    assert launch.devices == 64
    assert launch.model is not None
    assert launch.model.num_layers == 32
    expected = {
        "global_batch_size": 4 * 16 * 2,
        "pipeline_schedule": "1f1b",
        "sequence_parallel": True,
        "zero_stage": 1,
        "recompute": "none",
        "precision": "bf16",
    }
    assert {key: launch[key] for key in expected} == expected
    assert launch.framework.name.partition("[")[0] == "nanotron"
    assert launch.framework.overlap_tensor_parallel == "backward"


def test_defaults_are_conservative() -> None:
    text = launch_sample("nanotron.yaml").read_text(encoding="utf-8")
    for line in ("  pp_engine: 1f1b\n", "  tp_mode: REDUCE_SCATTER\n", "  zero_stage: 1\n"):
        text = text.replace(line, "")
    text = text.replace("  tp_linear_async_communication: true\n", "")
    _, launch = parse_launch(text, "x.yaml")
    assert (launch["pipeline_schedule"], launch["sequence_parallel"]) == ("gpipe", False)
    assert launch["zero_stage"] == 0
    assert launch.framework.overlap_tensor_parallel == "none"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    table_of(__file__, "bad_input_is_one_line_with_the_key"),
)
def test_bad_input_is_one_line_with_the_key(old: str, new: str, message: str) -> None:
    text = launch_sample("nanotron.yaml").read_text(encoding="utf-8").replace(old, new)
    with pytest.raises(PerfModelError) as caught:
        parse_launch(text, "x.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
