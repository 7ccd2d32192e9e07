"""NeMo's configurations (YAML, overrides) and MLPerf's ``config_*.sh`` on it, read.

Keys of NeMo 1 are those of ``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`` with
its defaults; NeMo 2 has the strategy under ``trainer.strategy`` and batches under ``data``. Both
are put into the words of Megatron Bridge (`perfmodel.launch.megatron_bridge`), which came
of them. NVIDIA's scripts of MLPerf Training export variables that their own YAML refers to: there
``MINIBS`` is the batch of one replica, and ``INTERLEAVED_PIPELINE`` counts chunks of a stage. It is
read only.
"""

from __future__ import annotations

import re
from typing import Any

from perfmodel.base.files import Entry
from perfmodel.launch import megatron_bridge
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.table import load_program
from perfmodel.launch.text import parse_yaml, shell_words
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import ModelSpec

PROGRAM = load_program("nemo")
_STRATEGY = "trainer.strategy."
_FP8 = "bf16_with_fp8_delayed_scaling_mixed"
_RECIPE = re.compile(r"([A-Za-z]+?)(\d*)Config(\d+x)?(\d+[BM])")


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a configuration, overrides, or a script of variables says.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    if re.search(r"\bTENSOR_MODEL_PARALLEL=", text):
        return _benchmark(text, path, typed)
    settings = parse_yaml(text, path)
    settings.typed = typed
    nodes = settings.whole("trainer.num_nodes", 1)
    each = settings.whole("trainer.devices", 0, -1)
    found = nodes * each if each > 0 else 0
    _put_strategy(settings)
    for old, new in PROGRAM.own["renamed"].items():
        settings.rename(old, new)
    _put_precision(settings)
    _put_optimizer(settings)
    model = _put_model(settings)
    settings.entries.setdefault("model.sequence_parallel", Entry(value=False))
    for name in ("tensor_model", "context", "pipeline_model"):
        settings.entries.setdefault(f"model.{name}_parallel_size", Entry(1))
    return megatron_bridge.launch_of(
        settings,
        typed.get("devices", found),
        max(each, 0),
        model=model,
        name="nemo",
        presets=PROGRAM.presets,
    )


def _put_strategy(settings: Settings) -> None:
    """Put NeMo 2's strategy where NeMo 1 and Megatron Bridge have it."""
    for key in [key for key in settings.entries if key.startswith(_STRATEGY)]:
        name = key.removeprefix(_STRATEGY)
        if "." not in name:
            settings.rename(key, "model." + name)


def _put_precision(settings: Settings) -> None:
    key = next((k for k in ("trainer.precision", "trainer.plugins.precision") if k in settings), "")
    if not key:
        return
    word, names = settings.word(key), PROGRAM.own["precisions"]
    if word not in names:
        raise settings.wrong(key, f"one of {', '.join(names)} (others are not modelled)")
    low = settings.flag("model.fp8") or "trainer.plugins.fp8" in settings
    settings.entries["mixed_precision"] = Entry(
        _FP8 if low else names[word], settings.entries[key].line
    )


def _put_optimizer(settings: Settings) -> None:
    """Say whether the optimizer is sharded: in NeMo 1 its name does, in NeMo 2 it is."""
    key = "model.optim.name"
    if key not in settings:
        return
    sharded = settings.word(key) in PROGRAM.own["distributed"]
    settings.entries.setdefault("ddp.use_distributed_optimizer", Entry(sharded))
    for name in ("ddp.overlap_grad_reduce", "ddp.overlap_param_gather"):
        settings.entries.setdefault(name, Entry(value=False))


def _put_model(settings: Settings) -> ModelSpec | None:
    """Put a model's sizes into Megatron Bridge's words; return one that goes by its name."""
    for key in ("model.config._target_", "model._target_", "run.name", "name"):
        name = settings.word(key).rpartition(".")[2] if key in settings else ""
        preset = _preset(name)
        if preset:
            return load_model(preset, mtp="stated")
    entries = settings.entries
    for name in ("hidden_dropout", "attention_dropout"):
        entries.setdefault(f"model.{name}", Entry(0.1))
    activation = settings.word("model.activation", "gelu").removeprefix("fast-")
    entries["model.gated_linear_unit"] = Entry(activation in ("swiglu", "geglu"))
    if activation == "squared-relu":
        entries[megatron_bridge.FUNCTION] = Entry("squared_relu")
    entries["model.add_bias_linear"] = Entry(
        settings.flag("model.bias") or "model.bias" not in entries
    )
    norm, norms = settings.word("model.normalization", "layernorm").lower(), PROGRAM.own["norms"]
    if norm not in norms:
        raise settings.wrong("model.normalization", f"one of {', '.join(norms)}")
    entries["model.normalization"] = Entry(norms[norm])
    entries.setdefault("model.share_embeddings_and_output_weights", Entry(value=True))
    if settings.word("model.tokenizer.type") == "GPT2BPETokenizer":
        entries.setdefault("model.vocab_size", Entry(50257))
    return None


def _preset(name: str) -> str | None:
    """Return the preset that a run, or a class such as Llama31Config405B, is named after."""
    recipe = _RECIPE.fullmatch(name)
    if recipe:
        family, version, times, size = recipe.groups()
        name = f"{family}-{'.'.join(version)}-{times or ''}{size}".replace("--", "-")
    return find_preset(name.replace("_", "-")) if name else None


def _benchmark(text: str, path: str, typed: Keys) -> Launch:
    """Return what a script of MLPerf Training exports."""
    entries: dict[str, Entry] = {}
    variables, rounds = PROGRAM.own["variables"], PROGRAM.own["benchmarks"]
    for word, line in shell_words(text, path, assignments=True):
        name, equals, value = word.partition("=")
        if equals and name in variables:
            entries[variables[name]] = Entry(_plain(value), line)
    settings = Settings(path, entries)
    nodes, each = settings.whole("DGXNNODES", 0, 0), settings.whole("DGXNGPU", 8)
    found = typed.get("devices", nodes * each)
    product = 1
    for name in ("tensor_model", "pipeline_model", "context"):
        product *= settings.whole(f"model.{name}_parallel_size", 1)
    if found and found % product == 0 and "MINIBS" in settings:
        batch = settings.whole("MINIBS") * (found // product)
        entries["train.global_batch_size"] = entries["MINIBS"]._replace(value=batch)
    entries.setdefault("train.micro_batch_size", Entry(1))
    settings = Settings(path, entries)
    settings.typed = typed
    tasks = PROGRAM.own["tasks"]
    said = f"{path}\n{text}"
    task = next((it for it in tasks if re.search(it["words"], said, re.IGNORECASE)), None)
    if task is None:
        settings.remark("the benchmark is not named in the file; --model and --seq-len say it")
    else:
        settings.entries["model.seq_length"] = Entry(task["tokens"])
    preset = task["preset"] if task else rounds[1]
    named = next((name for word, name in PROGRAM.own["blocks"].items() if word in text), "")
    current = "bf16_with_fp8_current_scaling_mixed"
    settings.entries["mixed_precision"] = Entry(named or (_FP8 if preset == rounds[2] else current))
    if not named and "fp8" not in text.lower():
        settings.remark("precision is that of config_common.sh, which is not read: taken as fp8")
    if "model.sequence_parallel" not in settings.entries:
        settings.entries["model.sequence_parallel"] = Entry(value=True)
    return megatron_bridge.launch_of(
        settings,
        found,
        each if nodes else 0,
        model=load_model(task["model"]) if task else None,
        presets=(preset,),
    )


def _plain(value: str) -> Any:
    return None if value.lower() in ("null", "none", "0", "") else value
