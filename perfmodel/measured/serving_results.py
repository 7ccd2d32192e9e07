"""Result files of tools that load a server: vLLM, SGLang, InferenceX, AIPerf and GenAI-Perf.

Read are

- the JSON of ``vllm bench serve --save-result`` and of ``sglang.bench_serving --output-file``
  (vllm/benchmarks/serve.py and python/sglang/bench_serving.py: ``mean_ttft_ms``,
  ``mean_tpot_ms``, ``max_concurrency``, ``total_input_tokens`` …), one object or one a line;
- the JSON that InferenceX makes of it (utils/process_result.py: ``hw``, ``conc``, ``tp``,
  ``mean_ttft`` in seconds, ``output_tput_per_gpu`` …), one object or a list of them;
- ``profile_export_aiperf.json`` and ``.csv`` of AIPerf and ``profile_export_genai_perf.json`` and
  ``.csv`` of GenAI-Perf, whose inter-token latency is what others call time per output token:
  (request latency - time to first token) / (output tokens - 1).

Each becomes a row with the columns of a table of serving runs (docs/serving.md). Such files do
not say on what the server ran, but for those of InferenceX; keys that are named as columns of
the table are taken over where a file has them (``vllm bench serve --metadata hardware=H200 tp=8``).
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import FormatError
from perfmodel.base.files import JsonWords, not_read, parse_json
from perfmodel.measured.rows import words

COLUMNS = (
    *("hardware", "n_gpus", "engine", "version", "model", "precision", "kv_precision"),
    *("tp", "pp", "ep", "attention_dp", "speculative"),
    *("prefill_workers", "prefill_tp", "prefill_pp", "prefill_ep", "prefill_attention_dp"),
    *("decode_workers", "decode_tp", "decode_pp", "decode_ep", "decode_attention_dp"),
    *("isl", "osl", "random_range_ratio", "concurrency", "offered_qps", "num_prompts", "mode"),
    *("ttft_ms", "tpot_ms", "itl_ms", "out_tok_s", "out_tok_s_gpu", "source"),
)
"""Columns that a result may fill, named as in a table of serving runs."""

WANTED = "a result of vllm bench, SGLang, InferenceX, AIPerf or GenAI-Perf"
_WORDS = JsonWords("{path}, line {line}: {reason}; is the file cut off?", "{path}: {reason}")
_PROFILE = re.compile(r"^(?:\ufeff)?metric,", re.IGNORECASE)
# An engine's release in the name of a container, such as "rocm7.0_ubuntu_22.04_vllm_0.10.1".
_RELEASE = re.compile(r"(?:vllm|sgl|trt|tensorrt)\D*(\d+\.\d+(?:\.\d+)?(?:[.-]?(?:rc|post)\d+)*)")
_MILLISECONDS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}


def read_serving_results(path: str | os.PathLike[str]) -> list[dict[str, str]] | None:
    """Read a result file; None where it is none of those that are known, but a table.

    Returns
    -------
    list of dict of str to str
        A row per result, with some of `COLUMNS`.

    Raises
    ------
    FormatError
        The file is JSON, but broken or no result of these tools.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FormatError(not_read(path, error)) from None
    except UnicodeDecodeError:
        return None
    if _PROFILE.match(text):
        return [_profiled(_profile_csv(text))]
    if not text.lstrip().startswith(("{", "[")):
        return None
    found = []
    for item in _objects(os.fspath(path), text):
        if "mean_ttft" in item or "tput_per_gpu" in item:
            row = _inferencex(item)
        elif "mean_ttft_ms" in item or "output_throughput" in item:
            row = _benched(item)
        elif "request_latency" in item or "time_to_first_token" in item:
            row = _profiled(item)
        else:
            raise FormatError(f"{path}: not {WANTED}")
        found.append(row)
    return found


