"""Stages of torchtitan's pipelines: how it cuts models by itself, and lists of modules, both ways.

Of ``torchtitan/distributed/pipeline_parallel.py`` of v0.2 (``generate_llm_fqn_per_model_part``,
``pipeline_module_split``); schedules are those of ``torch.distributed.pipelining``
(``get_schedule_class``), whose names are alike in either case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.launch.describe import Launch
from perfmodel.launch.settings import Keys, Limit, Settings
from perfmodel.launch.stages import layout_of, layout_text, stated_split
from perfmodel.model.build import ModelSpec
from perfmodel.training.layout import Layout

SCHEDULE = "parallelism.pipeline_parallel_schedule"
NAMES: Mapping[str, str] = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
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


def torch_group(micro_batches: int, stages: int) -> int:
    """Return the micro-batches that pass one chunk before the next (`ScheduleInterleaved1F1B`)."""
    return micro_batches // max(micro_batches // stages, 1)


def _other_group(launch: Launch) -> bool:
    stages = launch["pipeline_parallel"]
    group = launch["micro_batch_group"] or stages
    interleaved = launch["pipeline_schedule"] == "interleaved"
    return interleaved and bool(group != torch_group(launch.micro_batches, stages))


LIMITS = (
    Limit(
        ("micro_batch_group",),
        _other_group,
        "its groups are the rounds of as many micro-batches as stages, or a little more",
    ),
    Limit(
        ("pipeline_schedule", "virtual_pipeline"),
        lambda launch: (
            launch["pipeline_parallel"] > 1
            and launch["pipeline_schedule"] not in SINGLE
            and launch["virtual_pipeline"] < FEWEST
        ),
        "such a schedule has two stages a rank at least",
    ),
)


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
