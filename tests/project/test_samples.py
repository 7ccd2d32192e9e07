"""Tests that check constants on the rows they were fitted to name fits that there are."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.data import ROOT

FITS = ROOT / "hwprofiles/fits.toml"


@pytest.mark.skipif(not FITS.is_file(), reason="an installed package has no profiles beside it")
def test_tests_in_sample_name_fits():
    fits = set(tomllib.loads(FITS.read_text(encoding="utf-8")))
    named = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for found in re.findall(r"mark\.in_sample\(([^)]*)\)", path.read_text(encoding="utf-8")):
            named |= set(re.findall(r'"([^"]*)"', found))
    assert named
    assert named <= fits
