"""Trust in constants by kernel class, and the bands that borrowed ones bring."""

from __future__ import annotations

import math
import tomllib

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.base.provenance import LEVELS
from perfmodel.base.regimes import REGIMES
from perfmodel.compute.gemm import gemm_device
from perfmodel.hwprofiles import list_hardware, load_hardware
from perfmodel.hwprofiles.constants import constants, known, plain
from perfmodel.hwprofiles.loader import chip_clock, relatives
from perfmodel.hwprofiles.trust import (
    FILE,
    KERNELS,
    PRIOR_CLOCK,
    UNSTATED,
    Relative,
    at_clock,
    handed,
    measured_value,
    quoted,
)

FITTED = {"value": 3e-6, "fit": "gemm-a100-bf16"}


def relative(name: str, own_class: str, clock: float, **entries: object) -> Relative:
    return Relative(name, own_class, clock, {"gemm": entries})


def test_every_constant_says_how_it_carries_over() -> None:
    ways = {"share", "unit", "clocks", "seconds", "energy", "fact"}
    for group, entries in constants().items():
        for key, constant in entries.items():
            assert constant.transfer in ways, f"{group}.{key}"
            if constant.transfer in ("clocks", "seconds"):
                assert constant.unit in ("s", "s/B"), f"{group}.{key}"


def test_a_latency_takes_as_many_clocks_within_its_bounds() -> None:
    launch = known("gemm")["launch_latency"]
    assert at_clock(launch, 3.09e-6, 1.41e9, 2.52e9) == pytest.approx(1.73e-6, rel=1e-3)
    assert at_clock(launch, 3.09e-6, 1.41e9, 0.0) == 3.09e-6
    assert at_clock(launch, launch.high, 2e9, 1e9) == launch.high
    assert at_clock(known("gemm")["l2_efficiency"], 0.6, 1e9, 2e9) == 0.6
    assert at_clock(known("gemm")["heat_time"], 1e-3, 1e9, 2e9) == 1e-3


@pytest.mark.parametrize("clock", [1.5e9, 2.2e9, 2.6e9])
def test_what_a_board_sustains_does_not_depend_on_the_boost_clock(clock: float) -> None:
    # The same chip with another boost clock, and rates and energy by it: one rate at the limit.
    h100 = load_hardware("dgx-h100")
    stated, key = h100.device.boost_clock, "energy_per_flop"
    energy = at_clock(known("gemm")[key], h100.calibrated("gemm", key), stated, clock)
    other = h100.with_values(
        {
            "device.boost_clock": clock,
            "device.peak_flops.bf16": h100.device.peak("bf16") * clock / stated,
            f"calibration.gemm.{key}": energy,
        }
    )
    rates = [gemm_device(device, "bf16", steady=True).power_rate for device in (h100, other)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-9)


def test_a_unit_draws_as_many_bytes_per_second_as_in_its_class_and_a_share_elsewhere() -> None:
    entries = {"attention": {"unit_bandwidth": {**FITTED, "value": 0.8}}}
    relatives = [Relative("a", "mma.sync", 1.4e9, entries, 20e9)]
    near = handed("attention", "unit_bandwidth", "mma.sync", 2.5e9, relatives, 10e9)
    assert near.value == pytest.approx(1.6)
    assert "bytes per second" in near.source
    assert handed("attention", "unit_bandwidth", "mma.sync", 2.5e9, relatives).value == 0.8
    far = handed("attention", "unit_bandwidth", "wgmma", 2.5e9, relatives, 10e9)
    assert far.value == (0.8 + known("attention")["unit_bandwidth"].prior) / 2


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (FITTED, 3e-6),
        ({"value": 2.0, "source": "MAMF of MI300X"}, 2.0),
        ({"value": 2.0, "source": "prior: a guess"}, math.nan),
        ({"value": 2.0, "source": "as amd-cdna3"}, math.nan),
        ({"value": 2.0}, math.nan),
        ("prior", math.nan),
        ("transferred", math.nan),
        (2.0, math.nan),
    ],
)
def test_what_counts_as_measured(entry: object, value: float) -> None:
    assert measured_value(entry) == pytest.approx(value, nan_ok=True)


