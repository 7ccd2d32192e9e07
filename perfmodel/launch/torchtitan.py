"""torchtitan's job configuration (TOML), written and read.

Tables, keys and defaults are those of ``torchtitan/config/job_config.py`` of torchtitan v0.2
(pytorch/torchtitan, 2025; since 2026 jobs are configured in Python under the same names); checks
are those of ``torchtitan/distributed/parallel_dims.py`` and ``pipeline_parallel.py``. Parameters
are sharded by FSDP2 over the shard × context ranks (ZeRO 3; without resharding after the forward
pass ZeRO 2) and replicated over the replicate ranks. Tensor parallelism always shards the sequence.
Context parallelism passes keys and values on by an all-to-all of neighbours, which is a ring, or
gathers them. Stages of pipelines are cut as ``generate_llm_fqn_per_model_part`` and
``pipeline_module_split`` do, or by lists of modules; names of schedules, alike in either case, are
those of ``torch.distributed.pipelining`` (``get_schedule_class``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import Entry
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.launch.describe import Launch, has_experts, known_as
from perfmodel.launch.reading import DEGREES, finished, read_offload
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.stages import layout_of, layout_text, stated_split, torch_group
from perfmodel.launch.table import load_program
from perfmodel.launch.text import launcher, noted, parse_arguments, parse_toml
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.training.layout import Layout

PROGRAM = load_program("torchtitan")
FLAVORS: Mapping[tuple[str, str], str] = {
    (name, flavor): preset
    for name, flavors in PROGRAM.own["flavors"].items()
    for flavor, preset in flavors.items()
}
"""Name and flavor of a model -> preset."""

_SHARD = "parallelism.data_parallel_shard_degree"
_REPLICATE = "parallelism.data_parallel_replicate_degree"
_DEGREES = (
    _REPLICATE,
    "parallelism.tensor_parallel_degree",
    "parallelism.context_parallel_degree",
    "parallelism.pipeline_parallel_degree",
)
_MICRO = "parallelism.pipeline_parallel_microbatch_size"
_LOCAL = "training.local_batch_size"
_GLOBAL = "training.global_batch_size"
_EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"
_RESHARD = "parallelism.fsdp_reshard_after_forward"
_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
_PRESET_OF = re.compile(r"^#.*\bpreset for (\d{1,7}) [\w ]*GPUs?\b", re.MULTILINE)
# Keys of [parallelism] that are known and change no time.
OTHERS = ("enable_sequence_parallel",)

SCHEDULE = "parallelism.pipeline_parallel_schedule"
NAMES: Mapping[str, str] = {
    item.value: item.keys[SCHEDULE] for item in PROGRAM.choice("pipeline_schedule").spellings
}
"""Schedule -> its class in torch."""
TABLES = {"pipelineschedulesingle": "1F1B", "pipelineschedulemulti": "Interleaved1F1B"}
"""Classes that run a table, in small letters -> what stands in for it."""
SINGLE = ("1f1b", "gpipe")
"""Schedules of one stage a rank; others have two at least (``PipelineScheduleMulti``)."""

LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
PARTS = "parallelism.module_fqns_per_model_part"
POINTS = "parallelism.pipeline_parallel_split_points"
WEIGHTS = (
    "parallelism.pipeline_parallel_first_stage_less_layers",
    "parallelism.pipeline_parallel_last_stage_less_layers",
)
EMBEDDINGS, OUTPUTS = ("tok_embeddings", "embed_tokens"), ("output", "lm_head")
_LAYER = re.compile(r"layers\.(\d{1,6})")
FEWEST = 2


def _recompute_keys(launch: Launch) -> Keys:
    """Return what selective recomputation is of: operations, or every so many-th layer."""
    if launch["recompute"] == "selective":
        return {_OPTION: "op"}
    if launch["recompute_method"] != "every":
        return {}
    return {_MODE: "selective", _OPTION: str(launch["recompute_num_layers"])}


def _read_layers(settings: Settings, level: str) -> Keys:
    """Return which layers are recomputed whole, where that is every so many-th.

    Raises
    ------
    FormatError
        The option is neither ``op`` nor a number of layers.
    """
    option = settings.word(_OPTION, "op")
    if level != "selective" or option == "op":
        return {}
    layers = settings.whole(_OPTION)
    return {"recompute": "full", "recompute_method": "every", "recompute_num_layers": layers}


def keys_of(launch: Launch) -> Keys:
    """Return all keys that say what a launch is, as dotted paths."""
    keys: Keys = {}
    if launch.model is not None and launch.model.mtp_layers:
        raise StrategyError(
            f"{PROGRAM.title} cannot do {launch.model.name}: modules that predict more tokens; "
            "it trains models without them (--mtp none)"
        )
    flavor = known_as(launch.model, FLAVORS)
    if flavor is not None:
        keys = {"model.name": flavor[0], "model.flavor": flavor[1]}
    table = PROGRAM.write(launch) | _recompute_keys(launch)
    pipeline = launch["pipeline_parallel"] > 1
    each = launch["global_batch_size"] // launch["data_parallel"]
    keys["training.seq_len"] = table.pop("training.seq_len")
    keys[_LOCAL] = each if pipeline else launch["micro_batch_size"]
    keys[_GLOBAL] = launch["global_batch_size"]
    shard = launch.shard_degree
    keys[_REPLICATE] = launch["data_parallel"] // shard
    keys[_SHARD] = shard
    keys |= table
    if pipeline:
        keys[_MICRO] = launch["micro_batch_size"]
        keys |= stage_keys(launch)
    if launch.experts:
        keys[_EXPERT_TENSOR] = launch["expert_tensor_parallel"]
    else:
        del keys["parallelism.expert_parallel_degree"]
    keys |= PROGRAM.write_software(launch)
    keys["training.mixed_precision_reduce"] = "float32"
    order = ("model", "training", "parallelism", "activation_checkpoint", "compile", "quantize")
    return dict(sorted(keys.items(), key=lambda item: order.index(item[0].partition(".")[0])))


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    if known_as(launch.model, FLAVORS) is not None:
        return []
    known = ", ".join(f"{name} {flavor}" for name, flavor in FLAVORS)
    name = launch.model.name if launch.model is not None else "this model"
    return [
        f"torchtitan has no flavor of {name} (it has {known}): register one, and name it in [model]"
    ]


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what a job configuration, or words such as ``--training.seq_len 8192``, say.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    if "--parallelism." in text or "--training." in text:
        words = parse_arguments(text, path)
        entries = {key.replace("-", "_"): entry for key, entry in words.entries.items()}
        settings = Settings(path, entries, "--")
    else:
        settings = parse_toml(text, path)
    settings.typed, settings.model = typed, noted(text).get("model", "")
    found, per_node = launcher(text)
    preset = _PRESET_OF.search(text)
    if not found and "devices" not in typed and preset:
        found = int(preset[1])
        settings.remark(f"{found} devices, as its first comment says it is meant for")
    return launch_of(settings, typed.get("devices", found), per_node)


def launch_of(settings: Settings, devices: int, per_node: int = 0) -> Launch:
    """Return what the keys of a job configuration say."""
    _old_names(settings)
    name_schedule(settings)
    strategy, _ = PROGRAM.read(settings, ("zero_stage",))
    strategy |= _read_layers(settings, strategy["recompute"])
    strategy["sequence_parallel"] = strategy["tensor_parallel"] > 1
    model = _read_model(settings)
    _read_replicas(settings, strategy, devices)
    _read_sharding(settings, strategy)
    _read_batches(settings, strategy)
    facts = read_stages(settings, strategy, model, settings.whole(_LOCAL, 8))
    inner = strategy["tensor_parallel"] if has_experts(model) else 1
    if strategy["expert_parallel"] > 1:
        inner = 1
    strategy["expert_tensor_parallel"] = settings.whole(_EXPERT_TENSOR, inner)
    product = 1
    for name in ("data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel"):
        product *= strategy.get(name, 1)
    known = "data_parallel" in strategy
    strategy |= read_offload(settings, PROGRAM.offloaded)
    return finished(
        settings,
        strategy,
        facts,
        model,
        PROGRAM,
        devices=product if known else 0,
        devices_per_node=per_node,
        closed={"parallelism.": OTHERS},
    )


def _old_names(settings: Settings) -> None:
    """Put today's names in place of those of earlier versions."""
    for old, new in PROGRAM.own["old_names"].items():
        settings.rename(old, new)
    for key in ("training.enable_float8_linear", "float8.enable_float8_linear"):  # up to 2025-01
        if settings.flag(key) and "model.converters" not in settings.entries:
            line = settings.entries[key].line
            settings.entries["model.converters"] = Entry(["float8"], line)
    converters = settings.entries.get("model.converters")
    if converters is not None and not isinstance(converters.value, list):
        words = settings.word("model.converters").replace("[", "").replace("]", "")
        listed = [word.strip(" \"'") for word in words.split(",") if word.strip(" \"'")]
        settings.entries["model.converters"] = Entry(listed, converters.line)


