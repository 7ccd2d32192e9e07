"""Finding, reading and merging profile files."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.files import chain_of_files, check_header, not_read, read_toml
from perfmodel.hwprofiles.build import UNSOURCED, check_keys
from perfmodel.hwprofiles.clocks import rates_following
from perfmodel.hwprofiles.constants import TRANSFERRED, constants, known
from perfmodel.hwprofiles.hardware import Hardware, build
from perfmodel.hwprofiles.schema import TOP_LEVEL, Scalar, is_path, normalise
from perfmodel.hwprofiles.trust import (
    CLOCKED,
    Relative,
    at_clock,
    handed,
    inherits_measurement,
    leaves,
    measured_value,
    unstated,
)

FOLDER = Path(__file__).parent
TABLES = ("constants", "fits", "trust", "memory_errors")  # files of the folder that are no profiles
VENDOR_PREFIXES = ("nvidia-", "amd-", "google-", "aws-", "intel-")
# Keys of a file that describe the file itself and are not handed down.
OWN_KEYS = (
    *("name", "title", "extends", "abstract", "aliases", "ambiguous", "notes", "source"),
    *("measured_on", "transferred", "inherited"),
)


def load_hardware(
    name_or_path: str | os.PathLike[str] | Hardware,
    overrides: Mapping[str, Scalar] | None = None,
) -> Hardware:
    """Load a hardware profile by name, alias or file.

    Parameters
    ----------
    name_or_path : str, path or Hardware
        Name or alias of a profile that ships (case, spaces, ``-`` and ``_`` do
        not matter), or the path of a TOML file (anything that ends in
        ``.toml`` or holds a path separator). A profile comes back as it is, changed by
        `overrides`.
    overrides : mapping of str to scalar, optional
        Dotted path -> value in SI units, e.g.
        ``{"device.memory.bandwidth": 4.8e12}``.

    Returns
    -------
    Hardware
        Resolved and checked; `Hardware.notes` says what was uncertain, and
        what was chosen where the name was ambiguous.

    Raises
    ------
    HardwareError
        Unknown name, unreadable or malformed file, or a bad override.
    """
    if isinstance(name_or_path, Hardware):
        return name_or_path.with_values(overrides or {})
    text = os.fspath(name_or_path)
    note = ""
    if is_path(name_or_path):
        path = Path(text)
    else:
        name, note = resolve_name(text)
        path = FOLDER / f"{name}.toml"
    hardware = _load_file(str(path), note)
    return hardware.with_values(overrides) if overrides else hardware


def list_hardware(all: bool = False) -> list[str]:
    """Return the names of the profiles that ship.

    Parameters
    ----------
    all : bool
        Also families and chips, which are parts of systems and cannot be
        loaded by themselves.
    """
    documents = _shipped()
    return [name for name in documents if all or not documents[name].get("abstract", False)]


def profile_files() -> list[Path]:
    """Return the files of the profiles that ship, families and chips included."""
    return [path for path in sorted(FOLDER.glob("*.toml")) if path.stem not in TABLES]


def list_aliases() -> dict[str, str]:
    """Return every alias of the profiles that ship, and the profile it means."""
    return {
        alias: name
        for name, document in _shipped().items()
        for alias in (*document.get("aliases", ()), *document.get("ambiguous", {}))
    }


def list_ambiguous() -> dict[str, str]:
    """Return the aliases that could mean more than one device, and what was chosen."""
    return {
        alias: note
        for document in _shipped().values()
        for alias, note in document.get("ambiguous", {}).items()
    }


def resolve_name(name: str) -> tuple[str, str]:
    """Return the profile that a name or alias means, and a note where it is ambiguous.

    Raises
    ------
    HardwareError
        No such name (with the nearest ones), or a family or chip, which is no system.
    """
    key = normalise(name)
    if not key:
        raise HardwareError("hardware name is empty; see list_hardware()")
    if key not in TABLES and (FOLDER / f"{key}.toml").is_file():
        return key, ""
    index = _index()
    if key not in index:
        for prefix in VENDOR_PREFIXES:
            if key.startswith(prefix) and key.removeprefix(prefix) in index:
                key = key.removeprefix(prefix)
                break
        else:
            from perfmodel.hwprofiles.mesh_loader import is_mesh, list_meshes

            if is_mesh(name):
                raise HardwareError(
                    f"'{name}' is a mesh of cores, which 'perfmodel wafer' and load_mesh() take"
                )
            known = [*list_hardware(), *list_aliases(), *list_meshes()]
            hint = did_you_mean(name, known) or "; list_hardware() names the profiles"
            raise HardwareError(f"unknown hardware '{name}'{hint}")
    return index[key]


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, Any]]:
    return {path.stem: _read(str(path)) for path in profile_files()}


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, str]]:
    index: dict[str, tuple[str, str]] = {}
    documents = _shipped()
    for name in documents:
        index[normalise(name)] = (name, "")
    for name, document in documents.items():
        notes = dict.fromkeys(document.get("aliases", ()), "") | document.get("ambiguous", {})
        for alias, note in notes.items():
            key = normalise(alias)
            if index.get(key, (name, ""))[0] != name:
                raise HardwareError(f"{name}.toml: alias '{alias}' already means '{index[key][0]}'")
            index[key] = (name, f"'{alias}': {note}" if note else "")
    return index


@lru_cache(maxsize=256)
def _read_cached(path: str, stamp: int) -> dict[str, Any]:
    del stamp
    document = read_toml(path, HardwareError)
    check_keys(document, TOP_LEVEL, "", lambda key: path)
    check_header(document, HEADER, path, HardwareError)
    document.setdefault("name", Path(path).stem)
    return document


def _read(path: str) -> dict[str, Any]:
    """Read one file, without what it extends."""
    try:
        stamp = os.stat(path).st_mtime_ns
        if not Path(path).is_file():
            raise HardwareError(f"{path}: not a file")
    except (OSError, ValueError) as error:  # NUL in its name
        raise HardwareError(f"hardware profile: {not_read(path, error)}") from None
    return _read_cached(path, stamp)


HEADER = (
    ("name", str, "a text"),
    ("title", str, "a text"),
    ("extends", str, "the name of a profile"),
    ("abstract", bool, "true or false"),
    ("transferred", bool, "true or false"),
    ("measured_on", str, "the name of a chip"),
    ("aliases", list, "a list of texts"),
    ("notes", list, "a list of texts"),
    ("inherited", list, "a list of texts"),
    ("ambiguous", dict, "a table of texts"),
    ("source", dict, "a table of texts"),
)
"""Keys that describe a file."""


def _chain(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the files that a profile is made of, the family first."""

    def parent(file: str) -> str | None:
        named = _read(file).get("extends")
        return None if named is None else _parent_path(file, named)

    chain = chain_of_files(path, parent, path, HardwareError, lambda file: Path(file).stem)
    return [(file, _read(file)) for file in chain]


