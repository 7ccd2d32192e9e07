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
from collections.abc import Mapping
from typing import Any

from perfmodel.launch import megatron_bridge
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Entry, Settings
from perfmodel.launch.shell import shell_words
from perfmodel.launch.tree import parse_yaml
from perfmodel.model.build import ModelSpec
from perfmodel.model.presets import find_preset, load_model

TITLE = "NeMo"
PRESETS = ("nemo@23.08", "nemo@24.09", "nemo@25.02")
BENCHMARKS = ("nvidia-mlperf@6.0", "nvidia-mlperf@5.1", "nvidia-mlperf@3.1")

# Key of NeMo -> key of Megatron Bridge, where it is another.
RENAMED: Mapping[str, str] = {
    "model.encoder_seq_length": "model.seq_length",
    "model.micro_batch_size": "train.micro_batch_size",
    "model.global_batch_size": "train.global_batch_size",
    "data.micro_batch_size": "train.micro_batch_size",
    "data.global_batch_size": "train.global_batch_size",
    "data.seq_length": "model.seq_length",
    "model.activations_checkpoint_granularity": "model.recompute_granularity",
    "model.activations_checkpoint_method": "model.recompute_method",
    "model.activations_checkpoint_num_layers": "model.recompute_num_layers",
    "model.ub_tp_comm_overlap": "comm_overlap.tp_comm_overlap",
    "model.optim.overlap_grad_sync": "ddp.overlap_grad_reduce",
    "model.optim.overlap_param_sync": "ddp.overlap_param_gather",
    "trainer.strategy.ddp.overlap_grad_reduce": "ddp.overlap_grad_reduce",
    "trainer.strategy.ddp.overlap_param_gather": "ddp.overlap_param_gather",
    "trainer.strategy.ddp.use_distributed_optimizer": "ddp.use_distributed_optimizer",
    "model.override_vocab_size": "model.vocab_size",
    "model.expert_model_parallel_size": "model.expert_model_parallel_size",
}
_STRATEGY = "trainer.strategy."
DISTRIBUTED = ("distributed_fused_adam", "mcore_distributed_optim")
PRECISIONS = {
    "bf16": "bf16_mixed",
    "bf16-mixed": "bf16_mixed",
    "16": "fp16_mixed",
    "16-mixed": "fp16_mixed",
}
_FP8 = "bf16_with_fp8_delayed_scaling_mixed"
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}
_RECIPE = re.compile(r"([A-Za-z]+?)(\d*)Config(\d+x)?(\d+[BM])")

# Variable of MLPerf's scripts -> key of Megatron Bridge.
VARIABLES: Mapping[str, str] = {
    "TENSOR_MODEL_PARALLEL": "model.tensor_model_parallel_size",
    "PIPELINE_MODEL_PARALLEL": "model.pipeline_model_parallel_size",
    "INTERLEAVED_PIPELINE": "model.virtual_pipeline_model_parallel_size",
    "CONTEXT_PARALLEL": "model.context_parallel_size",
    "EXPERT_MODEL_PARALLEL": "model.expert_model_parallel_size",
    "EXPERT_PARALLEL": "model.expert_model_parallel_size",
    "EXPERT_TENSOR_PARALLEL": "model.expert_tensor_parallel_size",
    "SEQ_PARALLEL": "model.sequence_parallel",
    "MICRO_BATCH_SIZE": "train.micro_batch_size",
    "TP_COMM_OVERLAP": "comm_overlap.tp_comm_overlap",
    "DGXNNODES": "DGXNNODES",
    "DGXNGPU": "DGXNGPU",
    "MINIBS": "MINIBS",
    "FP8": "FP8",
}
# What a script, its folder, or one that it sources, is called for -> model, tokens, round. Those of
# round 5.0 say themselves which Llama it is, later ones source config_common_405b.sh.
TASKS = (
    (re.compile(r"deepseekv3|671b", re.IGNORECASE), "deepseek-v3", 4096, BENCHMARKS[0]),
    (re.compile(r"gpt_oss_20b", re.IGNORECASE), "gpt-oss-20b", 8192, BENCHMARKS[0]),
    (re.compile(r"MODEL_SIZE=\W*405b", re.IGNORECASE), "llama-3.1-405b", 8192, BENCHMARKS[2]),
    (re.compile(r"405b", re.IGNORECASE), "llama-3.1-405b", 8192, BENCHMARKS[1]),
    (re.compile(r"_8b\b", re.IGNORECASE), "llama-3.1-8b", 8192, BENCHMARKS[1]),
    (re.compile(r"gpt3|175b|training\.model\.", re.IGNORECASE), "gpt3-175b", 2048, BENCHMARKS[2]),
)
# What the sourced file is called for -> precision; config_common.sh says FP8=True in all rounds,
# with FP8_RECIPE "tensorwise" since 5.1, before "delayed".
BLOCKS = (("fp4", "bf16_with_nvfp4_mixed"), ("mxfp8", "bf16_with_mxfp8_mixed"))


