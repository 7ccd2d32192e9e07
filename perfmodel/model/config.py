"""Reading a Hugging Face ``config.json`` into a `ModelSpec`.

The description may be a file, a directory that holds ``config.json``, or a mapping
already read. Of a multimodal wrapper the language model is read. Which keys make which
parts is said by the page of the family (`perfmodel.model.pages`); a ``model_type`` without
one is read as the family whose keys it has, which the model then says in its remarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ModelError, did_you_mean
from perfmodel.base.files import JsonWords, parse_json, read_toml, user_path
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.pages import (
    Page,
    class_facts,
    model_from_page,
    page,
    page_names,
    resolved,
    spellings,
)
from perfmodel.model.quantization import PLACES, QuantizationSpec, place_of, read_quantization
from perfmodel.model.spec import ModelSpec
from perfmodel.model.vision import read_towers

_WORDS = JsonWords(
    "{path}: not valid JSON, line {line}, column {column}: {reason}",
    "{path}: not usable JSON ({reason})",
    no_object="{path}: should hold a JSON object, holds {kind}",
)

# Where wrappers keep their language model.
LANGUAGE_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")

# What looks like a wrapper and is no model of its own.
NO_MODELS = {
    name: "drafts tokens for another model, whose keys and values it reads"
    for name in ("gemma4_assistant", "gemma4_unified_assistant", "muse_glimmer_assistant")
}

# Keys that describe a family whatever a file calls itself; the first match counts.
SIGNATURES = (
    ("deepseek_v32", ("kv_lora_rank", "index_topk")),
    ("deepseek_v3", ("kv_lora_rank",)),
    ("qwen3_next", ("linear_num_value_heads",)),
    ("nemotron_h", ("hybrid_override_pattern",)),
    ("glm4_moe", ("n_routed_experts", "moe_intermediate_size")),
    ("qwen3_moe", ("num_experts", "moe_intermediate_size")),
    ("mixtral", ("num_local_experts",)),
    ("gpt2", ("n_embd", "n_head", "n_layer")),
    ("llama", ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")),
)

# Sizes of which a user should hear that they were not in the file.
_BASIC = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def covered_model_types() -> tuple[str, ...]:
    """Return every ``model_type`` that has a page of its own."""
    return page_names()


def read_config(path: str | Path, *, family: str = "") -> ModelSpec:
    """Read a model from a file, or from a directory that holds ``config.json``.

    Parameters
    ----------
    path : str or Path
        File or directory.
    family : str
        See `model_from_config`.

    Returns
    -------
    ModelSpec
        Named after the file, or after its directory when it is called ``config.json``.

    Raises
    ------
    ModelError
        If the file is missing, is not JSON, or describes a model that is not covered;
        the message begins with the file's path.
    """
    path = user_path(path)
    if path.is_dir():
        path = path / "config.json"
    config = read_json_object(path)
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    return model_from_config(config, name=stem.rsplit("--", 1)[-1], source=str(path), family=family)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; errors name file, line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    found: dict[str, Any] = parse_json(text, path, _WORDS, ModelError)
    return found


def model_from_config(
    config: Mapping[str, Any], *, name: str = "model", source: str = "", family: str = ""
) -> ModelSpec:
    """Turn the contents of a ``config.json`` into a model.

    Parameters
    ----------
    config : mapping
        Keys as Hugging Face writes them.
    name : str
        What the model is called.
    source : str
        Where the description is from; errors begin with it.
    family : str
        Read the keys as this family has them, whatever ``model_type`` says: a name of
        `covered_model_types`, or the path of a page (a TOML file).

    Raises
    ------
    ModelError
        Naming the key at fault.
    """
    try:
        return _read(config, name, source, family)
    except ModelError as error:
        raise ModelError(f"{source}: {error}" if source else str(error)) from None


def _read(config: Mapping[str, Any], name: str, source: str, family: str) -> ModelSpec:
    stated, model_type = language_model(config)
    remarks = []
    facts = class_facts()
    if family:
        found, chosen = _chosen_page(family)
        remarks.append(f"read as {chosen} (model_type {model_type!r})")
        defaults = dict(facts["defaults"].get(chosen, {})) if chosen == model_type else {}
    elif (own := page(model_type)) is not None:
        found, chosen = own, model_type
        defaults = dict(facts["defaults"].get(model_type, {}))
    else:
        chosen, signs = _family_by_keys(stated, model_type)
        described = page(chosen)
        assert described is not None
        found, defaults = described, {}
        remarks.append(
            f"model_type {model_type!r} is unknown: read as {chosen}, whose keys it has "
            f"({', '.join(signs)}); --as FAMILY overrides"
        )
    defaults |= found.get("defaults", {})
    keys = ConfigKeys(stated, defaults, spellings(found, facts["names"].get(model_type, {})))
    model = model_from_page(found, keys, model_type or chosen, name, source)
    keys.refuse_unread(model_type or chosen)
    if chosen != model_type and (unread := keys.not_understood()):
        remarks.append(f"keys that {chosen} does not have, which may be missed: {_some(unread)}")
    absent = [f"{key} {keys.taken[key]:,}" for key in _BASIC if key in keys.taken]
    if absent:
        listed = ", ".join(absent)
        remarks.append(f"keys that the file leaves out, as their class has them: {listed}")
    towers, left_out = read_towers(config, model.hidden_size)
    model = replace(model, towers=(*model.towers, *towers))
    remarks += left_out
    quantization = _quantization(config, stated, model)
    if isinstance(quantization, str):
        remarks.append(quantization)
    elif quantization is not None:
        model = replace(model, quantization=quantization)
    return replace(model, remarks=(*model.remarks, *remarks)) if remarks else model


def _some(names: tuple[str, ...], most: int = 12) -> str:
    """Return names in a row, the last ones counted where they are many."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _quantization(
    config: Mapping[str, Any], stated: Mapping[str, Any], model: ModelSpec
) -> QuantizationSpec | str | None:
    """Return how weights are published, in words where that is not known; None for 16 bits."""
    key = "quantization_config"
    found = config.get(key) or stated.get(key)
    if not found:
        return None
    layers = model.num_layers + len(model.mtp_layers)
    expert_dtype = str(stated.get("expert_dtype") or "")
    try:
        return read_quantization(found, _matrix_places(model), layers, expert_dtype)
    except ModelError as error:  # no number of a training depends on it
        return f"quantization_config not understood ({error}): weights are taken as of 16 bits"


