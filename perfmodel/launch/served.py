"""Workers of a served model as launch commands say it: written, read, recognised.

A command starts one worker. vLLM: data-parallel ranks have engines of their own; with
``--enable-expert-parallel`` experts are spread over all t·a devices of a stage, otherwise each is
cut over them. SGLang: ``--tp-size`` counts all devices of a stage; with ``--enable-dp-attention``
attention runs on ``--dp-size`` ranks of them, and limits count over all ranks. TensorRT-LLM: with
``enable_attention_dp`` every device of a stage is an attention rank of its own, and limits count
per rank; some keys stand in a YAML beside the command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from perfmodel.base.errors import DataError, FormatError, StrategyError, did_you_mean
from perfmodel.base.files import read_text
from perfmodel.base.served_fields import is_closed_loop
from perfmodel.base.units import format_time
from perfmodel.launch.served_tables import (
    DEGREES,
    LEFT_OUT,
    Server,
    Workers,
    finished,
    load_server,
    positional,
    rank_degree,
    read_options,
    write_options,
)
from perfmodel.launch.settings import Keys, Settings
from perfmodel.launch.text import format_command, format_comment, format_yaml, heredocs, parse_yaml
from perfmodel.model.presets import hub_names
from perfmodel.software.engine import SPELLINGS, load_engine

LARGEST = 2**22  # B of a launch file
SHARED = (
    "weight_precision",
    "kv_precision",
    "token_budget",
    "max_sequences",
    "block_tokens",
    "memory_share",
    "cache_blocks",
    "cache_bytes",
    "draft_length",
)
"""Other fields of a deployment that commands state."""
VLLM, SGLANG, TENSORRT = map(load_server, ("vllm", "sglang", "trtllm"))
_FILE = "extra_llm_api_options"
_WRITTEN = ("kv_precision", "block_tokens")  # in the file, not by options


def workers_of(row: Mapping[str, Any], model: str) -> list[Workers]:
    """Return the pools of a deployment: one, or a prefill and a decode pool.

    Parameters
    ----------
    row : mapping of str to value
        Fields of a deployment and of a load, as `perfmodel.store.results.best` gives them.
    model : str
        As a server takes it.
    """
    engine = load_engine(str(row["engine"]).partition("[")[0]).engine
    fields = {name: row[name] for name in (*DEGREES, *SHARED) if row.get(name) not in LEFT_OUT}
    lengths = row.get("input_length"), row.get("output_length")
    if row.get("context_length"):
        fields["context_length"] = int(row["context_length"])
    elif all(lengths):
        fields["context_length"] = int(sum(map(int, filter(None, lengths))))
    count, first = int(row.get("workers") or 1), int(row.get("prefill_workers") or 0)
    if not first:
        return [Workers(engine, model, fields, "", count)]
    prompts = fields | {name: row.get(f"prefill_{name}") or row[name] for name in DEGREES}
    prompts.pop("draft_length", None)
    return [
        Workers(engine, model, prompts, "prefill", first),
        Workers(engine, model, fields, "decode", count),
    ]


def pools_of_row(
    row: Mapping[str, Any], attributes: Mapping[str, Any], source: str
) -> list[Workers]:
    """Return the pools of one row of served results.

    Raises
    ------
    DataError
        The results do not say of which model they are.
    """
    try:
        name = str(json.loads(attributes["provenance"])["model"]["name"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"'{source}' does not say what was served ({error})") from None
    hub = next((hub for hub, preset in hub_names().items() if preset == name), name)
    return workers_of(row, hub)


def served_lines(row: Mapping[str, Any], model: str, chosen: str) -> list[str]:
    """Return lines that say which operating point was chosen, and what is projected of it."""
    load = (
        f"{row['concurrency']:g} requests under way"
        if is_closed_loop(row)
        else f"{row['arrival_rate']:g} requests/s"
    )
    return [
        f"{model} on {row['devices']:,} devices of {row['hardware']}: {chosen}",
        f"projected for {row['input_length']:,} + {row['output_length']:,} tokens, {load}: "
        f"{row['tokens_per_second_per_device']:,.0f} tokens/s and device, first token after "
        f"{format_time(row['time_to_first_token_mean'])}, "
        f"{format_time(row['time_per_output_token_mean'])} a token",
    ]


def vllm_keys(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes."""
    keys = write_options(workers, VLLM.options)
    if workers["expert_parallel"] > 1:
        keys["enable-expert-parallel"] = True
    if workers["prefix_caching"] is False:
        keys["no-enable-prefix-caching"] = True
    if workers["draft_length"]:
        method = {"method": workers["speculative_method"] or "mtp"}
        speculation = {**method, "num_speculative_tokens": workers["draft_length"]}
        keys["speculative-config"] = json.dumps(speculation)
    if workers.part:
        connector = {"kv_connector": "NixlConnector", "kv_role": VLLM.own["roles"][workers.part]}
        keys["kv-transfer-config"] = json.dumps(connector)
    return keys