def _objects(path: str, text: str) -> list[dict[str, Any]]:
    """Return the objects of a file: one, a list, or one per line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines):
        items = [parse_json(line, path, _WORDS) for line in lines]
    else:
        whole = parse_json(text, path, _WORDS)
        items = whole if isinstance(whole, list) else [whole]
    if not items or not all(isinstance(item, dict) for item in items):
        raise FormatError(f"{path}: not {WANTED}")
    return items


def _stated(item: Mapping[str, Any]) -> dict[str, str]:
    """Return what an object says under the names of columns."""
    return {
        name: _text(item[name])
        for name in COLUMNS
        if isinstance(item.get(name), str | int | float) and item[name] != ""
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) < float("inf") else None


def _row(cells: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in cells.items() if value is not None}


def _benched(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of a result of vLLM or SGLang."""
    requests = _number(item.get("completed")) or _number(item.get("num_prompts"))
    lengths = {}
    for column, key, wanted in (
        ("isl", "total_input_tokens", "random_input_len"),
        ("osl", "total_output_tokens", "random_output_len"),
    ):
        total, longest = _number(item.get(key)), _number(item.get(wanted))
        if longest:
            lengths[column] = longest
        elif total and requests:
            lengths[column] = float(max(round(total / requests), 1))
    rate, crowd = item.get("request_rate"), _number(item.get("max_concurrency"))
    engine = str(item.get("backend") or item.get("endpoint_type") or "")
    return {
        **_row(
            {
                "engine": "SGLang" if "sglang" in engine else "vLLM",
                "model": item.get("model_id") or item.get("model"),
                **lengths,
                "random_range_ratio": _number(item.get("random_range_ratio")),
                "concurrency": crowd,
                "offered_qps": None if crowd else _number(rate) or "INF",
                "num_prompts": requests,
                "ttft_ms": _number(item.get("mean_ttft_ms")),
                "tpot_ms": _number(item.get("mean_tpot_ms")),
                "itl_ms": _number(item.get("mean_itl_ms")),
                "out_tok_s": _number(item.get("output_throughput")),
            }
        ),
        **_stated(item),
    }