def _read_model(settings: Settings) -> ModelSpec | None:
    name, flavor = settings.word("model.name", ""), settings.word("model.flavor", "")
    preset = FLAVORS.get((name, flavor)) or find_preset(settings.model)
    if preset is None and name:
        settings.remark(f"model '{name}' '{flavor}' is not known here; --model names one")
    return replace(load_model(preset, mtp="stated"), mtp_layers=()) if preset else None


def _read_replicas(settings: Settings, strategy: Keys, devices: int) -> None:
    """Read the degrees of data parallelism; one of them may be what is left."""
    replicate = settings.whole(_REPLICATE, 1)
    stated = settings.stated(_SHARD)
    if settings.asked_of({*DEGREES, "devices"}):
        stated = -1  # what was typed leaves another share
    if stated in (-1, "-1", None):
        settings.entries.pop(_SHARD, None)
        product = replicate * strategy["tensor_parallel"] * strategy["context_parallel"]
        product *= strategy["pipeline_parallel"]
        if not devices:
            settings.remark(
                f"{_SHARD} is what is left of the devices, and the file does not say how many "
                "there are"
            )
            if replicate > 1:
                raise FormatError(
                    f"{settings.path}: {_SHARD} is needed beside {_REPLICATE} {replicate}"
                )
            return
        if devices % product:
            raise settings.contradiction(
                f"{devices} devices: should be a multiple of the degrees' product {product}",
                *(key for key in _DEGREES if settings.whole(key, 1) > 1),
            )
        shard = devices // product
    else:
        shard = settings.whole(_SHARD)
        product = replicate * shard * math.prod(settings.whole(key, 1) for key in _DEGREES[1:])
        if devices and devices != product:
            raise settings.contradiction(
                f"{devices} devices: the degrees' product {product} should be as many",
                _SHARD,
                *(key for key in _DEGREES if settings.whole(key, 1) > 1),
            )
    strategy["data_parallel"] = replicate * shard
    if replicate > 1:
        strategy["shard_group"] = shard * strategy["context_parallel"]


