"""Names of the formulas of a page: the layer's number, what the page derives, keys of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.formula import compile_formula, names_of, per_layer_names_of
from perfmodel.model.pages import Page, is_formula, mentioned


class PageNames:
    """Evaluates the formulas of one page for one file (`perfmodel.model.formula.Names`)."""

    def __init__(self, page: Page, keys: ConfigKeys) -> None:
        self.let: Mapping[str, Any] = page.get("let", {})
        self.layer = 0
        """Number of the present layer, ``i`` of the formulas."""
        self.layers = 0
        """How many there are."""
        self._keys = keys
        self._known: dict[tuple[str, int], Any] = {}
        self._moves: dict[str, bool] = {}
        keys.pass_over((*page.get("ignore", ()), *mentioned(page)))
        keys.may_be_lists(mentioned(page, per_layer_names_of))
        for key, what in page.get("refuse", {}).items():
            if self.stated(key) and self._keys.value(key):
                raise ModelError(f"key {key!r}: {what}")

    def value(self, name: str) -> Any:
        """Return what a name stands for: the layer's number, a derived value, or a key."""
        if name == "i":
            return self.layer
        if name == "layers":
            return self.layers
        if name in self.let:
            slot = (name, self.layer if self._moving(name) else -1)
            if slot not in self._known:
                self._known[slot] = self.evaluate(self.let[name])
            return self._known[slot]
        return self._keys.value(name)

    def stated(self, name: str) -> bool:
        """Whether the file itself has a key."""
        return self._keys.stated(name)

    def per_layer(self, name: str, found: Any, index: int) -> Any:
        """Return a layer's entry of a list with one entry per layer."""
        derived = name in self.let
        if isinstance(found, int) and not isinstance(found, bool):
            return found
        if not isinstance(found, list | str) or (len(found) != self.layers and not derived):
            count = len(found) if isinstance(found, list | str) else repr(found)
            raise ModelError(
                f"key {name!r}: {count} entries should be {self.layers}, one per layer"
            )
        return found[index]

    def _moving(self, name: str) -> bool:
        """Whether what a name stands for differs from layer to layer."""
        if name not in self._moves:
            stands_for = self.let.get(name)
            self._moves[name] = name == "i" or (is_formula(stands_for) and self.moves(stands_for))
        return self._moves[name]

    def moves(self, value: Any) -> bool:
        """Whether a formula's value differs from layer to layer."""
        return is_formula(value) and any(map(self._moving, names_of(value[1:])))

    def start(self, layers: int) -> None:
        """Begin a stack of so many layers; what was known belongs to another one."""
        self.layers = layers
        self._known = {}

    def evaluate(self, value: Any) -> Any:
        """Return a formula's value, or what is no formula as it is."""
        if not is_formula(value):
            return value
        try:
            return compile_formula(value[1:])(self)
        except (TypeError, ValueError, ArithmeticError) as error:
            names = ", ".join(repr(name) for name in names_of(value[1:]))
            raise ModelError(f"keys {names}: do not fit together ({error})") from None
