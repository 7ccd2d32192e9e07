"""A configuration's model on the meta device, and its parameters counted.

Tied matrices count once. Beside parameters count the buffers that checkpoints hold as
weights of the router, `e_score_correction_bias`. Towers are what a multimodal class holds
beside its language model: vision and audio encoders with their projectors.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORRECTION_BIASES = ("e_score_correction_bias", "expert_bias")
# What configurations call the number of experts that a token meets.
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
CHOSEN_SECTIONS = ("ffn_config",)
# A choice of experts that the class does not let one configure.
CHOSEN_BY_CLASS = {"switch_transformers": 1, "nllb-moe": 2, "zaya": 1}
# Choices among experts of which some have no weights: how many others meet a token varies.
UNSURE = ("zero_expert_num",)


class NoOracleError(Exception):
    """transformers cannot build the model; says why."""


@dataclass(frozen=True)
class Count:
    """Parameters of one model.

    Attributes
    ----------
    architecture : str
        Class that was built.
    text : int
        Parameters of the language model, correction biases included.
    towers : int
        Those of vision and audio towers with their projectors.
    active : int or None
        Those of the language model that one token meets; None where that varies.
    correction : int
        Correction biases, counted in `text` and `active`.
    layers : tuple of int
        Parameters of each layer, an encoder's before a decoder's. What several layers
        share counts in the first of them.
    """

    architecture: str
    text: int
    towers: int
    active: int | None
    correction: int
    layers: tuple[int, ...]


def configuration(document: Mapping[str, Any]) -> Any:
    """Return transformers' configuration of a ``config.json`` already read."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = document.get("model_type")
    try:
        if model_type in CONFIG_MAPPING:
            kind = CONFIG_MAPPING[model_type]
        else:
            kind = getattr(transformers, (document.get("architectures") or [""])[0]).config_class
    except AttributeError:
        raise NoOracleError(f"transformers has no model_type {model_type!r}") from None
    try:
        return kind.from_dict(dict(document))
    except Exception as error:
        raise NoOracleError(first_line(error)) from error


def read(path: Path) -> Any:
    """Return transformers' configuration of a file."""
    return configuration(json.loads(path.read_text(encoding="utf-8")))


def described(paths: list[Path]) -> Iterator[Path]:
    """Yield files, and of folders every JSON file in them."""
    for path in paths:
        yield from sorted(path.rglob("*.json")) if path.is_dir() else [path]


def architecture(config: Any) -> str:
    """Return the class to build: the one stated, or else one that generates text."""
    import transformers
    from transformers.models.auto import modeling_auto

    for name in config.architectures or ():
        if hasattr(transformers, name) and "ForCausalLM" in name + _last_part(name):
            return str(name)
    for names in (
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ):
        if config.model_type in names:
            return str(names[config.model_type])
    raise NoOracleError(f"transformers has no language model of {config.model_type!r}")


def _last_part(name: str) -> str:
    """Return the end of a class name that says it generates text, as "ForCausalLM"."""
    known = ("ForConditionalGeneration", "LMHeadModel")
    return "ForCausalLM" if name.endswith(known) else ""


def build(config: Any, device: str = "meta") -> Any:
    """Return the model, on the meta device unless another is named, matrices tied as it says."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    transformers.logging.set_verbosity_error()
    try:
        kind = getattr(transformers, architecture(config))
        if not getattr(kind.config_class, "sub_configs", None):
            config = config.get_text_config()
        with torch.device(device), no_init_weights(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = kind(config)
    except NoOracleError:
        raise
    except Exception as error:  # whatever a class trips over, it is no oracle then
        raise NoOracleError(first_line(error)) from error
    model.tie_weights()
    drop_weightless_experts(model)
    return model


def drop_weightless_experts(model: Any) -> None:
    """Take from LongCat-Flash's experts the rows of those that give back their input.

    The class allocates them in one of two matrices, of which published checkpoints (560
    billion parameters) have the routed ones only.
    """
    from torch import nn

    for module in model.modules():
        if getattr(module, "zero_expert_num", 0) and hasattr(module, "gate_up_proj"):
            routed = module.gate_up_proj[: module.num_routed_experts]
            module.gate_up_proj = nn.Parameter(routed.detach())


def first_line(error: Exception) -> str:
    """Return what an error of another library says, in one line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def weights(model: Any) -> dict[str, Any]:
    """Return parameters and correction biases by name, tied ones once."""
    biases = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in CORRECTION_BIASES
    }
    return dict(model.named_parameters()) | biases


