"""Megatron-LM's arguments, written and read.

Names, choices, defaults and checks are those of ``megatron/training/arguments.py`` of
Megatron-Core 0.15 (NVIDIA/Megatron-LM, 000c4ac2 of late 2025); ranks are laid out by
``megatron/core/parallel_state.py`` in the order tensor, context, data, pipeline, or with
``--use-tp-pp-dp-mapping`` tensor, context, pipeline, data. ZeRO 2 and 3 are Megatron-FSDP
(``docs/user-guide/features/megatron_fsdp.md``), which needs checkpoints of its own format, no
fused gradient accumulation and CUDA_DEVICE_MAX_CONNECTIONS unset.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from perfmodel.base.files import Entry
from perfmodel.launch.core import CoreWords, core_facts, core_model, core_software, pattern_text
from perfmodel.launch.describe import Launch, has_experts
from perfmodel.launch.reading import (
    finished,
    read_activations,
    read_layers,
    read_modules,
    read_offload,
    with_replicas,
    write_layers,
)
from perfmodel.launch.settings import NOTHING, Keys, Settings, Words
from perfmodel.launch.stages import (
    LAYOUT,
    SPLITS,
    core_schedule,
    read_layout,
    read_stages,
    stage_words,
)
from perfmodel.launch.table import Program, load_program
from perfmodel.launch.text import format_command, parse_arguments, parse_yaml
from perfmodel.model.spec import ModelSpec

PROGRAM = load_program("megatron")
SECTIONS = ("ARGS", "MODEL_ARGS")
RENAMED, NEGATED = PROGRAM.own["renamed"], PROGRAM.own["negated"]


def model_arguments(facts: Keys) -> Keys:
    """Return Megatron-Core's facts of a model as Megatron-LM's options."""
    keys: Keys = {}
    for name, value in facts.items():
        if name in NEGATED:
            keys[NEGATED[name]] = not value
        elif name == "gated_linear_unit":
            keys["swiglu"] = value
        elif name == "num_query_groups":
            keys |= {"group-query-attention": True, "num-query-groups": value}
        elif name == "window_size":
            keys["window-size"] = ",".join(map(str, value))
        elif isinstance(value, list):
            keys[option_of(name)] = pattern_text(value)
        else:
            keys[option_of(name)] = value
    return {key: value for key, value in keys.items() if value is not None and value is not False}


def option_of(name: str) -> str:
    """Return Megatron-LM's option for a word of Megatron-Core."""
    return RENAMED.get(name, name.replace("_", "-"))


def stage_arguments(launch: Launch) -> Keys:
    """Return how a pipeline's stages are cut: chunks of a stage, unless a layout says them."""
    words = stage_words(launch)
    keys = {option_of(name): value for name, value in words.items()}
    if launch["virtual_pipeline"] > 1 and LAYOUT not in words:
        keys["num-virtual-stages-per-pipeline-rank"] = launch["virtual_pipeline"]
    return keys


def keys_of(launch: Launch) -> Keys:
    """Return all options that say what a launch is, without dashes."""
    keys = PROGRAM.write(launch) | write_layers(launch, PROGRAM.recompute)
    if launch["expert_parallel"] == 1 and not launch.experts:
        del keys["expert-model-parallel-size"]
    if launch.experts:
        keys["expert-tensor-parallel-size"] = launch["expert_tensor_parallel"]
    if launch["shard_group"]:
        keys["num-distributed-optimizer-instances"] = launch.replicas // launch["shard_group"]
    keys |= stage_arguments(launch)
    keys |= PROGRAM.write_software(launch)
    if launch.experts and launch["precision"] != "fp16":
        keys["moe-grouped-gemm"] = True
    if launch.model is not None:
        keys |= model_arguments(core_facts(launch.model, PROGRAM.title, launch["sequence_length"]))
        keys["make-vocab-size-divisible-by"] = launch.framework.pads_vocabulary_to
    return keys


