"""Values as a user writes them."""

from __future__ import annotations

import click
import pytest

from perfmodel.cli.shared import parsing


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "-1"])
def test_finite_ranges_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parsing.FiniteRange(min=0.0).convert(text, None, None)