def _inferencex(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of a result of InferenceX."""
    release = _RELEASE.search(str(item.get("image") or ""))
    cells: dict[str, Any] = {
        "hardware": re.split(r"[-_]", str(item.get("hw") or ""))[0].upper(),
        "engine": item.get("framework"),
        "version": release.group(1) if release else None,
        "model": item.get("model"),
        "precision": _four_bits(str(item.get("precision") or ""), str(item.get("hw") or "")),
        "speculative": item.get("spec_decoding") or item.get("mtp"),
        "isl": _number(item.get("isl")),
        "osl": _number(item.get("osl")),
        # benchmark_lib.sh: lengths of the random data set, and ten requests a client.
        "random_range_ratio": _number(item.get("random_range_ratio")) or 0.8,
        "concurrency": _number(item.get("conc")),
        "ttft_ms": _scaled(item.get("mean_ttft"), 1e3),
        "tpot_ms": _scaled(item.get("mean_tpot"), 1e3),
        "itl_ms": _scaled(item.get("mean_itl"), 1e3),
        "source": "InferenceX",
    }
    per_device = _number(item.get("output_tput_per_gpu"))
    if item.get("disagg") or "prefill_num_workers" in item:
        cells |= {"mode": "closed loop, disaggregated", **_pools(item)}
        prefill, decode = (_number(item.get(f"num_{x}_gpu")) or 0.0 for x in ("prefill", "decode"))
        # Published per device of the decode pool, where there is one.
        share = decode / (prefill + decode) if decode else 1.0
        cells |= {"n_gpus": prefill + decode or None}
        cells |= {"out_tok_s_gpu": None if per_device is None else per_device * share}
    else:
        tensor_parallel = _number(item.get("tp")) or 1.0
        pipeline = _number(item.get("pp")) or 1.0
        cells |= {
            "mode": "closed loop, aggregated",
            "tp": tensor_parallel,
            "pp": pipeline,
            "ep": _number(item.get("ep")),
            "attention_dp": _switch(item.get("dp_attention")),
            "n_gpus": tensor_parallel * pipeline,
            "out_tok_s_gpu": per_device,
        }
    return _row(cells)


def _pools(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of both pools; attention data parallelism is inside their degrees."""
    found: dict[str, Any] = {}
    for pool in ("prefill", "decode"):
        tensor_parallel = _number(item.get(f"{pool}_tp")) or 1.0
        ranks = tensor_parallel if _switch(item.get(f"{pool}_dp_attention")) == "true" else 1.0
        found |= {
            f"{pool}_workers": _number(item.get(f"{pool}_num_workers")),
            f"{pool}_tp": tensor_parallel / ranks,
            f"{pool}_attention_dp": ranks,
            f"{pool}_pp": _number(item.get(f"{pool}_pp")),
            f"{pool}_ep": _number(item.get(f"{pool}_ep")),
        }
    return found


def _switch(value: Any) -> str:
    return "true" if str(value).lower() in ("true", "1", "yes") else "false"


def _four_bits(precision: str, device: str) -> str:
    """Return a precision with the four-bit format that a vendor has."""
    if precision != "fp4":
        return precision
    return "mxfp4" if device.lower().startswith("mi") else "nvfp4"


def _scaled(value: Any, factor: float) -> float | None:
    number = _number(value)
    return None if number is None else number * factor


def _profile_csv(text: str) -> dict[str, Any]:
    """Return the metrics of a CSV of AIPerf or GenAI-Perf, as their JSON has them."""
    found: dict[str, Any] = {}
    header: list[str] = []
    for cells in csv.reader(io.StringIO(text)):
        if not cells or not cells[0].strip():
            continue
        if cells[0].strip().lower() in ("metric", "\ufeffmetric"):
            header = [cell.strip().lower() for cell in cells]
            continue
        label, _, unit = cells[0].partition("(")
        key = words("serving")["labels"].get(label.strip().lower())
        if key is None:
            continue
        named = dict(zip(header, cells, strict=False))
        value = named.get("avg", named.get("value", ""))
        found[key] = {"unit": unit.rstrip(") "), "avg": value.replace(",", "")}
    return found


def _profiled(item: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of a result of AIPerf or GenAI-Perf."""
    config = item.get("input_config") if isinstance(item.get("input_config"), dict) else {}
    assert isinstance(config, dict)
    crowd = _found(config, "concurrency")
    rate = None if crowd else _found(config, "request_rate")
    requests, latency = _average(item, "request_throughput"), _average(item, "request_latency")
    if crowd is None and rate is None and requests and latency:
        crowd = requests * latency / 1e3  # Little's law
    names = _found(config, "model_names", "model", "model_name")
    return _row(
        {
            "model": names[0] if isinstance(names, list) and names else names,
            "isl": _whole(_average(item, "input_sequence_length")),
            "osl": _whole(_average(item, "output_sequence_length")),
            "concurrency": crowd,
            "offered_qps": rate,
            "num_prompts": _average(item, "request_count"),
            "ttft_ms": _average(item, "time_to_first_token"),
            "tpot_ms": _average(item, "inter_token_latency"),
            "out_tok_s": _average(item, "output_token_throughput"),
            "source": "AIPerf",
        }
    ) | _stated(config)


def _average(item: Mapping[str, Any], key: str) -> float | None:
    """Return the mean of a metric, times in milliseconds; None where there is none."""
    metric = item.get(key)
    if not isinstance(metric, dict):
        return None
    number = _number(metric.get("avg"))
    return None if number is None else number * _MILLISECONDS.get(str(metric.get("unit")), 1.0)


def _whole(value: float | None) -> float | None:
    return None if value is None else float(max(round(value), 1))


def _found(tree: Mapping[str, Any], *keys: str) -> Any:
    """Return the first value of a key anywhere in nested objects that is not empty."""
    for key in keys:
        if tree.get(key) not in (None, "", []):
            return tree[key]
    for value in tree.values():
        if isinstance(value, dict) and (found := _found(value, *keys)) is not None:
            return found
    return None
