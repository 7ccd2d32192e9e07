"""AICB's command line, and one entry to all of its generators.

AICB's command line: its own spellings, its defaults, and what it refuses.

The fields of `AicbArguments` bear AICB's names, so that a field is found in AICB's
documentation; what AICB works out from them are properties in this project's words.

Source: aliyun/aicb 23eec3c4, ``utils/utils.py`` (``get_params`` and the ``get_*_params``
below it: options, defaults, asserts) and, for inference, the main parts of
``workload_generator/SimAI_inference_workload_generator.py`` and
``workload_generator/Vidur_workload_generator.py``.

One entry to all of AICB's generators.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.base.errors import StrategyError, did_you_mean
from perfmodel.workloads.formats.aiob import AiobFile

# Module of the package ``workload_generator``: what it writes.
GENERATORS = {
    "SimAI_training_workload_generator": "training",
    "AIOB_simAI_workload_generator": "training",  # its name before 2025
    "generate_deepspeed_stage1_2_workload": "deepspeed",
    "generate_deepspeed_stage3_workload": "deepspeed",
    "generate_megatron_workload": "megatron_csv",
    "SimAI_inference_workload_generator": "inference",
    "Vidur_workload_generator": "vidur",
}
PACKAGE = "workload_generator."
INFERENCE = ("inference", "vidur")
GENERATOR_OF_FRAME = {"Megatron": "training", "DeepSeek": "training", "DeepSpeed": "deepspeed"}

CHOICES: dict[str, tuple[Any, ...]] = {
    "frame": ("Megatron", "DeepSpeed", "collective_test", "DeepSeek"),
    "phase": ("prefill", "decode"),
    "stage": (1, 2, 3),
}
# Spellings of AICB 1.0 and of its shell scripts.
ALIASES = {
    "comm_frame": "frame",
    "tp_num": "tensor_model_parallel_size",
    "pp_num": "pipeline_model_parallel",
    "pipeline_model_parallel_size": "pipeline_model_parallel",
    "expert_parallel_size": "expert_model_parallel_size",
    "num_moe_experts": "num_experts",
    "moe_enabled": "moe_enable",
    "grouped_gemm": "moe_grouped_gemm",
    "sp": "enable_sequence_parallel",
    "sp_enable": "enable_sequence_parallel",
}
# The inference generators' own parsers: their options, and where their defaults differ.
INFERENCE_OPTIONS = (
    "model_name", "config_file", "aiob_enable", "aiob_forward_loops", "seq_length",
    "micro_batch", "world_size", "tensor_model_parallel_size", "expert_model_parallel_size",
    "pipeline_model_parallel", "moe_enable", "result_dir", "phase",
)  # fmt: skip
INFERENCE_DEFAULTS = {"seq_length": 1, "moe_enable": True}
# Given without an option's name, in this order, to the inference generators.
POSITIONAL = ("model_name", "config_file")
NOT_TRAINING = ("module", "config_file", "aiob_forward_loops", "result_dir", "phase")

# Least value where it is not 1; every whole number is at most LARGEST.
LEAST = {"pp_rank": -1} | dict.fromkeys(
    ("global_batch", "reduce_bucket_size", "allgather_bucket_size", "param_persistence_threshold",
     "model_persistence_threshold", "max_live_parameters", "prefetch_bucket_size",
     "n_dense_layers", "n_shared_expert", "qk_rope_dim", "qk_nope_dim", "q_lora_rank",
     "kv_lora_rank", "v_head_dim", "multi_all_reduce_enable"),
    0,
)  # fmt: skip
LARGEST = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class AicbArguments:
    """Arguments of one of AICB's generators, under AICB's names and with its defaults.

    Attributes
    ----------
    module : str
        Generator's module, a key of `GENERATORS`; empty: by `frame`.
    world_size : int
        Devices.
    global_batch, micro_batch : int
        Sequences of a step, and of a micro-batch of one replica.
    num_layers : int
        Layers of the whole model; AICB's stage has `layers_per_stage` of them.
    num_attention_heads : int or None
        None: as many as layers.
    ffn_hidden_size : int or None
        None: `feed_forward_size` says what AICB takes.
    comp_filepath : str or None
        AIOB computation file; read only where `aiob_enable`.
    stage : int
        DeepSpeed's ZeRO stage.
    reduce_bucket_size, allgather_bucket_size, prefetch_bucket_size : int
        DeepSpeed's buckets [elements].
    config_file : str or None
        JSON of an inference model.

    Raises
    ------
    StrategyError
        A value that AICB refuses, or that is no number it could use.
    """

    module: str = ""
    frame: str = "Megatron"
    gpu_type: str | None = None
    model_name: str | None = None
    # parallelism and batches
    world_size: int = 1
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    enable_sequence_parallel: bool = False
    pp_rank: int = -1
    global_batch: int = 4
    micro_batch: int = 1
    epoch_num: int = 1
    # model
    num_layers: int = 24
    hidden_size: int = 1024
    ffn_hidden_size: int | None = None
    num_attention_heads: int | None = None
    seq_length: int = 2048
    max_position_embeddings: int = 4096
    vocab_size: int = 32000
    make_vocab_size_divisible_by: int = 128
    add_bias_linear: bool = False
    use_flash_attn: bool = False
    swiglu: bool = False
    dtype: str = "bfloat16"
    # experts
    moe_enable: bool = False
    num_experts: int = 1
    moe_router_topk: int = 1
    moe_grouped_gemm: bool = False
    activation_func: str | None = None
    # DeepSeek
    n_dense_layers: int = 3
    n_shared_expert: int = 2
    qk_rope_dim: int = 64
    qk_nope_dim: int = 128
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    v_head_dim: int = 128
    # computation times
    computation_enable: bool = False
    aiob_enable: bool = False
    comp_filepath: str | None = None
    recompute_activations: bool = False
    gated_linear_unit: str | None = None
    bias_gelu_fusion: bool = False
    openai_gelu: bool = False
    onnx_safe: bool = False
    squared_relu: bool = False
    # optimizer
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_version: bool = False
    # DeepSpeed
    stage: int = 3
    amp_enabled: bool = False
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    contiguous_gradients: bool = False
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = sys.maxsize
    max_live_parameters: int = 1_000_000_000
    prefetch_bucket_size: int = 1_000_000_000
    # collective test
    begin_size: int = 1_048_576
    end_size: int = 1_048_576
    test_comm: str = "all_reduce"
    iter_num: int = 500
    multi_all_reduce_enable: int = 0
    # what to do
    enable_visual: bool = False
    workload_only: bool = False
    # inference
    config_file: str | None = None
    phase: str = "decode"
    aiob_forward_loops: int = 1
    result_dir: str = "results/workload/"

    def __post_init__(self) -> None:
        for field in FIELDS:
            _check_value(field, getattr(self, field.name))
        if self.module and self.module not in GENERATORS:
            raise StrategyError(
                f"unknown AICB generator '{self.module}'{did_you_mean(self.module, GENERATORS)}"
            )
        if self.generator in INFERENCE:
            self._check_inference()
        else:
            self._check_training()

    @property
    def generator(self) -> str:
        """What is written: a value of `GENERATORS`."""
        if self.module:
            return GENERATORS[self.module]
        if self.frame not in GENERATOR_OF_FRAME:
            raise StrategyError(f"--frame={self.frame} writes no workload of a model")
        return GENERATOR_OF_FRAME[self.frame]

    @property
    def data_parallel(self) -> int:
        """Replicas, AICB's ``dp_num``."""
        return self.world_size // (self.tensor_model_parallel_size * self.pipeline_model_parallel)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, AICB's ``ga``; 0 where the global batch is too small."""
        return self.global_batch // (self.micro_batch * self.data_parallel)

    @property
    def computes(self) -> bool:
        """Whether AICB's CSV workloads have computations; AIOB's times need them."""
        return self.computation_enable or self.aiob_enable

    @property
    def layers_per_stage(self) -> int:
        """Layers of a stage; a remainder is dropped."""
        return self.num_layers // self.pipeline_model_parallel

    @property
    def attention_heads(self) -> int:
        """Heads; AICB takes the number of layers where none is given."""
        return self.num_layers if self.num_attention_heads is None else self.num_attention_heads

    @property
    def feed_forward_size(self) -> int:
        """Inner width of the MLP: as given, or 4 h, or 8/3 h in whole 64s with SwiGLU."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        if self.swiglu:
            return int((4 * self.hidden_size * 2 / 3) / 64) * 64
        return 4 * self.hidden_size

    @property
    def activation_size(self) -> int:
        """Size of a micro-batch's activations at 16 bits [B]; never divided."""
        return 2 * self.micro_batch * self.seq_length * self.hidden_size

    @property
    def padded_vocab_size(self) -> int:
        """Vocabulary, filled up so that every tensor-parallel part is a multiple of 128."""
        multiple = self.make_vocab_size_divisible_by * self.tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple

    def _check_training(self) -> None:
        """Repeat the asserts of ``get_params``."""
        stages = self.tensor_model_parallel_size * self.pipeline_model_parallel
        if self.world_size % stages:
            raise StrategyError(
                f"--world_size={self.world_size} is no multiple of "
                f"--tensor_model_parallel_size × --pipeline_model_parallel = {stages}"
            )
        if self.moe_enable and not self.enable_sequence_parallel:
            raise StrategyError("--moe_enable needs --enable_sequence_parallel in AICB")
        if self.num_experts % self.expert_model_parallel_size:
            raise StrategyError(
                f"--num_experts={self.num_experts} is no multiple of "
                f"--expert_model_parallel_size={self.expert_model_parallel_size}"
            )
        if self.expert_model_parallel_size > 1 and self.dtype == "float16":
            raise StrategyError("AICB has no expert parallelism with --dtype=float16")
        if self.moe_grouped_gemm and self.dtype != "bfloat16":
            raise StrategyError(f"--moe_grouped_gemm needs --dtype=bfloat16, not '{self.dtype}'")

    def _check_inference(self) -> None:
        """Repeat the check of ``MockedParamsBase``."""
        for name in ("tensor_model_parallel_size", "expert_model_parallel_size"):
            if self.world_size < getattr(self, name):
                raise StrategyError(
                    f"--world_size={self.world_size} is less than --{name}={getattr(self, name)}"
                )


