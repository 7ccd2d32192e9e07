"""Reading a Hugging Face ``config.json`` into a `ModelSpec`.

The description may be a file, a directory that holds ``config.json``, or a mapping
already read. What is read is the language model: of a multimodal wrapper only its
``text_config``. An architecture that is not modelled is refused by the key that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import ModelError, did_you_mean
from perfmodel.base.files import JsonWords, parse_json, user_path
from perfmodel.model.build import ModelSpec
from perfmodel.model.config_keys import ConfigKeys
from perfmodel.model.families import ARCHITECTURES, FAMILIES

_WORDS = JsonWords(
    "{path}: not valid JSON, line {line}, column {column}: {reason}",
    "{path}: not usable JSON ({reason})",
    no_object="{path}: should hold a JSON object, holds {kind}",
)

# model_type -> the key that says what is not modelled, and what that is.
NOT_MODELLED = {
    "deepseek_v32": ("index_topk", "sparse attention over selected tokens"),
    "deepseek_v4": ("compress_ratios", "sparse attention over compressed tokens"),
    "falcon_mamba": ("state_size", "state-space layers"),
    "gemma3n_text": ("num_kv_shared_layers", "layers that share keys and values"),
    "gemma4_text": ("global_head_dim", "head dimensions that differ between layers"),
    "glm_moe_dsa": ("index_topk", "sparse attention over selected tokens"),
    "jamba": ("mamba_d_state", "state-space layers"),
    "llama4_text": ("attention_chunk_size", "chunked attention"),
    "mamba": ("state_size", "state-space layers"),
    "mamba2": ("state_size", "state-space layers"),
    "minimax": ("layer_types", "linear attention"),
    "nemotron_h": ("hybrid_override_pattern", "state-space layers"),
    "qwen3_5_moe_text": ("layer_types", "linear attention"),
    "qwen3_5_text": ("layer_types", "linear attention"),
    "qwen3_next": ("full_attention_interval", "linear attention"),
}


def covered_model_types() -> tuple[str, ...]:
    """Return every ``model_type`` that can be read."""
    return tuple(sorted(FAMILIES))


def read_config(path: str | Path) -> ModelSpec:
    """Read a model from a file, or from a directory that holds ``config.json``.

    Parameters
    ----------
    path : str or Path
        File or directory.

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
    return model_from_config(config, name=stem.rsplit("--", 1)[-1], source=str(path))


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
    config: Mapping[str, Any], *, name: str = "model", source: str = ""
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

    Raises
    ------
    ModelError
        Naming the key at fault.
    """
    try:
        keys = ConfigKeys(*_language_model(config), name=name, source=source)
        model = FAMILIES[keys.model_type](keys)
        keys.refuse_unread()
    except ModelError as error:
        raise ModelError(f"{source}: {error}" if source else str(error)) from None
    return model


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the keys of the language model and its ``model_type``, a covered one."""
    text = config.get("text_config")
    if text is not None:
        if not isinstance(text, Mapping):
            raise ModelError(f"key 'text_config': {text!r} should be an object")
        shared = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        outer = _model_type(config, required=False)
        inner = {**shared, **text}
        return inner, _covered(_model_type(inner, required=False) or outer, inner)
    return config, _covered(_model_type(config, required=True), config)


def _model_type(config: Mapping[str, Any], *, required: bool) -> str:
    """Return ``model_type``, or what ``architectures`` implies, or ""."""
    stated = config.get("model_type")
    if isinstance(stated, str) and stated:
        return stated
    if stated is not None:
        raise ModelError(f"key 'model_type': {stated!r} should be a name")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list):
        raise ModelError(f"key 'architectures': {architectures!r} should be a list of names")
    for architecture in architectures:
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
    if architectures:
        raise ModelError(f"key 'architectures': {architectures[0]!r} is not modelled yet")
    if required:
        raise ModelError("key 'model_type': missing, and so is 'architectures'")
    return ""


def _covered(model_type: str, config: Mapping[str, Any]) -> str:
    """Return `model_type` if it is covered, or say what about it is not."""
    if model_type in FAMILIES:
        return model_type
    if model_type in NOT_MODELLED:
        key, what = NOT_MODELLED[model_type]
        where = f"key {key!r} describes" if key in config else "it has"
        raise ModelError(f"model_type {model_type!r}: {where} {what}, not modelled yet")
    hint = did_you_mean(model_type, FAMILIES) or "; covered: " + ", ".join(covered_model_types())
    raise ModelError(f"key 'model_type': {model_type!r} is not modelled yet{hint}")