def ancestors(name: str) -> set[str]:
    """Return the names of a shipped profile and of everything it extends."""
    return {document["name"] for _, document in _chain(str(FOLDER / f"{name}.toml"))}


def _parent_path(path: str, parent: str) -> str:
    if is_path(parent):
        return str(Path(path).parent / parent)
    key = normalise(parent)
    if key not in TABLES and (FOLDER / f"{key}.toml").is_file():
        return str(FOLDER / f"{key}.toml")
    names = [file.stem for file in profile_files()]
    raise HardwareError(
        f"{path}: 'extends' names the unknown profile '{parent}'{did_you_mean(parent, names)}"
    )


def _load_file(path: str, note: str) -> Hardware:
    own = _read(path)
    if own.get("abstract", False):
        systems = [name for name in list_hardware() if own["name"] in ancestors(name)]
        raise HardwareError(
            f"'{own['name']}' is a family or chip, not a complete system"
            + (f"; systems with it: {', '.join(systems)}" if systems else "")
        )
    merged = merge_chain(path)
    merged.document["notes"][:0] = [note] if note else []
    return build(merged.document, merged.where)


class Merged(NamedTuple):
    """A profile with everything that it extends.

    Attributes
    ----------
    document : dict
        Tables as in a file with nothing left to inherit.
    where : callable
        Dotted path -> file that states it.
    files : frozenset of str
        All that it is made of, as `where` names them.
    measured_on : str
        Chip that its own constants were fitted to; empty where it names none.
    """

    document: dict[str, Any]
    where: Callable[[str], str]
    files: frozenset[str]
    measured_on: str


