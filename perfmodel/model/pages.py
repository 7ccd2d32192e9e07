"""Pages of families: data that say how the keys of a ``config.json`` make a model.

A page is a TOML file in ``families/``, called after its ``model_type``. Texts that begin with
``=`` are formulas over keys (`perfmodel.model.formula`); ``i`` is the number of a layer.
docs/models.md shows how to add one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ModelError, did_you_mean
from perfmodel.base.files import read_toml, shortened
from perfmodel.base.units import format_si
from perfmodel.model.attention import AttentionSpec, CompressionSpec, IndexerSpec
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.formula import (
    MOST_OPERATIONS,
    Absent,
    compile_formula,
    names_of,
    per_layer_names_of,
)
from perfmodel.model.layers import LayerSpec, Mixer, MlpSpec
from perfmodel.model.pieces import LAYER_LIMIT, SIZE_LIMIT, Piece, Pieces, check_choice, check_size
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec, TowerSpec

Page = Mapping[str, Any]
ENTRY = int | float | str | list
PIECES: list[Any] = [{"*": ENTRY}]
LAYER = {"mixers": str | list, "mlps": str | list}
PART = {"like": str, "part": str, "kind": str, "indexer": {}, "compression": {}}
SHAPE: dict[str, Any] = {
    "like": str,
    "ignore": [str],
    "names": {"*": [str]},
    "defaults": dict,
    "let": {},
    "refuse": {"*": str},
    "model": {},
    "layer": LAYER,
    "mixer": {"*": PART},
    "mlp": {"*": PART},
    "mtp": LAYER,
    "tower": {"*": {"layer": LAYER}},
}
"""What stands in a page: tables with their entries (``*`` is any other), lists, plain values.

``extra`` is a list of pieces wherever it stands.
"""
FAMILIES = Path(__file__).parent / "families"


@cache
def page(model_type: str) -> Page | None:
    """Return the page of a family with what it takes over from others; None if there is none."""
    file = FAMILIES / f"{model_type}.toml"
    if not re.fullmatch(r"[\w-]{1,99}", model_type) or not file.is_file():
        return None
    return resolved(read_toml(file, ModelError), model_type)


def resolved(own: Page, name: str) -> Page:
    """Return a page merged into the one that it is ``like``."""
    for key, value in own.items():
        if key not in SHAPE:
            raise ModelError(f"page {name!r}: no entry {key!r}{did_you_mean(key, SHAPE)}")
        _check_shape(value, SHAPE[key], f"page {name!r}: {key}")
    like = own.get("like")
    if like is None:
        return own
    base = page(like)
    if base is None:
        raise ModelError(f"page {name!r}: like {like!r}, which has no page")
    return merged(base, own)


def _check_shape(value: Any, shape: Any, where: str) -> None:
    """Refuse an entry of a page that is of another kind than the page's readers take."""
    kind = type(shape) if isinstance(shape, dict | list) else shape
    if not isinstance(value, kind):
        wanted = {dict: "a table", list: "a list", str: "a text"}.get(kind, "a number or text")
        raise ModelError(f"{where}: {shortened(value)!r} should be {wanted}")
    if isinstance(value, list):
        for item in value:
            _check_shape(item, shape[0] if isinstance(shape, list) else ENTRY, where)
    elif isinstance(value, dict) and isinstance(shape, dict):
        for key, item in value.items():
            other = PIECES if key == "extra" else shape.get("*", ENTRY)
            _check_shape(item, shape.get(key, other), f"{where}.{key}")


def _needed(table: Page, *keys: str) -> tuple[Any, ...]:
    """Return entries without which a page makes no model."""
    missing = [key for key in keys if key not in table]
    if missing:
        raise ModelError(f"page: {', '.join(missing)} should be stated (docs/models.md)")
    return tuple(table[key] for key in keys)


def page_names() -> tuple[str, ...]:
    """Return every ``model_type`` that has a page."""
    names = (item.name for item in FAMILIES.iterdir())
    return tuple(sorted(n[:-5] for n in names if n.endswith(".toml") and not n.startswith("_")))


