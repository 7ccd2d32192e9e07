"""Class defaults of transformers' configurations, as data that needs no transformers.

What a ``config.json`` leaves out is what its class says. Kept are the keys that shape a
model; token ids, dropout, positions, initial values, losses and the like are left out, and
so are lists that a class computes from other keys.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

# Keys that shape no matrix and no call. The first pattern wins: its keys look like others'.
SHAPES = re.compile(r"rope_head_dim$|^time_step_rank$|dt_rank$|ffn_dim_multiplier$|^scale_factor$")
SHAPELESS = re.compile(
    r"token_id|token_index|_index$|_ids$|dropout|pdrop|layerdrop|drop_path|_drop$|rope|rotary"
    r"|init|eps$|epsilon|_coef|loss|use_cache|router_logits|logit_scale|logits_scal|soft_?cap"
    r"|scaling|multiplier|scale|temperature|label|dtype|pretraining_tp|summary_|classifier"
    r"|jitter|clip|time_step|^mask_|mask_token|sampling_rate|fp32|beam|^max_length|max_new|freeze_"
    r"|seed|early_stopping|length_penalty|layernorm_value|floor|lower_bound|^a_log|dt_min|dt_max"
    r"|threshold|magnitude|alpha|feature_select|num_logits_to_keep|kernels$|mambapy|use_associative_scan|suppress|spec_augment"
    r"|^norm_mean|^norm_std|slow_but|reorder_and|_ratio_init|aspect_ratio|vision_feature_layer"
)
SHAPING_FLOAT = re.compile(r"ratio|expan|_dim|ffn|fraction|factor$")
TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
ENCODER_SECTIONS = ("encoder",)
# Wrappers whose vision tower is described by data here.
WITH_VISION = (
    "gemma3",
    "gemma4",
    "kimi_k25",
    "llama4",
    "mistral3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
)


def shapes_the_model(key: str, value: Any) -> bool:
    """Whether a default says something about matrices or layers."""
    if key.startswith("_") or (SHAPELESS.search(key) and not SHAPES.search(key)):
        return False
    if isinstance(value, bool | int | str):
        return True
    if isinstance(value, float):
        return bool(SHAPING_FLOAT.search(key))
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, int | str) for item in value)
    return False


def literal(node: ast.expr) -> Any:
    """Return what a literal expression holds, None for any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _own(node: ast.expr) -> str:
    """Return "x" of ``self.x``, or ""."""
    own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    return node.attr if own else ""  # type: ignore[attr-defined]


def _where_absent(node: ast.AST) -> tuple[str, Any] | None:
    """Return key and literal where a statement fills a key that was not given."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name("kwargs"), attr="pop" | "get" | "setdefault"),
            args=[ast.Constant(str(key)), value],
        ):
            return key, literal(value)
        case ast.If(
            test=ast.Compare(left=asked, ops=[ast.Is()], comparators=[ast.Constant(None)]),
            body=[ast.Assign(targets=[target], value=value)],
            orelse=[],
        ) if _own(asked) and _own(asked) == _own(target):
            return _own(asked), literal(value)
        case ast.Assign(targets=[target], value=ast.IfExp(test=test, body=body, orelse=orelse)):
            key = _own(target)
            if key and ast.unparse(test) == f"self.{key} is None":
                return key, literal(body)
            if key and ast.unparse(test) == f"self.{key} is not None":
                return key, literal(orelse)
    return None


def filled_in(source: str) -> Iterator[tuple[str, Any]]:
    """Yield key and literal of every key that the source of a method fills where it is absent."""
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        found = _where_absent(node)
        if found is not None and found[1] is not None:
            yield found


def class_defaults(config_class: Any) -> dict[str, Any]:
    """Return the defaults of a configuration class, those of `__post_init__` included."""
    from transformers import PreTrainedConfig

    general = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    found: dict[str, Any] = {}
    for kin in reversed(config_class.__mro__):
        if kin is not PreTrainedConfig and "__post_init__" in vars(kin):
            found |= dict(filled_in(inspect.getsource(kin.__post_init__)))
    for field in dataclasses.fields(config_class):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        # Of the keys that all classes have, this one says what a model is.
        if field.name in general and not (field.name == "is_encoder_decoder" and value):
            continue
        if value is not None and value is not dataclasses.MISSING:
            found[field.name] = value
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in sorted(found.items())
        if shapes_the_model(key, value)
    }


def section_class(spec: Any) -> Any:
    """Return the configuration class of a section of a wrapper."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if issubclass(spec.config_class, PreTrainedConfig):
        return spec.config_class
    return CONFIG_MAPPING[spec.model_type]


