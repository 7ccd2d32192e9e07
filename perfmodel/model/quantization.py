"""Weights as they are published: number formats by place, and reading them from a `config.json`.

What a checkpoint holds, and what serving holds of it; training keeps a precision of its own
(`perfmodel.base.strategy_fields`).

``quantization_config`` of a ``config.json`` may be in formats of DeepSeek and Qwen (``fp8``),
gpt-oss (``mxfp4``), NVIDIA's ModelOpt, vLLM's compressed-tensors, AWQ, GPTQ, bitsandbytes, FBGEMM
and AMD's Quark. Which modules a file leaves in 16 bits is decided by the one that stands for a
place in each of the naming styles in use.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import Piece, check_choice, check_size

PLACES = ("attention", "recurrence", "mlp", "shared", "experts", "router", "embedding", "output")
"""Where matrices stand: "mlp" is a dense block, "shared" the experts that every token visits."""
WIDE_BYTES = 2.0
"""One number that no quantisation names [B]."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the numbers of a matrix are stored.

    Attributes
    ----------
    name : str
        "fp8", "mxfp8", "mxfp4", "nvfp4", "int8" or "int4".
    bits : int
        One number, scales apart.
    rows, columns : int
        Inputs and outputs that share a scale; 0 for all of a matrix.
    scale_bytes : float
        One scale, with its zero point where there is one [B].
    products : str
        Format of the products (`perfmodel.base.precisions.FORMATS`): "bf16" where only the
        weights are narrow.
    """

    name: str
    bits: int
    rows: int = 0
    columns: int = 0
    scale_bytes: float = 0.0
    products: str = "bf16"

    def __post_init__(self) -> None:
        check_size("bits", self.bits)
        check_size("rows", self.rows, minimum=0)
        check_size("columns", self.columns, minimum=0)

    def takes(self, piece: Piece) -> bool:
        """Whether a piece can be stored so: a matrix no smaller than the block of a scale."""
        return (
            piece.kind == "matrix" and piece.inputs >= self.rows and piece.outputs >= self.columns
        )

    def bytes_of(self, piece: Piece) -> float:
        """Bytes of a piece, its biases in 16 bits."""
        down = -(-piece.inputs // self.rows) if self.rows else 1
        across = -(-piece.outputs // self.columns) if self.columns else 1
        biases = WIDE_BYTES * piece.outputs if piece.bias else 0.0
        matrix = piece.weights * self.bits / 8 + down * across * self.scale_bytes
        return piece.copies * (matrix + biases)


@dataclass(frozen=True, slots=True)
class PlaceFormat:
    """The format of the matrices at one place.

    Attributes
    ----------
    place : str
        One of `PLACES`.
    format : WeightFormat
    layers : tuple of int
        Layers for which it holds, those of multi-token-prediction modules behind the others;
        empty for all.
    """

    place: str
    format: WeightFormat
    layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("place", self.place, PLACES)
        if not isinstance(self.format, WeightFormat):
            raise ModelError(f"key 'format': {self.format!r} should be a WeightFormat")


@dataclass(frozen=True, slots=True)
class QuantizationSpec:
    """Which matrices are published in fewer than 16 bits.

    Attributes
    ----------
    method : str
        As ``quantization_config`` calls it.
    places : tuple of PlaceFormat
        What it names; everything else is in 16 bits.
    """

    method: str
    places: tuple[PlaceFormat, ...]

    def at(self, place: str, layer: int = 0) -> WeightFormat | None:
        """Return the format at a place of a layer; None for 16 bits."""
        for item in self.places:
            if item.place == place and (not item.layers or layer in item.layers):
                return item.format
        return None

    def text(self) -> str:
        """Return it in words, such as "fp8 in blocks of 128 x 128: attention, experts"."""
        found: dict[WeightFormat, list[str]] = {}
        for item in self.places:
            some = f" of {len(item.layers)} layers" if item.layers else ""
            found.setdefault(item.format, []).append(item.place + some)
        parts = (f"{_words(key)}: {', '.join(places)}" for key, places in found.items())
        return "; ".join(parts)


def _words(item: WeightFormat) -> str:
    if item.rows and item.columns > 1:
        return f"{item.name} in blocks of {item.rows} x {item.columns}"
    return f"{item.name} in groups of {item.rows}" if item.rows else item.name


def place_of(where: str, piece: Piece) -> str:
    """Return the place of a piece, by that of its layer's list."""
    if where != "mlp_dense":
        return where
    return "shared" if piece.name.startswith("shared_") else "mlp"