@cache
def class_facts() -> Mapping[str, Any]:
    """Return what Hugging Face's classes have: ``defaults``, ``names``, ``architectures``."""
    found: dict[str, Any] = json.loads((FAMILIES / "defaults.json").read_text(encoding="utf-8"))
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


class PageNames:
    """Evaluates the formulas of one page for one file (`perfmodel.model.formula.Names`)."""

    def __init__(self, page: Page, keys: ConfigKeys) -> None:
        self.let: Mapping[str, Any] = page.get("let", {})
        self.layer = 0
        """Number of the present layer, ``i`` of the formulas."""
        self.layers = 0
        """How many there are."""
        self._left = MOST_OPERATIONS
        self._open: list[str] = []
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
                if name in self._open:
                    chain = " -> ".join([*self._open[self._open.index(name) :], name])
                    raise ModelError(f"page: let.{name} needs itself: {shortened(chain)}")
                self._open.append(name)
                try:
                    self._known[slot] = self.evaluate(self.let[name])
                finally:
                    self._open.pop()
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

    def spend(self, operations: int) -> None:
        """Count operations of formulas, which have a budget for the whole model."""
        self._left -= operations
        if self._left < 0:
            raise ModelError(
                f"page: its formulas take more than {MOST_OPERATIONS:,} operations for this model"
            )

    def _moving(self, name: str) -> bool:
        """Whether what a name stands for differs from layer to layer."""
        if name not in self._moves:
            stands_for = self.let.get(name)
            self._moves[name] = False  # while it is asked, in a circle
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
            where = f"keys {names}" if names else f"formula {shortened(value[1:])!r}"
            raise ModelError(f"{where}: do not fit together ({error})") from None
        except RecursionError:
            raise ModelError("page: names stand for names for names, too many of them") from None


PARTS = {
    "attention": AttentionSpec,
    "recurrence": RecurrenceSpec,
    "convolution": ShortConvolutionSpec,
}

# Names that the Hugging Face library gives to activation functions, and ours.
HUGGING_FACE_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "tanh": "tanh",
    "xielu": "xielu",
}


def model_from_page(page: Page, keys: ConfigKeys, family: str, name: str, source: str) -> ModelSpec:
    """Build the model that a page makes of keys.

    Parameters
    ----------
    page : Page
    keys : ConfigKeys
    family : str
        The ``model_type``, for `ModelSpec.family` and errors.
    name, source : str
        What the model is called, and where the description is from.

    Raises
    ------
    ModelError
        Naming the key at fault.
    """
    return _Builder(page, keys).model(family, name, source)


