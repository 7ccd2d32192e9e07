"""nanotron's configuration (YAML), read.

Sections and defaults are those of ``src/nanotron/config`` of huggingface/nanotron (2025): degrees
stand in ``parallelism``, batches in ``tokens`` for one replica, sizes in ``model.model_config`` in
the words of Hugging Face. Ranks are laid out tensor, context, data, pipeline
(``parallel/context.py``). It is read only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from perfmodel.base.errors import ModelError
from perfmodel.launch.describe import Launch
from perfmodel.launch.reading import DEGREES, finished
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.table import load_program
from perfmodel.launch.text import launcher, parse_yaml
from perfmodel.model.config import model_from_config
from perfmodel.model.spec import ModelSpec

PROGRAM = load_program("nanotron")
_ENUMERATIONS = ("parallelism.tp_mode", "parallelism.pp_engine")  # whose case does not matter
_STEPS = "tokens.batch_accumulation_per_replica"
_CONFIG = "model.model_config."


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a configuration says; its degrees say how many devices there are, unless typed.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    settings = parse_yaml(text, path)
    settings.typed = typed
    for key in _ENUMERATIONS:
        if key in settings:
            entry = settings.entries[key]
            settings.entries[key] = entry._replace(value=str(entry.value).lower())
    strategy, facts = PROGRAM.read(settings)
    if strategy["tensor_parallel"] == 1:
        strategy["sequence_parallel"] = False
    others = math.prod(strategy[name] for name in DEGREES)
    devices = typed.get("devices", 0)
    if devices and "data_parallel" not in typed and devices % others == 0:
        strategy["data_parallel"] = devices // others
    replicas = strategy["data_parallel"]
    strategy["global_batch_size"] = (
        strategy["micro_batch_size"] * settings.whole(_STEPS, 1) * replicas
    )
    product = replicas * others
    found, per_node = launcher(text)
    found = typed.get("devices", found)
    if found and found != product:
        keys = [settings.fields[name] for name in ("data_parallel", "tensor_parallel")]
        raise settings.contradiction(
            f"{found} devices: the degrees' product {product} should be as many",
            *keys,
            settings.fields["pipeline_parallel"],
        )
    facts["pads_vocabulary_to"] = settings.whole("model.make_vocab_size_divisible_by", 1)
    return finished(
        settings,
        strategy,
        facts,
        _read_model(settings),
        PROGRAM,
        devices=product,
        devices_per_node=per_node,
        closed=PROGRAM.own["closed"],
    )


def _read_model(settings: Settings) -> ModelSpec | None:
    sizes: Keys = {}
    for key, entry in settings.entries.items():
        if key.startswith(_CONFIG) and entry.value is not None:
            sizes[key.removeprefix(_CONFIG)] = entry.value
    if not sizes:
        settings.remark(f"no {_CONFIG[:-1]} in the file; --model names the model")
        return None
    if any(key.startswith("moe_config.") for key in sizes):
        settings.remark(f"{_CONFIG}moe_config is not read; --model names the model")
        return None
    types = PROGRAM.own["families"].items()
    family = next((kind for key, kind in types if sizes.pop(key, False) is True), "llama")
    try:
        model = model_from_config({"model_type": family, **sizes}, name="nanotron")
    except ModelError as error:
        raise ModelError(f"{settings.path}: {_CONFIG[:-1]}: {error}") from None
    return replace(model, remarks=())
