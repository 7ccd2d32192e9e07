"""What programs call the settings of a run: tables of data, which write and read alike.

A table is a file ``tables/<program>.toml``:

- ``title``, ``presets`` and ``preset``: the program's name, the frameworks that it may be, and the
  one where nothing else is said (`perfmodel.software.framework`).
- ``numbers``: keys that state a field of the strategy as it is, with their ``default`` where a file
  is silent (1 if left out), or ``needed``. ``batches`` are those that a file may leave out.
- ``choices`` of the strategy, and facts of the ``software``, spelled by keys: see `Choice`. A
  ``switch`` is true where its key is there; what is ``stated`` is written whether true or false.
- ``limits``: what the program cannot do: see `Limit`.
- ``offloaded``: keys that leave something to the host. ``recompute``: how method, number of layers
  and modules of recomputation are called.
- ``told_by``: patterns of texts that are for the program, of which ``told_least`` are found (1 if
  left out). ``head``: lines of the first comment of what is written; ``{nodes}`` of ``{each}``
  processes run it. ``notes``: what a user should know ``when`` a condition holds.
- ``watched``: keys that matter and that no projection follows -> the remark on them.
- ``inherits``: another program -> parts that are taken over from it; an entry about the same
  fields takes the place of the other's.

Anything else is the program's own (`Program.own`). Reading, a key that is absent has the
software's default, not ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.expression import evaluate_mask
from perfmodel.base.files import read_toml, shortened
from perfmodel.base.pipelines import SCHEDULE_FACTS, WAVE
from perfmodel.base.strategy_fields import FIELD_BY_NAME, OFFLOAD
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Settings, comparable
from perfmodel.launch.stages import is_even, torch_group
from perfmodel.software.framework import Framework

FOLDER = Path(__file__).parent / "tables"


class Number(NamedTuple):
    """A strategy field that one key states as it is."""

    key: str
    field: str
    default: int | None = 1


class Switch(NamedTuple):
    """A key that leaves something to the host.

    Attributes
    ----------
    key : str
    fields : tuple of str
        Of the strategy: all of it, or the share that another key states.
    share : str
        That key; empty for all.
    """

    key: str
    fields: tuple[str, ...]
    share: str = ""


class RecomputeKeys(NamedTuple):
    """How a software calls method, number of layers and modules; empty: it has none."""

    method: str
    layers: str
    modules: str = ""


class Spelling(NamedTuple):
    """One value of a field and the keys that say it.

    Attributes
    ----------
    value : object
    keys : mapping
        What is written, and what is looked for in a file; "null": written as such.
    also : mapping
        What is written beside it; a file may say something else, and that is remarked. Of
        spellings with equal keys it tells which is meant.
    software : mapping
        Facts of the framework that the same keys state.
    """

    value: Any
    keys: Mapping[str, Any] = MappingProxyType({})
    also: Mapping[str, Any] = MappingProxyType({})
    software: Mapping[str, Any] = MappingProxyType({})


class Limit(NamedTuple):
    """What a software cannot do.

    Attributes
    ----------
    fields : tuple of str
        What is wrong, of which the message gives the values.
    broken : str
        Condition that tells whether a launch asks for it (`holds`).
    offers : str
        What the software does instead.
    """

    fields: tuple[str, ...]
    broken: str
    offers: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A field of the strategy, or a fact of the framework, spelled by keys.

    Attributes
    ----------
    field : str
    spellings : tuple of Spelling
        The first one of a value is written, unless the framework's facts ask for another;
        all are understood.
    defaults : mapping
        What the software does where a key is absent.
    when : str
        Condition under which the field matters (`holds`): elsewhere nothing is written.
    """

    field: str
    spellings: tuple[Spelling, ...]
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    when: str = ""

    @property
    def values(self) -> list[Any]:
        """What can be said."""
        return list(dict.fromkeys(spelling.value for spelling in self.spellings))

    def matters(self, launch: Launch) -> bool:
        """Tell whether a launch has the field at all."""
        return not self.when or holds(self.when, launch)

    def write(self, value: Any, software: Any) -> Keys:
        """Return the keys that say a value; none where the software has no word for it."""
        fitting = [item for item in self.spellings if item.value == value]
        for item in fitting if software is not None else ():
            if all(getattr(software, name) == fact for name, fact in item.software.items()):
                return {**item.keys, **item.also}
        return {**fitting[0].keys, **fitting[0].also} if fitting else {}

    def find(self, settings: Settings) -> Spelling:
        """Return the spelling that a file uses.

        Raises
        ------
        FormatError
            It is none of them; names the key, and what it could be.
        """
        deciding = dict.fromkeys(key for item in self.spellings for key in item.keys)
        found = {}
        for key in deciding:
            switch = any(item.keys.get(key) is True for item in self.spellings)
            value = settings.stated(key, flag=switch)
            if value is None and settings.silent(key):
                value = self.defaults.get(key)
            found[key] = comparable(value)
        alike = []
        for item in self.spellings:
            wanted = {key: item.keys.get(key, self.defaults.get(key)) for key in deciding}
            if all(found[key] == comparable(value) for key, value in wanted.items()):
                alike.append(item)
        if not alike:
            raise self._unknown(settings, list(deciding))
        if len(alike) > 1:
            return self._told_apart(settings, alike)
        for key, value in alike[0].also.items():
            stated = settings.stated(key, flag=value is True)
            if stated is not None and comparable(stated) != comparable(value):
                settings.remark(f"{settings.name(key)} {shortened(stated)}: projected as {value}")
        return alike[0]

    def _told_apart(self, settings: Settings, alike: Sequence[Spelling]) -> Spelling:
        """Return which of several spellings with equal keys a file means: by what stands beside.

        Raises
        ------
        FormatError
            What stands beside is of none of them.
        """
        told: dict[str, list[Any]] = {}
        for item in alike:
            for key, value in item.also.items():
                told.setdefault(key, []).append(value)
        agreeing = [0] * len(alike)
        for key, values in told.items():
            stated = comparable(settings.stated(key, flag=True in values))
            if stated is None:
                continue
            if stated not in map(comparable, values):
                listed = ", ".join(dict.fromkeys(map(str, values)))
                raise settings.wrong(key, f"one of {listed} (others are not modelled)")
            for i, item in enumerate(alike):
                agreeing[i] += key in item.also and stated == comparable(item.also[key])
        return alike[agreeing.index(max(agreeing))]

    def _unknown(self, settings: Settings, deciding: list[str]) -> FormatError:
        """Return the error of a combination that no spelling has: the key that fits least."""
        for key in deciding:
            known = [
                item.keys[key]
                for item in self.spellings
                if item.keys.get(key) not in (None, "null")
            ]
            value = settings.stated(key, flag=True in known)
            if value is not None and comparable(value) not in [comparable(x) for x in known]:
                listed = ", ".join(dict.fromkeys(str(x) for x in known))
                return settings.wrong(key, f"one of {listed} (others are not modelled)")
        stated = [key for key in deciding if key in settings]
        if not stated:
            ways = " or ".join(
                settings.name(key) for item in self.spellings[:2] for key in item.keys
            )
            return FormatError(f"{settings.path}: nothing says the {self.field}; {ways} would")
        others = " with ".join(settings.name(key) for key in stated[1:])
        return settings.wrong(stated[0], f"another, or absent, with {others or 'the rest'}")