class _Builder:
    """Builds the parts that one page makes of one file; equal parts are one object."""

    def __init__(self, page: Page, keys: ConfigKeys) -> None:
        self._page = page
        self._names = PageNames(page, keys)
        self._evaluate = self._names.evaluate
        self._known: dict[Any, Any] = {}
        self._tables: dict[tuple[str, str], tuple[Page, tuple[str, ...]]] = {}

    def model(self, family: str, name: str, source: str) -> ModelSpec:
        """Build the whole model."""
        stated = dict(_needed(self._page, "model", "layer")[0])
        depth, width = _needed(stated, "layers", "hidden_size")
        del stated["layers"]
        count = self._size(depth, "layers", LAYER_LIMIT)
        self._names.start(count)
        hidden = self._size(width, "hidden_size", SIZE_LIMIT)
        layers = tuple(self._layer_spec(i) for i in range(count))
        values: dict[str, Any] = {
            key: self._evaluate(value) for key, value in stated.items() if key != "extra"
        }
        values["hidden_size"] = hidden
        values["extra"] = self._pieces(stated.get("extra", ()))
        mtp = self._mtp(count)
        towers, remarks = self._towers()
        model = self._translated(
            ModelSpec, stated, {"name": name, "family": family, "layers": layers, **values}
        )
        return replace(model, mtp_layers=mtp, towers=towers, remarks=remarks, source=source)

    def _towers(self) -> tuple[tuple[TowerSpec, ...], tuple[str, ...]]:
        """Build the stacks beside the decoder, and a remark on each."""
        towers = tuple(
            self._tower(name, table)
            for name, table in self._page.get("tower", {}).items()
            if self._evaluate(table.get("when", True))
        )
        remarks = tuple(
            f"the {tower.name} ({format_si(float(tower.parameter_count()))} parameters) is "
            "counted, and runs in the first stage over as many tokens as the decoder"
            for tower in towers
        )
        return towers, remarks

    def _tower(self, name: str, table: Page) -> TowerSpec:
        """Build one stack; its ``layer`` is laid over the page's ``[layer]``."""
        own = {key: value for key, value in table.items() if key not in ("layer", "layers")}
        values = self._values(own)
        # What is known belongs to the layers of the decoder.
        self._known = {}
        depth, layer = _needed(table, "layers", "layer")
        count = self._size(depth, "layers", LAYER_LIMIT)
        self._names.start(count)
        layers = tuple(self._layer_spec(i, layer) for i in range(count))
        found: TowerSpec = self._translated(
            TowerSpec, own, {"name": name, "layers": layers, **values}
        )
        return found

    def _size(self, value: Any, key: str, limit: int) -> int:
        found = self._evaluate(value)
        check_size(_first_name(value, key), found, limit=limit)
        return int(found)

    def _mtp(self, layers: int) -> tuple[LayerSpec, ...]:
        """Layers of multi-token-prediction modules: like the last one unless the page says."""
        table = self._page.get("mtp", {})
        try:
            modules = self._evaluate(table.get("modules", 0))
        except Absent:
            return ()
        check_size(
            _first_name(table.get("modules"), "modules"), modules, minimum=0, limit=LAYER_LIMIT
        )
        if not modules:
            return ()
        own = {key: value for key, value in table.items() if key != "modules"}
        return (self._layer_spec(layers - 1, own),) * modules

    def _layer_spec(self, index: int, own: Mapping[str, Any] | None = None) -> LayerSpec:
        """Build one layer; `own` overrides entries of the page's ``[layer]``."""
        self._names.layer = index
        table = {**self._page["layer"], **(own or {})}
        _needed(table, "mixers", "mlps")
        mixers = tuple(self._part("mixer", name) for name in self._listed(table, "mixers"))
        mlps = tuple(self._part("mlp", name) for name in self._listed(table, "mlps"))
        others = {
            key: self._evaluate(value)
            for key, value in table.items()
            if key not in ("mixers", "mlps", "extra")
        }
        extra = self._pieces(table.get("extra", ()))
        shown = map(repr, others.values())  # lists, in a page that is wrong, are no keys
        slot = ("layer", tuple(map(id, (*mixers, *mlps))), len(mixers), *shown, extra)
        if slot not in self._known:
            self._known[slot] = self._translated(
                LayerSpec, table, {"mixers": mixers, "mlps": mlps, **others, "extra": extra}
            )
        found: LayerSpec = self._known[slot]
        return found

    def _listed(self, table: Page, key: str) -> tuple[str, ...]:
        """Return names of tables: none, one, or a list."""
        found = self._evaluate(table[key])
        names = found if isinstance(found, list) else [found] if found else []
        for name in names:
            if not isinstance(name, str):
                raise ModelError(f"page: {key}: {shortened(name)!r} should be the name of a table")
        return tuple(names)

    def _part(self, room: str, name: str) -> Any:
        """Build a mixer or an MLP of the present layer; equal ones are one object."""
        if (room, name) not in self._tables:
            table = self._table(room, name)
            formulas = (f"={formula}" for formula in formulas_of(table))
            self._tables[room, name] = table, tuple(filter(self._names.moves, formulas))
        table, moving = self._tables[room, name]
        slot = (room, name, *map(self._shown, moving))
        if slot not in self._known:
            self._known[slot] = self._mlp(table) if room == "mlp" else self._mixer(table)
        return self._known[slot]

    def _shown(self, formula: str) -> str:
        """Return a formula's value as text; what is absent may belong to a part left out."""
        try:
            return str(self._evaluate(formula))
        except Absent:
            return ""

    def _table(self, room: str, name: str) -> Page:
        """Return the table of a part, laid over the one that it is ``like``."""
        table: Page | None = self._page.get(room, {}).get(name)
        if table is None:
            raise ModelError(f"page: no table [{room}.{name}]")
        if "like" not in table:
            return table
        own = {key: value for key, value in table.items() if key != "like"}
        return merged(self._table(room, table["like"]), own)

    def _mixer(self, table: Page) -> Mixer:
        part = table.get("part", "attention")
        check_choice("part", part, PARTS)
        kind, values = PARTS[part], self._values(table)
        for key, spec in (("indexer", IndexerSpec), ("compression", CompressionSpec)):
            if key in values:
                values[key] = self._nested(spec, values[key])
        if kind is AttentionSpec:
            # A window of 0 is no window, whatever the page calls the kind.
            window = values.get("window", 0)
            _needed(values, "kind")
            if not window and values["kind"] in ("sliding", "chunked"):
                values["kind"] = "full"
            if window and values["kind"] == "full":
                values["kind"] = "sliding"
        found: Mixer = self._translated(kind, table, values)
        return found

    def _nested(self, spec: Any, table: Any) -> Any:
        """Build an indexer or a compression, or None where its ``when`` is false."""
        if not self._evaluate(table.get("when", True)):
            return None
        return self._translated(spec, table, self._values(table))

    def _mlp(self, table: Page) -> MlpSpec:
        values = self._values(table)
        if "activation" in values:
            key = _first_name(table["activation"], "activation")
            check_choice(key, values["activation"], HUGGING_FACE_ACTIVATIONS)
            values["activation"] = HUGGING_FACE_ACTIVATIONS[values["activation"]]
        found: MlpSpec = self._translated(MlpSpec, table, values)
        return found

    def _values(self, table: Page) -> dict[str, Any]:
        """Return the evaluated entries of a table; those that are absent are left out."""
        values: dict[str, Any] = {}
        for key, value in table.items():
            if key in ("part", "when"):
                continue
            values[key] = self._pieces(value) if key == "extra" else self._evaluate(value)
        return values

    def _pieces(self, tables: Iterable[Page]) -> Pieces:
        """Build the pieces of an ``extra`` list; those whose ``when`` is false are left out."""
        return tuple(
            self._translated(Piece, table, self._values(table))
            for table in tables
            if self._evaluate(table.get("when", True))
        )

    def _translated(self, kind: Any, table: Page, values: dict[str, Any]) -> Any:
        """Build a part; what it complains of is told by the keys that the user wrote."""
        unknown = set(values) - {field.name for field in fields(kind)}
        if unknown:
            raise ModelError(f"page: {kind.__name__} has no field {', '.join(sorted(unknown))!r}")
        _needed(values, *(field.name for field in fields(kind) if _is_required(field)))
        try:
            return kind(**values)
        except ModelError as error:
            raise ModelError(_in_keys_of_the_file(str(error), table, self._names.let)) from None


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _first_name(value: Any, otherwise: str) -> str:
    """Return the name that a formula begins with, for errors."""
    return next(iter(names_of(value[1:])), otherwise) if is_formula(value) else otherwise


def _in_keys_of_the_file(message: str, table: Page, let: Page) -> str:
    """Replace quoted names of fields by the keys that their formulas begin with."""

    def key(match: re.Match[str]) -> str:
        value, seen = table.get(match[1]), set[str]()
        while is_formula(value):
            name = _first_name(value, "")
            if name not in let:
                return f"'{name}'" if name else match[0]
            if name in seen:
                break
            seen.add(name)
            value = let[name]
        return match[0]

    return re.sub(r"'(\w+)'", key, message)
