"""Models from rows of tables of measured runs: by their architecture, or by a name.

Columns that state an architecture are those of our training table: ``layers``, ``hidden``, ``ffn``,
``gated_mlp``, ``tied``, ``heads``, ``kv_heads``, ``head_dim``, ``vocab``, ``seq``, for experts
``n_experts``, ``topk``, ``n_shared_experts``, ``moe_ffn``, ``first_dense_layers``,
``moe_every``, for latent attention ``mla_q_lora``, ``mla_kv_lora``, ``mla_nope``,
``mla_rope``, ``mla_v``, and ``attn_note``. An empty cell means that the row has no such thing.

Tables of serving runs state names: with or without an organisation, with the precision of the
checkpoint ("-FP8", "-NVFP4"), or short ("Qwen3-235B", "GLM-5").
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from perfmodel.base.errors import ModelError
from perfmodel.base.precisions import PRECISIONS
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words
from perfmodel.model.build import dense_model, moe_model
from perfmodel.model.layers import LayerSpec
from perfmodel.model.presets import find_preset, list_models, load_model
from perfmodel.model.spec import ModelSpec

# (experts, experts per token) of models that limit a token to groups of experts, which no
# column states: DeepSeek-V3 and V2 (n_group and topk_group of their config.json).
_ROUTING_GROUPS: dict[tuple[int | None, int | None], tuple[int, int]] = {
    (256, 8): (8, 4),
    (160, 6): (8, 3),
}
_SLIDING = re.compile(r"(\d+) of (\d+) layers sliding window (\d+)")


def model_from_row(row: Mapping[str, Any], **overrides: Any) -> ModelSpec:
    """Build the model that a row of a measured-run table describes.

    Parameters
    ----------
    row : mapping
        Column to value; strings as `csv` reads them, or numbers.
    **overrides
        Arguments of `dense_model` or `moe_model` that are known better.

    Returns
    -------
    ModelSpec

    Raises
    ------
    ModelError
        Naming the column at fault.

    Notes
    -----
    A table states sizes only, so the rest follows what is usual for each kind: a gated block
    comes with RMS norms, rotary positions, no biases and an output matrix of its own
    (Llama), a plain one with layer norms, biases, learned positions and a tied output
    matrix (GPT). Where ``gated_mlp`` is empty, a block of width ``4 * hidden`` is plain.
    A first name that begins with "BLOOM" or "MPT" adds what those models are known for.
    """
    name = str(row.get("model") or "model")
    hidden, ffn = _size(row, "hidden"), _optional(row, "ffn")
    gated = _flag(row, "gated_mlp", ffn != 4 * hidden)
    shared: dict[str, Any] = {
        "layers": _size(row, "layers"),
        "hidden_size": hidden,
        "heads": _size(row, "heads"),
        "vocab_size": _size(row, "vocab"),
        "source": str(row.get("source") or ""),
    }
    for column, key in (("kv_heads", "key_value_heads"), ("head_dim", "head_dim")):
        found = _optional(row, column)
        if found:
            shared[key] = found
    if str(row.get("tied") or "").strip():
        shared["tied_embeddings"] = _flag(row, "tied", False)
    if _optional(row, "n_experts"):
        return _with_windows(moe_model(name, **{**shared, **_experts(row, ffn), **overrides}), row)
    if not ffn:
        raise ModelError("column 'ffn': empty")
    fields = {"intermediate_size": ffn, "gated": gated}
    if not gated:
        fields |= _plain_fields(name, _optional(row, "seq"))
    fields |= shared
    return _with_windows(dense_model(name, **{**fields, **overrides}), row)


def _experts(row: Mapping[str, Any], ffn: int) -> dict[str, Any]:
    """Arguments of `moe_model` from the columns about experts and latent attention."""
    width = _optional(row, "moe_ffn") or ffn
    found = {
        "experts": _size(row, "n_experts"),
        "experts_per_token": _size(row, "topk"),
        "expert_intermediate_size": width,
        "shared_intermediate_size": _optional(row, "n_shared_experts") * width,
        "first_dense_layers": _optional(row, "first_dense_layers"),
        "moe_every": _optional(row, "moe_every") or 1,
        "intermediate_size": ffn or None,
    }
    if _optional(row, "mla_kv_lora"):
        groups = _ROUTING_GROUPS.get((found["experts"], found["experts_per_token"]), (0, 0))
        found |= {
            "expert_groups": groups[0],
            "expert_groups_per_token": groups[1],
            "q_lora_rank": _optional(row, "mla_q_lora"),
            "kv_lora_rank": _size(row, "mla_kv_lora"),
            "qk_nope_head_dim": _size(row, "mla_nope"),
            "qk_rope_head_dim": _size(row, "mla_rope"),
            "value_head_dim": _size(row, "mla_v"),
        }
    return found


def _plain_fields(name: str, sequence_length: int) -> dict[str, Any]:
    """What a model with a plain feed-forward block usually has, by the name's beginning."""
    fields: dict[str, Any] = {"norm": "layer", "bias": True, "tied_embeddings": True}
    if name.lower().startswith("bloom"):
        return {**fields, "position_embedding": "alibi", "embedding_norm": True}
    if name.lower().startswith("mpt"):
        return {**fields, "norm": "layer_no_bias", "bias": False, "position_embedding": "alibi"}
    return {**fields, "position_embedding": "learned", "max_positions": sequence_length or 2048}


