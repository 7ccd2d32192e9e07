"""The vocabulary of calibrated constants, and what the profiles that ship state of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from perfmodel.hwprofiles.constants import constants, fits, known, names
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
        ("gemm", "heat_time", {"kernel": "fp8"}, ("heat_time_fp8", "heat_time")),
        ("gemm", "heat_time", {"kernel": ""}, ("heat_time",)),
        ("attention", "tail", {"kernel": "portable"}, ("portable_tail", "tail")),
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
    assert names(group, key, words) == expected
    assert set(expected) <= set(known(group))
