"""Pages of families: data that say how the keys of a ``config.json`` make a model.

A page is a TOML file in ``families/``, called after its ``model_type``. Texts that begin with
``=`` are formulas over keys (`perfmodel.model.formula`); ``i`` is the number of a layer.
docs/models.md shows how to add one.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.formula import names_of

Page = Mapping[str, Any]


@cache
def page(model_type: str) -> Page | None:
    """Return the page of a family with what it takes over from others; None if there is none."""
    file = resources.files("perfmodel.model") / "families" / f"{model_type}.toml"
    if not re.fullmatch(r"[\w-]+", model_type) or not file.is_file():
        return None
    return resolved(tomllib.loads(file.read_text(encoding="utf-8")), model_type)


def resolved(own: Page, name: str) -> Page:
    """Return a page merged into the one that it is ``like``."""
    like = own.get("like")
    if like is None:
        return own
    base = page(like)
    if base is None:
        raise ModelError(f"page {name!r}: like {like!r}, which has no page")
    return merged(base, own)


def page_names() -> tuple[str, ...]:
    """Return every ``model_type`` that has a page."""
    folder = resources.files("perfmodel.model") / "families"
    names = (item.name for item in folder.iterdir())
    return tuple(sorted(n[:-5] for n in names if n.endswith(".toml") and not n.startswith("_")))


@cache
def class_facts() -> Mapping[str, Any]:
    """Return what Hugging Face's classes have: ``defaults``, ``names``, ``architectures``."""
    file = resources.files("perfmodel.model") / "families" / "defaults.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def merged(base: Page, own: Page) -> Page:
    """Return a table with the entries of another laid over it, table by table."""
    found = dict(base)
    for key, value in own.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            # A part of another kind shares nothing with the former one of its name.
            former = before.get("part", "attention")
            found[key] = merged(before, value) if value.get("part", former) == former else value
        else:
            found[key] = value
    return found


def spellings(page: Page, names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return other names of keys: those of the page, and of the class (``attribute_map``)."""
    found = {key: tuple(others) for key, others in page.get("names", {}).items()}
    for alias, attribute in names.items():
        found[attribute] = (*found.get(attribute, ()), alias)
        found[alias] = (*found.get(alias, ()), attribute)
    return found


def formulas_of(value: Any) -> Iterator[str]:
    """Yield all formulas in a page or a part of it, without their sign."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from formulas_of(item)
    elif is_formula(value):
        yield value[1:]


def mentioned(page: Page, names: Callable[[str], tuple[str, ...]] = names_of) -> tuple[str, ...]:
    """Return the names in all formulas of a page: keys that its family knows."""
    return tuple(name for formula in formulas_of(page) for name in names(formula))


def is_formula(value: Any) -> bool:
    """Whether an entry of a page is a formula: a text that begins with ``=``."""
    return isinstance(value, str) and value.startswith("=")