FP8 = WeightFormat("fp8", 8, products="fp8")
MXFP8 = WeightFormat("mxfp8", 8, 32, 1, 1.0, "mxfp8")
MXFP4 = WeightFormat("mxfp4", 4, 32, 1, 1.0, "mxfp4")
NVFP4 = WeightFormat("nvfp4", 4, 16, 1, 1.0, "nvfp4")
INT8 = WeightFormat("int8", 8, products="int8")

# What ModelOpt calls a format (hf_quant_config.json, key quant_algo).
MODELOPT = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": WeightFormat("fp8", 8, 128, 128, 4.0, "fp8_block"),
    "FP8_BLOCK_SCALES": WeightFormat("fp8", 8, 128, 128, 4.0, "fp8_block"),
    "MXFP8": MXFP8,
    "NVFP4": NVFP4,
    "W4A16_NVFP4": WeightFormat("nvfp4", 4, 16, 1, 1.0),
    "W4A8_MXFP4_FP8": WeightFormat("mxfp4", 4, 32, 1, 1.0, "fp8"),
    "INT8": INT8,
    "W4A16_AWQ": WeightFormat("int4", 4, 128, 1, 2.0),
    "W4A8_AWQ": WeightFormat("int4", 4, 128, 1, 2.0, "fp8"),
}

# The module that stands for a place, in the naming styles of published checkpoints.
_MODULES = {
    "attention": ("self_attn.o_proj", "attn.o_proj", "attn.wo_b", "mixer.o_proj"),
    "recurrence": ("linear_attn.out_proj", "mixer.out_proj", "mamba.out_proj"),
    "mlp": ("mlp.down_proj", "feed_forward.down_proj", "mixer.down_proj", "mlp.dense_4h_to_h"),
    "shared": (
        *("mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj"),
        *("feed_forward.shared_expert.down_proj", "mixer.shared_experts.down_proj"),
    ),
    "experts": (
        *("mlp.experts.0.down_proj", "mlp.experts.down_proj", "block_sparse_moe.experts.0.w2"),
        *("feed_forward.experts.down_proj", "mixer.experts.0.down_proj", "ffn.experts.0.w2"),
    ),
}
_PREFIXES = (
    *("model.layers", "model.language_model.layers", "language_model.model.layers"),
    *("backbone.layers", "layers"),
)
_OUTPUT = ("lm_head", "language_model.lm_head")


class _Method(NamedTuple):
    """What a file says of a module.

    Attributes
    ----------
    kept : callable
        Whether it is left in 16 bits.
    format : callable
        Its format otherwise; None for a name that no rule is about.
    places : tuple of str
        Where the method does anything; empty for everywhere.
    """

    kept: Callable[[str], bool]
    format: Callable[[str], WeightFormat | None]
    places: tuple[str, ...] = ()

    def at(self, place: str, names: Iterable[str]) -> WeightFormat | None:
        """Return the format of a place whose module has one of several names."""
        if self.places and place not in self.places:
            return None
        known = list(names)
        if any(map(self.kept, known)):
            return None
        return next((item for name in known if (item := self.format(name))), None)


def read_quantization(
    stated: Mapping[str, Any], places: Collection[str], layers: int, expert_dtype: str = ""
) -> QuantizationSpec | str:
    """Return how weights are published, or what is not known of it.

    Parameters
    ----------
    stated : mapping
        A ``quantization_config``.
    places : collection of str
        Places that the model has.
    layers : int
        Layers of the model, those of multi-token-prediction modules among them.
    expert_dtype : str
        The key of that name (DeepSeek-V4: "fp4").

    Raises
    ------
    ModelError
        Naming the key at fault.
    """
    if not isinstance(stated, Mapping):
        raise ModelError(f"key 'quantization_config': {stated!r} should be an object")
    name = str(stated.get("quant_method") or stated.get("quant_algo") or "")
    method = _method(name, stated)
    if method is None:
        return f"quantization {name!r} is not known: weights are taken as of 16 bits"
    found = [item for item in _places(method, layers) if item.place in places]
    if expert_dtype == "fp4" and "experts" in places:
        found = [item for item in found if item.place != "experts"]
        found.append(PlaceFormat("experts", MXFP4))
    return QuantizationSpec(name, tuple(found))


