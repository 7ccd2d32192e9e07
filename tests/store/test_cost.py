"""What strategies cost: by hand, against published runs, and how it adds up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError
from perfmodel.base.table import Table
from perfmodel.kernels.variables import COST_VARIABLES
from perfmodel.store.cost import (
    FAILURES_PER_DEVICE_HOUR,
    HOST_SHARE,
    RESTART_TIME,
    add_cost,
    assumptions,
    checkpoint_interval,
    checkpoint_size,
    device_power,
    goodput,
    unknown_costs,
)
from perfmodel.store.results import as_table, best
from perfmodel.strategy.enumerate import strategies_from_rows, strategy_grid
from perfmodel.sweeps.several import sweep

HOUR, MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(
    ("failure_time", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)]
)
def test_daly_2006_figures_3_to_5(failure_time: float, minutes: float) -> None:
    """Checkpoints of 5 minutes, restarts of 10: the optimum is printed in the captions."""
    found = checkpoint_interval(5 * MINUTE, failure_time) / MINUTE
    assert found == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_the_interval_is_the_best_one() -> None:
    times = np.geomspace(1.0, 1e5, 20_001)
    for checkpoint, failure in ((3.0, 1e4), (300.0, 6 * HOUR), (300.0, 24 * HOUR)):
        chosen = goodput(checkpoint_interval(checkpoint, failure), checkpoint, 600.0, failure)
        best = goodput(times, checkpoint, 600.0, failure).max()
        assert 0.9999 * best < chosen <= best * (1 + 1e-8)


def test_youngs_interval_is_the_limit_of_rare_failures() -> None:
    assert checkpoint_interval(1.0, 1e10) == pytest.approx(np.sqrt(2e10), rel=1e-4)


def test_checkpoints_longer_than_the_time_between_failures() -> None:
    assert checkpoint_interval(1e4, 1e3) == 1e3
    lost = goodput(1e3, 1e9, 600.0, 1e3)
    assert lost == 0.0  # and no warning of an overflow


def test_goodput_by_simulation() -> None:
    """Failures drawn at random, segment by segment: a second way to the same share."""
    interval, checkpoint, restart, failure = 900.0, 60.0, 300.0, 3600.0
    draw = np.random.default_rng(1)
    elapsed, segments = 0.0, 20_000
    for _ in range(segments):
        while (survived := draw.exponential(failure)) < interval + checkpoint:
            elapsed += survived
            while (down := draw.exponential(failure)) < restart:
                elapsed += down
            elapsed += restart
        elapsed += interval + checkpoint
    simulated = segments * interval / elapsed
    assert goodput(interval, checkpoint, restart, failure) == pytest.approx(simulated, rel=0.01)


def test_llama_3_405b_was_effective_for_more_than_90_percent() -> None:
    """Llama 3, section 3.3.4; 14 B per parameter at 2 TB/s, restarts as in MegaScale."""
    failure = HOUR / (FAILURES_PER_DEVICE_HOUR * 16384)
    assert failure == pytest.approx(3.1 * HOUR, rel=0.01)
    checkpoint = 405e9 * 14 / 2e12
    share = goodput(checkpoint_interval(checkpoint, failure), checkpoint, RESTART_TIME, failure)
    assert 0.90 < share < 0.95


def test_goodput_falls_with_whatever_takes_time() -> None:
    failure = np.geomspace(1e3, 1e7, 9)
    interval = checkpoint_interval(30.0, failure)
    share = goodput(interval, 30.0, 600.0, failure)
    assert np.all(np.diff(share) > 0)
    assert np.all((share > 0) & (share < 1))
    assert np.all(goodput(interval, 60.0, 600.0, failure) < share)
    assert np.all(goodput(interval, 30.0, 900.0, failure) < share)


def test_a_node_of_eight_h100_draws_what_was_measured() -> None:
    """8.4 kW near full utilisation (Latif et al.), 76 % of 10.2 kW as a rule (Newkirk et al.)."""
    host = HOST_SHARE * (10.2e3 - 8 * 700.0)
    assert 8 * device_power(1.0, 700.0) + host == pytest.approx(8.4e3)
    assert (8 * device_power(0.75, 700.0) + host) / 10.2e3 == pytest.approx(0.76, abs=0.01)


def test_power_lies_between_waiting_and_the_limit() -> None:
    power = device_power(np.linspace(0.0, 1.0, 11), 700.0)
    assert np.all(np.diff(power) > 0)
    assert (power[0], power[-1]) == (350.0, 700.0)


@pytest.fixture(scope="module")
def results(llama_8b: Any) -> Any:
    axes = {"sequence_length": 4096, "global_batch_size": 64, "virtual_pipeline": 1}
    grid = strategy_grid(llama_8b, 16, tensor_parallel=[1, 2, 8], pipeline_parallel=[1, 2], **axes)
    return sweep(
        llama_8b, grid, ["dgx-h100", "dgx-b200", "mi325x-server", "tpu-v5p-pod"], dtype="float64"
    )


def values(dataset: Any, name: str, hardware: str | None = None) -> Any:
    column = np.asarray(dataset[name].values)
    if hardware is None:
        return column
    return column[:, dataset["hardware"].values.tolist().index(hardware)]


def test_every_column_by_hand(results: Any) -> None:
    costed = add_cost(results, tokens=1e12, price=2.5, pue=1.2)
    rate = values(results, "tokens_per_second_per_device", "dgx-h100")
    np.testing.assert_allclose(values(costed, "device_time", "dgx-h100"), 1e12 / rate)
    np.testing.assert_allclose(values(costed, "training_time", "dgx-h100"), 1e12 / rate / 16)
    money = 1e12 / rate / HOUR * 2.5
    np.testing.assert_allclose(values(costed, "training_cost", "dgx-h100"), money)
    np.testing.assert_allclose(values(costed, "cost_per_token", "dgx-h100"), money / 1e12)
    power = values(costed, "power_per_device", "dgx-h100")
    host = HOST_SHARE * (10.2e3 - 8 * 700) / 8
    assert np.all((power > 1.2 * (350 + host)) & (power < 1.2 * (700 + host)))
    energy = values(costed, "training_energy", "dgx-h100")
    np.testing.assert_allclose(energy, power * 1e12 / rate)
    np.testing.assert_allclose(values(costed, "energy_per_token", "dgx-h100"), energy / 1e12)


def test_columns_have_their_units_and_the_rest_is_untouched(results: Any) -> None:
    costed = add_cost(results, tokens=1e12, goodput=True)
    for variable in COST_VARIABLES:
        column = costed[variable.name]
        assert column.dims == ("strategy", "hardware")
        assert column.attrs["units"] == variable.units
        assert column.attrs["long_name"] == variable.long_name
    for name in results.data_vars:
        assert costed[name].values is results[name].values or np.array_equal(
            costed[name].values, results[name].values, equal_nan=True
        )
    assert not {variable.name for variable in COST_VARIABLES} & set(results.data_vars)


def test_only_what_was_asked_for_is_there(results: Any) -> None:
    plain = set(add_cost(results).data_vars) - set(results.data_vars)
    assert plain == {"power_per_device", "energy_per_token", "cost_per_token"}
    again = add_cost(add_cost(results, tokens=1e12, goodput=True))
    assert set(again.data_vars) - set(results.data_vars) == plain


def test_prices_by_profile_by_name_and_for_all(results: Any) -> None:
    listed = add_cost(results)
    rate = values(results, "tokens_per_second_per_device", "dgx-b200")
    own = values(listed, "cost_per_token", "dgx-b200") * rate * HOUR
    np.testing.assert_allclose(own, 113.9328 / 8)
    assert np.isnan(values(listed, "cost_per_token", "mi325x-server")).all()
    named = add_cost(results, price={"B200": 4.0, "mi325x-server": 2.0})
    for profile, price in (("dgx-b200", 4.0), ("mi325x-server", 2.0), ("dgx-h100", 6.88)):
        rate = values(results, "tokens_per_second_per_device", profile)
        found = values(named, "cost_per_token", profile) * rate * HOUR
        np.testing.assert_allclose(found, price)
    assert assumptions(named)["price"]["dgx-h100"] == 6.88
    assert "mi325x-server" not in assumptions(listed)["price"]


def test_a_price_list_may_know_more_hardware(results: Any) -> None:
    costed = add_cost(results, price={"h100": 2.0, "gb300": 9.0})
    assert assumptions(costed)["price"]["dgx-h100"] == 2.0
    assert "gb300-nvl72" not in assumptions(costed)["price"]


def test_what_is_not_known_is_said_and_stays_open(results: Any) -> None:
    costed = add_cost(results)
    price, power = unknown_costs(costed)
    assert "mi325x-server" in price
    assert "dgx-h100" not in price
    assert "tpu-v5p-pod" in power
    assert np.isnan(values(costed, "energy_per_token", "tpu-v5p-pod")).all()
    assert np.isfinite(values(costed, "cost_per_token", "tpu-v5p-pod")).all()
    (power,) = unknown_costs(add_cost(results, price=1.0))
    assert "power limit" in power


def test_goodput_lengthens_time_cost_and_energy_alike(results: Any) -> None:
    plain = add_cost(results, tokens=1e12)
    real = add_cost(results, tokens=1e12, goodput=True)
    share = values(real, "goodput")
    assert np.all((share > 0.99) & (share < 1.0))  # 16 devices fail every 132 days
    for name in ("training_time", "device_time", "training_cost", "energy_per_token"):
        np.testing.assert_allclose(values(real, name) * share, values(plain, name))


def test_every_number_of_a_failing_run_can_be_given(results: Any) -> None:
    given = {"failures_per_device_hour": 0.01, "checkpoint_time": 60.0, "restart_time": 300.0}
    costed = add_cost(results, **given)
    failure = HOUR / (0.01 * 16)
    interval = checkpoint_interval(60.0, failure)
    assert np.unique(values(costed, "failure_interval")) == pytest.approx([failure])
    assert np.unique(values(costed, "checkpoint_interval")) == pytest.approx([float(interval)])
    share = goodput(interval, 60.0, 300.0, failure)
    assert np.unique(values(costed, "goodput")) == pytest.approx([float(share)])
    slow = add_cost(results, storage_bandwidth=1e9)
    seconds = checkpoint_size(results) / 1e9
    assert np.unique(values(slow, "checkpoint_time")) == pytest.approx([seconds])


def test_what_was_assumed_makes_the_same_costs_again(results: Any) -> None:
    assert assumptions(results) == {}
    for given in (
        {"tokens": 1e12, "price": {"h100": 2.5}, "pue": 1.3},
        {"price": 3.0, "goodput": True, "storage_bandwidth": 1e9},
    ):
        costed = add_cost(results, **given)
        again = add_cost(results, **assumptions(costed))
        assert again.identical(costed)


def test_tables_and_datasets_cost_the_same(results: Any) -> None:
    table = as_table(results)
    costed = add_cost(table, tokens=1e12, goodput=True)
    assert isinstance(costed, Table)
    assert "goodput" not in table
    other = results.perfmodel.add_cost(tokens=1e12, goodput=True)
    for variable in COST_VARIABLES:
        np.testing.assert_array_equal(costed[variable.name].values, other[variable.name].values)
    assert assumptions(costed) == assumptions(other)


def test_a_checkpoint_holds_parameters_and_optimizer_state(results: Any) -> None:
    parameters = 8_030_261_248  # Llama 3.1 8B, model card's config.json counted
    assert checkpoint_size(results) == parameters * (2 + 12)  # bf16; fp32 master and two moments


def test_llama_3_405b_took_30_84_million_device_hours(h100: Any) -> None:
    """Model card of Llama 3.1: 30.84 M GPU hours for 405B, 15.6 T tokens (arXiv:2407.21783)."""
    from perfmodel.model.presets import load_model

    model = load_model("llama-3.1-405b")
    row = {
        "tensor_parallel": 8,
        "pipeline_parallel": 16,
        "data_parallel": 128,
        "virtual_pipeline": 8,
        "pipeline_schedule": "interleaved",
        "sequence_parallel": True,
        "sequence_length": 8192,
        "global_batch_size": 2048,
        "zero_stage": 2,
    }
    results = sweep(model, strategies_from_rows(model, 16384, [row]), h100, dtype="float64")
    costed = add_cost(results, tokens=15.6e12, goodput=True)
    hours = float(values(costed, "device_time")[0, 0]) / HOUR
    assert hours == pytest.approx(30.84e6, rel=0.15)
    assert 0.90 < float(values(costed, "goodput")[0, 0]) < 0.95


def test_a_higher_limit_than_the_chip_can_draw_changes_nothing(llama_8b: Any, h100: Any) -> None:
    grid = strategies_from_rows(
        llama_8b, 8, [{"data_parallel": 8, "sequence_length": 4096, "global_batch_size": 8}]
    )
    limits = (400.0, 700.0, 5000.0, 50000.0)
    rows = [h100.with_values({"device.tdp": limit}) for limit in limits]
    power = values(add_cost(sweep(llama_8b, grid, rows, dtype="float64")), "power_per_device")[0]
    assert power[0] < power[1] < power[2] == power[3]


def test_ranking_by_a_cost_that_was_not_asked_for_says_so(results: Any) -> None:
    with pytest.raises(DataError, match="no 'cost_per_token'; add_cost adds it"):
        best(results, by="cost_per_token")


def test_what_is_refused(results: Any) -> None:
    for given, text in (
        ({"tokens": 0.0}, "tokens"),
        ({"tokens": math.inf}, "tokens"),
        ({"price": -1.0}, "price"),
        ({"price": {"dgx-h100": math.nan}}, "price of dgx-h100"),
        ({"price": {"gb200": 1.0}}, "no hardware 'gb200'"),
        ({"price": {"dgx-b20": 1.0}}, "did you mean dgx-b200"),
        ({"pue": 0.9}, "pue should be a finite number of at least 1"),
        ({"failures_per_device_hour": 0.0}, "failures_per_device_hour"),
        ({"checkpoint_time": 0.0}, "checkpoint_time"),
        ({"storage_bandwidth": -1.0}, "storage_bandwidth"),
        ({"restart_time": -1.0}, "restart_time"),
    ):
        with pytest.raises(DataError, match=text):
            add_cost(results, **given)
    with pytest.raises(DataError, match="provenance"):
        add_cost(results.assign_attrs(provenance="{"))


def test_more_than_memory_holds_is_refused_first(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.base.memory.memory_limit", lambda: 1000)
    with pytest.raises(DataError, match="what 768 strategies cost"):
        add_cost(results)


def test_costs_beyond_what_results_hold_are_refused(results: Any) -> None:
    single = results.assign(step_time=results.step_time.astype("float32"))
    with pytest.raises(DataError, match="is more than results hold; are --tokens"):
        add_cost(single, tokens=1e300)


def test_a_run_that_never_gets_ahead_costs_without_bound(results: Any) -> None:
    costed = add_cost(results, tokens=1e12, price=1.0, restart_time=1e300)
    assert np.all(values(costed, "goodput", "dgx-h100") == 0)
    assert np.all(np.isinf(values(costed, "training_cost", "dgx-h100")))
    for extreme in ({"failures_per_device_hour": 1e-320}, {"storage_bandwidth": 1e-300}):
        assert "goodput" in add_cost(results, **extreme)  # without a warning