def recognises(text: str) -> bool:
    """Tell whether a text looks like a configuration of NeMo, or a script of MLPerf's."""
    if re.search(r"\bTENSOR_MODEL_PARALLEL=", text):
        return True
    first = re.search(r"^trainer:\s*$|\btrainer\.(num_nodes|devices|strategy)", text, re.MULTILINE)
    return first is not None and "model_parallel_size" in text


def parse_launch(text: str, path: str, devices: int = 0) -> Launch:
    """Return what a configuration, overrides, or a script of variables says.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    if re.search(r"\bTENSOR_MODEL_PARALLEL=", text):
        return _benchmark(text, path, devices)
    settings = parse_yaml(text, path)
    nodes = settings.whole("trainer.num_nodes", 1)
    each = settings.whole("trainer.devices", 0, -1)
    found = nodes * each if each > 0 else 0
    _put_strategy(settings)
    for old, new in RENAMED.items():
        settings.rename(old, new)
    _put_precision(settings)
    _put_optimizer(settings)
    model = _put_model(settings)
    settings.entries.setdefault("model.sequence_parallel", Entry(value=False))
    for name in ("tensor_model", "context", "pipeline_model"):
        settings.entries.setdefault(f"model.{name}_parallel_size", Entry(1))
    return megatron_bridge.launch_of(
        settings, found or devices, max(each, 0), model=model, name="nemo", presets=PRESETS
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
    word = settings.word(key)
    if word not in PRECISIONS:
        raise settings.wrong(key, f"one of {', '.join(PRECISIONS)} (others are not modelled)")
    low = settings.flag("model.fp8") or "trainer.plugins.fp8" in settings
    settings.entries["mixed_precision"] = Entry(
        _FP8 if low else PRECISIONS[word], settings.entries[key].line
    )


def _put_optimizer(settings: Settings) -> None:
    """Say whether the optimizer is sharded: in NeMo 1 its name does, in NeMo 2 it is."""
    key = "model.optim.name"
    if key not in settings:
        return
    sharded = settings.word(key) in DISTRIBUTED
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
    norm = settings.word("model.normalization", "layernorm").lower()
    if norm not in NORMS:
        raise settings.wrong("model.normalization", f"one of {', '.join(NORMS)}")
    entries["model.normalization"] = Entry(NORMS[norm])
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


def _benchmark(text: str, path: str, devices: int) -> Launch:
    """Return what a script of MLPerf Training exports."""
    entries: dict[str, Entry] = {}
    for word, line in shell_words(text, path, assignments=True):
        name, equals, value = word.partition("=")
        if equals and name in VARIABLES:
            entries[VARIABLES[name]] = Entry(_plain(value), line)
    settings = Settings(path, entries)
    nodes, each = settings.whole("DGXNNODES", 0, 0), settings.whole("DGXNGPU", 8)
    found = nodes * each or devices
    product = 1
    for name in ("tensor_model", "pipeline_model", "context"):
        product *= settings.whole(f"model.{name}_parallel_size", 1)
    if found and found % product == 0 and "MINIBS" in settings:
        batch = settings.whole("MINIBS") * (found // product)
        entries["train.global_batch_size"] = entries["MINIBS"]._replace(value=batch)
    entries.setdefault("train.micro_batch_size", Entry(1))
    settings = Settings(path, entries)
    task = next((task for task in TASKS if task[0].search(f"{path}\n{text}")), None)
    if task is None:
        settings.remark("the benchmark is not named in the file; --model and --seq-len say it")
    else:
        settings.entries["model.seq_length"] = Entry(task[2])
    preset = task[3] if task else BENCHMARKS[1]
    named = next((name for word, name in BLOCKS if word in text), "")
    current = "bf16_with_fp8_current_scaling_mixed"
    settings.entries["mixed_precision"] = Entry(
        named or (_FP8 if preset == BENCHMARKS[2] else current)
    )
    if not named and "fp8" not in text.lower():
        settings.remark("precision is that of config_common.sh, which is not read: taken as fp8")
    if "model.sequence_parallel" not in settings.entries:
        settings.entries["model.sequence_parallel"] = Entry(value=True)
    return megatron_bridge.launch_of(
        settings,
        found,
        each if nodes else 0,
        model=load_model(task[1]) if task else None,
        presets=(preset,),
    )


def _plain(value: str) -> Any:
    return None if value.lower() in ("null", "none", "0", "") else value
