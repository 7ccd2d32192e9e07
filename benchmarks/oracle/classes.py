"""Default configurations of transformers' decoder classes, as `save_pretrained` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from oracle import compare, meta


def forms(config: Any) -> dict[str, dict[str, Any]]:
    """Return a configuration in full, by what differs from every class's, and left to its class."""
    written = {
        form: json.loads(config.to_json_string(use_diff=form == "differences"))
        for form in ("full", "differences")
    }
    named = {"model_type": config.model_type, "architectures": config.architectures}
    return {**written, "empty": named}


def class_verdicts(model_type: str) -> Iterator[compare.Verdict]:
    """Yield one verdict on a class, several where its forms are not read alike."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    try:
        config = CONFIG_MAPPING[model_type]()
    except Exception as error:  # some classes cannot be made without arguments
        yield compare.Verdict(model_type, "no oracle", meta.first_line(error))
        return
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    config.architectures = [name or meta.architecture(config)]
    found: dict[compare.Verdict, list[str]] = {}
    for form, document in forms(config).items():
        found.setdefault(compare.verdict(model_type, document, config), []).append(form)
    for one, alike in found.items():
        name = model_type if len(found) == 1 else f"{model_type} ({', '.join(alike)})"
        yield compare.Verdict(name, one.state, one.note)


def class_names(everything: bool) -> list[str]:
    """Return the ``model_type`` of every decoder class, or of every class that generates text."""
    from transformers.models.auto import modeling_auto

    names = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if everything:
        names |= set(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        names |= set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
    return sorted(names)


def run(options: Any) -> int:
    """Compare classes; exit code 1 where a count is wrong."""
    names = options.names or class_names(options.all)
    verdicts = (one for name in names for one in class_verdicts(name))
    return compare.report(verdicts, options.json)
