"""What a row of a table of measured training runs leaves open, and what was likely chosen.

A cell that is empty was not random: software has defaults, and so have its recipes. Where the
software states what such a run means (`Framework`), that is taken; else whoever published the run
took what fits in memory and is fast, but no larger a micro-batch than pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework

LARGEST_MICRO_BATCH = 64
RECOMPUTE_LEVELS = ("none", "selective", "full")
MICRO_BATCHES_PER_STAGE = 8
"""Micro-batches per pipeline stage and replica where no batch is stated: the median of our tables
of Megatron's stack (NeMo, Megatron-LM, Primus, bigscience), with a pipeline and without."""
LARGER_WITH_EXPERTS = 2
"""Chunks of layers with experts have as many times the layers: of Megatron-Bridge's recipes (v0.2
to v0.6) of DeepSeek-V3 and Kimi-K2 with a pipeline, 297 of 366 have 4 layers a chunk."""
NEARLY_FASTEST = 0.05
"""A larger micro-batch that brings no more than this is not taken. Among 430 runs that state
theirs, hidden and chosen again, 4 to 6 % finds most: of NVIDIA's recipes 75 to 100 %, where the
fastest is found in 40 to 75 %."""


def micro_batches(row: MeasuredRow, framework: Framework, fixed: Mapping[str, Any]) -> list[int]:
    """Return the sizes that a row admits: the stated one, the software's, or powers of two."""
    per_replica = fixed["global_batch_size"] // fixed["data_parallel"]
    if not framework.accumulates_gradients and fixed["pipeline_parallel"] == 1:
        return [max(per_replica, 1)]
    if (stated := row.whole("mbs")) is not None:
        return [stated]
    usual = framework.micro_batches_per_stage * fixed["pipeline_parallel"]
    if fixed["pipeline_parallel"] > 1 and usual and per_replica % usual == 0:
        return [per_replica // usual]
    doublings = [2**i for i in range(LARGEST_MICRO_BATCH.bit_length())]
    return [n for n in doublings if per_replica % n == 0] or [1]


def assumed_batch(row: MeasuredRow, framework: Framework, pipeline: int, replicas: int) -> int:
    """Return a likely global batch where only a throughput is stated.

    Software that shards parameters, or does not accumulate, runs a replica's sequences at once;
    other software runs `MICRO_BATCHES_PER_STAGE`.
    """
    at_once = framework.zero_stage == 3 or not framework.accumulates_gradients
    usual = framework.micro_batches_per_stage or MICRO_BATCHES_PER_STAGE
    count = pipeline * (1 if at_once and pipeline == 1 else usual)
    return (row.whole("mbs") or 1) * count * replicas


def expert_degree(framework: Framework, experts: int, ranks: int, expert_tensor: int) -> int:
    """Return the likely expert-parallel degree of a run that states none: it fills its ranks.

    Parameters
    ----------
    framework : Framework
        Software that has no such ranks, or none unless asked, keeps every expert on each rank.
    experts : int
    ranks : int
        Of a pipeline stage, or of a set of shards.
    expert_tensor : int
        Expert-tensor degree.
    """
    if framework.software in words("training")["whole_experts"]:
        return 1
    return gcd(experts, max(ranks // expert_tensor, 1))


USUAL_SCHEDULES = ("", "1f1b", "1f1b-interleaved", "interleaved", "gpipe")
"""Those that the number of chunks tells apart well enough."""


def schedule_of(row: MeasuredRow) -> str:
    """Return the schedule that a row names; empty where chunks and stages say it all.

    Raises
    ------
    Skip
        There is no such schedule.
    """
    written = row.lower("pp_schedule") or meaning(
        words("training")["software_schedules"], row.lower("framework")
    )
    if written in USUAL_SCHEDULES:
        return ""
    spelled = words("training")["schedules"]
    name = spelled.get(written.replace("-", ""), written.replace("-", "_"))
    if name not in SCHEDULE_FACTS:
        raise Skip("schedule not modelled", row.text("pp_schedule"))
    return name


def virtual_chunks(
    row: MeasuredRow, framework: Framework, model: ModelSpec, pipeline: int, schedule: str = ""
) -> list[int]:
    """Return the chunks per stage that a row admits, the likeliest first.

    Parameters
    ----------
    row : MeasuredRow
        ``>1``, or notes that say ``interleaving not in …``, leave the number open.
    framework : Framework
        Says how many layers a chunk usually has. Where it has no such default and the row says that
        there are chunks: two, what torch.distributed.pipelining's users set by default.
    model : ModelSpec
    pipeline : int
    schedule : str
        Of `schedule_of`; most that have a name of their own have one number of chunks.
    """
    text = row.text("vpp")
    if schedule and pipeline > 1:
        fewest = SCHEDULE_FACTS[schedule].fewest_chunks
        more = SCHEDULE_FACTS[schedule].chunk_step > 0
        return [max(row.whole("vpp") or 1, fewest) if more else fewest]
    more = text.startswith(">")
    said = more or (not text and "interleaving not in" in row.lower("notes"))
    layers = framework.layers_per_chunk
    if not said and (text or not layers):
        return [row.whole("vpp") or 1]
    if pipeline == 1:
        return [1]
    if not layers:
        return [2, 1]
    layers *= LARGER_WITH_EXPERTS if model.has_experts else 1
    return [max(likely_chunks(model.num_layers, pipeline, layers), 2 if more else 1), 1]


def grouped(candidate: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate with micro-batches in groups as an interleaved run has to have had them.

    A run whose micro-batches are no multiple of its stages took more than those through a chunk
    before the next (Megatron-Core, --microbatch-group-size-per-virtual-pipeline-stage): the fewest
    that are possible.
    """
    stages, chunks = candidate["pipeline_parallel"], candidate["virtual_pipeline"]
    at_once = candidate["data_parallel"] * candidate["micro_batch_size"]
    count, rest = divmod(candidate["global_batch_size"], at_once)
    if rest or chunks == 1 or "pipeline_schedule" in candidate or count % stages == 0:
        return candidate
    groups = range(stages + 1, count + 1)
    group = next((n for n in groups if count % n == 0 or count % n >= stages), 0)
    return {**candidate, "micro_batch_group": group} if group else candidate


def likely_chunks(layers: int, pipeline: int, per_chunk: int) -> int:
    """Return chunks per stage that come nearest to so many layers each.

    Chunks are equal where embedding, output and a prediction module count as layers or not:
    126 layers on 8 stages are cut like 128.
    """
    ways = {
        n
        for counted in range(layers, layers + 4)
        for n in range(1, counted // pipeline + 1)
        if counted % (pipeline * n) == 0
    }
    return min(ways or {1}, key=lambda n: abs(np.log(layers / (pipeline * n * per_chunk))))


def likeliest(
    candidates: list[dict[str, Any]],
    fitting: NDArray[np.intp],
    step_time: NDArray[np.float64],
) -> int:
    """Return the candidate that was likely run among those that fit in memory.

    The first number of chunks that is possible; with the least recomputation, for nobody
    recomputes more than memory asks for; then the fastest where parameters are gathered for every
    micro-batch (ZeRO 3: a larger one saves traffic), else the smallest micro-batch that is nearly
    as fast.

    Parameters
    ----------
    candidates : list of dict
    fitting : array of int
        Positions of those that fit.
    step_time : array of float
        Of every candidate.
    """
    first = candidates[int(fitting[0])]["virtual_pipeline"]
    same = [i for i in fitting if candidates[i]["virtual_pipeline"] == first]
    levels = [RECOMPUTE_LEVELS.index(candidates[i]["recompute"]) for i in same]
    same = [i for i, level in zip(same, levels, strict=True) if level == min(levels)]
    times = step_time[same]
    within = 0.0 if candidates[same[0]]["zero_stage"] == 3 else NEARLY_FASTEST
    near = [i for i in same if step_time[i] <= times.min() * (1.0 + within)]
    return int(min(near, key=lambda i: (candidates[i]["micro_batch_size"], step_time[i])))