FIELDS = dataclasses.fields(AicbArguments)
_KINDS = {field.name: str(field.type).removesuffix(" | None") for field in FIELDS}


def parse_arguments(words: Sequence[str]) -> AicbArguments:
    """Read a command line of AICB.

    Parameters
    ----------
    words : sequence of str
        With or without ``python -m workload_generator.MODULE`` before it. An option's
        words may be joined by ``_`` or ``-``; its value follows after ``=`` or as the next
        word; the beginning of an option's name is enough where it names only one.

    Returns
    -------
    AicbArguments

    Raises
    ------
    StrategyError
        Unknown or ambiguous option, missing or superfluous value, or what AICB refuses.
    """
    module, rest = _module(list(words))
    inference = GENERATORS.get(module) in INFERENCE
    options = INFERENCE_OPTIONS if inference else tuple(
        field.name for field in FIELDS if field.name not in NOT_TRAINING
    )  # fmt: skip
    values: dict[str, Any] = dict(INFERENCE_DEFAULTS) if inference else {}
    positional = list(POSITIONAL) if inference else []
    position = 0
    while position < len(rest):
        word = rest[position]
        position += 1
        if not word.startswith("--"):
            if not positional:
                raise StrategyError(f"'{word}' should be an option of AICB, as --world_size=8")
            values[positional.pop(0)] = word
            continue
        written, equals, value = word.partition("=")
        name = _option(written, options)
        if _KINDS[name] == "bool":
            if equals:
                raise StrategyError(f"{written} takes no value; '{value}' is given")
            values[name] = True
            continue
        if not equals:
            if position == len(rest) or rest[position].startswith("--"):
                raise StrategyError(f"{written} needs a value, as {written}=VALUE")
            value = rest[position]
            position += 1
        values[name] = _whole(written, value) if _KINDS[name] == "int" else value
    if inference and "model_name" not in values:
        raise StrategyError("AICB's inference needs a model's name, for example DeepSeek-671B")
    return AicbArguments(module=module, **values)


