"""The vocabulary of calibrated constants, and what the profiles that ship state of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles.constants import Lookup, constants, fits, known, names
from perfmodel.hwprofiles.loader import profile_files
from tests.data import ROOT


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
    text = key.removeprefix("portable_").replace("_1_", "_{generation}_")
    assert text.replace("_2_", "_{generation}_") in (ROOT / constant.formula).read_text()


def test_every_fit_is_cited_and_says_data_rows_and_script() -> None:
    assert cited() == set(fits())
    for fit in fits().values():
        assert fit.data
        assert fit.rows > 0
        assert fit.script


@pytest.mark.parametrize(
    ("group", "key", "words", "expected"),
    [
        ("host", "launch_time", {}, ("launch_time",)),
        ("gemm", "heat_time", {"precision": "fp8", "library": ""}, ("heat_time_fp8", "heat_time")),
        (
            "gemm",
            "heat_time",
            {"precision": "fp8", "library": "_training"},
            ("heat_time_fp8_training", "heat_time"),
        ),
        ("gemm", "heat_time", {"precision": "fp8"}, ("heat_time",)),
        ("attention", "tail", {"library": "portable"}, ("portable_tail", "tail")),
        (
            "moe",
            "tile_half",
            {"kernel": "triton", "precision": "fp8_block"},
            ("tile_half_triton_fp8_block", "tile_half_fp8_block", "tile_half_triton", "tile_half"),
        ),
        ("uncertainty", "gemm", {"regime": "small"}, ("gemm_small", "gemm")),
    ],
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
