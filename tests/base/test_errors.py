"""Messages: one printable line of bounded length, and whose fault it is."""

from __future__ import annotations

import errno

import pytest

from perfmodel.base.errors import LONGEST_LINE, describe_os_error, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain × µ", "plain × µ"),
        ("two\nlines\t and  blanks", "two lines and blanks"),
        ("reads backwards: \u202eabc\u2066", "reads backwards: \\u202eabc\\u2066"),
        (
            "red \x1b[31m, NUL \0, undecodable \udcff",
            "red \\x1b[31m, NUL \\x00, undecodable \\udcff",
        ),
    ],
)
def test_a_message_is_one_printable_line(text, line):
    assert one_line(text) == line


def test_a_long_message_keeps_its_beginning_and_its_end():
    line = one_line("begin " + "x" * 10_000 + " end")
    assert len(line) == LONGEST_LINE
    assert line.startswith("begin xxx")
    assert line.endswith("xxx end")
    assert " … " in line
    assert len(one_line("\u202e" * 10_000)) == LONGEST_LINE


def test_what_the_system_says_names_the_file():
    denied = PermissionError(errno.EACCES, "Permission denied", "x.nc")
    assert describe_os_error(denied) == "'x.nc': permission denied"
    assert describe_os_error(OSError(errno.ENOSPC, "No space left")) == "no space left"
    assert describe_os_error(OSError()) == "oserror"