def _with_windows(model: ModelSpec, row: Mapping[str, Any]) -> ModelSpec:
    """Give the layers the windows that ``attn_note`` states."""
    note = str(row.get("attn_note") or "").strip()
    if not note:
        return model
    match = _SLIDING.fullmatch(note)
    if match is None:
        raise ModelError(
            f"column 'attn_note': {note!r} should be like '5 of 6 layers sliding window 1024'"
        )
    sliding, period, window = (int(group) for group in match.groups())
    if not 0 < sliding <= period or window < 1:
        raise ModelError(f"column 'attn_note': {note!r} makes no sense")
    if any(layer.attention.kind == "mla" for layer in model.layers):
        raise ModelError(f"column 'attn_note': {note!r}, but latent attention has no windows")

    def layer(index: int, spec: LayerSpec) -> LayerSpec:
        if index % period >= sliding:
            return spec
        return replace(spec, mixers=(replace(spec.attention, kind="sliding", window=window),))

    return replace(model, layers=tuple(layer(i, spec) for i, spec in enumerate(model.layers)))


def _optional(row: Mapping[str, Any], column: str) -> int:
    """Return a whole number, 0 where the cell is empty."""
    value = row.get(column)
    if value is None or str(value).strip() in ("", "nan"):
        return 0
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0 or not math.isfinite(number) or number != int(number):
        raise ModelError(f"column {column!r}: {value!r} should be a whole number")
    return int(number)


def _size(row: Mapping[str, Any], column: str) -> int:
    """Return a positive whole number."""
    found = _optional(row, column)
    if not found:
        raise ModelError(f"column {column!r}: empty or 0, should be a positive whole number")
    return found


def _flag(row: Mapping[str, Any], column: str, default: bool) -> bool:
    """Return a truth value written as 0 or 1."""
    text = str(row.get(column) if row.get(column) is not None else "").strip()
    if text == "":
        return default
    number = _optional(row, column)
    if number not in (0, 1):
        raise ModelError(f"column {column!r}: {text} should be 0 or 1")
    return bool(number)


_BF16 = r"\b[^.;,]{0,24}(?:bf16|16[- ]bits?)"
_WIDE = {
    "share": re.compile(
        r"\b(?:\w+ )?(?:on|in|for) (?:the )?first (\d+) ?% of (?:the |all )?layers"
    ),
    "both": re.compile(r"\bfirst and last (\d+) layers?" + _BF16),
    "first": re.compile(r"\bfirst (\d+)(?: and last \d+)? layers?" + _BF16),
    "last": re.compile(r"\blast (\d+) layers?" + _BF16),
}


def wide_layers(text: str, layers: int, precision: str) -> tuple[int, int]:
    """Return how many first and last layers a note leaves in 16 bits in a precision.

    ``nvfp4 on first 85 % of layers`` (of nvfp4 alone), ``first 2 and last 8 layers in bf16``,
    ``first and last 1 layers bf16``.
    """
    found = {name: match for name, it in _WIDE.items() if (match := it.search(text.lower()))}
    if share := found.get("share"):
        named = share[0].split()[0]
        if named in PRECISIONS and named != precision:
            return 0, 0
        return 0, layers - math.ceil(layers * min(int(share[1]), 100) / 100)
    if both := found.get("both"):
        return int(both[1]), int(both[1])
    first, last = (int(found[name][1]) if name in found else 0 for name in ("first", "last"))
    return first, last


WITHOUT_ARCHITECTURE = "architecture not stated"
ARCHITECTURE = ("layers", "hidden", "heads", "vocab")
"""Cells that state an architecture, with ``ffn`` or ``n_experts``."""
# What tables add to a model's name: how it is trained, a rank, how many layers are left, its size.
_ADDED = re.compile(
    r"[-_ ]+(?:q?lora|sft|(?:pre|fine-?)?(?:train|tun)\w*|r\d+|(\d+)[-_ ]?(?:layers?|l)|\d+[bt])$",
    re.I,
)
# Endings of checkpoints' names that tell how weights are kept, and words that come after them.
_FORMAT = re.compile(
    r"(?:[-_ .](?:(?:nv|mx)?fp(?:4|8|16)|bf16|w\d+a\d+(?:kv\d+)?|int[48]|[348]-?bit|awq|gptq|qat"
    r"|quantized|kv|shape|base|instruct|chat|it|thinking|preview|safeguard)"
    r"|\s*\([^()]*\))(?:[-_ ](?:static|dynamic|block|kv|preview|v\d+))*$",
    re.IGNORECASE,
)
_SIZE = re.compile(r"a?\d+(?:\.\d+)?(?:x\d+)?[bmt]|\d+e", re.IGNORECASE)


