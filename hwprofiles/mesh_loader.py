"""Finding, reading and merging the files of meshes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.files import chain_of_files, check_header, read_toml
from perfmodel.hwprofiles.build import check_keys, check_value
from perfmodel.hwprofiles.mesh import (
    CONSTANTS,
    MESH,
    MOST_CONSTANTS,
    PRECISIONS,
    RATE,
    MeshHardware,
    checked_mesh,
)
from perfmodel.hwprofiles.schema import is_path, normalise

FOLDER = Path(__file__).parent / "meshes"
TABLES = ("mesh", "macs_per_cycle", "constants")
HEADER = (
    *((key, str, "a text") for key in ("name", "title", "extends")),
    *((key, list, "a list of texts") for key in ("aliases", "notes")),
    *((key, dict, "a table") for key in (*TABLES, "source")),
)


def load_mesh(
    name_or_path: str | os.PathLike[str] | MeshHardware,
    overrides: Mapping[str, object] | None = None,
) -> MeshHardware:
    """Load a mesh of cores by name, alias or file.

    Parameters
    ----------
    name_or_path : str, path or MeshHardware
        Name or alias of a mesh that ships (case, spaces, ``-`` and ``_`` do not matter), or the
        path of a TOML file (anything that ends in ``.toml`` or holds a path separator). A mesh
        comes back as it is, changed by `overrides`.
    overrides : mapping of str to number, optional
        Path -> value, e.g. ``{"mesh.clock": 1.0e9, "constants.stage_latency": 20}``.

    Returns
    -------
    MeshHardware

    Raises
    ------
    HardwareError
        Unknown name, unreadable or malformed file, or a bad override.
    """
    if isinstance(name_or_path, MeshHardware):
        mesh = name_or_path
    elif is_path(name_or_path):
        mesh = _build(Path(name_or_path))
    else:
        mesh = _shipped_mesh(_resolve(os.fspath(name_or_path)))
    return mesh.with_values(overrides) if overrides else mesh


def list_meshes() -> list[str]:
    """Return the names of the meshes that ship."""
    return [path.stem for path in sorted(FOLDER.glob("*.toml"))]


def is_mesh(name: str) -> bool:
    """Return whether a name or alias is that of a mesh that ships."""
    return normalise(name) in _index()


def names_mesh(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether a name, alias or file is that of a mesh: the file says so, or extends one.

    A file that cannot be read is none; who loads it says why.
    """
    if not is_path(name_or_path):
        return is_mesh(os.fspath(name_or_path))
    try:
        document = read_toml(name_or_path, HardwareError)
    except HardwareError:
        return False
    if "mesh" in document:
        return True
    parent = document.get("extends")
    if not isinstance(parent, str):
        return False
    if not is_path(parent):
        return is_mesh(parent)
    # Files may extend each other in a circle, which who loads them refuses.
    return _says_mesh(Path(name_or_path).parent / parent)


def _says_mesh(path: Path) -> bool:
    try:
        return "mesh" in read_toml(path, HardwareError)
    except HardwareError:
        return False


def _resolve(name: str) -> str:
    key = normalise(name)
    index = _index()
    if key in index:
        return index[key]
    known = ", ".join(list_meshes())
    if key and (FOLDER.parent / f"{key}.toml").is_file():
        raise HardwareError(f"'{name}' is no mesh of cores; a mesh is one of {known}")
    hint = did_you_mean(name, index)
    raise HardwareError(f"unknown mesh of cores '{name}'{hint}; it may be {known}")


@lru_cache(maxsize=1)
def _index() -> dict[str, str]:
    index: dict[str, str] = {}
    for name in list_meshes():
        document = _document(FOLDER / f"{name}.toml")
        for alias in (name, *document.get("aliases", ())):
            key = normalise(alias)
            if index.setdefault(key, name) != name:
                raise HardwareError(f"{name}.toml: alias '{alias}' already means '{index[key]}'")
    return index


