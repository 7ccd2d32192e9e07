"""Facts of software as data: a dataclass says which facts there are, TOML files state them.

A dataclass of facts is one table (`perfmodel.base.fields.fact`). A file states values under the
attributes' names, and under ``[source]`` where each of them is from; with ``extends`` it states
only what differs from another file of its folder::

    title = "one line for people"
    extends = "megatron"
    gradient_bytes = 2.0

    [source]
    gradient_bytes = "grad_reduce_in_fp32 = False in the recipes"

Facts that hold for some runs only stand in tables ``[[when]]`` of their own: which runs
(`CONDITIONS`), the facts, and one source for all of them.

A file may hold facts of several subjects; each is then a table (``[moe]``) with a dataclass of
its own, and its sources stand under the dotted key (``"moe.tiles"``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.base.errors import PerfModelError, did_you_mean
from perfmodel.base.fields import Field, facts_of
from perfmodel.base.files import chain_of_files, check_header, read_toml

HEADER_KINDS = (
    ("title", str, "a text"),
    ("extends", str, "the name of a file"),
    ("rank", int, "a whole number"),
    ("source", dict, "a table of texts"),
    ("when", list, "tables, [[when]]"),
)
HEADER = tuple(key for key, _, _ in HEADER_KINDS)
"""Keys that describe a file: a line for people, the file that it refines, its place in lists
(those without follow by name), where its values are from, and what holds for some runs only."""

CONDITIONS: Mapping[str, type] = {
    "precisions": list,
    "experts": bool,
    "recurrent": bool,
    "sinks": bool,
    "devices": list,
    "least_domain": int,
}
"""What tells the runs of ``[[when]]``: the fields of `Run`, and devices that one scale-up network
joins at least."""

Error = type[PerfModelError]


class Run(NamedTuple):
    """What facts may depend on that hold for some runs only.

    Attributes
    ----------
    precision : str
        Of the products.
    experts : bool
        Whether the model has experts.
    domain : int
        Devices that one scale-up network joins.
    device : str
        Its name, or what that begins with.
    recurrent : bool
        Whether some layers keep a state in place of keys and values.
    sinks : bool
        Whether the softmax of some layers has a learned logit besides those of keys.
    """

    precision: str
    experts: bool
    domain: int
    device: str = ""
    recurrent: bool = False
    sinks: bool = False


class When(NamedTuple):
    """Facts that hold for some runs only.

    Attributes
    ----------
    conditions : mapping of str to object
        Of `CONDITIONS`; all must hold.
    values : mapping of str to object
        Fact -> its value there.
    source : str
        Where they are from.
    """

    conditions: Mapping[str, Any]
    values: Mapping[str, Any]
    source: str

    def holds(self, run: Run) -> bool:
        """Tell whether a run is among those meant."""
        wanted = self.conditions
        return (
            run.precision in wanted.get("precisions", (run.precision,))
            and run.experts == wanted.get("experts", run.experts)
            and run.recurrent == wanted.get("recurrent", run.recurrent)
            and run.sinks == wanted.get("sinks", run.sinks)
            and any(
                f"{run.device} ".startswith(f"{it} ") for it in wanted.get("devices", (run.device,))
            )
            and run.domain >= wanted.get("least_domain", 0)
        )


class Record(NamedTuple):
    """What one file says.

    Attributes
    ----------
    facts : mapping of str to object
        Subject -> an object of its dataclass; subject "" for facts that stand in no table.
    source : mapping of str to str
        Dotted key of each value that the file or one that it extends states -> where it is from.
    title : str
        What it is, in a line for people.
    when : tuple of When
        Facts that hold for some runs only, of the file and those that it extends.
    """

    facts: Mapping[str, Any]
    source: Mapping[str, str]
    title: str
    when: tuple[When, ...] = ()


def read_folder(
    folder: Path, subjects: Mapping[str, type], error: Error, own: tuple[str, ...] = ()
) -> dict[str, Record]:
    """Read and check every file of a folder.

    Parameters
    ----------
    folder : Path
        Its ``*.toml`` files; a file's name is the name of the software.
    subjects : mapping of str to type
        Table of a file -> dataclass of its facts; "" for facts outside of tables.
    error : type
        What is raised.
    own : tuple of str
        Facts that no file takes from one that it extends.

    Returns
    -------
    dict of str to Record
        By rank, then by name.

    Raises
    ------
    PerfModelError
        An unreadable file, an unknown or missing key, a wrong kind of value, or a value without
        a source: one line with file and key.
    """
    documents = {path.stem: _read(path, error) for path in sorted(folder.glob("*.toml"))}
    names = sorted(documents, key=lambda name: documents[name].get("rank", math.inf))
    stated = {name: _stated(name, documents[name], subjects, error) for name in names}
    return {
        name: _record(
            _chain(name, documents, error),
            stated,
            subjects,
            error,
            documents[name].get("title", name),
            own,
        )
        for name in names
    }


def _read(path: Path, error: Error) -> dict[str, Any]:
    """Read one file and check its header."""
    document = read_toml(path, error)
    check_header(document, HEADER_KINDS, path.name, error)
    return document


class _Stated(NamedTuple):
    """Checked values of one file by dotted key, their sources, and what holds for some runs."""

    values: dict[str, Any]
    source: dict[str, str]
    when: tuple[When, ...]


def _when(file: str, entry: Any, known: Mapping[str, Field], error: Error) -> When:
    """Check one table of facts that hold for some runs only."""
    if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
        raise error(f"{file}: each [[when]] is a table with a 'source'")
    conditions, values = {}, {}
    for key, value in entry.items():
        if key in CONDITIONS:
            if not isinstance(value, CONDITIONS[key]):
                raise error(f"{file}: [[when]] '{key}' must be a {CONDITIONS[key].__name__}")
            conditions[key] = value
        elif key in known:
            try:
                values[key] = known[key].convert(value)
            except ValueError:
                wanted = known[key].expectation(value)
                raise error(f"{file}: [[when]] '{key}' must be {wanted}, not {value!r}") from None
        elif key != "source":
            hint = did_you_mean(key, (*CONDITIONS, *known))
            raise error(f"{file}: [[when]] has the unknown key '{key}'{hint}")
    if not conditions or not values:
        raise error(f"{file}: each [[when]] states a condition ({', '.join(CONDITIONS)}) and facts")
    return When(conditions, values, entry["source"])


def _stated(
    name: str, document: Mapping[str, Any], subjects: Mapping[str, type], error: Error
) -> _Stated:
    """Check what one file states by itself."""
    file = f"{name}.toml"
    body = {key: value for key, value in document.items() if key not in HEADER}
    tables = {"": body} if "" in subjects else body
    values: dict[str, Any] = {}
    for subject, table in tables.items():
        if subject not in subjects:
            hint = did_you_mean(subject, (*HEADER, *subjects))
            raise error(f"{file}: unknown key '{subject}'{hint}")
        if not isinstance(table, dict):
            raise error(f"{file}: '{subject}' must be a table, not {table!r}")
        known = facts_of(subjects[subject])
        for key, value in table.items():
            dotted = _dotted(subject, key)
            if key not in known:
                raise error(f"{file}: unknown key '{dotted}'{did_you_mean(key, known)}")
            try:
                values[dotted] = known[key].convert(value)
            except ValueError:
                wanted, hint = known[key].expectation(value), known[key].hint(value)
                raise error(f"{file}: '{dotted}' must be {wanted}, not {value!r}{hint}") from None
    source = document.get("source", {})
    for key in values:
        if not source.get(key):
            raise error(f"{file}: '{key}' has no source; say under [source] where it is from")
    for key in source:
        if key not in values:
            raise error(
                f"{file}: [source] names '{key}', which it does not state"
                f"{did_you_mean(key, values)}"
            )
    known = facts_of(subjects[""]) if "" in subjects else {}
    when = tuple(_when(file, entry, known, error) for entry in document.get("when", []))
    return _Stated(values, source, when)


def _chain(name: str, documents: Mapping[str, dict[str, Any]], error: Error) -> list[str]:
    """Return the files that one is made of, the first ancestor first."""

    def parent(file: str) -> str | None:
        named: str | None = documents[file].get("extends") or None
        if named is not None and named not in documents:
            hint = did_you_mean(named, documents)
            raise error(f"{file}.toml: 'extends' names the unknown file '{named}'{hint}")
        return named

    return chain_of_files(name, parent, f"{name}.toml", error)


def _record(
    chain: list[str],
    stated: Mapping[str, _Stated],
    subjects: Mapping[str, type],
    error: Error,
    title: str,
    own: tuple[str, ...],
) -> Record:
    """Merge a chain of files, later ones over earlier ones, and build their facts."""
    name = chain[-1]
    values: dict[str, Any] = {}
    source: dict[str, str] = {}
    for file in chain:
        left = () if file == name else own
        values |= {key: it for key, it in stated[file].values.items() if key not in left}
        source |= {key: it for key, it in stated[file].source.items() if key not in left}
    facts = {}
    for subject, kind in subjects.items():
        given = {
            key: values[dotted]
            for key in facts_of(kind)
            if (dotted := _dotted(subject, key)) in values
        }
        if subject and not given:
            continue
        for key, declared in facts_of(kind).items():
            if declared.required and key not in given:
                dotted = _dotted(subject, key)
                raise error(f"{name}.toml: '{dotted}' is missing: {declared.description}")
        named = {"name": name} if any(item.name == "name" for item in fields(kind)) else {}
        facts[subject] = kind(**named, **given)
    return Record(facts, source, title, tuple(w for file in chain for w in stated[file].when))


def release_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, for comparing: ``0.12.0rc1`` is (0, 12, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found.group(1).split("."))) if found else ()


def _dotted(subject: str, key: str) -> str:
    return f"{subject}.{key}" if subject else key


def with_changes(
    item: Any, changes: Mapping[str, Any], presets: Mapping[str, Any], noun: str, error: Error
) -> Any:
    """Return facts with some values changed, named after what differs from their preset.

    Parameters
    ----------
    item : dataclass of facts
        A preset, or one that was changed already.
    changes : mapping of str to value
    presets : mapping of str to dataclass of facts
        By name, to compare with.
    noun : str
        What it is, for messages.
    error : type
        What is raised.

    Raises
    ------
    PerfModelError
        Unknown field, or a value that the field cannot have.
    """
    kind: type = type(item)
    declared = facts_of(kind)
    values = {}
    for key, value in changes.items():
        if key not in declared:
            raise error(f"unknown {noun} field '{key}'{did_you_mean(key, declared)}")
        try:
            values[key] = declared[key].convert(value)
        except ValueError:
            wanted, hint = declared[key].expectation(value), declared[key].hint(value)
            raise error(f"{noun} field '{key}' must be {wanted}, not {value!r}{hint}") from None
    changed = replace(item, **values)
    return replace(changed, name=_name(changed, presets))


def _name(item: Any, presets: Mapping[str, Any]) -> str:
    """Return a preset's name with what was changed of it: ``megatron[optimizer_bytes=8]``."""
    kind: type = type(item)
    preset: str = item.name.partition("[")[0]
    if preset not in presets:
        return str(item.name)
    values = ((key, getattr(item, key)) for key in facts_of(kind))
    changes = ",".join(
        f"{key}={text_of(value)}" for key, value in values if value != getattr(presets[preset], key)
    )
    return f"{preset}[{changes}]" if changes else preset


def text_of(value: Any) -> str:
    """Return a value as names of changed facts write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