@dataclass(frozen=True, slots=True)
class Program:
    """The table of a program; its parts are those of the file."""

    title: str
    presets: tuple[str, ...]
    preset: str
    numbers: tuple[Number, ...]
    batches: tuple[Number, ...]
    choices: tuple[Choice, ...]
    software: tuple[Choice, ...]
    limits: tuple[Limit, ...]
    offloaded: tuple[Switch, ...]
    recompute: RecomputeKeys
    watched: Mapping[str, str]
    own: Mapping[str, Any]

    def choice(self, name: str) -> Choice:
        """Return the choice of a field of the strategy."""
        return next(item for item in self.choices if item.field == name)

    def with_spellings(self, name: str, *spellings: Spelling) -> Program:
        """Return the table with more ways to spell a field of the strategy."""
        own = self.choice(name)
        more = replace(own, spellings=(*own.spellings, *spellings))
        return replace(self, choices=tuple(more if it is own else it for it in self.choices))

    def write(self, launch: Launch) -> Keys:
        """Return the keys of numbers, and of choices that matter, in the order of the table."""
        numbers = {item.key: launch[item.field] for item in (*self.numbers, *self.batches)}
        return numbers | _written(launch, self.choices)

    def write_software(self, launch: Launch) -> Keys:
        """Return the keys of facts of the framework that matter."""
        return _written(launch, self.software)

    def _put_typed(self, settings: Settings) -> None:
        """Put typed fields in place of the keys that state them."""
        typed = settings.typed
        for item in (*self.numbers, *self.batches):
            if item.field in typed:
                settings.put({item.key: typed[item.field]})
        for choice in self.choices:
            value = typed.get(choice.field)
            if value in choice.values and not _is_said(settings, choice, value):
                deciding = {key for item in choice.spellings for key in (*item.keys, *item.also)}
                settings.put(choice.write(value, None), deciding)

    def read(self, settings: Settings, skipped: Iterable[str] = ()) -> tuple[Keys, Keys]:
        """Return the fields of the strategy, and facts of the framework, that keys state.

        Choices of the fields that are `skipped` are read elsewhere. What was typed
        (`Settings.typed`) stands in the settings before anything is checked.

        Raises
        ------
        FormatError
            Names the key, its line, and what it could be.
        """
        self._put_typed(settings)
        stated = [item for item in self.batches if item.key in settings]
        numbers = (*self.numbers, *stated)
        settings.fields |= {item.field: item.key for item in numbers}
        strategy: Keys = {
            item.field: settings.whole(
                item.key, item.default, int(FIELD_BY_NAME[item.field].minimum)
            )
            for item in numbers
        }
        facts: Keys = {}
        for choice in self.choices:
            if choice.field in skipped:
                continue
            spelling = choice.find(settings)
            kind = strategy if choice.field in FIELD_BY_NAME else facts
            kind[choice.field] = spelling.value
            facts |= spelling.software
        return strategy, facts