def _matrix_places(model: ModelSpec) -> frozenset[str]:
    """Return where a model has matrices."""
    layers = dict.fromkeys((*model.layers, *model.mtp_layers))
    found = (
        place_of(where, piece)
        for layer in layers
        for where, piece in layer.pieces(model.hidden_size)
        if piece.kind == "matrix"
    )
    return frozenset((*found, "embedding", "output")) & frozenset(PLACES)


def language_model(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the keys of the language model, and its ``model_type`` ("" where none is stated).

    A wrapper's ``tie_word_embeddings`` counts, stated or by its class, as transformers has it.
    """
    outer = _model_type(config)
    if outer in NO_MODELS:
        raise ModelError(f"key 'model_type': {outer!r} {NO_MODELS[outer]}")
    facts = class_facts()
    for section in LANGUAGE_SECTIONS:
        inner = config.get(section)
        if inner is None and section not in facts["sections"].get(outer, {}):
            continue
        if inner is None and _has_sizes(config):
            continue  # a text model under its wrapper's name
        if inner is not None and not isinstance(inner, Mapping):
            raise ModelError(f"key {section!r}: {inner!r} should be an object")
        absent = facts["section_values"].get(outer, {}).get(section, {})
        stated, model_type = language_model(absent if inner is None else inner)
        model_type = model_type or facts["sections"].get(outer, {}).get(section, outer)
        wrapper = facts["defaults"].get(outer, {})
        tied = config.get("tie_word_embeddings", wrapper.get("tie_word_embeddings"))
        if tied is not None:
            stated["tie_word_embeddings"] = tied
        return stated, model_type
    return dict(config), outer


def _has_sizes(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in ("hidden_size", "num_hidden_layers", "n_embd", "d_model"))


def _model_type(config: Mapping[str, Any]) -> str:
    """Return ``model_type``, or what ``architectures`` implies, or ""."""
    stated = config.get("model_type")
    if isinstance(stated, str) and stated:
        return stated
    if stated is not None:
        raise ModelError(f"key 'model_type': {stated!r} should be a name")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ModelError(f"key 'architectures': {architectures!r} should be a list of names")
    known = class_facts()["architectures"]
    return next((known[name] for name in architectures if name in known), "")


def _chosen_page(family: str) -> tuple[Page, str]:
    """Return the page that the user chose, by name or from a file, and its name."""
    if family.endswith(".toml"):
        path = user_path(family)
        return resolved(read_toml(path, ModelError), path.stem), path.stem
    found = page(family)
    if found is None:
        hint = did_you_mean(family, page_names()) or "; see docs/models.md"
        raise ModelError(f"no family is called {family!r}{hint}")
    return found, family


def _family_by_keys(stated: Mapping[str, Any], model_type: str) -> tuple[str, tuple[str, ...]]:
    """Return the family whose keys a file has, and these keys."""
    # A class that is known, and has no page, differs from the families with pages.
    known = model_type in class_facts()["defaults"]
    for family, signs in SIGNATURES if not known else ():
        if all(stated.get(key) for key in signs):
            return family, signs
    what = f"{model_type!r} is not known" if model_type else "missing, and so is 'architectures'"
    what += ", and its keys are of no known family"
    if known:
        what = f"{model_type!r} is not modelled yet"
    hint = did_you_mean(model_type, page_names()) if model_type else ""
    raise ModelError(
        f"key 'model_type': {what}{hint}; --as FAMILY reads it as one (docs/models.md)"
    )
