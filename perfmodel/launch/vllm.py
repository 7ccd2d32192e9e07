"""vLLM's arguments, written and read: those of ``vllm/engine/arg_utils.py``.

Data-parallel ranks have engines of their own; with ``--enable-expert-parallel`` experts are
spread over all t·a devices of a stage, otherwise each is cut over them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
from perfmodel.launch.shell import format_command, parse_arguments

TITLE = "vLLM"
START = "vllm serve"
PROGRAM = re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.(?:openai\.)?api_server\b")

OPTIONS = (
    Count("tensor-parallel-size", "tensor_parallel"),
    Count("pipeline-parallel-size", "pipeline_parallel"),
    Count("data-parallel-size", "attention_data_parallel"),
    Count("max-num-batched-tokens", "token_budget"),
    Count("max-num-seqs", "max_sequences"),
    Count("max-model-len", "context_length"),
    Count("block-size", "block_tokens"),
    Share("gpu-memory-utilization", "memory_share"),
    Word(
        "kv-cache-dtype",
        "kv_precision",
        {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "auto": "stated", "bfloat16": "bf16"},
    ),
    Word(
        "quantization",
        "weight_precision",
        {"fp8": "fp8", "modelopt": "fp8", "modelopt_fp4": "nvfp4", "mxfp4": "mxfp4"}
        | dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), "int4")
        | dict.fromkeys(("compressed-tensors", "quark", "deepseek_v3"), "stated"),
    ),
)
SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"}
METHODS = {"mtp": "mtp", "deepseek_mtp": "mtp", "eagle3": "eagle3", "eagle": "eagle3"}
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
JOINED = (
    "Requests go to both pools through a proxy: toy_proxy_server.py of vLLM's "
    "disaggregated-serving examples, or a router such as llm-d or Dynamo.",
)


def _experts(workers: Workers) -> bool:
    return workers["expert_parallel"] not in (1, workers.stage_devices)


LIMITS = (
    (
        ("expert_parallel", "tensor_parallel", "attention_data_parallel"),
        _experts,
        "experts are spread over all devices of a stage (--enable-expert-parallel), or cut",
    ),
)
WATCHED: Mapping[str, str] = {
    "cpu-offload-gb": "offloading is not modelled",
    "enable-lora": "adapters are not modelled",
    "enable-eplb": "experts are projected without copies",
    "decode-context-parallel-size": "context parallelism of decoding is not modelled",
    "enable-dbo": "two batches beside each other are not modelled",
    "enforce-eager": "passes are projected as the engine captures them",
    "no-enable-chunked-prefill": "prompts are projected in chunks",
}


def keys_of(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes."""
    keys = write_options(workers, OPTIONS)
    if workers["expert_parallel"] > 1:
        keys["enable-expert-parallel"] = True
    if workers["prefix_caching"] is False:
        keys["no-enable-prefix-caching"] = True
    if workers["draft_length"]:
        method = {"method": workers["drafts"] or "mtp"}
        drafts = {**method, "num_speculative_tokens": workers["draft_length"]}
        keys["speculative-config"] = json.dumps(drafts)
    if workers.part:
        connector = {"kv_connector": "NixlConnector", "kv_role": ROLES[workers.part]}
        keys["kv-transfer-config"] = json.dumps(connector)
    return keys


def format_worker(workers: Workers) -> str:
    """Return the command that starts a worker."""
    return format_command(["vllm", "serve", workers.model or "MODEL"], keys_of(workers))


def parse_worker(text: str, path: str) -> Workers:
    """Return the worker that a command starts; raises FormatError."""
    settings = parse_arguments(text, path)
    settings.entries = {SHORT.get(key, key): entry for key, entry in settings.entries.items()}
    fields = read_options(settings, OPTIONS, 1)
    devices = fields.get("tensor_parallel", 1) * fields.get("attention_data_parallel", 1)
    if settings.flag("enable-expert-parallel"):
        fields["expert_parallel"] = devices
    if settings.flag("no-enable-prefix-caching"):
        fields["prefix_caching"] = False
    drafts = _json(settings, "speculative-config")
    if drafts:
        fields["draft_length"] = int(drafts.get("num_speculative_tokens") or 1)
        fields["drafts"] = METHODS.get(str(drafts.get("method")), str(drafts.get("method")))
    role = _json(settings, "kv-transfer-config").get("kv_role")
    part = next((part for part, known in ROLES.items() if known == role), "")
    model = positional(text, PROGRAM) or settings.word("model")
    return finished("vllm", settings, model, fields, part, WATCHED)


def _json(settings: Settings, key: str) -> dict[str, Any]:
    """Return the object that an option holds; empty where it is absent."""
    if settings.stated(key) is None:
        return {}
    try:
        found = json.loads(settings.word(key))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("num_speculative_tokens", 1), int):
        raise settings.wrong(key, "a JSON object in quotes, its counts whole numbers")
    return found
