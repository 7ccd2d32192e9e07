"""Rows of tables of serving runs as deployments and loads: engine, formats, layout, requests.

The columns are those of docs/serving.md ("Against measured runs"); words of cells stand in
``words/serving.toml``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perfmodel.base.facts import release_key
from perfmodel.base.precisions import FORMATS
from perfmodel.measured.row_hardware import hardware_of
from perfmodel.measured.row_model import served_model
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words
from perfmodel.measured.serving_recipes import recipe_of, recipe_version
from perfmodel.model.attention import AttentionSpec
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import head_counts
from perfmodel.serving.layouts import AS_STATED
from perfmodel.software.engine import ENGINES, load_engine

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.model.layers import LayerSpec
    from perfmodel.model.spec import ModelSpec
    from perfmodel.software.engine import Engine


CLOSED, OPEN, OFFLINE, STATIC = "closed loop", "open loop", "offline", "static batch"
"""How requests come: so many at a time, at a rate, all at once, or as one batch."""

ROUNDS = 10.0
"""Requests that a client of a closed loop makes where a row states none: InferenceX asks for ten
times its concurrency (utils/benchmark_lib.sh), and so do the runs that aiconfigurator keeps."""

SPREAD = {"fused": 0.9, "prefill_first": 1.0}
"""Share of the longest from which on lengths are uniform where a row states none, by scheduler.
Such runs ask for one length. Clients do not come back at the same instant, so that answers spread
by some passes as if their lengths did; where prompts go first, who comes a little later joins the
same batch of prompts, and answers stay together. 0.9: of 0.98, 0.95, 0.9 and 0.8 the one with the
smallest mean error of the time to first token (1,482 rows: 46.3, 38.0, 35.8 and 36.2 %)."""

WHOLE_NUMBERS = (
    *("n_gpus", "pp", "isl", "osl", "batch"),
    *("prefill_workers", "prefill_tp", "prefill_ep", "prefill_attention_dp"),
    *("decode_workers", "decode_tp", "decode_ep", "decode_attention_dp"),
)
MEASUREMENTS = (
    *("tpot_ms", "ttft_ms", "itl_ms", "out_tok_s", "out_tok_s_gpu"),
    *("der_out_tok_s", "der_out_tok_s_gpu", "tok_s_user", "req_s", "total_tok_s"),
)
NUMBERS = (*MEASUREMENTS, "concurrency", "random_range_ratio", "num_prompts")
CROWDS = ((4, "1-4"), (32, "5-32"), (256, "33-256"))
LIMITS = (("max_num_tokens", "token_budget"), ("max_batch", "max_sequences"))
"""Columns that state an engine's limits -> fields of a deployment."""

LEAST_EXPERT_WIDTH = 128
"""Columns of an expert that a device has at least: weights in 8 and 4 bits are scaled by blocks of
that many (DeepSeek-V3's fp8), and tiles of products are as wide."""

# Words in column "attention_dp" where a degree may stand.
ON, OFF = ("true", "on", "yes"), ("false", "off", "no")
# Words about drafts in column "speculative" that mean none.
NOT_SPECULATIVE = ("", "no", "none", "false", "0", "off", "unknown")
_REQUESTS = re.compile(
    r"(\d[\d,]*)\s*(?:[\w-]+\s+)?(?:requests|prompts)|num[-_ ]prompts[ =:]*(\d+)"
)
_CONCURRENCY = re.compile(r"(?:concurrency|concurrent \w+)[ =:]*(\d+)|(\d+) (?:concurrent|clients)")
_OFFERED = re.compile(r"(\d+(?:\.\d+)?)\s*(?:req(?:uests)?/s|qps|rps)")
_MAX_BATCH = re.compile(r"max_(?:batch|num_seqs)\s*(\d+)")
_MAX_TOKENS = re.compile(r"max_num_(?:batched_)?tokens\s*(\d+)")
_SHARE = re.compile(r"mem(?:ory)?_fraction\s*(0\.\d+)")


