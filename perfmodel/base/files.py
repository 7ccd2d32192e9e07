"""Files: written completely or not at all, read within bounds, JSON with one-line errors.

Keys of a text file are kept with their values and lines, each of them once.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import re
import shutil
import tempfile
import threading
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.base.errors import (
    MACHINE_FAILURES,
    DataError,
    FormatError,
    MachineError,
    PerfModelError,
)

LARGEST = 2**31  # B of text
# A gzipped file may unpack to this many times its size and no more, as one of Chakra's.
LARGEST_EXPANSION = 256
SMALLEST_BOUND = 2**24  # B
LONGEST_TEXT = 60
LARGEST_TOML = 2**22  # B; the largest profile has 30 kB
PROBE = 2**24  # B, as netCDF's chunks; what is written to find out whether a disk is full
# Of dotted keys: tomllib needs the square of their parts.
MOST_PARTS = 64
_PARTS = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{MOST_PARTS}}}"
)
HDF5 = threading.RLock()
"""Held while netCDF4 is called: it lets other threads run, and HDF5 crashes where two call it."""
TEMPORARIES: set[Path] = set()
"""Files and folders that are being written, to be removed if the run ends at once."""


def shortened(value: Any) -> str:
    """Return a value as text that a message can hold; files may have cells of any length."""
    text = str(value)
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[:LONGEST_TEXT])
    return shown if len(text) <= LONGEST_TEXT else f"{shown}…"


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with its ``~`` expanded; it stays where there is no such home folder."""
    return Path(os.path.expanduser(path))


def check_writable(path: str | Path) -> Path:
    """Make sure, before a long computation, that a file can be written.

    Raises
    ------
    DataError
        The folder does not exist or cannot be written, or the path is not a file's.
    """
    if not str(path):
        raise DataError("cannot write '': name a file")
    try:
        return _checked_target(path)
    except (OSError, RuntimeError, ValueError) as error:
        # A name too long, no right to look, no home to expand, a circle of links, NUL.
        raise not_written(path, error) from None


