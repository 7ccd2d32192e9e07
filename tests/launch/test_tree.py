"""YAML and TOML as dotted keys, written and read."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.launch.tree import (
    format_toml,
    format_yaml,
    launcher,
    overrides,
    parse_toml,
    parse_yaml,
)

VALUES = st.one_of(
    st.integers(-(10**12), 10**12),
    st.booleans(),
    st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")), max_size=12),
    st.lists(st.integers(0, 9), max_size=4),
)
KEYS: dict[str, Any] = {
    "a.b": 1,
    "a.c.d": "text with 'quotes' and \"others\"",
    "a.c.e": [1, 2],
    "f.g": True,
    "f.h": 0.5,
}


def test_keys_come_back_with_their_lines() -> None:
    for text, parse in ((format_yaml(KEYS), parse_yaml), (format_toml(KEYS), parse_toml)):
        settings = parse(text, "file")
        assert {key: entry.value for key, entry in settings.entries.items()} == KEYS
        lines = text.splitlines()
        for key, entry in settings.entries.items():
            assert key.rpartition(".")[2] in lines[entry.line - 1]


@given(VALUES)
def test_any_value_is_quoted_as_it_has_to_be(value: Any) -> None:
    assert yaml.safe_load(format_yaml({"a.b": value})) == {"a": {"b": value}}
    assert tomllib.loads(format_toml({"a.b": value})) == {"a": {"b": value}}


def test_null_is_null() -> None:
    assert yaml.safe_load(format_yaml({"a": "null", "b": "none", "c": "on"})) == {
        "a": None,
        "b": "none",
        "c": "on",
    }


def test_endless_numbers_and_dates_that_are_none_stay_text() -> None:
    settings = parse_yaml("a: " + "9" * 5000 + "\nb: 2020-99-99\n", "file")
    assert settings.entries["b"].value == "2020-99-99"
    assert isinstance(settings.entries["a"].value, str)


def test_words_of_a_command_line() -> None:
    found = overrides("run.py a.b=1 +c=[1,2] 'd=x y' --e=2 f\n", "file")
    assert {key: entry.value for key, entry in found.items()} == {"a.b": 1, "c": [1, 2], "d": "x y"}


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("# torchrun --nnodes 4 --nproc-per-node 8 x", (32, 8)),
        ("torchrun --nnodes=2 --nproc_per_node=4", (8, 4)),
        ("torchrun --nnodes 2", (0, 0)),
        ("", (0, 0)),
    ],
)
def test_devices_of_a_launcher(text: str, devices: tuple[int, int]) -> None:
    assert launcher(text) == devices


def test_anchors_merges_and_references() -> None:
    text = (
        "a: &a {tp: 2, pp: 4}\nb:\n  <<: *a\n  pp: 8\n  list: &l [1]\n  same: *l\n"
        "c: ${b.pp}\nd: {e: '${PRIMUS_TP:16}', f: '${.e}', g: '${multiply:${c}, ${.e}}'}\n"
        "h: ${oc.env:SIZE,null}\ni: ${OPEN}\nj: ${i.none}B\n"
    )
    found = {key: entry.value for key, entry in parse_yaml(text, "x").entries.items()}
    assert (found["b.tp"], found["b.pp"], found["b.same"]) == (2, 8, [1])
    assert (found["c"], found["d.e"], found["d.f"], found["d.g"]) == (8, 16, 16, 128)
    assert (found["h"], found["i"], found["j"]) == (None, "${OPEN}", "${i.none}B")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a\n  b: *a\n", "nested too deeply"),
        ("a: 1\n<<: [2]\n", "x:2: '<<' should merge keys"),
        (
            "a: &a {x: 1, y: 1}\n"
            + "".join(
                f"{b}: &{b} {{{', '.join(f'k{i}: *{a}' for i in range(20))}}}\n"
                for a, b in zip("abcd", "bcde", strict=True)
            ),
            "more than 20000 keys",
        ),
    ],
)
def test_aliases_without_end_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_yaml(text, "x")
