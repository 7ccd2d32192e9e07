"""Kinds of values that options take."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from perfmodel.base.strategy_fields import FIELD_BY_NAME
from perfmodel.cli.shared import types


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
        types.parse_setting(text)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "-1"])
def test_finite_ranges_are_finite(text: str) -> None:
    with pytest.raises(click.BadParameter):
        types.FiniteRange(min=0.0).convert(text, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (types.Words(), "a, b,a", ["a", "b"]),
        (types.Counts(), "8,2:16:x2", [8, 2, 4, 16]),
        (types.Counts(), "8:64:8", [8, 16, 24, 32, 40, 48, 56, 64]),
        (types.Sizes(), "1KiB,1KB", [1024, 1000]),
        (types.Axis(FIELD_BY_NAME["recompute"]), "all", ["none", "selective", "full"]),
        (types.Axis(FIELD_BY_NAME["sequence_parallel"]), "yes,off", [True, False]),
        (types.One(types.Counts()), "64", 64),
        (types.Members(), "3,1,2", [3, 1, 2]),
    ],
)
def test_lists_are_read(kind: click.ParamType, text: str, expected: object) -> None:
    assert kind.convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (types.Words(), "a,,b", "empty value"),
        (types.Words(), ",", "empty value"),
        (types.Counts(), "0", "below 1"),
        (types.Counts(), "1:8:x1", "START:STOP:xFACTOR"),
        (types.Counts(), "1:8:x²", "START:STOP:xFACTOR"),
        (types.Counts(), str(2**64), "above 2"),
        (types.Names(["copy", "add"]), "cpoy", "did you mean copy"),
        (types.Members(), "1,2,1", "device 1 is a member once only"),
        (types.One(types.Paths()), "a,b", "'perfmodel sweep' takes lists"),
        (types.One(types.Axis(FIELD_BY_NAME["recompute"])), "all", "should be one value"),
    ],
)
def test_bad_lists_are_refused(kind: click.ParamType, text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        kind.convert(text, None, None)


def test_a_file_may_have_a_comma_in_its_name(folder: Path) -> None:
    (folder / "a,b.toml").touch()
    kind = types.Paths()
    assert kind.convert("a,b.toml", None, None) == ["a,b.toml"]
    assert kind.convert("a,c.toml", None, None) == ["a", "c.toml"]


@pytest.mark.parametrize("text", ["0", "1.5", "x", "²", "9" * 400, "9" * 5000, str(2**40 + 1)])
def test_whole_ranges_are_not_larger_than_any_run(text: str) -> None:
    assert types.WholeRange(1).convert(str(2**40), None, None) == 2**40
    with pytest.raises(click.BadParameter):
        types.WholeRange(1).convert(text, None, None)


def test_axes_of_numbers_take_ranges() -> None:
    layers = types.Axis(FIELD_BY_NAME["recompute_num_layers"])
    assert layers.convert("0:4:5,8", None, None) == [0, 1, 2, 3, 4, 8]
    shares = types.Axis(FIELD_BY_NAME["offload_optimizer"])
    assert shares.convert("0:1:3", None, None) == [0.0, 0.5, 1.0]
    with pytest.raises(click.BadParameter, match="2 is above 1"):
        shares.convert("0:2:3", None, None)