def _checked_target(path: str | Path) -> Path:
    shown = user_path(path)
    str(shown).encode()  # netCDF takes no names that are not text
    target = shown.resolve()  # a link stays, and what it points to is written
    folder = target.parent
    if not folder.is_dir():
        raise DataError(f"cannot write '{shown}': folder '{shown.parent}' does not exist")
    if target.is_dir():
        raise DataError(f"cannot write '{shown}': it is a folder; name a file in it")
    parents = shown.absolute().parents
    device = Path("/dev") in parents and Path("/dev/shm") not in parents  # that is memory
    if device or (target.exists() and not target.is_file()):
        raise DataError(f"cannot write '{shown}': it is not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise DataError(f"cannot write '{shown}': permission denied")
    with tempfile.TemporaryFile(prefix=f".{target.name}."[:LONGEST_TEXT], dir=folder):
        pass
    return target


def not_written(path: str | Path, error: Exception) -> PerfModelError:
    """Return the error that says why a file cannot be written; a full disk is the machine's."""
    number = getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or error
    kind = MachineError if number in MACHINE_FAILURES else DataError
    return kind(f"cannot write '{path}': {reason}")


def _probe(folder: Path) -> OSError | None:
    """Return why nothing more can be written into a folder, where a library does not say."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def remove_temporaries() -> None:
    """Remove what `atomic_path` has begun, before a run ends at once."""
    for path in list(TEMPORARIES):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`, renamed to it on success, removed on failure.

    Raises
    ------
    DataError
        The folder does not exist or cannot be written.
    MachineError
        The disk is full, or the like.
    """
    target = check_writable(path)
    prefix, suffix = f".{target.name}."[:LONGEST_TEXT], target.suffix[:LONGEST_TEXT]
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=target.parent)
    temporary = Path(name)
    TEMPORARIES.add(temporary)
    os.close(handle)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        raise not_written(target, error) from None
    except RuntimeError as error:  # so netCDF and HDF5 report a full disk
        if "NetCDF" not in str(error):
            raise
        raise not_written(target, _probe(target.parent) or error) from None
    finally:
        temporary.unlink(missing_ok=True)
        TEMPORARIES.discard(temporary)


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Give a temporary folder beside `target`; raises and behaves as `atomic_path`."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    TEMPORARIES.add(temporary)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except OSError as error:
        raise not_written(target, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        TEMPORARIES.discard(temporary)


def not_read(path: str | os.PathLike[str], error: Exception) -> str:
    """Say that a file cannot be read, and why: what `open` raised."""
    return f"cannot read '{path}': {getattr(error, 'strerror', None) or error}"


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
    except (OSError, ValueError) as error:  # NUL in its name
        raise FormatError(not_read(path, error)) from None
    if largest is not None and len(content) > largest:
        raise FormatError(f"{path}: more than {largest} B; {wanted} is needed")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; {wanted} is needed") from None


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, str]]:
    """Return the rows of a table that comes with the package: CSV, empty cells left out."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(file)]


def read_toml(
    path: str | os.PathLike[str], error: type[PerfModelError] = FormatError
) -> dict[str, Any]:
    """Return what a TOML file holds.

    Parameters
    ----------
    path : str or path
    error : type of PerfModelError
        What to raise.

    Raises
    ------
    PerfModelError
        The file cannot be read, is larger than `LARGEST_TOML`, is not UTF-8, is no TOML, nests
        too deeply, has keys of more than `MOST_PARTS` parts or numbers beyond 64 bits.
    """
    try:
        text = read_text(path, "TOML", LARGEST_TOML)
    except FormatError as wrong:
        raise error(str(wrong)) from None
    if _PARTS.search(text):
        raise error(f"{path}: a key has more than {MOST_PARTS} parts")
    try:
        document = tomllib.loads(text)
    except ValueError as wrong:  # numbers of thousands of digits, besides TOMLDecodeError
        raise error(f"{path}: not valid TOML: {wrong}") from None
    except RecursionError:
        raise error(f"{path}: not usable TOML: nested too deeply") from None
    _check_integers(document, path, error)
    return document


def _check_integers(
    value: Any, path: str | os.PathLike[str], error: type[PerfModelError], key: str = ""
) -> None:
    """Raise where an integer is beyond the 64 bits that TOML asks for."""
    if isinstance(value, dict):
        for name, item in value.items():
            _check_integers(item, path, error, name)
    elif isinstance(value, list):
        for item in value:
            _check_integers(item, path, error, key)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise error(f"{path}: '{shortened(key)}' has an integer of more than 64 bits")


def chain_of_files(
    first: str,
    parent: Callable[[str], str | None],
    where: str,
    error: type[PerfModelError],
    shown: Callable[[str], str] = str,
) -> list[str]:
    """Return what a file is made of by ``extends``, the one that extends nothing first.

    Parameters
    ----------
    first : str
        The file, by its path or name.
    parent : callable
        Gives the file that one extends; None where it extends none.
    where : str
        What errors call the first.
    error : type of PerfModelError
        What to raise.
    shown : callable
        What errors call a file of a circle.

    Raises
    ------
    PerfModelError
        They extend each other in a circle.
    """
    chain = [first]
    while (found := parent(chain[-1])) is not None:
        if os.path.realpath(found) in map(os.path.realpath, chain):
            circle = " -> ".join(map(shown, [*chain, found]))
            raise error(f"{where}: 'extends' goes in a circle: {circle}")
        chain.append(found)
    return chain[::-1]


def check_header(
    document: Mapping[str, Any],
    rows: Iterable[tuple[str, type, str]],
    where: str | os.PathLike[str],
    error: type[PerfModelError],
) -> None:
    """Refuse keys that describe a TOML file and are of another kind than they should be.

    Parameters
    ----------
    document : mapping
    rows : iterable of (str, type, str)
        Key, its type, and that in words; of "texts" every item is one.
    where : str or path
        What errors call the file.
    error : type of PerfModelError
        What to raise.

    Raises
    ------
    PerfModelError
        Names the key, what it should be, and what it is.
    """
    for key, kind, words in rows:
        value = document.get(key)
        if value is None:
            continue
        items = value.values() if isinstance(value, dict) else value
        wrong = not isinstance(value, kind)
        if not wrong and words.endswith("of texts"):
            wrong = not all(isinstance(item, str) for item in items)
        if wrong:
            raise error(f"{where}: '{key}' must be {words}, not {value!r}")


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


def read_unpacked(path: str | os.PathLike[str], largest: int = LARGEST) -> bytes:
    """Return what a file holds; files that begin like gzip are unpacked.

    Parameters
    ----------
    path : str or path
    largest : int, optional
        Most text that is read [B].

    Raises
    ------
    FormatError
        The file cannot be read, is damaged or is too large.
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
    except (EOFError, zlib.error) as error:
        raise FormatError(f"{path}: damaged gzip data: {error}") from None
    except (OSError, ValueError) as error:
        raise FormatError(not_read(path, error)) from None
    if len(data) > bound:
        raise FormatError(f"{path}: more than {bound} B of text, the most that is read")
    return data


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
    data = read_unpacked(path, largest)
    return parse_json(data.decode("utf-8-sig", errors="replace"), path, PROFILE)


class Entry(NamedTuple):
    """A value and its line, 0 where lines are not known."""

    value: Any
    line: int = 0


class Located(dict[str, Entry]):
    """What a file states, key by key.

    Parameters
    ----------
    path : str or path
        What errors call the file.

    Examples
    --------
    >>> keys = Located("run.yaml")
    >>> keys.put("model.layers", 32, 7)
    >>> keys["model.layers"].value, keys.where("model.layers")
    (32, 'run.yaml:7')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = path

    def where(self, key: str) -> str:
        """Return the file, and the line on which a key stands."""
        line = self[key].line if key in self else 0
        return f"{self.path}:{line}" if line else str(self.path)

    def put(self, key: str, value: Any, line: int, advice: str = "; it should stand once") -> None:
        """Add a key.

        Raises
        ------
        FormatError
            It is given twice; names both lines.
        """
        if key in self:
            raise FormatError(
                f"{self.path}:{line}: key '{shortened(key)}' is given twice (first on line "
                f"{self[key].line}){advice}"
            )
        self[key] = Entry(value, line)
