"""Kinds of tables: what each states fits the profiles, the regimes and the help."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from perfmodel.base.errors import DataError
from perfmodel.base.regimes import LIMITS
from perfmodel.cli.main import cli
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.kind import KINDS, KernelKind, calibrated_kinds, load_kind, measured_time
from perfmodel.measured.problem import fitted_keys
from perfmodel.measured.rows import MeasuredRow

KERNELS = sorted(set(KINDS) - {"training", "memory", "serving", "wafer"})


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_goes_by_the_name_it_is_loaded_with(name: str) -> None:
    kind = load_kind(name)
    assert kind.name == name
    assert kind.unit == ("B" if name == "memory" else "s")
    assert kind.measurements
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", KERNELS)
def test_classes_of_a_kind_have_regimes(name: str) -> None:
    kind = load_kind(name)
    assert isinstance(kind, KernelKind)
    assert {kind.kernel_class, *kind.phases.values()} <= set(LIMITS)


def test_classes_depend_on_the_phase_where_that_makes_a_difference() -> None:
    def class_of(name: str, phase: str) -> str:
        kind = load_kind(name)
        assert isinstance(kind, KernelKind)
        return kind.class_of(MeasuredRow({"phase": phase}, "runs.csv", 2))

    phases = ("fwd", "bwd", "Decode", "")
    expected = ["attention", "attention_backward", "decode", "attention"]
    assert [class_of("attention", phase) for phase in phases] == expected
    assert [class_of("gemm", phase) for phase in phases] == ["gemm"] * 4


def test_calibrated_kinds_have_constants_to_fit() -> None:
    kinds = calibrated_kinds()
    assert set(kinds) == set(KINDS) - {"training", "memory", "serving", "wafer", "sparse-attention"}
    calibration = load_hardware("dgx-h100").calibration
    for kind in kinds.values():
        assert fitted_keys(kind, calibration[kind.calibration])
        assert kind.alike


def test_kinds_of_one_group_share_no_constant() -> None:
    network = load_hardware("dgx-h100").calibration["network"]
    kinds = [kind for kind in calibrated_kinds().values() if kind.calibration == "network"]
    keys = [key for kind in kinds for key in fitted_keys(kind, network)]
    assert sorted(keys) == sorted(network)


def test_the_help_names_every_kind() -> None:
    text = CliRunner().invoke(cli, ["compare", "--help"]).output
    assert [name for name in KINDS if f"'{name}'" not in text] == []


def test_an_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"unknown kind 'gem'; did you mean gemm\?"):
        load_kind("gem")


def test_a_metric_is_chosen_where_there_is_a_choice() -> None:
    found = load_kind("serving").of_metric("throughput")
    assert (found.quantity, found.unit) == ("tokens_per_second_per_device", "1/s")
    assert load_kind("gemm").of_metric(None) is load_kind("gemm")
    with pytest.raises(DataError, match=r"'serving' has no metric 'ttfd'; did you mean ttft\?"):
        load_kind("serving").of_metric("ttfd")
    with pytest.raises(DataError, match="'gemm' has no metric 'ttft'"):
        load_kind("gemm").of_metric("ttft")


def test_times_beyond_all_machines_are_refused():
    assert measured_time(MeasuredRow({"time_us": "5"}, "x.csv", 2)) == pytest.approx(5e-6)
    for text in ("5e-324", "1e90"):
        with pytest.raises(DataError, match=r"x\.csv, line 2, column 'time_us': .* to 1e\+15"):
            measured_time(MeasuredRow({"time_us": text}, "x.csv", 2))
