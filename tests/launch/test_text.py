"""Texts of launch files: argument lists as a shell reads them, YAML and TOML."""

from __future__ import annotations

import shlex
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError
from perfmodel.launch.text import (
    format_command,
    format_comment,
    format_toml,
    format_yaml,
    heredocs,
    launcher,
    overrides,
    parse_arguments,
    parse_toml,
    parse_yaml,
)


def test_a_command_survives_the_shell() -> None:
    keys = {"plain": 3, "switch": True, "pattern": "([0]*3+[1]*58)", "words": ["a b", "$HOME"]}
    text = format_command(["torchrun", "train.py"], keys, '"$@"')
    words = shlex.split(text.replace("\\\n", " "))
    assert words == [
        "torchrun", "train.py", "--plain", "3", "--switch", "--pattern", "([0]*3+[1]*58)",
        "--words", "a b", "$HOME", "$@",
    ]  # fmt: skip
    assert len(text.splitlines()) == 2 + len(keys)


def test_comments_are_one_line_each() -> None:
    assert format_comment(["first", ""]) == "# first\n#\n"


def test_options_have_the_line_on_which_they_stand() -> None:
    settings = parse_arguments("a.py \\\n  --one 1 # a remark\n\n--two\n--three='x y'", "run.sh")
    lines = {key: entry.line for key, entry in settings.entries.items()}
    assert lines == {"one": 2, "two": 4, "three": 5}
    assert settings.word("three") == "x y"
    assert settings.flag("two")
    assert settings.name("one") == "--one"


def test_underscores_are_dashes_and_the_last_one_counts() -> None:
    settings = parse_arguments("--deepspeed_config a.json --deepspeed-config=b.json", "x")
    assert settings.word("deepspeed-config") == "b.json"


def test_variables_of_the_script_are_put_in() -> None:
    text = "TP=4\nexport PP=${PIPES:-2}\nARGS=(--tp $TP --pp ${PP} --dp $((TP*2)) --x $NOWHERE)\n"
    settings = parse_arguments(text, "run.sh")
    assert settings.whole("tp") == 4
    assert settings.whole("pp") == 2
    with pytest.raises(FormatError, match=r"run\.sh:3: --dp '.*': should be a whole number"):
        settings.whole("dp")
    with pytest.raises(FormatError, match="does not say what the variable is"):
        settings.whole("x")


def test_strings_of_arguments_are_taken_apart() -> None:
    settings = parse_arguments('A="--one 1 --two 2"\nB+=("--three 3")\n', "run.sh")
    assert [settings.whole(key) for key in ("one", "two", "three")] == [1, 2, 3]


def test_documents_within_a_script() -> None:
    text = "cat > ds.json <<'EOF'\n{\"--no\": 1}\nEOF\nrun --yes 1\n"
    assert heredocs(text) == [('{"--no": 1}', 1)]
    settings = parse_arguments(text, "run.sh")
    assert set(settings.entries) == {"yes"}
    assert settings.entries["yes"].line == 4


def test_a_chain_of_variables_does_not_grow() -> None:
    lines = ["A=xxxxxxxxxx"] + [f"A{i}=${{A{i - 1}}}${{A{i - 1}}}" for i in range(1, 60)]
    settings = parse_arguments("A0=xxxxxxxxxx\n" + "\n".join(lines) + "\nrun --x $A59\n", "run.sh")
    assert len(settings.word("x")) < 1000


def test_quotes_without_an_end() -> None:
    with pytest.raises(FormatError, match=r"run\.sh:1: quotes or a backslash without an end"):
        parse_arguments("--one 'two", "run.sh")


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
