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
from typing import Any

from perfmodel.base.errors import DataError, FormatError

LARGEST = 2**31  # B of text
# A gzipped file may unpack to this many times its size and no more, as one of Chakra's.
LARGEST_EXPANSION = 256
SMALLEST_BOUND = 2**24  # B
LONGEST_TEXT = 60


def shortened(value: Any) -> str:
    """Return a value as text that a message can hold; files may have cells of any length."""
    text = str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


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


def json_object(path: str | os.PathLike[str], text: str, example: str) -> dict[str, Any]:
    """Return a JSON object without repeated keys.

    Parameters
    ----------
    path : str or path
        What errors call the file.
    text : str
    example : str
        A key that it should have.

    Raises
    ------
    FormatError
        The text is no such object; names the line.
    """

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                at = key_line(text, key, occurrence=1)
                raise FormatError(
                    f"{path}:{at}: key '{shortened(key)}' is given twice; it should stand once"
                )
            seen[key] = value
        return seen

    try:
        document = json.loads(text, object_pairs_hook=without_repeats)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise FormatError(f"{path}:1: not usable JSON: {reason}") from None
    if not isinstance(document, dict):
        raise FormatError(f"{path}:1: should be a JSON object with keys such as {example}")
    return document


def key_line(text: str, key: str, occurrence: int = 0) -> int:
    """Return the line on which a JSON key stands, from 1."""
    found = list(re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text))
    if not found:  # the key is written with escapes
        return 1
    return text.count("\n", 0, found[min(occurrence, len(found) - 1)].start()) + 1


def read_json(path: str | os.PathLike[str], largest: int = LARGEST) -> Any:
    """Return what a JSON file holds; files that begin like gzip are unpacked.

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
    return parse_json(data, str(path))


def parse_json(data: bytes | str, file: str) -> Any:
    """Return what JSON text holds; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_json`.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig", errors="replace")
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise FormatError(f"{file}, line {error.lineno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise FormatError(f"{file}: nests deeper than JSON of a profiler does") from None
    except ValueError as error:  # a number of thousands of digits, or NaN
        raise FormatError(f"{file}: {error}") from None


def _refuse(word: str) -> Any:
    """Refuse NaN and infinities, which are no JSON."""
    raise ValueError(f"'{word}' is no JSON number")