@lru_cache(maxsize=32)
def _shipped_mesh(name: str) -> MeshHardware:
    return _build(FOLDER / f"{name}.toml")


def _shown(path: Path) -> str:
    return path.name if path.parent == FOLDER else str(path)


def _named(file: str) -> str:
    return _shown(Path(file))


def _document(path: Path) -> dict[str, Any]:
    """Read one file, without what it extends."""
    document = read_toml(path, HardwareError)
    shown = _shown(path)
    check_keys(document, [key for key, _, _ in HEADER], "", lambda _: shown)
    check_header(document, HEADER, shown, HardwareError)
    for path_of, text in document.get("source", {}).items():
        if not isinstance(text, str):
            raise HardwareError(f"{shown}: 'source.{path_of}' must be a text, not {text!r}")
    return document


def _parent_path(path: str) -> str | None:
    parent = _document(Path(path)).get("extends")
    if parent is None:
        return None
    if is_path(parent):
        return str(Path(path).parent / parent)
    found = {normalise(name): name for name in list_meshes()}.get(normalise(parent))
    if found is None:
        raise HardwareError(
            f"{_shown(Path(path))}: 'extends' names the unknown mesh '{parent}'"
            f"{did_you_mean(parent, list_meshes())}"
        )
    return str(FOLDER / f"{found}.toml")


def _build(path: Path) -> MeshHardware:
    values: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    source: dict[str, str] = {}
    files: dict[str, str] = {}
    notes: list[str] = []
    own: dict[str, Any] = {}
    chain = chain_of_files(str(path), _parent_path, _shown(path), HardwareError, _named)
    for file in map(Path, chain):
        own = _document(file)
        stated = own.get("source", {})
        for table in TABLES:
            for key, value in own.get(table, {}).items():
                full = f"{table}.{key}"
                values[table][key] = value
                files[full] = _shown(file)
                source[full] = stated.get(full) or stated.get(table) or "not stated"
        # A file may say more of a number that it takes over.
        source |= {full: text for full, text in stated.items() if full in source}
        notes += [text for text in own.get("notes", ()) if text not in notes]
    shown = _shown(path)
    name = own.get("name", path.stem)

    def where(full: str) -> str:
        return files.get(full, shown)

    check_keys(values["mesh"], MESH, "mesh", where)
    check_keys(values["macs_per_cycle"], PRECISIONS, "macs_per_cycle", where)
    check_keys(values["constants"], CONSTANTS, "constants", where)
    facts: dict[str, Any] = {}
    for key, item in MESH.items():
        full = f"mesh.{key}"
        given = values["mesh"].get(key, item.default)
        if given is None:
            raise HardwareError(
                f"{shown}: '{full}' is missing ({item.description}); "
                f"it must be {item.expectation()}"
            )
        source.setdefault(full, "default of the profile schema")
        facts[key] = check_value(given, item, full, where)
    rates = {
        key: check_value(value, RATE, f"macs_per_cycle.{key}", where)
        for key, value in values["macs_per_cycle"].items()
    }
    if not rates:
        raise HardwareError(f"{shown}: [macs_per_cycle] names no precision")
    constants = {
        key: check_value(value, CONSTANTS[key], f"constants.{key}", where)
        for key, value in values["constants"].items()
    }
    if len(constants) > MOST_CONSTANTS:
        raise HardwareError(
            f"{shown}: {len(constants)} constants; a device has at most {MOST_CONSTANTS}"
        )
    chip_grid = (facts.pop("chip_rows"), facts.pop("chip_columns"))
    return checked_mesh(
        MeshHardware(
            name=name,
            title=own.get("title", name),
            macs_per_cycle=rates,
            constants=constants,
            source=source,
            chips=chip_grid[0] * chip_grid[1],
            chip_grid=chip_grid,
            aliases=tuple(own.get("aliases", ())),
            notes=tuple(notes),
            **facts,
        )
    )