def merge_chain(path: str) -> Merged:
    """Read a file and what it extends, and let the later replace the earlier, unchecked."""
    chain = _chain(path)
    own = chain[-1][1]
    merged: dict[str, Any] = {}
    files: dict[str, str] = {}
    source: dict[str, str] = {}
    notes: list[str] = []
    measured: dict[str, str] = {}
    for file, document in chain:
        if document.get("transferred", False):
            _forget_measurements(merged, measured)
        facts = {key: value for key, value in document.items() if key not in OWN_KEYS}
        _carry_rates(merged.get("device"), document, source)
        shown = Path(file).name if Path(file).parent == FOLDER else file
        for leaf in _merge(merged, facts, "", shown):
            files[leaf] = shown
            measured[leaf] = document.get("measured_on", "")
            text = _longest_prefix(document.get("source", {}), leaf)
            if text:
                source[leaf] = text
            else:
                source.pop(leaf, None)
        notes += [text for text in document.get("notes", ()) if text not in notes]
    notes += unstated([document for _, document in chain])
    chips = [document["name"] for _, document in chain if "name" in document.get("device", {})]
    _hand_on(merged, measured, chips[-1] if chips else own["name"], source)
    merged |= {
        "name": own["name"],
        "title": own.get("title", own["name"]),
        "aliases": [*own.get("aliases", ()), *own.get("ambiguous", {})],
        "notes": notes,
        "source": source,
    }
    here = Path(path).name if Path(path).parent == FOLDER else path

    def where(key: str) -> str:
        return _longest_prefix(files, key) or here

    shown_files = frozenset(
        Path(file).name if Path(file).parent == FOLDER else file for file, _ in chain
    )
    return Merged(merged, where, shown_files, own.get("measured_on", ""))


def _carry_rates(device: Any, document: Mapping[str, Any], source: dict[str, str]) -> None:
    """Let inherited rates follow another clock or number of units, unless they are meant so."""
    own = document.get("device")
    if not isinstance(device, Mapping) or not isinstance(own, Mapping):
        return
    stated = dict(leaves(own))
    meant = {str(key).removeprefix("device.") for key in document.get("inherited", ())}
    for key, rate in rates_following(device, stated, stated.keys() | meant).items():
        *tables, leaf = key.split(".")
        functools.reduce(operator.getitem, tables, device)[leaf] = rate  # type: ignore[index]
        path = f"device.{key}"
        source[path] = f"by clock and units of {document['name']}: {source.get(path, UNSOURCED)}"


def _forget_measurements(merged: Mapping[str, Any], measured: dict[str, str]) -> None:
    """Let relatives state what was inherited as measured."""
    for group, entries in merged.get("calibration", {}).items():
        for key, entry in entries.items():
            if inherits_measurement(group, key, entry):
                entries[key] = TRANSFERRED
                measured[f"calibration.{group}.{key}"] = ""


def _hand_on(
    merged: Mapping[str, Any], measured: Mapping[str, str], chip: str, source: dict[str, str]
) -> None:
    """Turn constants of relatives into those of the chip, and say how far each is to be trusted."""
    device = merged.get("device", {})
    clock = device.get("boost_clock", 0.0)
    clock = clock if isinstance(clock, int | float) else 0.0
    for group, entries in merged.get("calibration", {}).items():
        for key, entry in entries.items() if isinstance(entries, Mapping) else ():
            constant = known(group).get(key) if group in constants() else None
            if constant is None or (isinstance(entry, Mapping) and "trust" in entry):
                continue  # unknown ones are refused later
            path = f"calibration.{group}.{key}"
            on = measured.get(path, "")
            if entry == TRANSFERRED:
                own_class = device.get("instruction_class", "other")
                clocked = clock or chip_clock(on)
                found = handed(group, key, own_class, clocked, relatives(), unit_bandwidth(device))
                entries[key] = {"value": found.value, "trust": found.trust, "source": found.source}
                source.pop(path, None)
                continue
            value = measured_value(entry)
            if constant.transfer == "fact" or value != value:
                continue
            trust = "calibrated" if on in ("", chip) else "transferred"
            entries[key] = {**entry, "trust": trust}
            stated = chip_clock(on)
            if on and constant.transfer in CLOCKED and clock and stated != clock:
                entries[key]["value"] = at_clock(constant, value, stated, clock)
                entries[key]["carried"] = f"{CLOCKED[constant.transfer]} {on}"