def test_the_own_class_goes_before_its_neighbours_and_counts_alike() -> None:
    a = relative("a", "mma.sync", 1e9, launch_latency=FITTED)
    b = relative("b", "mma.sync", 2e9, launch_latency={**FITTED, "value": 2e-6})
    far = relative("far", "tcgen05", 1e9, launch_latency={**FITTED, "value": 8e-6})
    found = handed("gemm", "launch_latency", "mma.sync", 2e9, [a, b, far])
    assert found.value == pytest.approx((1.5e-6 + 2e-6) / 2)
    assert (found.trust, found.source) == ("transferred", "transferred from a and b, in clocks")
    borrowed = handed("gemm", "launch_latency", "wgmma", PRIOR_CLOCK, [a, far])
    # One on either side, in clocks, and what physics says.
    stated = (3e-6 + 8e-6) / (PRIOR_CLOCK / 1e9) + known("gemm")["launch_latency"].prior
    assert borrowed.value == pytest.approx(stated / 3)
    assert borrowed.trust == "prior"
    assert "the prior" in borrowed.source
    alone = handed("gemm", "launch_latency", "systolic", 1e9, [a, b, far])
    assert (alone.value, alone.trust) == (known("gemm")["launch_latency"].prior, "prior")


def test_a_prior_counts_beside_neighbours_only_where_no_fit_gave_it() -> None:
    assert known("gemm")["memory_efficiency"].estimated
    assert not known("gemm")["split_latency"].estimated  # free fits
    near = Relative("a", "wgmma", 1e9, {"gemm": {"split_latency": {**FITTED, "value": 1e-6}}})
    assert handed("gemm", "split_latency", "tcgen05", 1e9, [near]).value == 1e-6


def test_a_variant_that_nobody_states_is_as_the_plain_constant() -> None:
    a = relative("a", "mfma", 2e9, launch_latency=FITTED)
    assert handed("gemm", "launch_latency_int8", "mfma", 2e9, [a]).value == 3e-6
    assert plain("gemm", "launch_latency_fp8_block_training") == "launch_latency"
    assert plain("attention", "flashinfer_block_latency") == "block_latency"


def test_shipped_families_are_measured_on_chips_of_theirs() -> None:
    found = {item.name: item for item in relatives()}
    assert {"nvidia-ampere", "nvidia-ada", "nvidia-hopper", "nvidia-blackwell"} <= {*found}
    assert found["nvidia-ada"].clock == chip_clock("chip-l40s") == 2.52e9


def test_other_chips_of_a_family_take_its_latencies_in_clocks() -> None:
    h100, pcie = load_hardware("dgx-h100"), load_hardware("h100-pcie")
    for group, key in (("gemm", "launch_latency"), ("attention", "block_latency")):
        clocks = [
            item.calibrated(group, key) * item.device.boost_clock
            for item in (h100, pcie)
            if item.calibration[group][key].source
        ]
        if h100.calibration[group][key].fit:
            assert clocks[1] == pytest.approx(clocks[0])
    assert pcie.calibrated("gemm", "l2_efficiency") == h100.calibrated("gemm", "l2_efficiency")
    entry = pcie.calibration["gemm"]["launch_latency"]
    assert entry.trust == "transferred"
    assert entry.source.endswith("as many clocks as on chip-h100-sxm")
    assert h100.calibration["gemm"]["launch_latency"].trust == "calibrated"


