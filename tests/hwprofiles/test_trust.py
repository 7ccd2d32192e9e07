"""Trust in constants by kernel class, and the bands that borrowed ones bring."""

from __future__ import annotations

import tomllib

import pytest

from perfmodel.base.regimes import REGIMES
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.trust import FILE, KERNELS, LEVELS, quoted


@pytest.mark.parametrize(
    ("profile", "kernel_class", "level"),
    [
        ("dgx-h100", "gemm", "calibrated"),
        ("dgx-h200", "gemm", "transferred"),  # of its family
        ("rtx-pro-6000-server", "gemm", "transferred"),  # of its instruction class
        ("tpu-v5e-pod", "gemm", "prior"),
        ("l40s-server", "attention_backward", "prior"),
        ("dgx-h100", "recurrence", "prior"),
        ("astra-sanity", "gemm", "calibrated"),  # exact by definition
    ],
)
def test_levels_of_profiles_that_ship(profile: str, kernel_class: str, level: str) -> None:
    assert load_hardware(profile).trust(kernel_class) == level


def test_constants_that_decide_exist() -> None:
    for group, keys in KERNELS.values():
        assert {*keys} <= {*known(group)}


def test_borrowed_constants_widen_the_band_and_own_ones_do_not() -> None:
    bands = tomllib.loads(FILE.read_text())
    assert set(bands) <= set(LEVELS)
    for name in list_hardware():
        hardware = load_hardware(name)
        for kernel_class in KERNELS:
            wide = hardware.borrowed_band(kernel_class)
            if hardware.trust(kernel_class) == "calibrated":
                assert wide == 0.0
            for regime in REGIMES:
                assert hardware.uncertainty(kernel_class, regime) >= wide
    assert load_hardware("dgx-h200").borrowed_band("gemm") == 0.0  # its family's own residuals
    mine = load_hardware("rtx-pro-6000-server")
    assert mine.borrowed_band("gemm") == bands["transferred"]["gemm"]
    prior = load_hardware("tpu-v5e-pod").borrowed_band("gemm")
    assert prior == max(bands["prior"]["gemm"], bands["transferred"]["gemm"])


def test_bands_are_written_as_they_are_read() -> None:
    bands = {"transferred": {"gemm": 0.173}, "prior": {"gemm": 0.25, "moe": 0.4}}
    assert tomllib.loads(quoted(bands)) == bands