def _places(method: _Method, layers: int) -> Iterator[PlaceFormat]:
    """Yield the format of every place, layers of one format together."""
    item = method.at("output", _OUTPUT)
    if item is not None:
        yield PlaceFormat("output", item)
    for place, modules in _MODULES.items():
        found: dict[WeightFormat, list[int]] = {}
        for layer in range(layers):
            names = (f"{prefix}.{layer}.{name}" for prefix in _PREFIXES for name in modules)
            item = method.at(place, names)
            if item is not None:
                found.setdefault(item, []).append(layer)
        for item, where in found.items():
            yield PlaceFormat(place, item, () if len(where) == layers else tuple(where))


def _method(name: str, stated: Mapping[str, Any]) -> _Method | None:
    """Return what a file says of modules; None for a method that is not known."""
    if name.startswith("modelopt") or (not stated.get("quant_method") and name in MODELOPT):
        return _modelopt(stated)
    if name == "compressed-tensors":
        return _compressed_tensors(stated)
    if name == "quark":
        return _quark(stated)
    item = _whole(name, stated)
    if item is None:
        return None
    lists = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    kept = [module for key in lists for module in _names(stated, key)]
    if stated.get("lm_head") is not True:
        kept.append("lm_head")
    places = ("experts",) if name == "mxfp4" else ()
    return _Method(_matcher(kept), lambda module: item, places)


def _whole(method: str, stated: Mapping[str, Any]) -> WeightFormat | None:
    """Return the format of a method that has one for all matrices."""
    if method == "fp8":
        block = stated.get("weight_block_size")
        if block is None:
            return FP8
        if (
            not isinstance(block, list)
            or len(block) != 2
            or not all(_whole_number(x) for x in block)
        ):
            raise ModelError(f"key 'weight_block_size': {block!r} should be two sizes")
        return WeightFormat("fp8", 8, block[1], block[0], 4.0, "fp8_block")
    if method == "fbgemm_fp8":
        return FP8
    if method == "mxfp4":
        return MXFP4
    if method in ("awq", "gptq", "auto-round", "auto_round", "autoround"):
        # A 16-bit scale per group and, unless weights are symmetric, a zero point.
        bits, group = stated.get("bits", 4), stated.get("group_size", 128)
        if not _whole_number(bits) or not isinstance(group, int):
            raise ModelError(f"keys 'bits' and 'group_size': {bits!r}, {group!r} should be sizes")
        symmetric = stated.get("sym", not stated.get("zero_point", method == "awq"))
        zero = 0.0 if symmetric and method == "awq" else bits / 8
        return WeightFormat(f"int{bits}", bits, max(group, 0), 1, 2.0 + zero)
    if method == "bitsandbytes":
        if stated.get("load_in_8bit"):
            return INT8
        return WeightFormat("int4", 4, 64, 1, 4.0) if stated.get("load_in_4bit") else None
    return None


def _whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _modelopt(stated: Mapping[str, Any]) -> _Method | None:
    """Formats of ModelOpt: one for all but some, or one for each module that is named."""
    inner = stated.get("quantization")
    facts = inner if isinstance(inner, Mapping) else stated
    if facts.get("config_groups") and not facts.get("quant_algo"):
        return _compressed_tensors(facts)
    algorithm = str(facts.get("quant_algo", "")).upper()
    kept = _matcher([*_names(facts, "ignore"), *_names(facts, "exclude_modules"), "lm_head"])
    if algorithm != "MIXED_PRECISION":
        item = MODELOPT.get(algorithm)
        return None if item is None else _Method(kept, lambda module: item)
    each = facts.get("quantized_layers")
    named = {
        str(module): MODELOPT.get(str(entry.get("quant_algo", "")).upper())
        for module, entry in (each.items() if isinstance(each, Mapping) else ())
        if isinstance(entry, Mapping)
    }

    def mixed(module: str) -> WeightFormat | None:
        parts = module.split(".")
        inside = (".".join(parts[:stop]) for stop in range(len(parts), 0, -1))
        return next((item for name in inside if (item := named.get(name))), None)

    return _Method(kept, mixed) if named else None


def _compressed_tensors(stated: Mapping[str, Any]) -> _Method:
    """Formats of compressed-tensors: groups of targets, and what is left out."""
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelError("key 'config_groups': missing, or no object")
    rules = []
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise ModelError(f"key 'config_groups': {name!r} has no 'weights'")
        layout = str(group.get("format") or stated.get("format") or "")
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        rules.append(("Linear" in targets, _matcher(targets), _group_format(group, layout)))

    def format_of(module: str) -> WeightFormat | None:
        named = (item for every, matches, item in rules if not every and matches(module))
        return next(named, next((item for every, _, item in rules if every), None))

    return _Method(_matcher(_names(stated, "ignore")), format_of)


