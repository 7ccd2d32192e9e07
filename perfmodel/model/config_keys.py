"""The keys of a ``config.json``: what the file states, then the defaults of its class.

`ConfigKeys` remembers which keys a family has read, so that a key which changes the
architecture, and which nobody has read, is refused instead of being overlooked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.base.files import read_toml
from perfmodel.model.formula import Absent
from perfmodel.model.pieces import SIZE_LIMIT, check_flag, check_size

_WORDS = read_toml(Path(__file__).with_name("config_keys.toml"), ModelError)
# A key that is one of these, or holds one of the fragments, changes what a layer
# computes. A family that covers it reads it; any other family refuses it.
ARCHITECTURE_KEYS = frozenset(_WORDS["architecture"])
ARCHITECTURE_FRAGMENTS = tuple(_WORDS["fragments"])
HARMLESS_ENDS = tuple(_WORDS["harmless_ends"])
# Keys that hold numbers whatever the class has.
_COUNTED = re.compile(r"(num|n)_.*(heads|layers)|(hidden|intermediate|vocab)_size|head_dim")

# What tells tokens, positions, training and files, and no shape.
_SHAPELESS = re.compile(
    r"token|rope|_ids?$|_index$|init|drop|cache|dtype|max_|loss|_coef$|scal|eps$|theta|labels?$"
    r"|^(architectures|auto_map|transformers_version|pretraining_tp|num_beams|bos|eos|pad|sep)"
    r"|checkpoint|kernel$|mask|alpha|beta|seed|prob|length|chunk_size"
)


class ConfigKeys:
    """The keys of one model description.

    Parameters
    ----------
    stated : mapping
        What the JSON object holds.
    defaults : mapping
        What the configuration class of Hugging Face's library has for absent keys.
    spellings : mapping of str to iterable of str
        Other names that files give a key; the first that stands there counts.
    """

    def __init__(
        self,
        stated: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        spellings: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._stated = stated
        self._defaults = defaults or {}
        self._spellings = spellings or {}
        self._read: set[str] = set()
        self._checked: set[str] = set()
        self._per_layer: set[str] = set()
        self.taken: dict[str, Any] = {}
        """Defaults that stood in for absent keys."""

    def value(self, name: str) -> Any:
        """Return what stands under a key, or the default; a stated null is absent.

        Parameters
        ----------
        name : str
            A key, or ``section.key`` for one of an object inside.

        Raises
        ------
        Absent
            Neither is there.
        ModelError
            What stands there is of another kind than the default, or no size.
        """
        names = (name, *self._spellings.get(name, ()))
        self._read.update(names)
        null = False
        for key in names:
            found = _inside(self._stated, key)
            if found is not None:
                if name not in self._checked:  # long lists are asked for in every layer
                    self._check(name, key, found)
                    self._checked.add(name)
                return found
            null |= key in self._stated
        if null:
            raise Absent(name)
        for key in names:
            default = _inside(self._defaults, key)
            if default is not None:
                self.taken[name] = default
                return default
        raise Absent(name)

    def may_be_lists(self, names: Iterable[str]) -> None:
        """Accept a list with one entry per layer where a key has one number otherwise."""
        self._per_layer.update(names)

    def _check(self, name: str, key: str, found: Any) -> None:
        default = _inside(self._defaults, name)
        if name not in self._per_layer or not isinstance(found, list):
            _check(key, found, default)
            return
        for item in found:
            _check(key, item, None if isinstance(default, list) else default)

    def stated(self, name: str) -> bool:
        """Whether the file itself has a key."""
        names = (name, *self._spellings.get(name, ()))
        return any(_inside(self._stated, key) is not None for key in names)

    def pass_over(self, names: Iterable[str]) -> None:
        """Count keys as read that have no effect beside the others."""
        for name in names:
            self._read.update((name, *self._spellings.get(name, ())))

    def refuse_unread(self, family: str) -> None:
        """Refuse keys that change the architecture and that the family has not read."""
        sections = {name.split(".")[0] for name in self._read if "." in name}
        for section in sections:
            inside = self._stated.get(section)
            if isinstance(inside, Mapping):
                self._refuse(inside, f"{section}.", family)
        self._refuse(self._stated, "", family)

    def not_understood(self) -> tuple[str, ...]:
        """Return unread keys that may shape a model: numbers above 1, set flags, lists."""
        return tuple(
            key
            for key, found in self._stated.items()
            if key not in self._read
            and not _SHAPELESS.search(key)
            and (found is True or (isinstance(found, int) and found > 1) or _is_full_list(found))
        )

    def _refuse(self, keys: Mapping[str, Any], prefix: str, family: str) -> None:
        for key, found in keys.items():
            # Null, false, 0 and [] switch nothing on; nor does what the class has anyway.
            if f"{prefix}{key}" in self._read or not found or isinstance(found, Mapping):
                continue
            if found == _inside(self._defaults, f"{prefix}{key}"):
                continue
            if isinstance(found, list) and set(map(str, found)) <= {"full_attention"}:
                continue
            # Number formats and coefficients change no shape.
            if key.endswith(HARMLESS_ENDS) or isinstance(found, float):
                continue
            if key in ARCHITECTURE_KEYS or any(part in key for part in ARCHITECTURE_FRAGMENTS):
                shown = repr(found) if len(repr(found)) <= 60 else repr(found)[:57] + "..."
                raise ModelError(
                    f"key {key!r}: {shown} changes the architecture in a way that is not "
                    f"modelled for model_type {family!r}"
                )


def _is_full_list(found: Any) -> bool:
    return isinstance(found, list) and bool(found)


def _inside(keys: Mapping[str, Any], name: str) -> Any:
    """Return what stands under a key or ``section.key``; None where nothing does."""
    section, dot, key = name.partition(".")
    found = keys.get(section)
    if not dot:
        return found
    if found is not None and not isinstance(found, Mapping):
        raise ModelError(f"key {section!r}: {found!r} should be an object")
    return None if found is None else found.get(key)


def _check(key: str, found: Any, default: Any) -> None:
    """Refuse what cannot be meant: no number where the default is one, no flag, no list.

    How large a number may be is the business of the part that it shapes.
    """
    if isinstance(default, bool):
        check_flag(key, found)
    elif isinstance(default, list) and not isinstance(found, list | str):
        raise ModelError(f"key {key!r}: {found!r} should be a list")
    elif isinstance(default, str) and not isinstance(found, str | list | int):  # "auto", or 256
        raise ModelError(f"key {key!r}: {found!r} should be a word")
    elif isinstance(default, float):
        if not isinstance(found, int | float) or not 0 < found < SIZE_LIMIT:
            raise ModelError(f"key {key!r}: {found!r} should be a positive number")
    elif isinstance(found, float) and default is None and not _COUNTED.fullmatch(key):
        if not 0 <= found < SIZE_LIMIT:  # a factor
            raise ModelError(f"key {key!r}: {found!r} should be a positive number")
    elif isinstance(found, bool | list | str | Mapping) and not (
        isinstance(default, int) or _COUNTED.fullmatch(key)
    ):
        return
    elif isinstance(found, bool) or not isinstance(found, int) or found < -1 or found > SIZE_LIMIT:
        check_size(key, found)
