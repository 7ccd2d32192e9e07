"""SGLang's arguments, written and read: those of ``python/sglang/srt/server_args.py``.

``--tp-size`` counts all devices of a stage; with ``--enable-dp-attention`` attention runs on
``--dp-size`` ranks of them, and limits count over all ranks.
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
    rank_degree,
    read_options,
    write_options,
)
from perfmodel.launch.settings import Keys
from perfmodel.launch.shell import format_command, parse_arguments

TITLE = "SGLang"
START = "python3 -m sglang.launch_server"
PROGRAM = re.compile(r"\bsglang\.launch_server\b|\bsglang\s+serve\b")

OPTIONS = (
    Count("pp-size", "pipeline_parallel"),
    Count("ep-size", "expert_parallel"),
    Count("chunked-prefill-size", "token_budget", per_rank=False),
    Count("max-running-requests", "max_sequences", per_rank=False),
    Count("context-length", "context_length"),
    Count("page-size", "block_tokens"),
    Share("mem-fraction-static", "memory_share"),
    Word(
        "kv-cache-dtype",
        "kv_precision",
        {
            "fp8_e4m3": "fp8",
            "fp8_e5m2": "fp8",
            "auto": "stated",
            "bfloat16": "bf16",
            "bf16": "bf16",
        },
    ),
    Word(
        "quantization",
        "weight_precision",
        {"fp8": "fp8", "w8a8_fp8": "fp8", "w8a8_int8": "int8", "modelopt_fp4": "nvfp4"}
        | {"mxfp4": "mxfp4", "modelopt": "fp8", "modelopt_fp8": "fp8"}
        | dict.fromkeys(("awq", "awq_marlin", "gptq", "gptq_marlin"), "int4")
        | dict.fromkeys(("compressed-tensors", "quark"), "stated"),
    ),
)
SHORT = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "model": "model-path",
}
ALGORITHMS = {"mtp": "NEXTN", "eagle3": "EAGLE3", "ngram": "NGRAM"}
JOINED = (
    "Requests go to both pools through a router: python3 -m sglang_router.launch_router "
    "--pd-disaggregation --prefill URL --decode URL",
)
LIMITS = (
    (
        ("expert_parallel", "tensor_parallel", "attention_data_parallel"),
        lambda workers: workers.stage_devices % workers["expert_parallel"] > 0,
        "--ep-size has to divide --tp-size",
    ),
)
WATCHED: Mapping[str, str] = {
    "enable-two-batch-overlap": "two batches beside each other are not modelled",
    "enable-eplb": "experts are projected without copies",
    "enable-mixed-chunk": "prompts are projected to run first, alone",
    "disable-cuda-graph": "passes are projected as the engine captures them",
    "disable-overlap-schedule": "the host is projected beside the pass before",
    "enable-hierarchical-cache": "caches beyond the device are not modelled",
    "moe-dense-tp-size": "dense blocks are projected as cut over a rank",
}


def keys_of(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes."""
    keys: Keys = {"model-path": workers.model or "MODEL", "tp-size": workers.stage_devices}
    if workers["attention_data_parallel"] > 1:
        keys |= {"dp-size": workers["attention_data_parallel"], "enable-dp-attention": True}
    keys |= write_options(workers, OPTIONS)
    if workers["prefix_caching"] is False:
        keys["disable-radix-cache"] = True
    if length := workers["draft_length"]:
        keys |= {
            "speculative-algorithm": ALGORITHMS.get(workers["drafts"] or "mtp", "EAGLE"),
            "speculative-num-steps": length,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": length + 1,
        }
    if workers.part:
        keys["disaggregation-mode"] = workers.part
    return keys


def format_worker(workers: Workers) -> str:
    """Return the command that starts a worker."""
    return format_command(START.split(), keys_of(workers))


def parse_worker(text: str, path: str) -> Workers:
    """Return the worker that a command starts; raises FormatError."""
    settings = parse_arguments(text, path)
    settings.entries = {SHORT.get(key, key): entry for key, entry in settings.entries.items()}
    ranks = settings.whole("dp-size", 1) if settings.flag("enable-dp-attention") else 1
    fields = read_options(settings, OPTIONS, ranks)
    degree = rank_degree(settings, "tp-size", settings.whole("tp-size", 1), ranks)
    fields |= {"tensor_parallel": degree, "attention_data_parallel": ranks}
    copies = settings.whole("dp-size", 1) if ranks == 1 else 1
    if copies > 1:
        settings.remark(f"--dp-size {copies} without --enable-dp-attention: {copies} workers")
        fields["workers"] = copies
    if settings.flag("disable-radix-cache"):
        fields["prefix_caching"] = False
    if algorithm := settings.word("speculative-algorithm").upper():
        known = {word: drafts for drafts, word in ALGORITHMS.items()} | {"EAGLE": "mtp"}
        fields["drafts"] = known.get(algorithm, algorithm.lower())
        drafted = settings.whole("speculative-num-draft-tokens", 0, 0)
        fields["draft_length"] = settings.whole("speculative-num-steps", max(drafted - 1, 1))
    part = settings.word("disaggregation-mode")
    return finished(
        "sglang",
        settings,
        settings.word("model-path"),
        fields,
        part if part in ("prefill", "decode") else "",
        WATCHED,
    )