def _is_said(settings: Settings, choice: Choice, value: Any) -> bool:
    """Tell whether a file says a value, in whatever spelling."""
    try:
        return bool(choice.find(settings).value == value)
    except FormatError:
        return False


def _written(launch: Launch, choices: Iterable[Choice]) -> Keys:
    keys: Keys = {}
    for choice in choices:
        if choice.matters(launch):
            keys |= choice.write(_value(launch, choice.field), launch.framework)
    return keys


@lru_cache(maxsize=16)
def load_program(name: str) -> Program:
    """Return the table of a program, such as ``megatron``."""
    document = read_toml(FOLDER / f"{name}.toml")
    for other, parts in document.pop("inherits", {}).items():
        parent = read_toml(FOLDER / f"{other}.toml")
        for part in parts:
            document[part] = _inherited(parent[part], document.get(part))
    presets = tuple(document.pop("presets"))
    return Program(
        document.pop("title"),
        presets,
        document.pop("preset", presets[0]),
        tuple(map(_number, document.pop("numbers", ()))),
        tuple(map(_number, document.pop("batches", ()))),
        tuple(map(_choice, document.pop("choices", ()))),
        tuple(map(_choice, document.pop("software", ()))),
        tuple(map(limit, document.pop("limits", ()))),
        tuple(
            Switch(item["key"], tuple(item["fields"]), item.get("share", ""))
            for item in document.pop("offloaded", ())
        ),
        RecomputeKeys(**{"method": "", "layers": ""} | document.pop("recompute", {})),
        document.pop("watched", {}),
        document,
    )