def _read_sharding(settings: Settings, strategy: Keys) -> None:
    """Read the ZeRO stage: of FSDP by what it keeps after the forward pass, of DDP 0."""
    words = {"always": 3, "never": 2, "default": 2 if strategy["pipeline_parallel"] > 1 else 3}
    word = settings.word(_RESHARD, "default")
    if word not in words:
        raise settings.wrong(_RESHARD, f"one of {', '.join(words)}")
    strategy["zero_stage"] = words[word]
    if strategy.get("shard_group") == 1:
        strategy["zero_stage"], strategy["shard_group"] = 0, 0


def _read_batches(settings: Settings, strategy: Keys) -> None:
    """Read micro- and global batch, which depend on whether there is a pipeline."""
    pipeline = strategy["pipeline_parallel"] > 1
    typed = settings.typed
    if "micro_batch_size" in typed:
        settings.put({_MICRO if pipeline else _LOCAL: typed["micro_batch_size"]})
    if "global_batch_size" in typed:
        settings.put({_GLOBAL: typed["global_batch_size"]})
    local = settings.whole(_LOCAL, 8)
    settings.fields |= {"micro_batch_size": _LOCAL, "global_batch_size": _GLOBAL}
    stated = settings.stated(_GLOBAL)
    replicas = strategy.get("data_parallel")
    if stated in (-1, "-1", None):
        settings.entries.pop(_GLOBAL, None)
        if replicas is not None:
            strategy["global_batch_size"] = local * replicas
    else:
        strategy["global_batch_size"] = settings.whole(_GLOBAL)
    if not pipeline:
        strategy["micro_batch_size"] = local
        return
    strategy["micro_batch_size"] = settings.whole(_MICRO, 1)
    total = strategy.get("global_batch_size", 0)
    if replicas is not None and total != local * replicas:
        settings.remark(
            f"{_LOCAL} {local}: the pipeline runs {total // (local * replicas)} times a step; "
            "projected as once over all micro-batches"
        )


