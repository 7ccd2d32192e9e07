"""Servers' options and the fields of a deployment that they state: one table writes and reads.

A table is a file ``tables/<engine>.toml``: ``title``; ``start``, the command, and the ``program``
by which it is told; ``options`` (`Option`), and those ``in_file`` beside the command; ``short``
names; ``limits`` and ``watched`` as of programs that train (`perfmodel.launch.table`); what is to
be said of pools that are ``joined``. What a command leaves out is the engine's own default, so only
what was chosen is written; reading, what is absent stays absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from perfmodel.base.errors import StrategyError
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import read_toml
from perfmodel.launch.settings import Keys, Settings, remark_unread
from perfmodel.launch.table import FOLDER, Limit, limit
from perfmodel.launch.text import parse_arguments

DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "attention_data_parallel",
)
LEFT_OUT: tuple[Any, ...] = (None, 0, "", "stated")
"""Values of fields that leave a choice to the engine."""
ONE_IS_LEFT_OUT = ("pipeline_parallel", "expert_parallel", "attention_data_parallel")


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers alike of one engine.

    Attributes
    ----------
    engine : str
        One of `perfmodel.launch.served.SERVERS`.
    model : str
        As a server takes it: a name on the Hugging Face Hub, or a folder; empty if unknown.
    fields : mapping of str to int, float, bool or str
        Deployment fields (`perfmodel.base.served_fields`), and ``context_length`` [tokens],
        ``prefix_caching``, ``speculative_method`` ("mtp", "eagle3", "ngram"); what is absent is the
        engine's default. Sequences and tokens count per attention rank.
    part : {"", "prefill", "decode"}
        What the workers do where the two are apart.
    count : int
        How many there are.
    remarks : tuple of str
        What a reader could not take as it stands.
    """

    engine: str
    model: str
    fields: Mapping[str, Any]
    part: str = ""
    count: int = 1
    remarks: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        """Return a field; 1 for a degree and None for another that is left to the engine."""
        value = self.fields.get(name, 1 if name in DEGREES else None)
        return None if value in LEFT_OUT and name not in DEGREES else value

    @property
    def stage_devices(self) -> int:
        """Devices of a pipeline stage: what engines without data parallelism call TP."""
        return int(self["tensor_parallel"] * self["attention_data_parallel"])


class Option(NamedTuple):
    """An option that states a field: as a whole number, or otherwise.

    Attributes
    ----------
    key, field : str
    per_rank : bool
        False where the engine counts over all attention ranks of a worker.
    share : bool
        A number between 0 and 1.
    words : mapping of str to str
        Words that stand for values; the first of several is written.
    """

    key: str
    field: str
    per_rank: bool = True
    share: bool = False
    words: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Server:
    """The table of an engine; its parts are those of the file."""

    title: str
    start: str
    program: re.Pattern[str]
    options: tuple[Option, ...]
    in_file: tuple[Option, ...]
    short: Mapping[str, str]
    limits: tuple[Limit, ...]
    watched: Mapping[str, str]
    joined: tuple[str, ...]
    own: Mapping[str, Any]

    def broken(self, workers: Workers) -> Limit | None:
        """Return the first limit that some workers break; None where they run."""
        names = (*DEGREES, "stage_devices")

        def value(name: str) -> int:
            return workers.stage_devices if name == "stage_devices" else int(workers[name])

        for item in self.limits:
            if evaluate_mask(item.broken, value, names, 1)[0]:
                return item
        return None

    def refuse(self, workers: Workers) -> None:
        """Refuse workers that the engine cannot run; raises StrategyError."""
        if found := self.broken(workers):
            asked = ", ".join(f"{name} {workers[name]}" for name in found.fields)
            raise StrategyError(f"{self.title} cannot do {asked}: {found.offers}")

    def parse(self, text: str, path: str) -> Settings:
        """Return the options of a command under their long names; raises FormatError."""
        settings = parse_arguments(text, path)
        entries = settings.entries.items()
        settings.entries = {self.short.get(key, key): entry for key, entry in entries}
        return settings


@lru_cache(maxsize=8)
def load_server(engine: str) -> Server:
    """Return the table of an engine."""
    document = read_toml(FOLDER / f"{engine}.toml")
    parts = ("title", "start", "short", "watched")
    return Server(
        **{name: document.pop(name) for name in parts},
        program=re.compile(document.pop("program")),
        options=tuple(Option(**item) for item in document.pop("options")),
        in_file=tuple(Option(**item) for item in document.pop("in_file", ())),
        limits=tuple(map(limit, document.pop("limits"))),
        joined=tuple(document.pop("joined")),
        own=document,
    )


def write_options(workers: Workers, options: Iterable[Option]) -> Keys:
    """Return the options that say what was chosen."""
    keys: Keys = {}
    for option in options:
        value = workers[option.field]
        if value is None or (value == 1 and option.field in ONE_IS_LEFT_OUT):
            continue
        if option.words:
            word = next((text for text, known in option.words.items() if known == value), None)
            keys |= {} if word is None else {option.key: word}
        else:
            ranks = 1 if option.per_rank else workers["attention_data_parallel"]
            keys[option.key] = value if option.share else value * ranks
    return keys


def read_options(settings: Settings, options: Iterable[Option], ranks: int) -> Keys:
    """Return the fields that options state, counts over all ranks divided among `ranks`."""
    fields: Keys = {}
    for option in options:
        if settings.stated(option.key) is None:
            continue
        if option.words:
            word = settings.word(option.key).lower()
            if word not in option.words:
                raise settings.wrong(option.key, f"one of {', '.join(option.words)}")
            fields[option.field] = option.words[word]
        elif option.share:
            share = settings.number(option.key, 1.0)
            if share > 1.0:
                raise settings.wrong(option.key, "a share of memory, above 0 and at most 1")
            fields[option.field] = share
        else:
            value = settings.whole(option.key)
            fields[option.field] = value if option.per_rank else max(value // ranks, 1)
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
