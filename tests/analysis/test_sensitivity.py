"""Elasticities, what-ifs and switches against formulas, homogeneity and separate projections."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from perfmodel import PerfModelError, load_hardware, project, save_results, sensitivity
from perfmodel.analysis.parameters import KINDS, parameters
from perfmodel.analysis.sensitivity import sensitivity_table
from perfmodel.base.table import Table
from perfmodel.store.results import as_table, open_table
from tests.analysis.toy_case import (
    BYTES,
    FLOP,
    assert_close,
    formula,
    power_of_time,
    roofline,
    training,
)


@pytest.fixture(scope="module")
def hardware_table() -> Table:
    return sensitivity_table(training(), kinds=["hardware"])


def column(results: Any, name: str) -> dict[str, Any]:
    table = as_table(results)
    names = table["parameter"].values.tolist()
    return dict(zip(names, table[name].labelled().tolist(), strict=True))


def test_elasticities_of_a_sum_of_terms_are_the_shares_of_the_terms() -> None:
    case = formula(roofline)
    table = sensitivity_table(case, kinds=["hardware"])
    found, low, high = (column(table, it) for it in ("elasticity", "low_change", "high_change"))
    hardware, step = case.hardware, case.base().value
    memory = BYTES / hardware.device.memory.bandwidth / step
    compute = FLOP / hardware.device.peak("bf16") / step
    latency = 1e5 * hardware.system.network[1].latency / step
    assert memory + compute + latency == pytest.approx(1.0)
    assert_close(found["device.memory.bandwidth"], -memory)
    assert_close(found["device.peak_flops.bf16"], -compute)
    assert_close(found["system.network.1.latency"], latency)
    # Twice the bandwidth takes half of the term away; half of it adds the term once more.
    assert high["device.memory.bandwidth"] == pytest.approx(-memory / 2)
    assert low["device.memory.bandwidth"] == pytest.approx(memory)
    moving = {name for name, value in found.items() if math.isfinite(value) and value}
    assert moving == {
        *("device.memory.bandwidth", "device.peak_flops.bf16", "system.network.1.latency"),
        *("device.boost_clock", "device.compute_units"),  # which the peak follows
    }
    assert_close(found["device.boost_clock"], -compute)
    assert abs(found[next(iter(found))]) == max(abs(found[name]) for name in moving)


def test_where_all_is_one_term_its_elasticity_is_minus_one() -> None:
    case = formula(lambda row: {"step_time": BYTES / row.device.memory.bandwidth})
    found = column(sensitivity_table(case, kinds=["hardware"]), "elasticity")
    assert found["device.memory.bandwidth"] == pytest.approx(-1.0, abs=1e-12)


def test_a_corner_is_a_kink_with_both_slopes() -> None:
    hardware = load_hardware("dgx-h100")
    corner = BYTES / hardware.device.memory.bandwidth

    def results(row: Any) -> dict[str, float]:
        return {"step_time": max(BYTES / row.device.memory.bandwidth, corner)}

    table = sensitivity_table(formula(results), only=["device.memory.bandwidth"])
    assert table["kink"].values.tolist() == [1]
    assert table["elasticity_below"].values[0] == pytest.approx(-1.0)
    assert table["elasticity_above"].values[0] == 0.0


def test_elasticities_to_rates_and_times_sum_to_one(hardware_table: Table) -> None:
    """Euler's theorem for what the test above shows: one by one, fitted constants at once."""
    case = training()
    counted = [it for it in parameters(case) if power_of_time(it.unit) and it.value]
    found, kinks = column(hardware_table, "elasticity"), column(hardware_table, "kink")
    clock = "device.boost_clock"  # rates that follow it are counted for themselves
    facts = [it for it in counted if it.kind == "hardware" and it.path != clock]
    assert not any(kinks[it.path] for it in facts)
    total = sum(power_of_time(it.unit) * found[it.path] for it in facts)
    numbers = [it for it in parameters(case) if it.kind in ("hardware", "constant")]
    moved = {it.path for it in counted if it.kind == "constant"} | {clock}
    ends = [
        {
            it.path: it.value * factor ** (power_of_time(it.unit) if it.path in moved else 0)
            for it in numbers
            if it.value and not it.is_switch
        }
        for factor in (0.99, 1.01)
    ]
    below, above = (it.value for it in case.vary(ends))
    total += math.log(above / below) / math.log(1.01 / 0.99)
    assert total == pytest.approx(1.0, abs=2e-3)


def test_more_bandwidth_never_hurts_and_more_latency_never_helps(hardware_table: Table) -> None:
    found, kinks = column(hardware_table, "elasticity"), column(hardware_table, "kink")
    for path, value in found.items():
        if not math.isfinite(value) or kinks[path]:
            continue
        if path.endswith("bandwidth") or ".peak_flops." in path:
            assert value <= 1e-9, path
        if path.endswith("latency"):
            assert value >= -1e-9, path


def test_what_ifs_and_switches_are_separate_projections(hardware_table: Table) -> None:
    run = {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 1}
    lengths: dict[str, Any] = {"global_batch_size": 32, "sequence_length": 4096}
    lengths |= {"micro_batch_size": 1, "recompute": "none"}

    def step(hardware: Any = "dgx-h100", **changes: Any) -> float:
        return float(
            project("llama-3.1-8b", hardware, 16, **{**lengths, **run, **changes})["step_time"]
        )

    high = column(hardware_table, "high")
    profile = load_hardware("dgx-h100")
    path = "device.memory.bandwidth"
    faster = profile.with_values({path: 2 * float(profile.value(path))})
    assert high[path] == step(faster)
    switched = column(
        sensitivity_table(
            training(), only=["recompute", "zero", "software.overlap_gradient_reduce"]
        ),
        "high",
    )
    from perfmodel import load_framework

    alone = load_framework("megatron", overlap_gradient_reduce=False)
    assert switched["recompute=full"] == step(recompute="full")
    assert switched["zero_stage=3"] == step(zero_stage=3)
    assert switched["software.overlap_gradient_reduce=false"] == step(framework=alone)