def _module(words: list[str]) -> tuple[str, list[str]]:
    """Take the module's name off the beginning of a command line."""
    if words and re.fullmatch(r"(.*/)?python[0-9.]*", words[0]):
        words = words[1:]
    if words and words[0] == "-m":
        words = words[1:]
        if not words:
            raise StrategyError("-m needs a module of AICB, as workload_generator.MODULE")
    elif not words or not (words[0] in GENERATORS or words[0].startswith(PACKAGE)):
        return "", words
    module = words[0].removeprefix(PACKAGE)
    if module not in GENERATORS:
        raise StrategyError(f"unknown AICB generator '{module}'{did_you_mean(module, GENERATORS)}")
    return module, words[1:]


def _option(written: str, options: Sequence[str]) -> str:
    """Return the field that an option means."""
    name = written.removeprefix("--").replace("-", "_")
    if name in options:
        return name
    if ALIASES.get(name) in options:
        return ALIASES[name]
    # argparse, which AICB uses, takes the beginning of a name too.
    near = [option for option in options if name and option.startswith(name)]
    if len(near) == 1:
        return near[0]
    if near:
        raise StrategyError(f"{written} could be --{' or --'.join(near)}; write it out")
    raise StrategyError(f"unknown AICB option {written}{did_you_mean(name, options)}")