def covered_classes() -> dict[str, Any]:
    """Return every language model's configuration class by ``model_type``, sections included."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, Any] = {}

    def take(model_type: str, config_class: Any) -> None:
        if model_type in found:
            return
        found[model_type] = config_class
        for key, spec in config_class.sub_configs_defaults.items():
            wanted = key in TEXT_SECTIONS + ENCODER_SECTIONS
            if wanted or (key == "vision_config" and model_type in WITH_VISION):
                inner = section_class(spec)
                take(inner.model_type, inner)

    for names in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ):
        for model_type in names:
            take(model_type, CONFIG_MAPPING[model_type])
    return found


def architectures() -> dict[str, str]:
    """Return ``model_type`` by the name of every class that generates text."""
    import transformers
    from transformers.models.auto import modeling_auto

    found = {}
    for names in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ):
        for model_type, name in names.items():
            try:
                found[name] = getattr(transformers, name).config_class.model_type
            except (AttributeError, ImportError, RuntimeError):  # wants another library
                found.setdefault(name, model_type)
    return found


def section_values(config_class: Any) -> dict[str, dict[str, Any]]:
    """Return what a wrapper has in its sections where their own classes have something else."""
    try:
        whole = config_class()
    except Exception:  # some classes cannot be made without arguments
        return {}
    found = {}
    for key, spec in config_class.sub_configs_defaults.items():
        inner = getattr(whole, key, None)
        if key not in TEXT_SECTIONS or inner is None:
            continue
        kind = section_class(spec)
        # What a class computes follows from other values, and is compared behind them.
        given = _differing(inner, kind(), int | float | str)
        given |= _differing(inner, kind(**given), int | float | str | list | tuple)
        if given:
            found[key] = dict(sorted(given.items()))
    return found


def _differing(config: Any, plain: Any, kinds: Any) -> dict[str, Any]:
    """Return the attributes of some kinds that shape a model and differ from a plain one's."""
    theirs = plain.to_dict()
    return {
        key: value
        for key, value in config.to_dict().items()
        if isinstance(value, kinds) and shapes_the_model(key, value) and theirs.get(key) != value
    }


def collect() -> dict[str, dict[str, Any]]:
    """Return everything that the file holds but its source."""
    classes = covered_classes()
    defaults = {name: class_defaults(kind) for name, kind in classes.items()}
    sections, values = {}, {}
    for model_type, config_class in classes.items():
        inner = {
            key: section_class(spec).model_type
            for key, spec in config_class.sub_configs_defaults.items()
        }
        if not inner:
            continue
        sections[model_type] = dict(sorted(inner.items()))
        if given := section_values(config_class):
            values[model_type] = given
        # Some wrappers take over what their language model says.
        with suppress(Exception):
            tied = config_class().tie_word_embeddings
            if isinstance(tied, bool):
                defaults[model_type]["tie_word_embeddings"] = tied
    return {
        "architectures": architectures(),
        "defaults": defaults,
        "names": {
            name: dict(sorted(kind.attribute_map.items()))
            for name, kind in classes.items()
            if kind.attribute_map
        },
        "sections": sections,
        "section_values": values,
    }


def formatted(tables: dict[str, dict[str, Any]], source: str) -> str:
    """Return the file's text: one entry a line, sorted, so that a change is one line."""
    lines = [f'{{\n"source": {json.dumps(source)}']
    for name, table in tables.items():
        entries = (f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table))
        lines.append(f'"{name}": {{\n' + ",\n".join(entries) + "\n}")
    return ",\n".join(lines) + "\n}\n"


def installed_version() -> str:
    """Return what the defaults are taken from."""
    return f"transformers {metadata.version('transformers')}"


def run(options: Any) -> int:
    """Print or write the class defaults."""
    text = formatted(collect(), installed_version())
    if options.write is None:
        print(text, end="")
    else:
        Path(options.write).write_text(text, encoding="utf-8")
        print(f"{options.write}: {text.count(chr(10))} lines")
    return 0
