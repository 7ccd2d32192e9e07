"""Values as a user writes them."""

from __future__ import annotations

import click
import pytest

from perfmodel.cli.shared import parsing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device.tdp", "PATH=VALUE"),
        ("device.tdp=", "PATH=VALUE"),
        ("=5", "PATH=VALUE"),
    ],
)
def test_a_setting_has_a_path_and_a_value(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        parsing.parse_setting(text)
