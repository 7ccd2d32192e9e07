"""The vocabulary of calibrated constants, and what the profiles that ship state of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles.constants import Lookup, constants, fits, implausible, known, names
from perfmodel.hwprofiles.loader import profile_files
from tests.data import table_of


def stated() -> Iterator[tuple[str, str, str, Any]]:
    """Yield profile, group, key and entry of every calibrated constant, as in the file."""
    for path in profile_files():
        document = tomllib.loads(path.read_text())
        for group, entries in document.get("calibration", {}).items():
            for key, entry in entries.items():
                yield path.stem, group, key, entry


def cited() -> set[str]:
    return {entry["fit"] for *_, entry in stated() if isinstance(entry, dict) and "fit" in entry}


EVERY = [(group, key) for group, entries in constants().items() for key in entries]


VARIED = [
    ("^$", ""),
    ("_[12]_", "_{generation}_"),
    ("^scale_(up|out)_", "{link}_"),
    ("^exchange_(dispatch|combine|low_latency)_", "exchange_{phase}_"),
    ("^exchange_(dispatch|combine|low_latency)_", "exchange_{key}_"),
]
"""How names stand in formulas that read several of them."""


def source(formula: str) -> Path:
    """Return the installed file that ``constants.toml`` names from the repository's root."""
    package = Path(perfmodel.__file__).parent
    return package / formula.removeprefix("perfmodel/")


@pytest.mark.parametrize(("group", "key"), EVERY)
def test_every_constant_is_physical_sourced_and_used_by_a_profile_and_a_formula(
    group: str, key: str
) -> None:
    constant = constants()[group][key]
    assert constant.low <= constant.prior <= constant.high
    assert constant.low < constant.high
    assert constant.meaning
    assert constant.source or not constant.adjustable
    variants = {name for name, found in known(group).items() if found is constant}
    assert any(group == place and name in variants for _, place, name, _ in stated())
    text = key.removeprefix("portable_").removeprefix("trtllm_").removesuffix("_triton")
    formula = source(constant.formula).read_text()
    assert any(re.sub(*varied, text) in formula for varied in VARIED)


def test_what_takes_a_prior_takes_one_with_a_source() -> None:
    for profile, group, key, entry in stated():
        assert entry != "prior" or known(group)[key].source, f"{profile}: {group}.{key}"


def test_profiles_do_not_repeat_what_the_vocabulary_says() -> None:
    for profile, group, key, entry in stated():
        if isinstance(entry, dict):
            general = vars(known(group)[key])
            same = [name for name, value in entry.items() if general.get(name) == value]
            assert not {*same} - {"source"}, f"{profile}: {group}.{key} repeats {same}"


def test_every_fit_is_cited_and_says_data_rows_and_script() -> None:
    assert cited() == set(fits())
    for fit in fits().values():
        assert fit.data
        assert fit.rows > 0
        assert fit.script


@pytest.mark.parametrize(
    ("group", "key", "words", "expected"),
    table_of(__file__, "the_most_specific_name_of_a_constant_comes_first"),
)
def test_the_most_specific_name_of_a_constant_comes_first(
    group: str, key: str, words: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert names(group, key, tuple(words.items())) == expected
    assert set(expected) <= set(known(group))


def test_variants_go_before_facts_of_the_library_and_these_before_the_plain_constant() -> None:
    portable = (("library", "portable"),)
    facts, defaults = {"tail": 2.0, "overlap": 2.0}, {"tail": 4.0, "cache_port": 4.0}
    values = {"portable_tail": 1.0, "tail": 3.0, "overlap": 3.0, "lone_tile": 3.0}
    constant = Lookup("mine", "attention", values, portable, facts, defaults)
    keys = ("tail", "overlap", "lone_tile", "cache_port")
    assert [constant(key, 5.0) for key in (*keys, "residents")] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert constant.apart("tail")
    assert not constant.apart("overlap")
    assert Lookup("mine", "attention", values, (), {}, defaults)("tail") == 3.0
    with pytest.raises(HardwareError, match=r"'mine' has no 'lone_tail'.*did you mean lone_tile"):
        constant("lone_tail")


# Fitted values on a bound, or more than three times from their prior, whose physics nobody knows
# yet. A re-fit, a better bound or prior, or a reason in the profile takes one off; none comes on.
KNOWN = {
    "amd-cdna4": {
        "network.scale_up_step_overhead",
    },
    "nvidia-ampere": {
        "gemm.heat_time",
        "moe.memory_efficiency",
        "moe.overlap_loss",
        "network.pairwise_pipeline_latency",
        "network.scale_up_pipeline_latency",
    },
    "nvidia-blackwell": {
        "gemm.l2_efficiency_fp8_block",
        "moe.memory_efficiency",
        "moe.overlap_loss",
        "network.in_network_pipeline_latency",
        "network.low_latency_128_fraction",
        "network.low_latency_128_latency",
        "network.pairwise_latency",
        "network.scale_up_pipeline_latency",
        "network.scale_up_step_overhead",
    },
    "nvidia-hopper": {
        "attention.portable_block_latency",
        "attention.portable_product_operations",
        "attention.portable_split_latency",
        "gemm.heat_time",
        "gemm.heat_time_fp8",
        "gemm.l2_efficiency_fp8",
        "gemm.load_latency_fp8",
        "moe.main_loop_efficiency",
        "moe.main_loop_efficiency_fp8_block",
        "moe.memory_efficiency",
        "network.exchange_efficiency",
        "network.pairwise_pipeline_latency",
        "network.scale_up_step_overhead",
    },
}
UNEXPLAINED = 28  # as many as stand above: may only shrink


def unexplained() -> dict[str, set[str]]:
    """Return the implausible fits without a reason, by profile.

    Spreads (`uncertainty`) are measured as they are, not held by a prior.
    """
    found: dict[str, set[str]] = {}
    for profile, group, key, entry in stated():
        if group != "uncertainty" and isinstance(entry, dict) and "fit" in entry:
            general = vars(known(group)[key]) | entry
            numbers = (general[name] for name in ("value", "prior", "low", "high"))
            if implausible(*numbers) and "reason" not in entry:
                found.setdefault(profile, set()).add(f"{group}.{key}")
    return found


def test_fits_on_a_bound_or_far_from_their_prior_say_the_physical_reason() -> None:
    assert unexplained() == KNOWN
    assert sum(len(keys) for keys in KNOWN.values()) == UNEXPLAINED


def test_reasons_are_given_only_where_they_are_needed() -> None:
    for profile, group, key, entry in stated():
        if isinstance(entry, dict) and "reason" in entry:
            general = vars(known(group)[key]) | entry
            place = f"{profile}: {group}.{key}"
            assert implausible(*(general[x] for x in ("value", "prior", "low", "high"))), place


@pytest.mark.parametrize(
    ("value", "prior", "expected"),
    [
        (0.5, 0.4, False),
        (1.0, 0.5, True),
        (0.9995, 0.5, True),
        (0.0, 0.5, True),
        (0.0, 0.0, False),
        (1.0, 1.0, False),
        (0.7, 0.2, True),
        (0.1, 0.4, True),
    ],
)
def test_what_counts_as_implausible(value: float, prior: float, expected: bool) -> None:
    assert bool(implausible(value, prior, 0.0, 1.0)) is expected
