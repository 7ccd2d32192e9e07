"""Read JSON that may be large, compressed or hostile, with one-line errors."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from perfmodel.errors import FormatError

LARGEST = 2**31  # B of text
# A gzipped file may unpack to this many times its size and no more, as one of Chakra's.
LARGEST_EXPANSION = 256
SMALLEST_BOUND = 2**24  # B


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
