"""How cells about the machine of a measured run are understood."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.measured.row_hardware import device_bandwidth, hardware_of, profile_name
from perfmodel.measured.rows import MeasuredRow
from tests.data import table_of


def row(**cells: Any) -> MeasuredRow:
    basic = {"hardware": "H100-80GB-SXM", "n_gpus": "64", "precision": "fp8"}
    return MeasuredRow({**basic, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cells", "path", "value"),
    [
        *table_of(__file__, "hardware_cells"),
        # Jean Zay: 4 Omni-Path links of 100 Gb/s per node of 8 A100, 2.6 GB/s per channel.
        (
            {"hardware": "A100-80GB-SXM", "scaleout_link": "50Gb/s/GPU (4 Omni-Path 100Gb links)"},
            "system.network.1.bandwidth",
            2.6e9 / 0.952,
        ),
    ],
)
def test_hardware_cells(cells: dict[str, Any], path: str, value: float) -> None:
    hardware, _ = hardware_of(row(**cells))
    assert hardware.value(path) == pytest.approx(value)


def test_a_profile_is_left_alone_where_the_row_repeats_it() -> None:
    hardware, notes = hardware_of(
        row(gpus_per_node=8, scaleup_link="NVLink4 900GB/s bidir", scaleout_link="400Gb/s/GPU IB")
    )
    assert hardware.overrides == {}
    assert notes == ()


@pytest.mark.parametrize(
    ("cell", "profile"),
    [
        ("H100-80GB-SXM (HGX)", "dgx-h100"),
        ("8x H100", "dgx-h100"),
        ("AMD Instinct MI355X", "mi355x-server"),
        ("GB200 NVL72 (192GB)", "gb200-nvl72"),
        ("TPU v5p-256", "tpu-v5p-pod"),
        ("B300-270GB", "dgx-b300"),
        ("H100-96GB-HBM2e(500W)", "h100-96gb-hbm2e"),
        ("A100-class (MegaScale)", "dgx-a100"),
    ],
)
def test_spellings_of_devices(cell: str, profile: str) -> None:
    hardware, notes = hardware_of(row(hardware=cell))
    assert hardware.name.partition("[")[0] == profile
    known = profile_name(cell)
    assert (known == cell) != any(f"'{cell}' is read as" in note for note in notes)
    assert profile_name("abacus") == ""


@pytest.mark.parametrize(
    ("text", "gigabits"),
    table_of(__file__, "networks_of_a_cell"),
)
def test_networks_of_a_cell(text: str, gigabits: float) -> None:
    assert device_bandwidth(text, 8) * 8 / 1e9 == pytest.approx(gigabits)