def language_model(model: Any) -> list[Any]:
    """Return the modules that make up the language model of a multimodal one."""
    inner = getattr(model, "model", model)
    for name in ("language_model", "text_model"):
        for holder in (inner, model):
            found = getattr(holder, name, None)
            if found is not None:
                head = model.get_output_embeddings()
                return [found] if head is None else [found, head]
    if hasattr(model.base_model, "image_encoder"):  # GIT, whose text model is no module
        found = dict(model.base_model.named_children())
        return [found["embeddings"], found["encoder"], model.get_output_embeddings()]
    return [model]


def chosen_experts(config: Any, layer: int) -> int | None:
    """Return how many experts a token meets in a layer, None where that varies."""
    text = config.get_text_config()
    if any(getattr(text, key, 0) for key in UNSURE):
        return None
    if text.model_type in CHOSEN_BY_CLASS:
        return CHOSEN_BY_CLASS[text.model_type]
    holders = [text, *(getattr(text, name, None) for name in CHOSEN_SECTIONS)]
    for holder in holders:
        for key in CHOSEN:
            found = getattr(holder, key, None)
            if found is not None:
                return int(found[layer] if isinstance(found, list | tuple) else found)
    return None


def expert_weights(modules: list[Any]) -> Iterator[tuple[str, int, list[Any]]]:
    """Yield path, number of experts and weights of every bank of experts."""
    for module in modules:
        for path, inner in module.named_modules():
            if "Expert" not in type(inner).__name__:
                continue
            if len(inner) if hasattr(inner, "keys") else False:  # one module per expert
                yield path, len(inner), list(inner.parameters())
                continue
            own = list(inner.parameters(recurse=False))
            stacked = [weight for weight in own if weight.ndim == 3]
            stated = getattr(inner, "num_experts", None) or getattr(inner, "moe_num_experts", None)
            experts = int(stacked[0].shape[0]) if stacked else int(stated or 0)
            # Norms that all experts of a bank share stand beside them.
            own = [p for p in own if experts and p.ndim > 1 and p.shape[0] % experts == 0]
            if own:
                yield path, experts, own


def idle_parameters(model: Any, config: Any) -> int | None:
    """Return the parameters of experts that a token does not meet, None where that varies."""
    idle = 0
    for path, experts, own in expert_weights(language_model(model)):
        numbers = [int(part) for part in path.split(".") if part.isdigit()]
        chosen = chosen_experts(config, numbers[0] if numbers else 0)
        if chosen is None:
            return None
        # A bank of fewer experts than are chosen is a shared one, met by every token.
        idle += sum(weight.numel() for weight in own) * max(experts - chosen, 0) // experts
    return idle


def layer_lists(model: Any, config: Any) -> list[Any]:
    """Return the lists of layers of the language model, an encoder's first."""
    from torch import nn

    found: list[tuple[str, Any]] = []
    for module in language_model(model):
        for path, inner in module.named_modules():
            inside = any(path.startswith(outer + ".") for outer, _ in found)
            if isinstance(inner, nn.ModuleList) and len(inner) and not inside:
                found.append((path, inner))
    if not found:
        return []
    sizes = {path: sum(p.numel() for p in inner.parameters()) for path, inner in found}
    if getattr(config, "is_encoder_decoder", False):
        stacks = []
        for side in ("encoder", "decoder"):
            own = [(path, inner) for path, inner in found if side in path.split(".")]
            stacks += [inner for path, inner in own if sizes[path] == max(sizes[p] for p, _ in own)]
        return stacks
    return [next(inner for path, inner in found if sizes[path] == max(sizes.values()))]


def layer_totals(model: Any, config: Any) -> tuple[int, ...]:
    """Return the parameters of each layer; shared ones count in the first that has them."""
    seen: set[int] = set()
    totals = []
    for layers in layer_lists(model, config):
        for layer in layers:
            own = {id(weight): weight for weight in weights(layer).values()}
            totals.append(sum(own[key].numel() for key in own.keys() - seen))
            seen |= own.keys()
    return tuple(totals)


def count(config: Any) -> Count:
    """Return the parameters of the model that a configuration describes.

    Raises
    ------
    NoOracleError
        transformers cannot build it.
    """
    model = build(config)
    everything = sum(weight.numel() for weight in weights(model).values())
    parts = {
        id(weight): weight for part in language_model(model) for weight in weights(part).values()
    }
    text = sum(weight.numel() for weight in parts.values())
    idle = idle_parameters(model, config)
    return Count(
        architecture=type(model).__name__,
        text=text,
        towers=everything - text,
        active=None if idle is None else text - idle,
        correction=sum(
            weight.numel()
            for part in language_model(model)
            for name, weight in weights(part).items()
            if name.rpartition(".")[2] in CORRECTION_BIASES
        ),
        layers=layer_totals(model, config),
    )
