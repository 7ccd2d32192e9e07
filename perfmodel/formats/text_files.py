"""What readers of text files share: the text itself, and JSON objects that know their lines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from perfmodel.astra_system import shortened
from perfmodel.errors import FormatError


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