@dataclass(frozen=True)
class ServedCase:
    """A row as a projection sees it.

    Attributes
    ----------
    model, hardware, engine
        What is served where, and by what.
    deployment, load : dict
        Fields of `perfmodel.base.served_fields`.
    arrival : str
        One of `CLOSED`, `OPEN`, `OFFLINE`, `STATIC`.
    batch : int
        Sequences of a static batch.
    requests : float
        Requests of the run; inf where nobody says.
    assumed, notes : tuple of str
        What the row leaves open, and how cells were read.
    """

    model: ModelSpec
    hardware: Hardware
    engine: Engine
    deployment: dict[str, Any]
    load: dict[str, float]
    arrival: str
    batch: int
    requests: float
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


def case_of(row: MeasuredRow) -> ServedCase:
    """Turn a row into what a projection needs.

    Raises
    ------
    Skip
        With the reason why it cannot be.
    """
    model, model_notes = served_model(row)
    hardware, hardware_notes = hardware_of(row)
    engine, engine_notes = engine_of(row)
    formats, assumed = formats_of(row, model)
    if row.lower("speculative").split(" (")[0] not in NOT_SPECULATIVE:
        raise Skip("drafts whose acceptance is not stated", row.text("speculative"))
    layout, layout_notes = layout_of(row, model, hardware)
    arrival, load, batch, requests = load_of(row, SPREAD[engine.scheduler])
    context = int(load["input_length"] + load["output_length"])
    recipe = recipe_of(row, engine, pools=apart(row), context=context)
    if recipe.facts:
        engine = load_engine(engine, **recipe.facts)
    if recipe.rounds and arrival == CLOSED and requests == math.inf:
        load["rounds"] = recipe.rounds
    if 0 < model.max_positions < context:
        model = replace(model, max_positions=context)
        model_notes = (*model_notes, "lengths beyond the context that the model states")
    degree = layout["tensor_parallel"]
    if engine.engine == "neuronx" and any(it % degree for it, _ in head_counts(model)):
        model = _whole_heads(model, degree)
        layout_notes = (*layout_notes, f"heads padded to multiples of {degree}")
    fields = {**layout, **formats, **recipe.fields, **_limits(row)}
    notes = (*model_notes, *hardware_notes, *engine_notes, *layout_notes, *recipe.notes)
    return ServedCase(
        model, hardware, engine, fields, load, arrival, batch, requests, assumed, notes
    )