def _format_vllm(workers: Workers) -> str:
    """Return the command that starts a worker."""
    return format_command(["vllm", "serve", workers.model or "MODEL"], vllm_keys(workers))


def _parse_vllm(text: str, path: str) -> Workers:
    """Return the worker that a command starts; raises FormatError."""
    settings = VLLM.parse(text, path)
    fields = read_options(settings, VLLM.options, 1)
    devices = fields.get("tensor_parallel", 1) * fields.get("attention_data_parallel", 1)
    if settings.flag("enable-expert-parallel"):
        fields["expert_parallel"] = devices
    if settings.flag("no-enable-prefix-caching"):
        fields["prefix_caching"] = False
    speculation = _json(settings, "speculative-config")
    if speculation:
        fields["draft_length"] = int(speculation.get("num_speculative_tokens") or 1)
        method = str(speculation.get("method"))
        fields["speculative_method"] = VLLM.own["methods"].get(method, method)
    role = _json(settings, "kv-transfer-config").get("kv_role")
    part = next((part for part, known in VLLM.own["roles"].items() if known == role), "")
    model = positional(text, VLLM.program) or settings.word("model")
    fields.setdefault("tensor_parallel", 1)
    return finished(VLLM, "vllm", settings, model, fields, part)


def _blocks_of_tokens(fields: dict[str, Any], engine: str) -> None:
    """Turn the tokens of a cache, as some engines count them, into blocks."""
    if fields.get("cache_blocks"):
        each = fields.get("block_tokens") or load_engine(engine).block_tokens
        fields["cache_blocks"] = max(fields["cache_blocks"] // each, 1)


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


def sglang_keys(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes."""
    keys: Keys = {"model-path": workers.model or "MODEL", "tp-size": workers.stage_devices}
    if workers["attention_data_parallel"] > 1:
        keys |= {"dp-size": workers["attention_data_parallel"], "enable-dp-attention": True}
    keys |= write_options(workers, SGLANG.options)
    if workers["prefix_caching"] is False:
        keys["disable-radix-cache"] = True
    if length := workers["draft_length"]:
        keys |= {
            "speculative-algorithm": SGLANG.own["algorithms"].get(
                workers["speculative_method"] or "mtp", "EAGLE"
            ),
            "speculative-num-steps": length,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": length + 1,
        }
    if workers.part:
        keys["disaggregation-mode"] = workers.part
    return keys


def _format_sglang(workers: Workers) -> str:
    """Return the command that starts a worker."""
    return format_command(SGLANG.start.split(), sglang_keys(workers))


def _parse_sglang(text: str, path: str) -> Workers:
    """Return the worker that a command starts; raises FormatError."""
    settings = SGLANG.parse(text, path)
    ranks = settings.whole("dp-size", 1) if settings.flag("enable-dp-attention") else 1
    fields = read_options(settings, SGLANG.options, ranks)
    degree = rank_degree(settings, "tp-size", settings.whole("tp-size", 1), ranks)
    fields |= {"tensor_parallel": degree, "attention_data_parallel": ranks}
    _blocks_of_tokens(fields, "sglang")
    copies = settings.whole("dp-size", 1) if ranks == 1 else 1
    if copies > 1:
        settings.remark(f"--dp-size {copies} without --enable-dp-attention: {copies} workers")
        fields["workers"] = copies
    if settings.flag("disable-radix-cache"):
        fields["prefix_caching"] = False
    if algorithm := settings.word("speculative-algorithm").upper():
        known = {word: method for method, word in SGLANG.own["algorithms"].items()} | {
            "EAGLE": "mtp"
        }
        fields["speculative_method"] = known.get(algorithm, algorithm.lower())
        drafted = settings.whole("speculative-num-draft-tokens", 0, 0)
        fields["draft_length"] = settings.whole("speculative-num-steps", max(drafted - 1, 1))
    part = settings.word("disaggregation-mode")
    return finished(
        SGLANG,
        "sglang",
        settings,
        settings.word("model-path"),
        fields,
        part if part in ("prefill", "decode") else "",
    )


def _file_keys(workers: Workers) -> Keys:
    """Return the dotted keys of the YAML beside a worker's command."""
    keys = write_options(workers, [item for item in TENSORRT.in_file if item.field in _WRITTEN])
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


def tensorrt_keys(workers: Workers) -> Keys:
    """Return all options of a worker, without dashes, and the keys of its YAML."""
    options = {"tp_size": workers.stage_devices} | {
        key.replace("-", "_"): value
        for key, value in write_options(workers, TENSORRT.options).items()
    }
    return options | _file_keys(workers)


def _format_tensorrt(workers: Workers) -> str:
    """Return a script that writes the YAML and starts a worker."""
    document = _file_keys(workers)
    options = {key: value for key, value in tensorrt_keys(workers).items() if key not in document}
    name = f"{workers.part or 'serve'}.yaml"
    command = format_command(
        [TENSORRT.start, workers.model or "MODEL"], options | ({_FILE: name} if document else {})
    )
    if not document:
        return command
    return f"cat > {name} <<'EOF'\n{format_yaml(document)}EOF\n{command}"


def _parse_tensorrt(text: str, path: str) -> Workers:
    """Return the worker that a command, or a script with its YAML, starts; raises FormatError."""
    settings = TENSORRT.parse(text, path)
    fields = read_options(settings, TENSORRT.options, 1)
    document = _document(text, path)
    if document is None and settings.stated(_FILE.replace("_", "-")) is not None:
        settings.remark(f"--{_FILE}: the YAML is not in the file; its keys are not known")
    inside = document or Settings(path, {})
    fields = {**read_options(inside, TENSORRT.in_file, 1), **fields}
    _blocks_of_tokens(fields, "trtllm")
    devices = settings.whole("tp-size", inside.whole("tensor_parallel_size", 1))
    apart = inside.flag("enable_attention_dp")
    fields["tensor_parallel"] = 1 if apart else devices
    fields["attention_data_parallel"] = devices if apart else 1
    if "kv_cache_config.enable_block_reuse" in inside.entries:
        fields["prefix_caching"] = inside.flag("kv_cache_config.enable_block_reuse")
    if inside.word("speculative_config.decoding_type"):
        fields["speculative_method"] = inside.word("speculative_config.decoding_type").lower()
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
        TENSORRT,
        "trtllm",
        settings,
        positional(text, TENSORRT.program) or settings.word("model"),
        fields,
        part,
    )


def _document(text: str, path: str) -> Settings | None:
    """Return the YAML that a script holds, None without one."""
    for document, line in heredocs(text):
        return parse_yaml("\n" * line + document, path)
    return None


class Engine(NamedTuple):
    """How the commands of an engine are written and read.

    Attributes
    ----------
    table : Server
    keys_of : callable
        Workers -> all their options, and keys of a file beside the command.
    format : callable
        Workers -> the command.
    parse : callable
        Text and path -> workers; raises FormatError.
    """

    table: Server
    keys_of: Callable[[Workers], Keys]
    format: Callable[[Workers], str]
    parse: Callable[[str, str], Workers]


SERVERS: Mapping[str, Engine] = {
    "vllm": Engine(VLLM, vllm_keys, _format_vllm, _parse_vllm),
    "sglang": Engine(SGLANG, sglang_keys, _format_sglang, _parse_sglang),
    "trtllm": Engine(TENSORRT, tensorrt_keys, _format_tensorrt, _parse_tensorrt),
}
"""Engine (`perfmodel.software.engine`) -> its commands."""


def find_server(name: str) -> Engine:
    """Return the commands of an engine.

    Raises
    ------
    StrategyError
        There is none of that name.
    """
    plain = SPELLINGS.get(name, name)
    if plain not in SERVERS:
        known = (*SERVERS, *SPELLINGS)
        raise StrategyError(f"unknown engine '{name}'{did_you_mean(name, known)}")
    return SERVERS[plain]


def format_served(pools: Sequence[Workers], header: Sequence[str] = ()) -> str:
    """Return the commands that start one worker of each pool, and what joins the pools.

    Parameters
    ----------
    pools : sequence of Workers
        One, or a prefill and a decode pool, of one engine.
    header : sequence of str
        Lines of the first comment.

    Raises
    ------
    StrategyError
        The engine cannot run such workers; names the field, its value, and what it offers.
    """
    server = find_server(pools[0].engine)
    parts = [format_comment(header)] if header else []
    for pool in pools:
        server.table.refuse(pool)
        if pool.part or pool.count > 1:
            what = f"{pool.part} worker".strip()
            parts.append(f"# {what}, {pool.count} of them\n" if pool.count > 1 else f"# {what}\n")
        parts.append(server.format(pool))
    if len(pools) > 1:
        parts.append(format_comment(server.table.joined))
    return "".join(parts)


def parse_served(text: str, path: str) -> Workers:
    """Return the workers that a command or a script starts.

    Parameters
    ----------
    text : str
    path : str
        What errors call the file.

    Raises
    ------
    FormatError
        No engine is started there, or an option has a wrong value.
    """
    found = recognise_engine(text)
    if not found:
        starts = ", ".join(f"'{server.table.start}'" for server in SERVERS.values())
        raise FormatError(f"{path}: no command that starts a server; one of {starts} is needed")
    return find_server(found).parse(text, path)


def recognise_engine(text: str) -> str:
    """Return the engine that a text starts; empty where it starts none."""
    return next((name for name in SERVERS if SERVERS[name].table.program.search(text)), "")


def read_served(path: str | os.PathLike[str]) -> Workers:
    """Read a launch command from a file: see `parse_served`."""
    return parse_served(read_text(path, "a launch command", LARGEST), str(path))
