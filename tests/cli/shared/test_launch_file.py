"""``--from``: what a file leaves to the number of devices that the command line says."""

from __future__ import annotations

import pytest

from tests.cli.running import document
from tests.data import launch_sample

ON = ("--hardware", "dgx-h100")


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("maxtext.sh", ("--devices", "16"), {"data_parallel": 16, "global_batch_size": 32}),
        ("torchtitan.toml", (), {"data_parallel": 8, "global_batch_size": 64}),
        ("torchtitan.toml", ("--devices", "128"), {"data_parallel": 16, "global_batch_size": 128}),
        ("nanotron.yaml", ("--global-batch", "256"), {"global_batch_size": 256, "zero_stage": 1}),
    ],
)
def test_degrees_and_batches_follow_the_devices(
    name: str, arguments: tuple[str, ...], expected: dict[str, int]
) -> None:
    found = document("project", *arguments, "--from", str(launch_sample(name)), *ON)
    assert {key: found[key] for key in expected} == expected