def layout_of(
    row: MeasuredRow, model: ModelSpec, hardware: Hardware
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the degrees of a row's workers and their number, and notes.

    Raises
    ------
    Skip
        Degrees are not stated, or do not fit the devices.
    """
    notes: list[str] = []
    if apart(row):
        return _pools(row, model, notes), tuple(notes)
    tensor_parallel, pipeline = row.whole("tp") or 1, row.whole("pp") or 1
    devices = row.whole("n_gpus")
    if devices is None:
        raise Skip("number of devices not stated")
    devices, tensor_parallel = _chips(row, hardware, devices, tensor_parallel, pipeline, notes)
    ranks = _attention_ranks(row, model, tensor_parallel)
    inside = (
        ranks > 1 and tensor_parallel * pipeline <= devices < tensor_parallel * ranks * pipeline
    )
    if inside and tensor_parallel % ranks == 0:
        # Engines count attention data parallelism inside the tensor-parallel degree.
        tensor_parallel //= ranks
    share = tensor_parallel * ranks
    workers, rest = divmod(devices, share * pipeline)
    if rest or not workers:
        detail = f"{devices} devices, tp {tensor_parallel} × attention_dp {ranks} × pp {pipeline}"
        raise Skip("layout does not fit the devices", detail)
    experts = _experts(row, share * workers, notes) if model.has_experts else 1
    experts = _whole_experts(model, share, ranks, experts, notes)
    if experts > share and experts == share * workers:
        # Experts over all replicas: one worker, whose attention ranks they are.
        ranks, workers = ranks * workers, 1
        notes.append("replicas that share their experts are attention ranks of one worker")
    if (tensor_parallel * ranks) % experts:
        detail = f"ep {experts} on tp {tensor_parallel} × attention_dp {ranks}"
        raise Skip("layout does not fit the devices", detail)
    return {
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline,
        "expert_parallel": experts,
        "attention_data_parallel": ranks,
        "workers": workers,
    }, tuple(notes)


def _chips(
    row: MeasuredRow,
    hardware: Hardware,
    devices: int,
    tensor_parallel: int,
    pipeline: int,
    notes: list[str],
) -> tuple[int, int]:
    """Return devices and tensor parallelism in chips, where a table counts cores of either."""
    for beginning, counts in words("hardware")["cores_of"].items():
        if not hardware.name.startswith(beginning) or "halved" in " ".join(hardware.notes):
            continue
        per_node = hardware.system.devices_per_node
        cores = bool(re.search(r"(?<!\w)\d*\s*(?:neuron)?-?cores?\b", row.lower("hardware")))
        named = "xlarge" in row.lower("hardware") and devices > per_node
        for count in counts:
            if (cores or named) and devices % count == 0 and tensor_parallel % count == 0:
                notes.append(f"devices and tensor parallelism in cores, {count} a device")
                return devices // count, tensor_parallel // count
            chips = tensor_parallel // count
            inside = tensor_parallel % count == 0 and chips * pipeline <= devices
            if tensor_parallel * pipeline > devices and inside:
                notes.append(f"tensor parallelism in cores, {count} a device")
                return devices, chips
    return devices, tensor_parallel


def _whole_heads(model: ModelSpec, degree: int) -> ModelSpec:
    """Return a model with heads and widths that divide, as Neuron's compiler pads them."""

    def up(number: int) -> int:
        return -(-number // degree) * degree

    def padded(layer: LayerSpec) -> LayerSpec:
        mixers = tuple(
            replace(it, heads=up(it.heads), key_value_heads=up(it.key_value_heads))
            if isinstance(it, AttentionSpec) and it.kind != "mla"
            else it
            for it in layer.mixers
        )
        mlps = tuple(
            it if it.kind == "moe" else replace(it, intermediate_size=up(it.intermediate_size))
            for it in layer.mlps
        )
        return replace(layer, mixers=mixers, mlps=mlps)

    known = {layer: padded(layer) for layer in dict.fromkeys(model.layers)}
    return replace(model, layers=tuple(known[layer] for layer in model.layers))


def _pools(row: MeasuredRow, model: ModelSpec, notes: list[str]) -> dict[str, int]:
    """Return the layout of a row that states two pools."""
    found: dict[str, int] = {}
    devices = 0
    for pool, prefix in (("prefill", "prefill_"), ("decode", "")):
        workers, tensor_parallel = row.whole(f"{pool}_workers"), row.whole(f"{pool}_tp")
        if workers is None or tensor_parallel is None:
            raise Skip("workers of the pools not stated", f"column '{pool}_workers' or '{pool}_tp'")
        ranks = row.whole(f"{pool}_attention_dp") or 1
        pipeline = row.whole(f"{pool}_pp") or 1
        experts = row.whole(f"{pool}_ep") or 1
        if (tensor_parallel * ranks) % experts:
            detail = f"{pool}: ep {experts} on tp {tensor_parallel} × attention_dp {ranks}"
            raise Skip("layout does not fit the devices", detail)
        if model.has_experts:
            experts = _whole_experts(model, tensor_parallel * ranks, ranks, experts, notes)
        found |= {
            f"{prefix}workers": workers,
            f"{prefix}tensor_parallel": tensor_parallel,
            f"{prefix}attention_data_parallel": ranks,
            f"{prefix}pipeline_parallel": pipeline,
            f"{prefix}expert_parallel": experts,
        }
        devices += workers * tensor_parallel * ranks * pipeline
    stated = row.whole("n_gpus")
    if stated not in (None, devices):
        raise Skip("layout does not fit the devices", f"pools of {devices}, {stated} stated")
    return found


def apart(row: MeasuredRow) -> bool:
    """Tell whether prompts run on devices of their own."""
    return "disagg" in row.lower("mode") or row.whole("prefill_workers") is not None


def _attention_ranks(row: MeasuredRow, model: ModelSpec, tensor_parallel: int) -> int:
    """Return the attention-data-parallel degree, from a number or from words."""
    text = row.lower("attention_dp")
    said = f"{row.lower('notes')} {row.lower('ep')}"
    if text in ON or (not text and "attention dp" in said):
        return tensor_parallel
    if model.has_experts and any(heads % tensor_parallel for heads, _ in head_counts(model)):
        raise Skip("layout of attention not stated", f"heads do not divide by tp {tensor_parallel}")
    return 1 if text in OFF else row.whole("attention_dp") or 1


def _experts(row: MeasuredRow, devices: int, notes: list[str]) -> int:
    """Return the expert-parallel degree: all devices where words stand in its cell."""
    text = row.text("ep")
    if text and not text.replace(".", "").isdigit():
        notes.append(f"ep '{text}' is read as {devices}")
        return devices
    return row.whole("ep") or 1


def _whole_experts(
    model: ModelSpec, devices: int, ranks: int, degree: int, notes: list[str]
) -> int:
    """Return the degree at which experts can run: all devices where they would be cut too thin.

    Engines that spread attention over a rack move tokens to whole experts (DeepEP) and leave the
    degree unstated.
    """
    widths = {mlp.expert_intermediate_size for layer in model.layers for mlp in layer.mlps}
    inner, least = devices // degree, min(widths - {0}, default=0)
    thin = ranks > 1 and least < LEAST_EXPERT_WIDTH * inner
    if inner < 2 or not least or not (thin or least % inner):
        return degree
    notes.append(f"experts of width {least} are not cut over {inner} devices: ep {devices}")
    return devices


def _limits(row: MeasuredRow) -> dict[str, Any]:
    """Return limits of the engine that a row states, in columns or in words."""
    said = f"{row.lower('notes')}; {row.lower('mode')}"
    found: dict[str, Any] = {}
    for column, field in LIMITS:
        pattern = _MAX_TOKENS if column == "max_num_tokens" else _MAX_BATCH
        match = pattern.search(said)
        value = row.whole(column) or (int(match.group(1)) if match else None)
        if value is not None:
            found[field] = value
    if share := _SHARE.search(said):
        found["memory_share"] = float(share.group(1))
    return found


def load_of(row: MeasuredRow, spread: float = 1.0) -> tuple[str, dict[str, float], int, float]:
    """Return how requests come, the load, the size of a static batch and the number of requests.

    `spread` stands for a spread of lengths that the row does not state.

    Raises
    ------
    Skip
        Lengths, or how many requests run, are not stated.
    """
    mode = row.lower("mode")
    prompt, answer, batch = row.whole("isl"), row.whole("osl"), row.whole("batch")
    concurrency = row.positive("concurrency")
    offered = row.lower("offered_qps")
    if prompt is None or (answer is None and not (batch and row.number("ttft_ms"))):
        raise Skip("lengths of prompts or answers not stated")
    match = _REQUESTS.search(mode)
    counted = next(filter(None, match.groups())).replace(",", "") if match else "inf"
    requests = row.positive("num_prompts") or float(counted)
    if concurrency is None and not offered and (found := _CONCURRENCY.search(mode)):
        concurrency = float(next(filter(None, found.groups())))
    if concurrency is None and not offered and (found := _OFFERED.search(mode)):
        offered = found.group(1)
    load = {
        "input_length": prompt,
        "output_length": answer or 1,
        "length_spread": row.positive("random_range_ratio") or spread,
    }
    if batch is not None and ("static" in mode or (concurrency is None and not offered)):
        return STATIC, load, batch, requests
    if offered and offered not in ("inf", "infinity"):
        rate = row.positive("offered_qps") or float(offered)
        return OPEN, {**load, "arrival_rate": rate}, 0, requests
    if concurrency is not None:
        rounds = max(requests / concurrency, 1.0) if requests < math.inf else ROUNDS
        return CLOSED, {**load, "concurrency": concurrency, "rounds": rounds}, 0, requests
    if offered or "offline" in mode:
        if requests == math.inf:
            raise Skip("number of requests not stated")
        return OFFLINE, {**load, "concurrency": requests, "rounds": 0.0}, 0, requests
    raise Skip("neither concurrency nor rate stated")


def measured_value(row: MeasuredRow, metric: str) -> tuple[float, str]:
    """Return what was measured and which statistic it is.

    Returns
    -------
    value : float
        ``ttft`` and ``tpot`` [s]; ``throughput``, output tokens per second and device [1/s].
    statistic : str
        Variable of a projection that it is compared with, without ``_mean`` or ``_p50``.

    Raises
    ------
    Skip
        Nothing usable was measured.
    """
    if metric == "throughput":
        devices = row.whole("n_gpus")
        for column in ("out_tok_s_gpu", "der_out_tok_s_gpu"):
            if (value := row.positive(column)) is not None:
                return value, "tokens_per_second_per_device"
        for column in ("out_tok_s", "der_out_tok_s"):
            if (value := row.positive(column)) is not None and devices:
                return value / devices, "tokens_per_second_per_device"
        if devices and (value := _output_rate(row)):
            return value / devices, "tokens_per_second_per_device"
    elif metric == "ttft":
        if (value := row.positive("ttft_ms")) is not None:
            return value / 1e3, "time_to_first_token"
    else:
        if (value := row.positive("tpot_ms")) is not None:
            return value / 1e3, "time_per_output_token"
        if (value := row.positive("itl_ms")) is not None:
            return value / 1e3, "inter_token_latency"
        if (value := row.positive("tok_s_user")) is not None:
            return 1.0 / value, "time_per_output_token"
    raise Skip("no usable measurement", scorable=False)


def _output_rate(row: MeasuredRow) -> float:
    """Return output tokens per second from requests, or from tokens of both kinds; else 0."""
    prompt, answer = row.whole("isl") or 0, row.whole("osl") or 0
    if rate := row.positive("req_s"):
        return rate * answer
    both = row.positive("total_tok_s")
    return both * answer / (prompt + answer) if both and answer else 0.0


def derived(row: MeasuredRow) -> Mapping[str, str]:
    """Return columns to filter and group by: ``load``, ``pools``, ``architecture``, ``scale``."""
    try:
        arrival = load_of(row)[0]
    except Skip:
        arrival = ""
    try:
        architecture = "moe" if served_model(row)[0].has_experts else "dense"
    except Skip:
        architecture = ""
    concurrency = row.number("concurrency")
    crowd = next((name for limit, name in CROWDS if (concurrency or 0) <= limit), ">256")
    return {
        "load": arrival,
        "pools": "disaggregated" if apart(row) else "aggregated",
        "architecture": architecture,
        "crowd": "" if concurrency is None else crowd,
    }


# Dynamo's releases began with 0.1 in 2025 and stand in the place of TensorRT-LLM's in tables of
# its runs; TensorRT-LLM had left 0.x below this one then.
OLDEST_BESIDE_DYNAMO = (0, 18)
NARROW = ("nvfp4", "mxfp4", "mxfp8", "fp8_block", "fp8")
UNSTATED_CACHE = ("neuralmagic/", "redhatai/", "qwen/", "meta-llama/", "zai-org/")
"""Publishers whose checkpoints in eight bits state no format of the cache."""
_KV = re.compile(r"(fp8|bf16|fp16)[ _-]?kv", re.IGNORECASE)


def engine_of(row: MeasuredRow) -> tuple[Engine, tuple[str, ...]]:
    """Return the engine of a row in the release that it names, and notes.

    Raises
    ------
    Skip
        The engine is not stated or has no facts.
    """
    text = row.lower("engine")
    if not text:
        raise Skip("engine not stated")
    name = meaning(words("serving")["engine"], text)
    if not any(item.engine == name for item in ENGINES.values()):
        raise Skip("engine without facts", row.text("engine"))
    version = row.lower("version") or recipe_version(row)
    release = release_key(version)
    apart = bool(row.text("prefill_workers")) or "disagg" in row.lower("mode")
    dynamo = "dynamo" in text or (apart and name == "trtllm" and release < OLDEST_BESIDE_DYNAMO)
    notes: tuple[str, ...] = ()
    if dynamo and name == "trtllm" and release < OLDEST_BESIDE_DYNAMO:
        notes = (f"'{version}' is Dynamo's release: the engine's is taken by date",)
        version = ""
    month = "" if version and release else row.text("measured")[:7]
    return _loaded(name, version if release else "", month), notes


@lru_cache(maxsize=64)
def _loaded(name: str, version: str, month: str) -> Engine:
    """Return a release; where only the month of a run is known, the newest that was out."""
    if month:
        out = [it for it in ENGINES.values() if it.engine == name and it.released <= month]
        if out:
            return max(out, key=lambda item: item.released)
    return load_engine(name, version)


def formats_of(row: MeasuredRow, model: ModelSpec) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the formats of weights and cache, and what was assumed.

    Weights are as published where nothing else is stated, and so are products; fp8 means the
    maker's own checkpoint in fp8 where there is one (Qwen's is in blocks). Where a row does
    not state the format of the cache: checkpoints that ModelOpt made state fp8, the makers'
    own state nothing and are kept in 16 bits, whatever recipes of some runs ask for.

    Parameters
    ----------
    row : MeasuredRow
    model : ModelSpec

    Raises
    ------
    Skip
        A format that is not modelled.
    """
    text = " ".join((row.lower("precision"), row.lower("quantization"))).strip()
    weights = _format_in(text)
    if text and not weights:
        raise Skip("unknown precision", row.text("precision"))
    if not text:
        found = _format_in(row.lower("model"))
        weights = found if found in NARROW or found in ("int8", "int4") else AS_STATED
    published = () if model.quantization is None else model.quantization.places
    if weights in NARROW and any(
        place.format.bits < FORMATS[weights].bytes * 8 - 1 for place in published
    ):
        weights = AS_STATED  # products may be wider than the weights, which nobody widens
    if weights == "fp8" and not published:
        weights = _makers_fp8(model.name)
    formats = {"weight_precision": weights}
    if "matmult-bf16" in text:
        formats["activation_precision"] = "bf16"
    stated = row.lower("kv_precision") or "".join(_KV.findall(f"{text} {row.lower('notes')}")[:1])
    if stated:
        kept = meaning(words("serving")["cache"], stated)
        if not kept:
            raise Skip("unknown precision", f"kv_precision {row.text('kv_precision')}")
        return {**formats, "kv_precision": kept}, ()
    own = {name for place in published for name in (place.format.name, place.format.products)}
    # Engines take what a checkpoint states of its cache: those of ModelOpt fp8, makers' nothing.
    fp8 = weights == "nvfp4" or (weights in NARROW and weights not in own)
    fp8 |= weights == AS_STATED and "nvfp4" in own
    fp8 &= not row.lower("model").startswith(UNSTATED_CACHE)
    kept = "fp8" if fp8 else "fp16" if weights == "fp16" else "bf16"
    return {**formats, "kv_precision": kept}, (f"kv_precision={kept}",) if fp8 else ()


@lru_cache(maxsize=64)
def _makers_fp8(name: str) -> str:
    """Return the format of the fp8 checkpoint that a model's maker publishes beside the other."""
    if find_preset(name) is None:
        return "fp8"
    stated = load_model(f"{name}-fp8").quantization
    return "fp8" if stated is None else stated.places[0].format.products


def _format_in(text: str) -> str:
    return str(meaning(words("serving")["weights"], text))