def _group_format(group: Mapping[str, Any], layout: str) -> WeightFormat:
    """Return the format of one group of compressed-tensors."""
    weights, inputs = group["weights"], group.get("input_activations")
    bits, kind = weights.get("num_bits", 8), str(weights.get("type", "int"))
    strategy, size = str(weights.get("strategy", "")), weights.get("group_size")
    if not _whole_number(bits):
        raise ModelError(f"key 'num_bits': {bits!r} should be a size")
    if kind == "float" and bits == 4:
        narrow = MXFP4 if "mxfp4" in layout or size == MXFP4.rows else NVFP4
        return narrow if inputs else WeightFormat(narrow.name, 4, narrow.rows, 1, 1.0)
    name = f"{'fp' if kind == 'float' else 'int'}{bits}"
    products = name if inputs and bits == 8 else "bf16"
    if strategy == "block":
        rows, columns = weights.get("block_structure") or (128, 128)
        return WeightFormat(
            name, bits, columns, rows, 4.0, "fp8_block" if products == "fp8" else products
        )
    if strategy in ("group", "tensor_group") and _whole_number(size):
        zero = 0.0 if weights.get("symmetric", True) else bits / 8
        return WeightFormat(name, bits, int(size), 1, 2.0 + zero, products)
    return WeightFormat(name, bits, products=products)


def _quark(stated: Mapping[str, Any]) -> _Method | None:
    """Formats of Quark: a global one, others by name, and what is left out."""
    each = stated.get("layer_quant_config")
    named = each.items() if isinstance(each, Mapping) else ()
    rules = [(_matcher([str(name)]), _quark_format(entry)) for name, entry in named]
    whole = _quark_format(stated.get("global_quant_config"))
    if whole is None and not any(item for _, item in rules):
        return None
    return _Method(
        _matcher(_names(stated, "exclude")),
        lambda module: next((item for matches, item in rules if matches(module)), whole),
    )


def _quark_format(entry: object) -> WeightFormat | None:
    weight = entry.get("weight") if isinstance(entry, Mapping) else None
    if isinstance(weight, list):
        weight = weight[-1] if weight else None
    if not isinstance(weight, Mapping):
        return None
    kind = str(weight.get("dtype", ""))
    if kind == "fp4":
        return MXFP4
    if kind.startswith("fp8"):
        return FP8
    if kind in ("int4", "uint4"):
        group = weight.get("group_size")
        rows = group if isinstance(group, int) and group > 0 else 0
        return WeightFormat("int4", 4, rows, 1, 2.0)
    return INT8 if kind == "int8" else None


def _names(stated: Mapping[str, Any], key: str) -> list[str]:
    found = stated.get(key)
    if found is None:
        return []
    if not isinstance(found, list | tuple):
        raise ModelError(f"key {key!r}: {found!r} should be a list of modules")
    return [str(item) for item in found]


def _matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return what tells whether a module is named: by its path, a part of it, ``*`` or ``re:``."""
    plain = set()
    by_layer: dict[str, list[re.Pattern[str]]] = {}
    for pattern in dict.fromkeys(patterns):
        if pattern.startswith("re:"):
            text = pattern.removeprefix("re:")
        elif "*" in pattern or "?" in pattern:
            text = rf"(.*\.)?({fnmatch.translate(pattern)}|{fnmatch.translate(pattern + '.*')})"
        else:
            plain.add(tuple(pattern.split(".")))
            continue
        # Lists of hundreds of patterns name a layer each: only those of a module's are tried.
        layer = re.search(r"layers\.(\d+)[.*]", pattern)
        try:
            by_layer.setdefault(layer.group(1) if layer else "", []).append(re.compile(text))
        except re.error as error:
            raise ModelError(
                f"key 'quantization_config': {pattern!r} is no pattern ({error})"
            ) from None

    def matches(module: str) -> bool:
        parts = module.split(".")
        starts = range(len(parts)) if plain else ()
        runs = (
            tuple(parts[start:stop])
            for start in starts
            for stop in range(start + 1, len(parts) + 1)
        )
        number = next((part for part in parts if part.isdecimal()), "")
        tried = (*by_layer.get("", ()), *(by_layer.get(number, ()) if number else ()))
        return any(run in plain for run in runs) or any(one.match(module) for one in tried)

    return matches
