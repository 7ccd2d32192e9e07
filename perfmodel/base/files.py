"""Files: written completely or not at all, read within bounds, JSON with one-line errors."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.base.errors import DataError, FormatError, PerfModelError

LARGEST = 2**31  # B of text
# A gzipped file may unpack to this many times its size and no more, as one of Chakra's.
LARGEST_EXPANSION = 256
SMALLEST_BOUND = 2**24  # B
LONGEST_TEXT = 60


def shortened(value: Any) -> str:
    """Return a value as text that a message can hold; files may have cells of any length."""
    text = str(value)
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_TEXT])
    return shown if len(text) <= LONGEST_TEXT else f"{shown}…"


def check_writable(path: str | Path) -> Path:
    """Make sure, before a long computation, that a file can be written.

    Raises
    ------
    DataError
        The folder does not exist or cannot be written, or the path is not a file's.
    """
    if not str(path):
        raise DataError("cannot write '': name a file")
    shown = Path(path).expanduser()
    target = shown.resolve()  # a link stays, and what it points to is written
    folder = target.parent
    if not folder.is_dir():
        raise DataError(f"cannot write '{shown}': folder '{shown.parent}' does not exist")
    if target.is_dir():
        raise DataError(f"cannot write '{shown}': it is a folder; name a file in it")
    device = Path("/dev") in shown.absolute().parents
    if device or (target.exists() and not target.is_file()):
        raise DataError(f"cannot write '{shown}': it is not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise DataError(f"cannot write '{shown}': permission denied")
    try:
        with tempfile.TemporaryFile(prefix=f".{target.name}.", dir=folder):
            pass
    except OSError as error:
        raise DataError(f"cannot write '{shown}': {error.strerror or error}") from None
    return target


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`, renamed to it on success, removed on failure.

    Raises
    ------
    DataError
        The folder does not exist or cannot be written.
    """
    target = check_writable(path)
    handle, name = tempfile.mkstemp(
        prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"cannot write '{target}': {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path: str | os.PathLike[str], wanted: str, largest: int | None = None) -> str:
    """Return a file's text, without a byte order mark.

    Parameters
    ----------
    path : str or path
    wanted : str
        What the file should be, for errors, such as "an AIOB file".
    largest : int, optional
        Most that is read [B].

    Raises
    ------
    FormatError
        The file cannot be read, is larger, or is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read() if largest is None else file.read(largest + 1)
    except OSError as error:
        raise FormatError(f"cannot read '{path}': {error.strerror or error}") from None
    if largest is not None and len(content) > largest:
        raise FormatError(f"{path}: more than {largest} B; {wanted} is needed")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; {wanted} is needed") from None


class JsonWords(NamedTuple):
    """What errors say of JSON text, with {path}, {line}, {column}, {reason}, {key}, {kind}.

    Attributes
    ----------
    invalid, unusable : str
        No JSON; JSON that cannot be held.
    too_deep : str
        Reason of `unusable` where lists or objects nest too deeply.
    twice : str
        A key repeated in an object; empty: the last one counts.
    no_object : str
        Something else than an object; empty: anything may stand there.
    constants : bool
        Whether NaN and infinities, which are no JSON, are taken.
    """

    invalid: str
    unusable: str
    too_deep: str = "nested too deeply"
    twice: str = ""
    no_object: str = ""
    constants: bool = True


SETTINGS = JsonWords(
    "{path}:{line}: not valid JSON: {reason}",
    "{path}:1: not usable JSON: {reason}",
    twice="{path}:{line}: key '{key}' is given twice; it should stand once",
)
PROFILE = JsonWords(
    "{path}, line {line}: no JSON: {reason}",
    "{path}: {reason}",
    too_deep="nests deeper than JSON of a profiler does",
    constants=False,
)


def parse_json(
    text: str,
    path: str | os.PathLike[str],
    words: JsonWords,
    error: type[PerfModelError] = FormatError,
) -> Any:
    """Return what JSON text holds.

    Parameters
    ----------
    text : str
    path : str or path
        What errors call the file.
    words : JsonWords
        What errors say, and what is refused.
    error : type of PerfModelError
        What to raise.
    """

    def differing(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            key = next(name for at, name in enumerate(names) if name in names[:at])
            line = key_line(text, key, occurrence=1)
            raise error(words.twice.format(path=path, line=line, key=shortened(key)))
        return content

    def constant(word: str) -> float:
        if not words.constants:
            raise ValueError(f"'{word}' is no JSON number")
        return float(word)

    try:
        hook = differing if words.twice else None  # large traces are read without it
        document = json.loads(text, object_pairs_hook=hook, parse_constant=constant)
    except json.JSONDecodeError as wrong:
        place = {"path": path, "line": wrong.lineno, "column": wrong.colno}
        raise error(words.invalid.format(**place, reason=wrong.msg)) from None
    except (ValueError, RecursionError) as wrong:  # numbers of thousands of digits, deep nesting
        reason = words.too_deep if isinstance(wrong, RecursionError) else wrong
        raise error(words.unusable.format(path=path, reason=reason)) from None
    if words.no_object and not isinstance(document, dict):
        raise error(words.no_object.format(path=path, kind=type(document).__name__))
    return document


def json_object(path: str | os.PathLike[str], text: str, example: str) -> dict[str, Any]:
    """Return the JSON object of a file of settings, without repeated keys.

    Raises
    ------
    FormatError
        The text is no such object; names the line, and `example`, a key that it should have.
    """
    expected = "{path}:1: should be a JSON object with keys such as " + example
    document: dict[str, Any] = parse_json(text, path, SETTINGS._replace(no_object=expected))
    return document


def key_line(text: str, key: str, occurrence: int = 0) -> int:
    """Return the line on which a JSON key stands, from 1."""
    found = list(re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text))
    if not found:  # the key is written with escapes
        return 1
    return text.count("\n", 0, found[min(occurrence, len(found) - 1)].start()) + 1


def read_json(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """Return what a profiler's JSON file holds; files that begin like gzip are unpacked.

    Parameters
    ----------
    path : str or path
    largest : int, optional
        Most text that is read [B].

    Raises
    ------
    FormatError
        The file cannot be read, is no JSON text, nests too deep or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            bound = largest
            if packed:
                size = file.seek(0, os.SEEK_END)
                bound = min(largest, max(LARGEST_EXPANSION * size, SMALLEST_BOUND))
            file.seek(0)
            source = gzip.GzipFile(fileobj=file) if packed else file
            data = source.read(bound + 1)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{path}: damaged gzip data: {error}") from None
    if len(data) > bound:
        raise FormatError(f"{path}: more than {bound} B of text, the most that is read")
    return parse_json(data.decode("utf-8-sig", errors="replace"), path, PROFILE)
