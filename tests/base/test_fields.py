"""Options without an effect are refused by the name that a user knows."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import StrategyError
from perfmodel.base.fields import flag, refuse_unused

PURPOSES = {"trains": ("wheels", "track_width"), "ships": ("sails", "settings")}


def test_flags_are_those_of_the_command_line() -> None:
    assert [flag(name) for name in ("sails", "track_width", "settings")] == [
        "--sails",
        "--track-width",
        "--set",
    ]


def test_what_has_an_effect_or_no_purpose_is_let_through() -> None:
    refuse_unused({"sails", "settings", "colour"}, ("sails", "settings"), PURPOSES, "a ship")
    refuse_unused(set(), (), PURPOSES, "a ship")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"track_width"}, "--track-width is for trains; this is a ship"),
        ({"settings"}, "--set is for ships; this is a ship"),
        ({"settings", "wheels"}, "--wheels is for trains; this is a ship"),  # in their order
    ],
)
def test_what_has_none_is_refused(given: set[str], message: str) -> None:
    with pytest.raises(StrategyError) as error:
        refuse_unused(given, ("sails",), PURPOSES, "this is a ship")
    assert str(error.value) == message
