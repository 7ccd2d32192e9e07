"""Argument lists as a shell runs them, written and read.

Reading takes a command line, a list of arguments, or a script: comments and line ends apart,
every word that begins with ``--`` is an option, and what follows up to the next one its values.
Variables that the script itself sets to plain values are put in their places; what a shell would
compute stays as written, and matters only where a value is asked for.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from perfmodel.base.errors import FormatError
from perfmodel.launch.settings import Entry, Settings, Words

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2[ \t]*(?=\n|$)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")
_BRANCH = re.compile(r"^\s*(?:if|case)\s", re.MULTILINE)
_SEVERAL = re.compile(r"\s--|^--[^\s=]+\s")  # options within quotes
_PAIRS = re.compile(r"\s[\w.]+=")  # keys with values within quotes
_OPTION = re.compile(r"--?[A-Za-z]")
LONGEST_VALUE = 200  # characters of a variable's value that is put in its place


def format_command(words: Sequence[str], keys: Mapping[str, object], tail: str = "") -> str:
    """Return a command with its options, one on each line.

    Parameters
    ----------
    words : sequence of str
        What is run.
    keys : mapping
        Option without dashes -> its value; True for a switch.
    tail : str
        What stands last, as it is.
    """
    lines = [" ".join(words)]
    for key, value in keys.items():
        if value is True:
            lines.append(f"--{key}")
        else:
            values = value if isinstance(value, list | tuple) else [value]
            lines.append(" ".join([f"--{key}", *(shlex.quote(str(item)) for item in values)]))
    if tail:
        lines.append(tail)
    return " \\\n    ".join(lines) + "\n"


def format_comment(lines: Sequence[str]) -> str:
    """Return lines as comments of a shell, of YAML or of TOML."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def heredocs(text: str) -> list[tuple[str, int]]:
    """Return the documents that a script holds, each with the line before its first."""
    return [(found[3], text.count("\n", 0, found.start(3))) for found in _HEREDOC.finditer(text)]


def parse_arguments(text: str, path: str) -> Settings:
    """Return the options of a command line or a script.

    Raises
    ------
    FormatError
        The quotes do not close.
    """
    without = _HEREDOC.sub(lambda found: "\n" * found[0].count("\n"), text)
    entries: dict[str, Entry] = {}
    option = ""
    for word, line in shell_words(without, path):
        if _OPTION.match(word):
            option, equals, value = word.lstrip("-").partition("=")
            option = option.replace("_", "-")
            entries[option] = Entry(Words([value] if equals else []), line)
        elif word in (")", ";", "&&", "|", "\\"):
            option = ""
        elif option:
            before = entries[option]
            entries[option] = Entry(Words((*before.value, word)), before.line)
    settings = Settings(path, entries, "--")
    if _BRANCH.search(without):
        settings.remark("conditions are not evaluated: the arguments of all branches count")
    return settings


def shell_words(text: str, path: str, *, assignments: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the words of a script with their lines, variables put in where that is simple.

    Parameters
    ----------
    text, path : str
    assignments : bool
        Yield ``a=b`` as well; otherwise they only set variables.
    """
    known: dict[str, str] = {}
    for word, line in _split(text, path):
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned and not word.startswith("-"):
            name, value = assigned.groups()
            if assignments:
                parts = value.split() if _PAIRS.search(value) else []
                value = value if parts else _filled(value, known)
                yield from ((_filled(part, known), line) for part in parts)
                if not parts:
                    yield f"{name}={value}", line
            if "--" not in value and not value.startswith("("):
                value = _filled(value, known)
                if len(value) <= LONGEST_VALUE:
                    known.setdefault(name, value)
                continue
            word = value.removeprefix("(")
        if word.count(")") > word.count("("):  # the end of a list
            word = word.removesuffix(")")
        for part in word.split() if _SEVERAL.search(word) else [word]:
            yield _filled(part, known), line


def _filled(word: str, known: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, braced, default = found.groups()
        return known.get(name or braced, found[0] if default is None else default)

    return _VARIABLE.sub(value, word)


def _split(text: str, path: str) -> Iterator[tuple[str, int]]:
    """Yield the words that quotes and blanks make, with their lines."""
    source = text.replace("\\\n", " \n")  # as many characters, and as many lines
    stream = io.StringIO(source)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split = True
    try:
        while (word := lexer.get_token()) is not None:
            end = stream.tell()
            # A line end after the word is counted already.
            yield word, lexer.lineno - (source[end - 1 : end] == "\n")
    except ValueError as error:
        raise FormatError(
            f"{path}:{lexer.lineno}: quotes or a backslash without an end ({error}); "
            "a command line, a script or a list of arguments is needed"
        ) from None
