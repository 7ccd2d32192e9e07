"""What a row of a table of measured training runs leaves open, and what was likely chosen.

A cell that is empty was not random: software has defaults, and so have its recipes. What cells
and notes leave open has likely values by the rules of all commands (`perfmodel.strategy.defaults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import Framework
from perfmodel.strategy import defaults


def micro_batches(row: MeasuredRow, framework: Framework, fixed: Mapping[str, Any]) -> list[int]:
    """Return the sizes that a row admits: the stated one, or likely ones."""
    per_replica = fixed["global_batch_size"] // fixed["data_parallel"]
    pipeline = fixed["pipeline_parallel"]
    stated = row.whole("mbs")
    if stated is not None and (framework.accumulates_gradients or pipeline > 1):
        return [stated]
    return defaults.micro_batches(framework, per_replica, pipeline, fixed["zero_stage"])


def assumed_batch(row: MeasuredRow, framework: Framework, pipeline: int, replicas: int) -> int:
    """Return a likely global batch where only a throughput is stated.

    Software that shards parameters, or does not accumulate, runs a replica's sequences at once;
    other software runs as many as tables of Megatron's stack have in the median (``defaults.csv``).
    """
    at_once = framework.zero_stage == 3 or not framework.accumulates_gradients
    usual = framework.micro_batches_per_stage or int(defaults.LIKELY["micro_batches_per_stage"])
    count = pipeline * (1 if at_once and pipeline == 1 else usual)
    return (row.whole("mbs") or 1) * count * replicas


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
    likely = defaults.chunks_of_stage(framework, model, pipeline)[0]
    return [max(likely, 2 if more else 1), 1]


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
