"""What a launch file states, key by key with its line, and which of it was understood."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfmodel.base.errors import FormatError, did_you_mean
from perfmodel.base.files import Entry, shortened

LARGEST = 2**40  # of a whole number: larger than any run
_WHOLE = re.compile(r"-?\d+", re.ASCII)
Keys = dict[str, Any]
NOTHING: Keys = {}
LONGEST_REMARK = 300  # characters
ALIKE = 0.8  # of the letters of two spellings of one word
SHORTEST_NAME = 6  # letters of a key that others are likened to
_WORDS, _DIGITS = re.compile(r"[-_.]"), re.compile(r"\d+")
OFF = ("none", "null", "false")


class Words(tuple[str, ...]):
    """What follows an option of an argument list: none, one or several words."""

    __slots__ = ()


class Settings:
    """What a launch file states, and which of it was understood.

    Parameters
    ----------
    path : str or path
        What errors call the file.
    entries : mapping of str to Entry
    dashes : str
        What stands before a key in messages: ``--`` for argument lists.
    """

    def __init__(
        self, path: str | os.PathLike[str], entries: Mapping[str, Entry], dashes: str = ""
    ) -> None:
        self.path = path
        self.entries = dict(entries)
        self.dashes = dashes
        self.read: set[str] = set()
        self.remarks: list[str] = []
        self.names: dict[str, str] = {}  # today's name of a key -> the one that is in the file
        self.files: dict[str, str] = {}  # key -> another file, in which it stands
        self.fields: dict[str, str] = {}  # of the strategy -> the key that stated it
        self.typed: Mapping[str, Any] = {}  # fields, and devices, that were typed: they win
        self.model = ""  # what the file's first comment names where no key does

    def __contains__(self, key: str) -> bool:
        return self.stated(key) is not None

    def where(self, key: str) -> str:
        """Return the file, and the line on which a key stands."""
        line = self.entries[key].line if key in self.entries else 0
        path = self.files.get(key, self.path)
        return f"{path}:{line}" if line else str(path)

    def name(self, key: str) -> str:
        """Return a key as its file writes it; options have no underscores."""
        key = self.names.get(key, key)
        return key if "_" in key or "." in key else self.dashes + key

    def wrong(self, key: str, expected: str) -> FormatError:
        """Return the error of a value that is not what it should be."""
        value = self.entries[key].value if key in self.entries else ""
        if isinstance(value, Words):
            value = value[0] if value else ""
        return FormatError(
            f"{self.where(key)}: {self.name(key)} '{shortened(value)}': should be {expected}"
        )

    def missing(self, key: str, expected: str) -> FormatError:
        """Return the error of a key that is needed and absent."""
        return FormatError(f"{self.path}: no {self.name(key)}; it should be there, {expected}")

    def contradiction(self, text: str, *keys: str) -> FormatError:
        """Return the error of keys that cannot all hold; names each with its line."""
        stated = [key for key in keys if key in self.entries]
        parts = []
        for key in stated:
            value, line = self.entries[key]
            value = value[0] if isinstance(value, Words) and value else value
            at = f" (line {line})" if line and key != stated[0] else ""
            parts.append(f"{self.name(key)} {shortened(value)}{at}")
        where = self.where(stated[0]) if stated else str(self.path)
        return FormatError(f"{where}: {', '.join([*parts, text]) if parts else text}")

    def rename(self, old: str, new: str) -> None:
        """Put today's name in place of an earlier one.

        Raises
        ------
        FormatError
            Both are there and say different things.
        """
        if old not in self.entries:
            return
        if new not in self.entries:
            self.entries[new] = self.entries[old]
            self.names[new] = old
        elif comparable(self.entries[new].value) != comparable(self.entries[old].value):
            raise self.contradiction(
                "two names of one thing: should be equal, or one of them absent", old, new
            )
        self.read.add(old)

    def put(self, keys: Mapping[str, Any], instead_of: Iterable[str] = ()) -> None:
        """Put what the command line says in place of keys of the file."""
        for key in instead_of:
            self.entries.pop(key, None)
            self.read.add(key)
        self.entries |= {key: Entry(value) for key, value in keys.items()}

    def asked_of(self, names: Iterable[str]) -> bool:
        """Tell whether any of some fields was typed."""
        return any(name in self.typed for name in names)

    def remark(self, text: str) -> None:
        """Remember something that the user should know, in one line whatever it quotes."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        self.remarks.append(plain if len(plain) <= LONGEST_REMARK else f"{plain[:LONGEST_REMARK]}…")

    def stated(self, key: str, *, flag: bool = False) -> Any:
        """Return the value of a key, None where it is absent, null or switched off."""
        self.read.add(key)
        if key not in self.entries:
            return None
        value = self.entries[key].value
        if isinstance(value, Words):
            value = True if flag or not value else value[0]
        if isinstance(value, str) and value.lower() in OFF:
            return None
        if isinstance(value, str) and value.lower() == "true":
            return True
        return None if value is False else value

    def silent(self, key: str) -> bool:
        """Tell whether a file leaves a key to the software: absent, or null."""
        return key not in self.entries or self.entries[key].value in (None, "None", "null")

    def whole(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a whole number.

        Raises
        ------
        FormatError
            It is none, is out of range, or is absent and has no default.
        """
        value = self.stated(key)
        expected = f"a whole number of at least {minimum}"
        if value is None:
            if default is None:
                raise self.missing(key, expected)
            return default
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value) if len(value) < 19 else LARGEST + 1
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            hint = "; the file does not say what the variable is" if "$" in str(value) else ""
            raise self.wrong(key, expected + hint)
        if value < minimum or value > LARGEST:
            raise self.wrong(key, f"{expected} and at most 2^40")
        return value

    def number(self, key: str, default: float) -> float:
        """Return a positive number; raises FormatError."""
        value = self.stated(key)
        if value is None:
            return default
        try:
            found = float(value) if not isinstance(value, bool) else -1.0
        except (TypeError, ValueError, OverflowError):
            found = -1.0
        if not 0.0 < found < float(LARGEST):
            raise self.wrong(key, "a positive number")
        return found

    def word(self, key: str, default: str = "") -> str:
        """Return a word."""
        value = self.stated(key)
        return default if value is None else str(value)

    def flag(self, key: str) -> bool:
        """Tell whether a switch is on."""
        return self.stated(key, flag=True) is not None

    def unread(self) -> Iterator[str]:
        """Yield the keys that nothing asked for."""
        yield from (key for key in self.entries if key not in self.read)


def comparable(value: Any) -> Any:
    """Return a value such that what means the same is equal."""
    if value is None or value is False or (isinstance(value, str) and value.lower() in OFF):
        return None
    if value is True:
        return True
    if isinstance(value, list | tuple):
        return tuple(comparable(item) for item in value)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)


def remark_unread(settings: Settings, watched: Mapping[str, str]) -> None:
    """Name the keys that would change the speed or the memory and were not understood."""
    for key in settings.unread():
        value = settings.entries[key].value
        nothing = (None, False, "None", "null", "", "false", "False", -1, "-1", "-1.0")
        alone = key.endswith("_parallelism") and value in (1, "1")
        if key in watched and value not in nothing and not alone:
            settings.remark(f"{settings.name(key)}: {watched[key]}")


def refuse_unknown(
    settings: Settings, known: Iterable[str] = (), closed: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Refuse keys that are none, but nearly one that is read.

    A key that only adds words to one that is read, or has another number in it, is another one
    (``eval-micro-batch-size``, ``fp4-param-gather``); of a closed section all keys are known.

    Parameters
    ----------
    settings : Settings
    known : iterable of str
        Keys that exist beside those that were asked for.
    closed : mapping of str to iterable of str
        Section, with its dot -> keys of it that exist and do not matter.

    Raises
    ------
    FormatError
        Names the key, its line and the nearest one.
    """
    real = settings.read | set(known)
    for key in settings.unread():
        if key in real or key.rpartition(".")[2].startswith("_"):  # Hydra's own: _target_
            continue
        section = key[: key.rfind(".") + 1]
        inside = [name for name in real if name[: name.rfind(".") + 1] == section]
        if section in (closed or {}):
            inside += [section + name for name in (closed or {})[section]]
            if key not in inside:
                raise _unknown_key(settings, key, inside)
        elif _misspelled(key, inside):
            raise _unknown_key(settings, key, inside)


def _misspelled(key: str, known: Iterable[str]) -> bool:
    """Tell whether a key has the words of another, one misspelled or left out."""
    words = _WORDS.split(key.lower())
    others = [_WORDS.split(name.lower()) for name in known if len(name) >= SHORTEST_NAME]
    if any(set(other) <= set(words) for other in others):
        return False
    return any(_words_alike(words, other) for other in others)


def _words_alike(words: Sequence[str], other: Sequence[str]) -> bool:
    if len(words) == len(other):
        pairs = [pair for pair in zip(words, other, strict=True) if pair[0] != pair[1]]
        return len(pairs) == 1 and _letters_alike(*pairs[0])
    left = [word for word in other if word not in words]
    return len(other) == len(words) + 1 > 3 and len(left) == 1 and set(words) <= set(other)


def _letters_alike(word: str, other: str) -> bool:
    if _DIGITS.findall(word) != _DIGITS.findall(other):
        return False
    return difflib.SequenceMatcher(None, word, other, autojunk=False).ratio() >= ALIKE


def _unknown_key(settings: Settings, key: str, known: Iterable[str]) -> FormatError:
    section, _, last = key.rpartition(".")
    inside = [name.removeprefix(section + ".") for name in known]
    hint = did_you_mean(last, inside).replace("; did you mean ", "; should be ").rstrip("?")
    name = settings.name(shortened(key))
    return FormatError(f"{settings.where(key)}: unknown key {name}{hint or '; no such key'}")