@lru_cache(maxsize=64)
def chip_device(chip: str) -> Mapping[str, Any]:
    """Return the facts of a chip that ships; none for no chip."""
    merged: dict[str, Any] = {}
    for file, document in _chain(str(FOLDER / f"{chip}.toml")) if chip else ():
        _merge(merged, {"device": document.get("device", {})}, "", file)
    return merged.get("device", {})


def chip_clock(chip: str) -> float:
    """Return the boost clock of a chip that ships [Hz]; 0 for none."""
    return float(chip_device(chip).get("boost_clock", 0.0))


def unit_bandwidth(device: Mapping[str, Any]) -> float:
    """Return the memory bandwidth over the units of a device's facts [B/s]; 0 where one lacks."""
    bandwidth = device.get("memory", {}).get("bandwidth", 0.0)
    units = device.get("compute_units", 0.0)
    numbers = isinstance(bandwidth, int | float) and isinstance(units, int | float)
    return float(bandwidth) / units if numbers and units else 0.0


@lru_cache(maxsize=1)
def relatives() -> tuple[Relative, ...]:
    """Return the families that ship whose constants were measured."""
    found = []
    for path in profile_files():
        # Parsing all of them takes as long as a projection does.
        name, measured = path.stem, "measured_on" in path.read_text(encoding="utf-8")
        chip = _read(str(path)).get("measured_on", "") if measured else ""
        if chip:
            merged: dict[str, Any] = {}
            for file, part in _chain(str(FOLDER / f"{name}.toml")):
                facts = {key: value for key, value in part.items() if key not in OWN_KEYS}
                _merge(merged, facts, "", file)
            own_class = merged["device"].get("instruction_class", "other")
            clock, share = chip_clock(chip), unit_bandwidth(chip_device(chip))
            found.append(Relative(name, own_class, clock, merged["calibration"], share))
    return tuple(found)


def _merge(target: dict[str, Any], table: Mapping[str, Any], path: str, file: str) -> list[str]:
    """Merge a table into `target` and return the dotted paths that it wrote.

    Tables merge; lists of tables and calibration entries replace as a whole,
    except that a table with index keys (``[system.network.0]``) refines a list.
    """
    written: list[str] = []
    for key, value in table.items():
        full = f"{path}.{key}" if path else key
        former = target.get(key)
        if isinstance(value, dict) and isinstance(former, list):
            for index, level in value.items():
                if not index.isdigit() or int(index) >= len(former) or not isinstance(level, dict):
                    raise HardwareError(
                        f"{file}: no level '{full}.{index}' to refine; "
                        f"'{full}' has 0 to {len(former) - 1}"
                    )
                written += _merge(former[int(index)], level, f"{full}.{index}", file)
        elif isinstance(value, dict) and full.count(".") < 2:
            former = target.setdefault(key, {})
            if not isinstance(former, dict):
                former = target[key] = {}
            written += _merge(former, value, full, file)
        elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
            target[key] = [dict(item) for item in value]
            for index, item in enumerate(value):
                written += [f"{full}.{index}.{leaf}" for leaf in item]
        else:
            target[key] = dict(value) if isinstance(value, dict) else value
            written.append(full)
    return written


def _longest_prefix(table: Mapping[str, str], path: str) -> str | None:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        text = table.get(".".join(parts[:length]))
        if text:
            return text
    return None
