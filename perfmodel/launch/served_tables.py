"""Servers' options and the fields of a deployment that they state: one table writes and reads.

A table is a file ``tables/<engine>.toml``: ``title``; ``start``, the command, and the ``program``
by which it is told; ``options`` (`Option`), and those ``in_file`` beside the command; ``short``
names; ``limits`` and ``watched`` as of programs that train (`perfmodel.launch.table`); what is to
be said of pools that are ``joined``. What a command leaves out is the engine's own default, so only
what was chosen is written; reading, what is absent stays absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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
        ``prefix_caching``, ``speculative_method`` ("mtp", "eagle3", "ngram"), ``software``
        (changed facts of the engine); what is absent is the
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
    size : bool
        A count that may end in k, m or g, of thousands in small letters, of 1,024 in capitals.
    """

    key: str
    field: str
    per_rank: bool = True
    share: bool = False
    words: Mapping[str, Any] = {}
    size: bool = False


class Fact(NamedTuple):
    """An option that changes a fact of the engine (`perfmodel.software.engine`).

    Attributes
    ----------
    key : str
    facts : tuple of str
    value : object
        What a switch means; None where the option has a whole number, or one of `words`.
    words : mapping of str to object
        Words -> values; one that is absent is remarked.
    """

    key: str
    facts: tuple[str, ...]
    value: Any = None
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
    facts: tuple[Fact, ...]
    harmless: tuple[str, ...]
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
        facts=tuple(Fact(**item) for item in document.pop("facts", ())),
        harmless=tuple(document.pop("harmless", ())),
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
        elif option.size:
            fields[option.field] = read_size(settings, option.key)
        elif option.share:
            share = settings.number(option.key, 1.0)
            if share > 1.0:
                raise settings.wrong(option.key, "a share of memory, above 0 and at most 1")
            fields[option.field] = share
        else:
            value = settings.whole(option.key)
            fields[option.field] = value if option.per_rank else max(value // ranks, 1)
    return {name: value for name, value in fields.items() if value != "stated"}


def read_size(settings: Settings, key: str) -> int | None:
    """Return a count such as 131072, 128k or 20G; None for what is left to the engine."""
    text = settings.word(key)
    if text.lower() in ("auto", "-1"):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)", text, re.ASCII)
    if found is None or not float(found[1]):
        raise settings.wrong(key, "a positive count as in 131072, 128k or 20G")
    power = "kmgt".find(found[2].lower()) + 1 if found[2] else 0
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** power)


def read_facts(settings: Settings, table: Sequence[Fact]) -> Keys:
    """Return the facts of an engine that options change."""
    found: Keys = {}
    for item in table:
        if settings.stated(item.key, flag=item.value is not None) is None:
            continue
        if item.value is not None:
            value = item.value
        elif item.words:
            word = settings.word(item.key).lower()
            value = item.words.get(word)
            if value is None:
                settings.remark(f"{settings.name(item.key)} {word}: not modelled; its default is")
                continue
        else:
            value = settings.whole(item.key, minimum=0)
        found |= dict.fromkeys(item.facts, value)
    return found


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
    server: Server,
    engine: str,
    settings: Settings,
    model: str,
    fields: Mapping[str, Any],
    part: str,
) -> Workers:
    """Return the workers that were read, with remarks on options that nothing follows."""
    facts = read_facts(settings, server.facts)
    remark_unread(settings, server.watched)
    others = [
        settings.name(key)
        for key in settings.unread()
        if key not in server.watched and key.rpartition(".")[2] not in server.harmless
    ]
    if others:
        settings.remark(f"not modelled, and left out: {', '.join(others)}")
    chosen = {name: value for name, value in fields.items() if value is not None}
    if facts:
        chosen["software"] = facts
    return Workers(engine, model, chosen, part, 1, tuple(dict.fromkeys(settings.remarks)))