def served_model(row: MeasuredRow) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model of a row, and notes on how its name was read.

    Raises
    ------
    Skip
        Neither is the name known nor an architecture stated.
    """
    name = row.text("model")
    if name:
        try:
            return _known(name)
        except ModelError as error:
            reason = str(error)
    else:
        reason = "column 'model' is empty"
    if row.text("layers") and row.text("hidden"):
        try:
            return model_from_row(row.cells), ("architecture from the row",)
        except ModelError as error:
            reason = str(error)
    raise Skip(WITHOUT_ARCHITECTURE, reason, scorable=False)


def trained_model(row: Mapping[str, Any], modules: int = 0) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model of a training run: by its cells, else the preset that its name means.

    Parameters
    ----------
    row : mapping
        Column to value. Of a preset the layers and the vocabulary are those of the row, where it
        states them.
    modules : int
        Multi-token-prediction modules that are trained.

    Raises
    ------
    ModelError
        Neither are all cells there nor is the name known, or the row states another width.
    """
    stated = [column for column in ARCHITECTURE if _optional(row, column)]
    block = _optional(row, "ffn") or _optional(row, "n_experts")
    name = str(row.get("model") or "")
    preset, left = named_preset(name)
    if not preset or (block and len(stated) == len(ARCHITECTURE)):
        return model_from_row(row, **({"mtp_modules": modules} if modules else {})), ()
    known = load_model(preset, mtp="stated" if modules else "none")
    hidden = _optional(row, "hidden") or known.hidden_size
    if hidden != known.hidden_size:
        raise ModelError(f"column 'hidden': {hidden}, but '{name}' has {known.hidden_size}")
    count = _optional(row, "layers") or left or known.num_layers
    model = replace(
        known,
        layers=(known.layers + known.layers[-1:] * count)[:count],
        mtp_layers=known.mtp_layers[:modules],
        vocab_size=_optional(row, "vocab") or known.vocab_size,
    )
    return model, (
        f"architecture of {preset}" + (f", {count} layers" * (count != known.num_layers)),
    )


@lru_cache(maxsize=256)
def named_preset(name: str) -> tuple[str, int]:
    """Return the preset that a model's name means, and how many layers it says are left, or 0.

    ``KF-7B (Llama-3-8B)``, ``DeepSeek-V3 671B (MLPerf)``, ``Llama-2-70B LoRA r16``,
    ``LLAMA3-70B-12layers``. Empty where it means none.
    """
    inside = re.findall(r"\(([^()]*)\)", name)
    for text in (name, re.sub(r"\([^()]*\)", " ", name), *inside):
        left, text = 0, text.strip()
        while text:
            if (preset := find_preset(text)) is not None:
                return preset, left
            found = _ADDED.search(text)
            if not found:
                break
            left, text = int(found.group(1) or left), text[: found.start()]
    return "", 0


@lru_cache(maxsize=256)
def _known(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """Return the model that a name means.

    Raises
    ------
    ModelError
        It means none.
    """
    if find_preset(name) is not None or name.endswith(".json"):
        return load_model(name), ()
    plain = name.strip().rsplit("/", 1)[-1]
    if known := meaning(words("serving")["models"], plain.lower()):
        return load_model(known), (f"'{name}' has the shape of {known}",)
    while True:
        if (preset := find_preset(plain)) is not None:
            return load_model(preset), (f"'{name}' is read as {preset}",)
        shorter = _FORMAT.sub("", plain)
        if shorter == plain:
            break
        plain = shorter
    preset = _largest_of(plain)
    if preset is None and (preset := _same_sizes(plain)) is not None:
        return load_model(preset), (f"'{name}' is read as {preset}, of its family and sizes",)
    if preset is None:
        return load_model(name), ()
    return load_model(preset), (f"'{name}' is read as {preset}, the largest of that name",)


def _largest_of(name: str) -> str | None:
    """Return the largest preset that is called so when sizes are left out, or None.

    A family's name alone means its largest model, as in lists of results; a member's name
    ("Qwen3-235B") may leave out what follows its size.
    """
    wanted = _words(name)
    found = []
    for item in list_models():
        for known in (item.name, *item.aliases, *item.hub):
            words = _words(known.rsplit("/", 1)[-1])
            rest = words[len(wanted) :]
            if words[: len(wanted)] == wanted and all(map(_SIZE.fullmatch, rest)):
                found.append((item.parameters, item.name))
    return max(found)[1] if found else None


def _same_sizes(name: str) -> str | None:
    """Return the preset of the same family, main version and sizes, the newest; or None.

    A later release of a model keeps its sizes, and nearly always its shape ("Qwen3.6-27B").
    """

    def parts(text: str) -> tuple[str, str, list[str]]:
        words = _words(text.rsplit("/", 1)[-1])
        sizes = [word for word in words if _SIZE.fullmatch(word)]
        version = re.match(r"([a-z-]+?)-?(\d+)?(?:\.\d+)?(?:-|$)", "-".join(words))
        return (version[1], version[2] or "", sizes) if version else ("", "", sizes)

    wanted = parts(name)
    if not wanted[0] or not wanted[2]:
        return None
    found = [item.name for item in list_models() if parts(item.name) == wanted]
    return max(found, default=None)


def _words(name: str) -> list[str]:
    return re.split(r"[-_\s]+", name.strip().lower())
