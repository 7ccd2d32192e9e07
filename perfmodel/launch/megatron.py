"""Megatron-LM's arguments, written and read.

Names, choices, defaults and checks are those of ``megatron/training/arguments.py`` of
Megatron-Core 0.15 (NVIDIA/Megatron-LM, 000c4ac2 of late 2025); ranks are laid out by
``megatron/core/parallel_state.py`` in the order tensor, context, data, pipeline, or with
``--use-tp-pp-dp-mapping`` tensor, context, pipeline, data. ZeRO 2 and 3 are Megatron-FSDP
(``docs/user-guide/features/megatron_fsdp.md``), which needs checkpoints of its own format, no
fused gradient accumulation and CUDA_DEVICE_MAX_CONNECTIONS unset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.launch.core_model import CoreWords, core_facts, core_model, pattern_text
from perfmodel.launch.core_software import core_software
from perfmodel.launch.core_stages import (
    ENDS,
    GROUP,
    LAYOUT,
    SPLITS,
    core_schedule,
    read_layout,
    read_stages,
    stage_words,
)
from perfmodel.launch.describe import Launch, has_experts
from perfmodel.launch.offload import Switch, read_activations, read_offload
from perfmodel.launch.reading import finished, with_replicas
from perfmodel.launch.recompute import (
    METHODS,
    RecomputeKeys,
    method_limit,
    read_layers,
    read_modules,
    write_layers,
)
from perfmodel.launch.settings import (
    Choice,
    Keys,
    Limit,
    Number,
    Settings,
    Spelling,
    read_choices,
    read_numbers,
    write_table,
)
from perfmodel.launch.shell import format_command, format_comment, parse_arguments
from perfmodel.launch.stages import NAMED
from perfmodel.model.build import ModelSpec

TITLE = "Megatron-LM"
PRESET = "megatron"
PRESETS = ("megatron", "megatron-tuned", "megatron-deepep")

NUMBERS = (
    Number("tensor-model-parallel-size", "tensor_parallel"),
    Number("context-parallel-size", "context_parallel"),
    Number("pipeline-model-parallel-size", "pipeline_parallel"),
    Number("expert-model-parallel-size", "expert_parallel"),
    Number("micro-batch-size", "micro_batch_size", None),
    Number("global-batch-size", "global_batch_size", None),
    Number("seq-length", "sequence_length", None),
)

FSDP = {"use-megatron-fsdp": True, "use-distributed-optimizer": True}
FSDP_ALSO = {"no-gradient-accumulation-fusion": True, "ckpt-format": "fsdp_dtensor"}
RECOMPUTED = RecomputeKeys("recompute-method", "recompute-num-layers", "recompute-modules")

CHOICES = (
    Choice(
        "sequence_parallel",
        (Spelling(True, {"sequence-parallel": True}), Spelling(False)),
    ),
    Choice(
        "context_parallel_kind",
        (
            Spelling("ring", {"cp-comm-type": "p2p"}),
            Spelling("all_to_all", {"cp-comm-type": "a2a"}),
            Spelling("all_gather", {"cp-comm-type": "all_gather"}),  # Transformer Engine's word
            Spelling("all_gather", {"cp-comm-type": "allgather"}),  # that of the help text
        ),
        {"cp-comm-type": "p2p"},
        lambda launch: launch["context_parallel"] > 1,
    ),
    Choice(
        "mapping",
        (
            Spelling("tensor-context-data-pipeline"),
            Spelling("tensor-context-pipeline-data", {"use-tp-pp-dp-mapping": True}),
        ),
    ),
    Choice(
        "zero_stage",
        (
            Spelling(0),
            Spelling(1, {"use-distributed-optimizer": True}),
            Spelling(2, {**FSDP, "data-parallel-sharding-strategy": "optim_grads"}, FSDP_ALSO),
            Spelling(
                3, {**FSDP, "data-parallel-sharding-strategy": "optim_grads_params"}, FSDP_ALSO
            ),
            # As others write them.
            Spelling(1, {**FSDP, "data-parallel-sharding-strategy": "optim"}),
            Spelling(
                2, {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": "optim_grads"}
            ),
            Spelling(
                3,
                {
                    "use-megatron-fsdp": True,
                    "data-parallel-sharding-strategy": "optim_grads_params",
                },
            ),
            Spelling(3, {"use-torch-fsdp2": True}),
            Spelling(2, {"use-torch-fsdp2": True, "torch-fsdp2-no-reshard-after-forward": True}),
        ),
        {"data-parallel-sharding-strategy": "no_shard"},
    ),
    Choice(
        "recompute",
        (
            Spelling("none"),
            Spelling("selective", {"recompute-granularity": "selective"}),
            Spelling("full", {"recompute-granularity": "full"}),
            Spelling("selective", {"recompute-activations": True}),
        ),
    ),
    Choice(
        "precision",
        (
            Spelling("bf16", {"bf16": True}),
            Spelling("fp16", {"fp16": True}),
            Spelling(
                "fp8",
                {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "delayed"},
                software={"scaling": "delayed"},
            ),
            Spelling(
                "fp8",
                {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
                software={"scaling": "current"},
            ),
            Spelling("mxfp8", {"bf16": True, "fp8-format": "e4m3", "fp8-recipe": "mxfp8"}),
            Spelling("nvfp4", {"bf16": True, "fp4-format": "e2m1"}, {"fp4-recipe": "nvfp4"}),
            Spelling("mxfp8", {"bf16": True, "fp8-format": "hybrid", "fp8-recipe": "mxfp8"}),
        ),
        {"fp8-recipe": "delayed"},
    ),
)


def _shards(launch: Launch) -> bool:
    return bool(launch["zero_stage"] > 0)


def schedule_limit(offered: Sequence[str]) -> Limit:
    """Return the limit of a software that has these pipeline schedules."""
    return Limit(
        ("pipeline_schedule",),
        lambda launch: launch["pipeline_schedule"] not in offered,
        f"it offers {', '.join(offered)}",
    )


def _low(launch: Launch) -> bool:
    return launch["precision"] in ("fp8", "mxfp8")


def switch(field: str, key: str, **extra: Any) -> Choice:
    """Return a fact of the framework that one key switches on."""
    return Choice(field, (Spelling(True, {key: True}), Spelling(False)), **extra)


SOFTWARE = (
    switch("overlap_gradient_reduce", "overlap-grad-reduce"),
    switch("overlap_parameter_gather", "overlap-param-gather", when=_shards),
    Choice(
        "overlap_tensor_parallel",
        (Spelling("full", {"tp-comm-overlap": True}), Spelling("backward")),
        when=lambda launch: bool(launch["sequence_parallel"]),
    ),
    Choice(
        "overlap_pipeline",
        (Spelling(True), Spelling(False, {"no-overlap-p2p-communication": True})),
        when=lambda launch: launch["virtual_pipeline"] > 1,
    ),
    switch(
        "overlap_expert_parallel",
        "overlap-moe-expert-parallel-comm",
        when=lambda launch: launch["expert_parallel"] > 1,
    ),
    switch(
        "overlap_shared_experts",
        "moe-shared-expert-overlap",
        when=lambda launch: launch.experts or launch.model is None,
    ),
    Choice(
        "expert_dispatch",
        (
            Spelling("all_to_all", {"moe-token-dispatcher-type": "alltoall"}),
            Spelling("deepep", {"moe-token-dispatcher-type": "flex"}, {"moe-enable-deepep": True}),
            Spelling(
                "hybrid_ep",
                {"moe-token-dispatcher-type": "flex"},
                {"moe-flex-dispatcher-backend": "hybridep"},
            ),
            Spelling("all_gather", {"moe-token-dispatcher-type": "allgather"}),
        ),
        {"moe-token-dispatcher-type": "allgather"},
        lambda launch: launch.experts,
    ),
    switch("low_precision_parameters", "fp8-param-gather", when=_low),
    Choice(
        "gradient_reduce_bytes",
        (Spelling(4.0), Spelling(2.0, {"grad-reduce-in-bf16": True})),
        when=lambda launch: launch["precision"] != "fp16",
    ),
    switch("fused_cross_entropy", "cross-entropy-loss-fusion"),
    switch("deterministic_attention", "deterministic-mode"),
    Choice(
        "dropout",
        (
            Spelling(False, {"hidden-dropout": "0.0"}, {"attention-dropout": "0.0"}),
            Spelling(True, {"hidden-dropout": 0.1}, {"attention-dropout": 0.1}),
        ),
        {"hidden-dropout": 0.1},
    ),
)

SCHEDULES = ("1f1b", "interleaved")
LIMITS = (
    schedule_limit(SCHEDULES),
    method_limit(*METHODS),
    NAMED,
    Limit(
        ("deterministic_attention", "fused_cross_entropy"),
        lambda launch: (
            launch.framework.deterministic_attention and launch.framework.fused_cross_entropy
        ),
        "its deterministic mode has no fused cross entropy",
    ),
    Limit(
        ("sequence_length", "context_parallel"),
        lambda launch: (
            launch["context_parallel"] > 1
            and launch["sequence_length"] % (2 * launch["context_parallel"]) != 0
        ),
        "--seq-length has to be a multiple of twice --context-parallel-size",
    ),
    Limit(
        ("precision", "expert_parallel"),
        lambda launch: launch["precision"] == "fp16" and launch["expert_parallel"] > 1,
        "expert parallelism needs bf16",
    ),
    Limit(
        ("virtual_pipeline", "pipeline_parallel"),
        lambda launch: (
            launch["virtual_pipeline"] > 1
            and not launch.framework.overlap_pipeline
            and launch["pipeline_parallel"] < 3
        ),
        "without overlapped sends the interleaved schedule needs 3 stages",
    ),
)

OFFLOADED = (Switch("optimizer-cpu-offload", ("offload_optimizer",), "optimizer-offload-fraction"),)

# What changes the speed or the memory of a run, and no projection follows.
WATCHED: Mapping[str, str] = {
    "min-offloaded-tensor-size": "small tensors of offloaded modules leave too",
    "moe-expert-capacity-factor": "dropped tokens without padding are not modelled",
    "delay-wgrad-compute": "delayed weight gradients are not modelled",
    "use-precision-aware-optimizer": "optimizer states are projected in fp32",
    "use-nccl-ub": "registered buffers are not modelled",
    "use-sharp": "reduction in the network follows the hardware profile",
    "hierarchical-context-parallel-sizes": "context parallelism on two levels is not modelled",
    "rampup-batch-size": "the projection is that of the full batch",
    "first-last-layers-bf16": "all layers are projected in the low precision",
    "num-experts-per-layer": "experts are projected as equal in all layers",
    "heterogeneous-layers-config-path": "layers are projected as equal",
    "hybrid-override-pattern": "state-space layers are not modelled",
    "distribute-saved-activations": "saved activations are projected as whole",
}

# Megatron-Core's word -> Megatron-LM's option, where it is not the same with dashes.
RENAMED = {
    "num_moe_experts": "num-experts",
    **{word: f"decoder-{end}-pipeline-num-layers" for end, word in ENDS.items()},
    GROUP: "microbatch-group-size-per-virtual-pipeline-stage",
}
NEGATED = {
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "add_bias_linear": "disable-bias-linear",
}


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
    keys = write_table(launch, NUMBERS, CHOICES) | write_layers(launch, RECOMPUTED)
    if launch["expert_parallel"] == 1 and not launch.experts:
        del keys["expert-model-parallel-size"]
    if launch.experts:
        keys["expert-tensor-parallel-size"] = launch["expert_tensor_parallel"]
    if launch["shard_group"]:
        keys["num-distributed-optimizer-instances"] = launch.replicas // launch["shard_group"]
    keys |= stage_arguments(launch)
    keys |= write_table(launch, (), SOFTWARE)
    if launch.experts and launch["precision"] != "fp16":
        keys["moe-grouped-gemm"] = True
    if launch.model is not None:
        keys |= model_arguments(core_facts(launch.model, TITLE, launch["sequence_length"]))
        keys["make-vocab-size-divisible-by"] = launch.framework.pads_vocabulary_to
    return keys


def format_launch(launch: Launch, header: Sequence[str]) -> str:
    """Return a script that starts a run, to which data and learning rate are given."""
    notes = [
        *header,
        "Arguments of Megatron-LM as of Megatron-Core 0.15. Data, tokenizer, learning rate, number "
        "of iterations and checkpoints are yours to add; they may follow the script's name.",
    ]
    lines = [format_comment(notes)]
    if launch["zero_stage"] >= 2:
        lines.append("unset CUDA_DEVICE_MAX_CONNECTIONS  # Megatron-FSDP\n")
    elif launch["tensor_parallel"] > 1 or launch["context_parallel"] > 1:
        lines.append("export CUDA_DEVICE_MAX_CONNECTIONS=1  # asked for up to Hopper\n")
    words = [
        "torchrun",
        f"--nnodes {launch.nodes}",
        f"--nproc-per-node {launch.processes_per_node}",
        "pretrain_gpt.py",
    ]
    return "".join(lines) + format_command(words, keys_of(launch), '"$@"')


def notes(launch: Launch) -> list[str]:
    """Return what a user of these arguments should know."""
    found = []
    if launch.framework.overlap_tensor_parallel == "none" and launch["tensor_parallel"] > 1:
        found.append("Megatron-LM hides gradient collectives of tensor parallelism by itself")
    return found


def recognises(text: str) -> bool:
    """Tell whether a text looks like arguments of Megatron-LM."""
    return "--tensor-model-parallel-size" in text or "--micro-batch-size" in text


def parse_launch(text: str, path: str, devices: int = 0) -> Launch:
    """Return what a command line or a script with Megatron-LM's arguments says.

    Raises
    ------
    FormatError
        Names the option and its line.
    """
    settings = parse_arguments(text, path)
    found, per_node = read_devices(settings)
    return launch_of(settings, found or devices, per_node)


def launch_of(
    settings: Settings,
    devices: int,
    per_node: int = 0,
    *,
    presets: Sequence[str] = PRESETS,
    software: Sequence[Choice] = SOFTWARE,
    watched: Mapping[str, str] | None = None,
    schedule: Callable[[Settings, int, int], Keys] = core_schedule,
) -> Launch:
    """Return what Megatron-LM's options say.

    Parameters
    ----------
    settings : Settings
    devices, per_node : int
        0 where unknown.
    presets, software, watched
        What `perfmodel.launch.reading.finished` takes, for software that has
        Megatron-LM's options and more.
    schedule : callable
        As of `perfmodel.launch.core_stages.core_schedule`, for such software.
    """
    strategy = read_numbers(settings, NUMBERS)
    spelled, facts = read_choices(settings, CHOICES)
    strategy |= spelled
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
    facts |= core_software(settings, option_of)
    facts |= read_modules(settings, RECOMPUTED.modules)
    strategy |= read_layers(settings, RECOMPUTED, strategy["recompute"])
    strategy |= read_offload(settings, OFFLOADED)
    offloaded, modules = read_activations(settings, option_of, layers)
    strategy |= offloaded
    facts |= modules
    return finished(
        settings,
        strategy,
        facts,
        model,
        devices=devices,
        devices_per_node=per_node,
        software=software,
        presets=presets,
        watched=WATCHED if watched is None else watched,
    )


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
