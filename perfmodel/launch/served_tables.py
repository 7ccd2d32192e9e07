"""Options of servers and the deployment fields that they state: one table writes and reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.launch.served import Workers
from perfmodel.launch.settings import Keys, Settings, remark_unread


@dataclass(frozen=True, slots=True)
class Count:
    """An option whose whole number is a field.

    `per_rank` is False where the engine counts over all attention ranks of a worker.
    """

    key: str
    field: str
    per_rank: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """An option whose number between 0 and 1 is a field."""

    key: str
    field: str


@dataclass(frozen=True, slots=True)
class Word:
    """An option whose word stands for a value of a field; the first of several is written."""

    key: str
    field: str
    words: Mapping[str, Any]


Option = Count | Share | Word

ONE_IS_LEFT_OUT = ("pipeline_parallel", "expert_parallel", "attention_data_parallel")


def write_options(workers: Workers, options: Iterable[Option]) -> Keys:
    """Return the options that say what was chosen."""
    keys: Keys = {}
    for option in options:
        value = workers[option.field]
        if value is None or (value == 1 and option.field in ONE_IS_LEFT_OUT):
            continue
        if isinstance(option, Count):
            ranks = 1 if option.per_rank else workers["attention_data_parallel"]
            keys[option.key] = value * ranks
        elif isinstance(option, Share):
            keys[option.key] = value
        else:
            word = next((text for text, known in option.words.items() if known == value), None)
            if word is not None:
                keys[option.key] = word
    return keys


def read_options(settings: Settings, options: Iterable[Option], ranks: int) -> Keys:
    """Return the fields that options state, counts over all ranks divided among `ranks`."""
    fields: Keys = {}
    for option in options:
        if settings.stated(option.key) is None:
            continue
        if isinstance(option, Count):
            value = settings.whole(option.key)
            fields[option.field] = value if option.per_rank else max(value // ranks, 1)
        elif isinstance(option, Share):
            share = settings.number(option.key, 1.0)
            if share > 1.0:
                raise settings.wrong(option.key, "a share of memory, above 0 and at most 1")
            fields[option.field] = share
        else:
            word = settings.word(option.key).lower()
            if word not in option.words:
                raise settings.wrong(option.key, f"one of {', '.join(option.words)}")
            fields[option.field] = option.words[word]
    return {name: value for name, value in fields.items() if value != "stated"}


def rank_degree(settings: Settings, key: str, whole: int, ranks: int) -> int:
    """Return the degree within a rank, where an engine states that of all its ranks.

    Raises
    ------
    FormatError
        The ranks do not divide it.
    """
    if whole % ranks:
        raise settings.wrong(key, f"a multiple of the {ranks} data-parallel ranks of attention")
    return whole // ranks


def positional(text: str, program: re.Pattern[str]) -> str:
    """Return the word that follows a program's name, unless it is an option; else empty."""
    found = program.search(text)
    if found is None:
        return ""
    rest = text[found.end() :].replace("\\\n", " ").split(maxsplit=1)
    return "" if not rest or rest[0].startswith("-") else rest[0].strip("'\"")


def finished(
    engine: str,
    settings: Settings,
    model: str,
    fields: Mapping[str, Any],
    part: str,
    watched: Mapping[str, str],
) -> Workers:
    """Return the workers that were read, with remarks on options that nothing follows."""
    remark_unread(settings, watched)
    chosen = {name: value for name, value in fields.items() if value is not None}
    return Workers(engine, model, chosen, part, 1, tuple(dict.fromkeys(settings.remarks)))
