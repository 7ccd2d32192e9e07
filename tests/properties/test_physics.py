"""Random training steps keep the laws of `tests/properties/physics.py`, each to its bound."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from perfmodel.base.strategy_fields import MAPPINGS
from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from tests.amount import cases
from tests.properties.physics import (
    LAWS,
    Case,
    Law,
    Values,
    data_is_outside,
    draw_case,
    finer,
    network_kind,
)

CASES, MOST_CASES, STRATEGIES = cases(4, 1), 30, 30
ASKED = 20
# Laws about few of all profiles are asked of these.
PROFILES = {
    "weak scaling on slices never gains": ("tpu7x-pod", "tpu-v5e-pod"),
    "weak scaling over links never gains": ("mi300x-server", "trn2-48xl"),
    "without the precision everything is NaN": ("dgx-a100", "tpu-v5e-pod"),
}


@functools.cache
def drawn(number: int, count: int, **fixed: str) -> tuple[Case, Values]:
    """Return a random case and its projection; several laws are asked of it."""
    case = draw_case(np.random.default_rng(number), count, **fixed)
    return case, case.project() if case.columns["tensor_parallel"].size else {}


def keeps(law: Law, case: Case, base: Values) -> int:
    """Ask a law of a case, and return of how many strategies that says anything."""
    if not base:
        return 0
    rows, broken = law.measure(case, base)
    if rows.size:
        worst = int(np.argmax(broken))
        assert broken[worst] <= law.bound, (law.name, case.name, case.row(int(rows[worst])))
    return rows.size


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_random_steps_keep_the_law(law: Law) -> None:
    asked = 0
    first = LAWS.index(law)
    profiles = PROFILES.get(law.name, ())
    for number in range(MOST_CASES):
        if number >= CASES and asked >= ASKED:  # laws about few strategies: more
            break
        fixed = {"hardware": profiles[number % len(profiles)]} if profiles else {}
        asked += keeps(law, *drawn((first + number) % len(LAWS), STRATEGIES, **fixed))
    assert asked >= ASKED


@pytest.mark.parametrize(
    "model", ["nemotron-3-nano-30b-a3b", "qwen3.5-27b", "deepseek-v3.2", "jamba-1.5-mini"]
)
def test_layers_of_every_kind_keep_the_laws(model: str) -> None:
    """State spaces and single mixers, delta rules, sparse latent attention, selective scans."""
    step = drawn(1, STRATEGIES, model=model, hardware="dgx-h100")
    laws = [law for law in LAWS if law.name not in PROFILES]
    asked = [keeps(law, *step) for law in laws]
    assert sum(map(bool, asked)) > 0.8 * len(laws), asked
    assert sum(asked) >= 100


def test_every_exception_says_why() -> None:
    for law in LAWS:
        assert (law.bound > 1e-6) == bool(law.reason), law.name


def test_drawn_strategies_differ_and_repeat() -> None:
    one, again, other = (draw_case(np.random.default_rng(seed), 50) for seed in (1, 1, 2))
    assert one.name == again.name != other.name
    assert all((one.columns[name] == again.columns[name]).all() for name in one.columns)
    assert len({tuple(one.row(i).items()) for i in range(one.columns["mapping"].size)}) > 10


def test_groups_of_layers_stay_where_data_lies_outside() -> None:
    outside = [name for code, name in enumerate(MAPPINGS) if data_is_outside(code)]
    assert len(outside) == 8
    assert "tensor-context-pipeline-data" in outside
    assert "data-tensor-context-pipeline" not in outside


def test_networks_by_kind() -> None:
    kinds = {
        name: network_kind(load_hardware(name))
        for name in ("dgx-h100", "tpu7x-pod", "mi300x-server")
    }
    assert list(kinds.values()) == ["switch", "slices", "links"]


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-server", "dgx-a100"])
def test_more_units_of_equal_peak_only_hurt_products_that_do_not_fill_them(name: str) -> None:
    hardware = load_hardware(name)
    units = hardware.device.compute_units
    more = finer(hardware, 2.0)
    sizes = 2.0 ** np.arange(5, 15)
    m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes, sizes))
    ratio = gemm_times(more, "bf16", m, n, k).time / gemm_times(hardware, "bf16", m, n, k).time
    assert ratio.max() <= 2.0
    tiles = m * n / 128.0**2
    assert ratio[tiles >= 16 * units].max() <= 1.05  # many waves of large tiles
    assert ratio[tiles < 2 * units].max() > 1.01