def _whole(written: str, value: str) -> int:
    """Return the whole number that an option's value is."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()):
        raise StrategyError(f"{written}={value}: a whole number is needed")
    return int(value)


def _check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Check one value against its type, its choices and its least value."""
    name, kind = field.name, _KINDS[field.name]
    if value is None and str(field.type).endswith("None"):
        return
    if kind == "int":
        least = LEAST.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            raise StrategyError(f"--{name}={value}: a whole number from {least} is needed")
    elif not isinstance(value, {"bool": bool, "str": str}[kind]):
        raise StrategyError(f"--{name}={value}: {kind} is needed")
    if name in CHOICES and value not in CHOICES[name]:
        known = [str(choice) for choice in CHOICES[name]]
        raise StrategyError(f"--{name}={value}{did_you_mean(str(value), known)}")


# Value of `arguments.GENERATORS`: module, functions for text and name, whether it takes times.
WRITERS = {
    "training": ("training", "training_text", "file_name", True),
    "deepspeed": ("deepspeed", "deepspeed_csv", "file_name", False),
    "megatron_csv": ("megatron_csv", "megatron_csv", "file_name", False),
    "inference": ("inference", "inference_text", "inference_file_name", True),
    "vidur": ("inference", "vidur_csv", "vidur_file_name", True),
}


def generate(arguments: AicbArguments, computation: AiobFile | None = None) -> str:
    """Return the text of the file that AICB writes for its arguments.

    Parameters
    ----------
    arguments : AicbArguments
        Their ``generator`` says which file: SimAI's text for training or inference, the CSV
        of Megatron or DeepSpeed, or Vidur's.
    computation : AiobFile, optional
        Computation times, for the generators that use them.

    Raises
    ------
    StrategyError
        Arguments that the generator refuses.
    """
    module, function, _, timed = WRITERS[arguments.generator]
    write = _found(module, function)
    return write(arguments, computation) if timed else write(arguments)


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file, without its folder.

    Raises
    ------
    StrategyError
        Arguments that the generator refuses.
    """
    module, _, name, _ = WRITERS[arguments.generator]
    return _found(module, name)(arguments)


def _found(module: str, function: str) -> Callable[..., str]:
    """Return a function of a generator, whose module is only loaded now."""
    found: Callable[..., str] = getattr(
        importlib.import_module(f"perfmodel.workloads.twins.aicb.{module}"), function
    )
    return found