def body(launch: Launch) -> str:
    """Return a script that starts a run, to which data and learning rate are given."""
    connections = ""
    if launch["zero_stage"] >= 2:
        connections = "unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP\n"
    elif launch["tensor_parallel"] > 1 or launch["context_parallel"] > 1:
        connections = "export CUDA_DEVICE_MAX_CONNECTIONS=1  # asked for up to Hopper\n"
    words = [
        "torchrun",
        f"--nnodes {launch.nodes}",
        f"--nproc-per-node {launch.processes_per_node}",
        "pretrain_gpt.py",
    ]
    return connections + format_command(words, keys_of(launch), '"$@"')


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a command line or a script with Megatron-LM's arguments says.

    Raises
    ------
    FormatError
        Names the option and its line.
    """
    settings = parse_recipe(text, path) if RECIPE.search(text) else parse_arguments(text, path)
    settings.typed = typed
    found, per_node = read_devices(settings)
    return launch_of(settings, typed.get("devices", found), per_node)


RECIPE = re.compile(PROGRAM.own["told_alone"][0])


def parse_recipe(text: str, path: str) -> Settings:
    """Return the options of a YAML recipe: ``ARGS``, or ``MODEL_ARGS``, of a command.

    Keys are options, with dashes or underscores; a list, or words, are several values. Or the
    section is a list of words.

    Raises
    ------
    FormatError
        It is no YAML.
    """
    entries: dict[str, Entry] = {}
    for name, entry in parse_yaml(text, path).entries.items():
        section, _, key = name.partition(".")
        value = entry.value
        if section not in SECTIONS or value is None or value is False:
            continue
        if isinstance(value, list) and not key:  # a list of words
            entries |= parse_arguments(" ".join(map(str, value)), path).entries
            continue
        words = value if isinstance(value, list) else str(value).split()
        plain = () if value is True else map(str, words)
        entries[key.lstrip("-").replace("_", "-")] = Entry(Words(plain), entry.line)
    return Settings(path, entries)


def launch_of(
    settings: Settings,
    devices: int,
    per_node: int = 0,
    *,
    program: Program = PROGRAM,
    schedule: Callable[[Settings, int, int], Keys] = core_schedule,
) -> Launch:
    """Return what Megatron-LM's options say.

    Parameters
    ----------
    settings : Settings
    devices, per_node : int
        0 where unknown.
    program : Program
        Of software that has Megatron-LM's options and more.
    schedule : callable
        As of `perfmodel.launch.stages.core_schedule`, for such software.
    """
    strategy, facts = program.read(settings)
    model = read_model(Options(settings), "megatron-lm", strategy["sequence_length"])
    pipeline = strategy["pipeline_parallel"]
    if strategy["tensor_parallel"] == 1:
        strategy["sequence_parallel"] = False  # as Megatron-LM itself decides
    strategy["expert_tensor_parallel"] = settings.whole(
        "expert-tensor-parallel-size", strategy["tensor_parallel"] if has_experts(model) else 1
    )
    layers = model.num_layers if model is not None else settings.whole("num-layers", 1)
    virtual, layout = read_layout(
        settings, option_of, pipeline, lambda: _virtual(settings, pipeline, layers)
    )
    strategy |= schedule(settings, pipeline, virtual)
    virtual = strategy["virtual_pipeline"]
    strategy["micro_batch_group"], stages = read_stages(
        settings, option_of, layout, model, pipeline, virtual
    )
    facts |= stages
    strategy = with_replicas(settings, strategy, devices, "num-distributed-optimizer-instances")
    facts["pads_vocabulary_to"] = settings.whole("make-vocab-size-divisible-by", 128)
    features, more = read_features(settings, PROGRAM, option_of, strategy["recompute"], layers)
    return finished(
        settings,
        strategy | features,
        facts | more,
        model,
        program,
        devices=devices,
        devices_per_node=per_node,
    )


def read_features(
    settings: Settings,
    program: Program,
    spelled: Callable[[str], str],
    recompute: str,
    layers: int,
) -> tuple[Keys, Keys]:
    """Return strategy and facts that options of Megatron-Core set: graphs, activations, offload.

    Parameters
    ----------
    settings : Settings
    program : Program
    spelled : callable
        How the software spells a field of ``TransformerConfig``.
    recompute : str
    layers : int
        Of the model; 0 where nobody says.
    """
    facts = core_software(settings, spelled) | read_modules(settings, program.recompute.modules)
    strategy = read_layers(settings, program.recompute, recompute)
    strategy |= read_offload(settings, program.offloaded)
    offloaded, modules = read_activations(settings, spelled, layers)
    return strategy | offloaded, facts | modules


def read_devices(settings: Settings) -> tuple[int, int]:
    """Return devices and devices of a node, as the launcher is told; 0 where it is not.

    torchrun and deepspeed start on one node where they are told of no other.
    """
    alone = not {"nnodes", "num-nodes", "hostfile"} & set(settings.entries)
    nodes = _launcher(settings, "nnodes", "num-nodes") or int(alone)
    each = _launcher(settings, "nproc-per-node", "num-gpus")
    return (nodes * each, each) if nodes and each else (0, 0)


def _launcher(settings: Settings, *names: str) -> int:
    for name in names:
        if name in settings:
            value = settings.word(name)
            return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else 0
    return 0


class Options(CoreWords):
    """Megatron-Core's words as Megatron-LM's options."""

    def key(self, name: str) -> str:
        """Return the option for a word."""
        if name == "vocab_size" and "vocab-size" not in self.settings:
            return "padded-vocab-size" if "padded-vocab-size" in self.settings else "vocab-size"
        return option_of(name)

    def flag(self, name: str) -> bool:
        """Tell whether a switch is on; some options switch off."""
        if name in NEGATED:
            return not self.settings.flag(NEGATED[name])
        return self.settings.flag("swiglu" if name == "gated_linear_unit" else option_of(name))

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number."""
        if name == "num_query_groups" and not self.settings.flag("group-query-attention"):
            return default or 1
        return super().size(name, default)

    def word(self, name: str, default: str) -> str:
        """Return a word."""
        old = "use-rotary-position-embeddings"
        if name == "position_embedding_type" and self.settings.flag(old):
            return "rope"
        return super().word(name, default)


def read_model(words: CoreWords, name: str, sequence_length: int) -> ModelSpec | None:
    """Return the model that a file describes; None, and a remark, where it leaves some of it open.

    The size of the vocabulary often is the tokenizer's.
    """
    settings = words.settings
    needed = [words.key(word) for word in ("num_layers", "hidden_size", "vocab_size")]
    lacking = [settings.name(key) for key in needed if key not in settings]
    if lacking:
        settings.remark(f"no {', '.join(lacking)} in the file; --model names the model")
        return None
    return core_model(words, name, sequence_length)


def _virtual(settings: Settings, pipeline: int, layers: int) -> int:
    """Return the model chunks of a stage where no layout says them."""
    if "num-layers-per-virtual-pipeline-stage" in settings:
        per_chunk = settings.whole("num-layers-per-virtual-pipeline-stage")
        for word in SPLITS:
            layers += settings.flag(option_of(word))
        if layers % (pipeline * per_chunk):
            raise settings.wrong(
                "num-layers-per-virtual-pipeline-stage",
                f"a divisor of the {layers / pipeline:g} layers of a stage",
            )
        return layers // (pipeline * per_chunk)
    return settings.whole("num-virtual-stages-per-pipeline-rank", 1)