def _inherited(parent: Any, own: Any) -> Any:
    """Return a part of another table with what a program has instead or besides."""
    if isinstance(parent, Mapping):
        return {**parent, **(own or {})}
    about = {str(item.get("fields", item.get("field"))): item for item in parent}
    about |= {str(item.get("fields", item.get("field"))): item for item in own or ()}
    return list(about.values())


def _number(item: Mapping[str, Any]) -> Number:
    default = None if item.get("needed") else item.get("default", 1)
    return Number(item["key"], item["field"], default)


def _choice(item: Mapping[str, Any]) -> Choice:
    spellings = [Spelling(**words) for words in item.get("spellings", ())]
    if key := item.get("switch"):
        spellings = [Spelling(True, {key: True}), Spelling(False)]
    elif key := item.get("stated"):
        spellings = [Spelling(value, {key: value}) for value in (True, False)]
    return Choice(item["field"], tuple(spellings), item.get("defaults", {}), item.get("when", ""))


def limit(item: Mapping[str, Any]) -> Limit:
    """Return an entry of ``limits``: a condition, or what is ``offered`` of one field."""
    fields = tuple(item["fields"])
    if offered := item.get("offered"):
        return Limit(fields, f"{fields[0]} not in {offered}", f"it offers {', '.join(offered)}")
    return Limit(fields, item["broken"], item["offers"])


CONDITIONS: Mapping[str, Callable[[Launch], Any]] = {
    "devices": lambda launch: launch.devices,
    "replicas": lambda launch: launch.replicas,
    "shard_set": lambda launch: launch["shard_group"] or launch.replicas,
    "fsdp_ranks": lambda launch: launch.shard_degree * launch["context_parallel"],
    "micro_batches": lambda launch: launch.micro_batches,
    "experts": lambda launch: launch.experts,
    "model_known": lambda launch: launch.model is not None,
    "model_layers": lambda launch: launch.model.num_layers if launch.model else 0,
    "model_layer_kinds": lambda launch: len(launch.model.layer_kinds()[0]) if launch.model else 0,
    "even_stages": is_even,
    "v_shaped": lambda launch: SCHEDULE_FACTS[launch["pipeline_schedule"]].placement == WAVE,
    "torch_group": lambda launch: torch_group(launch.micro_batches, launch["pipeline_parallel"]),
    "preset": lambda launch: launch.framework.name.partition("[")[0],
}
"""What conditions may name beside fields of the strategy and facts of the framework."""


NAMES = (*FIELD_BY_NAME, *Framework.__dataclass_fields__, *CONDITIONS)


def holds(condition: str, launch: Launch) -> bool:
    """Tell whether a condition of a table holds, such as ``context_parallel > 1 and experts``."""

    def value(name: str) -> Any:
        return CONDITIONS[name](launch) if name in CONDITIONS else _value(launch, name)

    return bool(evaluate_mask(condition, value, NAMES, 1)[0])


def refuse(program: Program, launch: Launch) -> None:
    """Refuse a strategy that a software cannot run, or that no launch file is written for.

    What is left to the host is not written: each software has modules of its own for it.

    Raises
    ------
    StrategyError
        Names the fields, their values, and what the software offers.
    """
    title = program.title
    for name in OFFLOAD:
        share = launch.strategy.get(name, 0.0)
        if share > 0.0:
            raise StrategyError(
                f"{name} {share:g}: offloading is read from launch files of {title}, not written"
            )
    for choice in program.choices:
        if not choice.matters(launch) or launch[choice.field] in choice.values:
            continue
        offered = ", ".join(_text(item) for item in choice.values)
        raise StrategyError(
            f"{title} cannot do {_stated(launch, choice.field)}; it offers {offered}"
        )
    for item in program.limits:
        if holds(item.broken, launch):
            asked = ", ".join(_stated(launch, name) for name in item.fields)
            raise StrategyError(f"{title} cannot do {asked}: {item.offers}")


def _value(launch: Launch, name: str) -> Any:
    return launch[name] if name in FIELD_BY_NAME else getattr(launch.framework, name)


def _stated(launch: Launch, name: str) -> str:
    return f"{name} {_text(_value(launch, name))}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