def test_rates_mirror_times_and_a_price_is_proportional() -> None:
    path = "device.memory.bandwidth"
    time = sensitivity_table(training(), only=[path])["elasticity"].values[0]
    rate = sensitivity_table(training(by="tokens_per_second_per_device"), only=[path])
    assert rate["elasticity"].values[0] == pytest.approx(-time, rel=1e-9)
    costs = training(by="cost_per_token", costs={"price": 2.5})
    found = sensitivity_table(costs, only=["system.price", path])
    assert column(found, "elasticity")["system.price"] == pytest.approx(1.0, abs=1e-9)
    assert column(found, "elasticity")[path] == pytest.approx(time, rel=1e-9)
    assert found.attrs["units"] == "USD"


def test_the_best_strategy_is_chosen_anew_for_every_value() -> None:
    """The envelope: never above what the strategy of today would take."""
    from perfmodel.strategy.enumerate import strategy_grid

    kinds: dict[str, Any] = {"only": ["system.network.0.bandwidth", "device.memory.capacity"]}
    asked: dict[str, Any] = {"sequence_length": 4096, "global_batch_size": 64}
    fixed = {"virtual_pipeline": 1, "context_parallel": 1, "micro_batch_size": 1}
    found = sensitivity("llama-3.1-8b", "dgx-h100", 16, reoptimise=True, **kinds, **asked, **fixed)
    assert found.attrs["mode"] == "reoptimised"
    grid = strategy_grid("llama-3.1-8b", 16, hardware="dgx-h100", **asked, **fixed)
    from perfmodel.store.results import best
    from perfmodel.sweeps.sweep import sweep_table

    top = best(sweep_table(load("llama-3.1-8b"), grid, "dgx-h100"), 1, by="step_time")[0]
    assert found.attrs["base"] == top["step_time"]
    own = {name: top[name] for name in ("tensor_parallel", "pipeline_parallel", "zero_stage")}
    own |= {"recompute": top["recompute"], "sequence_parallel": top["sequence_parallel"]}
    alone = sensitivity("llama-3.1-8b", "dgx-h100", 16, **kinds, **asked, **own)
    assert alone.attrs["base"] == found.attrs["base"]
    new, old, fits = column(found, "low"), column(alone, "low"), column(alone, "low_fits")
    assert all(new[path] <= old[path] * (1 + 1e-12) for path in kinds["only"] if fits[path])
    assert not fits["device.memory.capacity"]
    half = found["parameter"].values.tolist().index("device.memory.capacity")
    assert found["low_strategy"].values[half] != found["low_strategy"].values[1 - half]
    assert found["low"].values[half] > found.attrs["base"]  # other strategies fit in half of it


def load(name: str) -> Any:
    from perfmodel import load_model

    return load_model(name)


@pytest.mark.parametrize("ending", [".nc", ".csv", ".json"])
def test_results_are_stored_and_read(tmp_path: Path, hardware_table: Table, ending: str) -> None:
    path = tmp_path / f"sensitivity{ending}"
    save_results(hardware_table, path)
    assert path.stat().st_size
    if ending == ".nc":
        again = open_table(path)
        for name in ("parameter", "kind", "elasticity", "low_change", "unit"):
            assert again[name].labelled().tolist() == pytest.approx(
                hardware_table[name].labelled().tolist(), nan_ok=True
            )
        assert again.attrs["variable"] == "step_time"


def test_columns_have_units_and_names(hardware_table: Table) -> None:
    for name, it in hardware_table.variables.items():
        assert it.dims == ("parameter",)
        assert it.attrs["units"], name
        assert it.attrs["long_name"], name
    assert set(hardware_table["kind"].labelled().tolist()) <= set(KINDS)


def test_impossible_settings_say_why() -> None:
    table = sensitivity_table(training(), only=["pipeline_schedule"])
    reasons, found = column(table, "reason"), column(table, "high")
    assert math.isnan(found["pipeline_schedule=hanayo"])
    assert "virtual_pipeline" in reasons["pipeline_schedule=hanayo"]
    assert math.isfinite(found["pipeline_schedule=gpipe"])


def test_zeros_have_no_elasticity_and_idle_numbers_one_of_zero(hardware_table: Table) -> None:
    found = column(hardware_table, "elasticity")
    assert found["device.peak_flops.fp64"] == 0.0  # no product of this step is in it
    assert math.isnan(found["system.network.0.size"])  # eight devices have no half per cent
    assert math.isnan(found["device.memory.last_level_cache_capacity"])  # 0: there is none


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["device.memory.bandwith"]}, "nearest: device.memory.bandwidth"),
        ({"only": ["software.overlap_gradient_reuce"]}, "did you mean"),
        ({"only": ["software.name"]}, "neither a number nor a switch"),
        ({"kinds": ["hardwear"]}, "did you mean hardware"),
        ({"step": 0.7}, "step: 0.7"),
        ({"factors": (2.0, 0.5)}, "below and above 1"),
        ({"by": "step_tim"}, "did you mean step_time"),
        ({"by": "fits"}, "no variable 'fits'"),
    ],
)
def test_bad_input_is_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PerfModelError, match=words) as caught:
        sensitivity(
            "llama-3.1-8b",
            "dgx-h100",
            8,
            sequence_length=4096,
            global_batch_size=8,
            **options,
        )
    assert "\n" not in str(caught.value)
