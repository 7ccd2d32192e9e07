"""Argument lists: words, lines, variables, documents within scripts."""

from __future__ import annotations

import shlex

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.launch.shell import (
    format_command,
    format_comment,
    heredocs,
    parse_arguments,
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
