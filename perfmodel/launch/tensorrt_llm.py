"""TensorRT-LLM's arguments, written and read: ``trtllm-serve`` and the YAML beside it.

Options are those of ``tensorrt_llm/commands/serve.py``, keys of the YAML those of
``TorchLlmArgs`` (``tensorrt_llm/llmapi/llm_args.py``). With ``enable_attention_dp`` every device
of a stage is an attention rank of its own, and limits count per rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from perfmodel.launch.served import Workers
from perfmodel.launch.served_tables import (
    Count,
    Share,
    Word,
    finished,
    positional,
    read_options,
    write_options,
)
from perfmodel.launch.settings import Keys, Settings
from perfmodel.launch.shell import format_command, heredocs, parse_arguments
from perfmodel.launch.tree import format_yaml, parse_yaml

TITLE = "TensorRT-LLM"
START = "trtllm-serve"
PROGRAM = re.compile(r"\btrtllm-serve(?:\s+serve)?\b(?!\s+disaggregated)")
FILE = "extra_llm_api_options"

OPTIONS = (
    Count("pp-size", "pipeline_parallel"),
    Count("ep-size", "expert_parallel"),
    Count("max-batch-size", "max_sequences"),
    Count("max-num-tokens", "token_budget"),
    Count("max-seq-len", "context_length"),
    Share("kv-cache-free-gpu-memory-fraction", "memory_share"),
)
IN_FILE = (
    Word(
        "kv_cache_config.dtype",
        "kv_precision",
        {"fp8": "fp8", "auto": "stated", "bf16": "bf16", "bfloat16": "bf16"},
    ),
    Count("kv_cache_config.tokens_per_block", "block_tokens"),
    Share("kv_cache_config.free_gpu_memory_fraction", "memory_share"),
    Count("max_batch_size", "max_sequences"),
    Count("max_num_tokens", "token_budget"),
    Count("max_seq_len", "context_length"),
    Count("pipeline_parallel_size", "pipeline_parallel"),
    Count("moe_expert_parallel_size", "expert_parallel"),
)
WRITTEN_IN_FILE = ("kv_precision", "block_tokens")
SHORT = {"tensor-parallel-size": "tp-size", "tp": "tp-size", "pp": "pp-size", "ep": "ep-size"}
JOINED = (
    "Requests go to both pools through 'trtllm-serve disaggregated -c disagg_config.yaml', whose "
    "context_servers and generation_servers name these workers.",
)


def _ranks(workers: Workers) -> bool:
    return workers["attention_data_parallel"] > 1 and workers["tensor_parallel"] > 1


LIMITS = (
    (
        ("attention_data_parallel", "tensor_parallel"),
        _ranks,
        "with attention data parallelism (enable_attention_dp) every device is a rank",
    ),
    (
        ("expert_parallel", "tensor_parallel", "attention_data_parallel"),
        lambda workers: workers.stage_devices % workers["expert_parallel"] > 0,
        "--ep_size has to divide --tp_size",
    ),
)
WATCHED: Mapping[str, str] = {
    "moe_config.load_balancer": "experts are projected without copies",
    "disable_overlap_scheduler": "the host is projected beside the pass before",
    "enable_chunked_prefill": "prompts are projected in chunks where they exceed the budget",
    "attention_dp_config.enable_balance": "ranks are projected as evenly loaded",
}


def file_keys(workers: Workers) -> Keys:
    """Return the dotted keys of the YAML beside a worker's command."""
    keys = write_options(workers, [item for item in IN_FILE if item.field in WRITTEN_IN_FILE])
    if workers["attention_data_parallel"] > 1:
        keys["enable_attention_dp"] = True
    if workers["prefix_caching"] is False:
        keys["kv_cache_config.enable_block_reuse"] = False
    if workers["max_sequences"]:
        keys |= {
            "cuda_graph_config.enable_padding": True,
            "cuda_graph_config.max_batch_size": workers["max_sequences"],
        }
    if length := workers["draft_length"]:
        keys |= {
            "speculative_config.decoding_type": "MTP",
            "speculative_config.num_nextn_predict_layers": length,
        }
    if workers.part:
        keys["cache_transceiver_config.backend"] = "DEFAULT"
        if workers.part == "prefill":
            keys["disable_overlap_scheduler"] = True
    return keys


def keys_of(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes, and the keys of its YAML."""
    options = {"tp_size": workers.stage_devices} | {
        key.replace("-", "_"): value for key, value in write_options(workers, OPTIONS).items()
    }
    return options | file_keys(workers)


def format_worker(workers: Workers) -> str:
    """Return a script that writes the YAML and starts a worker."""
    document = file_keys(workers)
    options = {key: value for key, value in keys_of(workers).items() if key not in document}
    name = f"{workers.part or 'serve'}.yaml"
    command = format_command(
        [START, workers.model or "MODEL"], options | ({FILE: name} if document else {})
    )
    if not document:
        return command
    return f"cat > {name} <<'EOF'\n{format_yaml(document)}EOF\n{command}"


def parse_worker(text: str, path: str) -> Workers:
    """Return the worker that a command, or a script with its YAML, starts; raises FormatError."""
    settings = parse_arguments(text, path)
    settings.entries = {SHORT.get(key, key): entry for key, entry in settings.entries.items()}
    fields = read_options(settings, OPTIONS, 1)
    document = _document(text, path)
    if document is None and settings.stated(FILE.replace("_", "-")) is not None:
        settings.remark(f"--{FILE}: the YAML is not in the file; its keys are not known")
    inside = document or Settings(path, {})
    fields = {**read_options(inside, IN_FILE, 1), **fields}
    devices = settings.whole("tp-size", inside.whole("tensor_parallel_size", 1))
    apart = inside.flag("enable_attention_dp")
    fields["tensor_parallel"] = 1 if apart else devices
    fields["attention_data_parallel"] = devices if apart else 1
    if "kv_cache_config.enable_block_reuse" in inside.entries:
        fields["prefix_caching"] = inside.flag("kv_cache_config.enable_block_reuse")
    if inside.word("speculative_config.decoding_type"):
        fields["drafts"] = inside.word("speculative_config.decoding_type").lower()
        length = inside.whole("speculative_config.max_draft_len", 1)
        key = "speculative_config.num_nextn_predict_layers"
        fields["draft_length"] = inside.whole(key, length)
    part = ""
    if inside.stated("cache_transceiver_config.backend") is not None:
        part = "prefill" if inside.flag("disable_overlap_scheduler") else "decode"
    settings.entries |= inside.entries
    settings.read |= inside.read
    settings.remarks += inside.remarks
    return finished(
        "trtllm",
        settings,
        positional(text, PROGRAM) or settings.word("model"),
        fields,
        part,
        WATCHED,
    )


def _document(text: str, path: str) -> Settings | None:
    """Return the YAML that a script holds, None without one."""
    for document, line in heredocs(text):
        return parse_yaml("\n" * line + document, path)
    return None
