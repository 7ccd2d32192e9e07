"""Rows of hardware: profiles times swept values."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.rows import MAX_ROWS, hardware_rows, memory_errors, memory_width


def test_every_combination_of_swept_values_makes_a_row() -> None:
    swept = {"device.tdp": [300.0, 400.0], "device.memory.bandwidth": [1e12, 2e12, 2e12]}
    rows, values = hardware_rows(["dgx-h100", "dgx-a100"], {}, swept)
    assert values["device.tdp"] == [300.0, 300.0, 400.0, 400.0] * 2
    assert values["device.memory.bandwidth"] == [1e12, 2e12] * 4  # no value twice
    assert [row.device.tdp for row in rows] == values["device.tdp"]
    assert [row.name for row in rows][::4] == ["dgx-h100", "dgx-a100"]


def test_a_profile_counts_once_by_whatever_name_and_settings_reach_every_row() -> None:
    rows, values = hardware_rows(["dgx-h100", "H100_SXM"], {"device.tdp": 500.0}, {})
    assert ([row.name for row in rows], values) == (["dgx-h100"], {})
    assert rows[0].device.tdp == 500.0


@pytest.mark.parametrize(
    ("settings", "swept", "message"),
    [
        ({"device.tdp": 300.0}, {"device.tdp": [400.0]}, "'device.tdp' is both set and swept"),
        ({}, {"device.tdp": [float(i) for i in range(MAX_ROWS + 1)]}, "make 20,001 rows of hard"),
        ({}, {"tdp": [400.0]}, "has no value at 'tdp'; nearest: device.tdp"),
        ({"a.b": 1}, {}, "has no value at 'a.b'"),
    ],
)
def test_what_cannot_be_is_named(settings: dict, swept: dict, message: str) -> None:
    with pytest.raises(HardwareError) as error:
        hardware_rows(["dgx-h100"], settings, swept)
    assert message in str(error.value)


def test_memory_is_as_sure_as_what_was_measured_of_its_software():
    widths, h100 = memory_errors(), load_hardware("dgx-h100")
    own = {name: memory_width(h100, name) for name in widths["software"]}
    assert own == {name: it["width"] for name, it in widths["software"].items()}
    assert memory_width(h100, "colossal-ai") == widths["unseen"]
    assert memory_width(load_hardware("tpu-v5e-pod"), "megatron") == widths["unseen"]
    stated = load_hardware("dgx-h100", {"calibration.uncertainty.memory": 0.3})
    assert memory_width(stated, "megatron") == memory_width(stated, "colossal-ai") == 0.3
    assert memory_width(load_hardware("astra-sanity"), "megatron") == 0.0
