"""Tables of keys: one table writes and reads."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.launch.settings import Choice, Entry, Settings, Spelling, Words

FORMAT = Choice(
    "precision",
    (
        Spelling("bf16", {"bf16": True}),
        Spelling("fp8", {"bf16": True, "fp8": "hybrid"}, {"history": 16}),
        Spelling("fp8", {"bf16": True, "fp8": "e4m3"}),
    ),
    {"fp8": None},
)


def settings(**values: object) -> Settings:
    return Settings("file", {key: Entry(value, 7) for key, value in values.items()})


def test_the_first_spelling_is_written_and_all_are_read() -> None:
    assert FORMAT.write("fp8", None) == {"bf16": True, "fp8": "hybrid", "history": 16}
    assert FORMAT.write("fp16", None) is None
    assert FORMAT.values == ["bf16", "fp8"]
    assert FORMAT.find(settings(bf16=True)).value == "bf16"
    assert FORMAT.find(settings(bf16=True, fp8="e4m3")).value == "fp8"


def test_null_false_and_absent_are_the_same() -> None:
    for nothing in (None, False, "None", "null", "false"):
        assert FORMAT.find(settings(bf16=Words(), fp8=nothing)).value == "bf16"


def test_another_value_beside_a_spelling_is_remarked() -> None:
    stated = settings(bf16=True, fp8="hybrid", history=1)
    assert FORMAT.find(stated).value == "fp8"
    assert stated.remarks == ["history 1: projected as 16"]
    same = settings(bf16=True, fp8="hybrid", history="16.0")
    FORMAT.find(same)
    assert same.remarks == []


def test_an_unknown_word_is_named_with_those_that_are_known() -> None:
    with pytest.raises(FormatError) as caught:
        FORMAT.find(settings(bf16=True, fp8="int8"))
    assert str(caught.value) == (
        "file:7: fp8 'int8': should be one of hybrid, e4m3 (others are not modelled)"
    )


@pytest.mark.parametrize(
    "value", ["1.5", "²", "1" * 400, -3, 0, True, [1], 2**41, 1e99, "١", "---1", 10**400]
)
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(FormatError, match=r"file:7: size '.*': should be a whole number"):
        settings(size=value).whole("size")


def test_whole_numbers_in_any_type() -> None:
    for value in (4, "4", 4.0, Words(["4", "rest"])):
        assert settings(size=value).whole("size") == 4
    assert settings().whole("size", 3) == 3
    with pytest.raises(FormatError, match="file: no size; it should be there"):
        settings().whole("size")


def test_remarks_are_one_line_whatever_they_quote() -> None:
    stated = settings()
    stated.remark("a\u202eb\nc" + "x" * 1000)
    assert stated.remarks[0].startswith("a?b?cxx")
    assert len(stated.remarks[0]) == 301
