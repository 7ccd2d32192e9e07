"""What files state: numbers in any type, remarks."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.base.files import Entry
from perfmodel.launch.settings import Settings, Words


def settings(**values: object) -> Settings:
    return Settings("file", {key: Entry(value, 7) for key, value in values.items()})


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
