"""Which numbers and switches there are, and what they may become."""

from __future__ import annotations

import math

import pytest

from perfmodel import PerfModelError, load_hardware
from perfmodel.analysis.parameters import KINDS, Parameter, parameter, parameters
from perfmodel.base.fields import facts_of
from perfmodel.hwprofiles.hardware import known_paths
from perfmodel.software.framework import IDENTITY, OF_MEASURED_RUNS, Framework
from tests.analysis.toy_case import training


def test_every_number_of_the_profile_and_every_switch_of_the_software_is_there() -> None:
    found = parameters(training())
    numbers = {
        path
        for path, field in known_paths(load_hardware("dgx-h100")).items()
        if field.kind in ("number", "count", "flag")
    }
    assert numbers == {it.path for it in found if it.kind in ("hardware", "constant")}
    facts = {
        f"software.{name}"
        for name, fact in facts_of(Framework).items()
        if name not in (*IDENTITY, *OF_MEASURED_RUNS)
        and not fact.several
        and (fact.kind != "text" or fact.choices)
    }
    assert facts == {it.path for it in found if it.kind == "software"}
    assert {it.kind for it in found} == set(KINDS)
    assert len({it.label for it in found}) == len(found)


def test_switches_have_every_other_value() -> None:
    found = parameter(training(), "recompute")
    assert [it.label for it in found] == ["recompute=selective", "recompute=full"]
    assert [it.other for it in parameter(training(), "software.graph_launch")] == [True]
    assert {it.other for it in parameter(training(), "zero")} == {0, 2, 3}
    fp4 = "precision=nvfp4"
    assert fp4 not in [it.label for it in parameters(training())]  # no such units on Hopper


def test_levels_go_by_their_names_and_fields_by_their_options() -> None:
    case = training()
    assert (
        parameter(case, "system.network.nvlink.bandwidth")[0].path == "system.network.0.bandwidth"
    )
    assert parameter(case, "cp-kind")[0].path == "context_parallel_kind"


@pytest.mark.parametrize(
    ("it", "factor", "value"),
    [
        (Parameter("a", "hardware", "B", 4.0), 2.0, 8.0),
        (Parameter("a", "hardware", "1", 132, whole=True), 1.01, 133),
        (Parameter("a", "hardware", "1", 8, whole=True), 0.99, 7),
        (Parameter("a", "hardware", "1", 1, least=0.0, whole=True), 0.5, None),
        (Parameter("a", "constant", "1", 0.8, least=0.5, most=1.0), 2.0, 1.0),
        (Parameter("a", "constant", "1", 0.8, least=0.8, most=0.8), 2.0, None),
        (Parameter("a", "hardware", "1", 1.0, least=1.0), 0.5, None),
    ],
)
def test_numbers_stay_whole_and_within_their_limits(
    it: Parameter, factor: float, value: float | None
) -> None:
    assert it.times(factor) == value


def test_small_whole_numbers_are_too_coarse_for_a_step() -> None:
    assert Parameter("a", "hardware", "1", 8, whole=True).is_coarse(0.01)
    assert not Parameter("a", "hardware", "1", 132, whole=True).is_coarse(0.01)


def test_constants_have_their_physical_bounds() -> None:
    case = training()
    path = "calibration.gemm.memory_efficiency"
    entry = case.hardware.calibration["gemm"]["memory_efficiency"]
    (found,) = parameter(case, path)
    assert (found.least, found.most) == (entry.low, entry.high)
    assert found.times(math.inf) == entry.high


@pytest.mark.parametrize("path", ["device.memory.bandwith", "software.graph_lunch", "recomput"])
def test_unknown_paths_are_refused_with_the_nearest(path: str) -> None:
    with pytest.raises(PerfModelError, match=r"nearest|did you mean"):
        parameter(training(), path)