def usual_layers(layers: int, stages: int, first: int, last: int) -> list[int] | None:
    """Return the layers of each stage as torchtitan cuts a model; None where it does not.

    `first` and `last` are the layers that embedding and output count as.
    """
    size, extra = divmod(layers + first + last, stages)
    if size < max(first, last, 1):
        return None
    sizes = [size + (stage < extra) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return sizes


def stage_keys(launch: Launch) -> Keys:
    """Return how a pipeline's stages are cut: by torchtitan's own rule where that does it."""
    layout, model = layout_of(launch), launch.model
    if layout is None or model is None:
        return {}
    chunks, virtual = len(layout.layers), launch["virtual_pipeline"]
    if (layout.embedding, layout.output) == (0, chunks - 1):
        for weight in (1, 0):
            counted = model.num_layers + 2 * weight
            size = math.ceil(counted / chunks)
            keys = {} if weight else dict.fromkeys(WEIGHTS, 0)
            if usual_layers(model.num_layers, chunks, weight, weight) != list(layout.layers):
                continue
            if virtual > 1 and math.ceil(counted / size) == chunks:
                return {**keys, LAYERS: size}
            if virtual <= FEWEST:  # its own number of stages
                return keys
    return {PARTS: _modules(layout)}


def _modules(layout: Layout) -> list[list[str]]:
    """Return the names of the modules of each part of a model."""
    parts, layer = [], 0
    for size in layout.layers:
        parts.append([f"layers.{number}" for number in range(layer, layer + size)])
        layer += size
    parts[layout.embedding].insert(0, EMBEDDINGS[0])
    parts[layout.output] += ["norm", OUTPUTS[0]]
    return parts


def name_schedule(settings: Settings) -> None:
    """Put the usual spelling of a schedule's name, whose case does not matter.

    Of a schedule that only a table says, the one with as many stages a rank.
    """
    entry = settings.entries.get(SCHEDULE)
    if entry is None:
        return
    names = {name.lower(): name for name in NAMES.values()} | TABLES
    stated = settings.word(SCHEDULE)
    known = names.get(stated.lower())
    if known is None:
        return
    settings.entries[SCHEDULE] = entry._replace(value=known)
    if stated.lower() in TABLES:
        settings.remark(
            f"{SCHEDULE} {stated}: projected as {known} unless --schedule-file takes its table"
        )


def read_stages(settings: Settings, strategy: Keys, model: ModelSpec | None, local: int) -> Keys:
    """Put chunks and groups into a strategy, and return the facts that its stages are.

    Parameters
    ----------
    settings : Settings
    strategy : dict
        With degrees, micro-batch size and schedule.
    model : ModelSpec or None
    local : int
        Sequences of a rank that pass the pipeline at a time.

    Raises
    ------
    FormatError
        Stages don't add up, or the schedule has others; names the key and its line.
    """
    pipeline, schedule = strategy["pipeline_parallel"], strategy["pipeline_schedule"]
    first, last = (settings.whole(key, 1, 0) for key in WEIGHTS)
    size = settings.whole(LAYERS) if LAYERS in settings else 0
    parts, points = settings.stated(PARTS), settings.stated(POINTS)
    strategy["virtual_pipeline"] = 1
    if pipeline == 1:
        strategy["pipeline_schedule"] = "1f1b"
        return {}
    if schedule == "interleaved":
        group = torch_group(local // strategy["micro_batch_size"], pipeline)
        strategy["micro_batch_group"] = 0 if group == pipeline else group
    single = schedule in SINGLE
    if parts:
        layout = _layout_of_parts(settings, parts)
        virtual = _chunks(settings, PARTS, schedule, len(layout.layers), pipeline)
        strategy["virtual_pipeline"] = virtual
        return stated_split(settings, PARTS, layout_text(layout), model, pipeline, virtual)
    if points:
        starts = _starts(settings, points, model)
        virtual = _chunks(settings, POINTS, schedule, len(starts), pipeline)
        strategy["virtual_pipeline"] = virtual
        if model is None:
            settings.remark(f"{POINTS}: without the model its stages are taken as even")
            return {}
        ends = [*starts[1:], model.num_layers]
        text = ",".join(str(end - start) for start, end in zip(starts, ends, strict=True))
        return stated_split(settings, POINTS, text, model, pipeline, virtual)
    virtual = 1 if single else FEWEST  # torchtitan's own where nothing is said
    if size and model is None and not single:
        settings.remark(f"{LAYERS} {size}: without the model its stages are taken as 2 a rank")
    elif size and model is not None and not single:
        stages = math.ceil((model.num_layers + first + last) / size)
        if stages % pipeline or not _fits(schedule, stages // pipeline):
            raise settings.wrong(
                LAYERS,
                f"such that {model.num_layers + first + last} layers make a multiple of "
                f"{pipeline} stages, {_offered(schedule)}",
            )
        virtual = stages // pipeline
    strategy["virtual_pipeline"] = virtual
    sizes = model and usual_layers(model.num_layers, pipeline * virtual, first, last)
    if not sizes:
        return {}
    key = next((key for key in (LAYERS, *WEIGHTS) if key in settings.entries), SCHEDULE)
    return stated_split(settings, key, ",".join(map(str, sizes)), model, pipeline, virtual)


def _fits(schedule: str, chunks: int) -> bool:
    if schedule in SINGLE:
        return chunks == 1
    return chunks >= FEWEST and (SCHEDULE_FACTS[schedule].chunk_step > 0 or chunks == FEWEST)


def _offered(schedule: str) -> str:
    if schedule in SINGLE:
        return "one a rank"
    return "two a rank" + (" at least" if SCHEDULE_FACTS[schedule].chunk_step else "")


def _chunks(settings: Settings, key: str, schedule: str, parts: int, pipeline: int) -> int:
    """Return the stages of a rank."""
    if parts % pipeline or not _fits(schedule, parts // pipeline):
        expected = f"a multiple of {pipeline} stages, {_offered(schedule)}; it makes {parts}"
        raise settings.wrong(key, expected)
    return parts // pipeline


def _layout_of_parts(settings: Settings, parts: Any) -> Layout:
    """Return the layout of lists of module names, all layers in their order."""
    stated = parts if isinstance(parts, list) else []
    lists = [part if isinstance(part, list) else [part] for part in stated]
    layers = [
        [int(found[1]) for x in part if (found := _LAYER.fullmatch(str(x)))] for part in lists
    ]
    others = {str(x) for part in lists for x in part if not _LAYER.fullmatch(str(x))}
    if not lists or others - {*EMBEDDINGS, *OUTPUTS, "norm"}:
        raise settings.wrong(PARTS, "lists of modules such as tok_embeddings, layers.0, norm")
    if [number for part in layers for number in part] != list(range(sum(map(len, layers)))):
        raise settings.wrong(PARTS, "all layers, each once and in order")

    def place(names: tuple[str, ...], default: int) -> int:
        return next((i for i, part in enumerate(lists) if set(names) & set(part)), default)

    last = len(lists) - 1
    output = place(OUTPUTS, last)
    return Layout(tuple(map(len, layers)), place(EMBEDDINGS, 0), output, output)


def _starts(settings: Settings, points: Any, model: ModelSpec | None) -> list[int]:
    """Return the first layer of each stage that begins at a module; "norm" is behind all layers."""
    names = points if isinstance(points, list) else str(points).split(",")
    starts, end = [0], model.num_layers if model is not None else 10**6
    for name in names:
        found = _LAYER.fullmatch(str(name).strip())
        starts.append(int(found[1]) if found else end)
        if not found and str(name).strip() not in ("norm", *OUTPUTS):
            raise settings.wrong(POINTS, "modules at which stages begin, such as layers.8")
    if starts != sorted(starts) or starts[-1] > end:
        raise settings.wrong(POINTS, f"layers in order, up to the model's {end}")
    return starts