def test_a_profile_may_ask_for_its_class(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "l40s-server"\ntransferred = true\n[device]\nboost_clock = 2e9\n')
    mine = load_hardware(path)
    both = [load_hardware(name) for name in ("dgx-a100", "l40s-server")]
    expected = sum(it.calibrated("gemm", "launch_latency") * it.device.boost_clock for it in both)
    assert mine.calibrated("gemm", "launch_latency") == pytest.approx(expected / 2 / 2e9)
    assert mine.calibrated("gemm", "step_bytes") == 64  # a fact stays with the family
    path.write_text('extends = "l40s-server"\ntransferred = "yes"\n')
    with pytest.raises(HardwareError, match="'transferred' must be true or false"):
        load_hardware(path)


def test_collectives_take_their_constants_from_all_of_the_maker() -> None:
    families = [load_hardware(name) for name in ("dgx-a100", "dgx-h100", "dgx-b200")]
    clocks = [it.calibrated("network", "base_latency") * it.device.boost_clock for it in families]
    ada = load_hardware("l40s-server")
    assert ada.calibrated("network", "base_latency") * 2.52e9 == pytest.approx(sum(clocks) / 3)
    assert ada.calibration["network"]["base_latency"].trust == "transferred"


def test_streams_take_theirs_from_all_of_the_maker_and_from_no_other() -> None:
    entries = [{"stream": {"launch_latency": {**FITTED, "value": x * 1e-6}}} for x in (1, 2)]
    a, b = (Relative(f"{i}", c, 2e9, entries[i]) for i, c in enumerate(("wgmma", "tcgen05")))
    found = handed("stream", "launch_latency", "mma.sync", 2e9, [a, b])
    assert (found.value, found.trust) == (pytest.approx(1.5e-6), "transferred")
    assert handed("stream", "launch_latency", "mfma", 2e9, [a, b]).source.startswith("prior: no")


def test_plain_constants_of_layers_are_those_of_one_kernel_on_all_of_nvidia() -> None:
    for name in ("dgx-a100", "l40s-server", "dgx-h100", "dgx-b200"):
        device = load_hardware(name).device
        latency = load_hardware(name).calibrated("moe", "memory_latency")
        assert 1500 < latency * device.boost_clock < 3100  # loads of Triton's kernel


def test_another_maker_s_library_hands_on_what_its_own_machines_do_not_say() -> None:
    found = handed("network", "base_latency", "mfma", 2e9, [relative("a", "wgmma", 1e9)])
    assert found.trust == "prior"
    a = Relative("a", "wgmma", 1e9, {"network": {"base_latency": {**FITTED, "value": 8e-6}}})
    found = handed("network", "base_latency", "mfma", 2e9, [a])
    assert (found.value, found.trust) == (pytest.approx(4e-6), "prior")
    own = Relative("b", "mfma", 2e9, {"network": {"base_latency": {**FITTED, "value": 2e-5}}})
    assert handed("network", "base_latency", "mfma", 2e9, [a, own]).value == 2e-5
    assert handed("network", "base_latency", "systolic", 2e9, [a, own]).source.startswith(
        "prior: no"
    )


NEW_CHIP = """name = "new"
title = "224 units"
extends = "dgx-b200"
{more}
[device]
name = "New"
compute_units = {units}
vector_flops = 113e12
"""


def test_a_chip_with_other_units_is_told_which_facts_are_its_relative_s(tmp_path):
    path = tmp_path / "new.toml"
    path.write_text(NEW_CHIP.format(more="", units=224))
    (note,) = [text for text in load_hardware(path).notes if text.startswith(UNSTATED)]
    assert note.startswith("inherited from chip-b200 (148 compute units, not 224): boost_clock, ")
    assert all(f"peak_flops.{name}, " in note for name in ("bf16", "fp8", "fp4"))
    assert "vector_flops" not in note  # stated


def test_facts_that_are_meant_and_chips_of_as_many_units_are_no_matter(tmp_path):
    path = tmp_path / "new.toml"
    meant = [f"device.peak_flops.{name}" for name in load_hardware("b200").device.peak_flops]
    path.write_text(NEW_CHIP.format(more=f"inherited = {meant}", units=224))
    assert not any("peak_flops" in text for text in load_hardware(path).notes)
    path.write_text(NEW_CHIP.format(more="", units=148))
    assert not any(text.startswith(UNSTATED) for text in load_hardware(path).notes)


def test_shipped_chips_state_their_facts():
    for name in list_hardware():
        assert not [text for text in load_hardware(name).notes if text.startswith(UNSTATED)]


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
