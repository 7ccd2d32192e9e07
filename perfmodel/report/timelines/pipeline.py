"""The passes of a pipeline alone, as tracks: what each stage works on, waits for, and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from perfmodel.report.timelines.step import PASSES
from perfmodel.training.timeline import PipelineTimeline
from perfmodel.workloads.formats.perfetto import Counter, Track


def pipeline_tracks(found: PipelineTimeline) -> Iterator[Track | Counter]:
    """Yield the tracks of every stage of a pipeline.

    Parameters
    ----------
    found : PipelineTimeline
        Of `perfmodel.training.timeline.pipeline_timeline`.
    """
    order, timeline = found.pipeline.order, found.timeline
    for stage, (first, behind) in enumerate(pairwise(order.first.tolist())):
        own = slice(first, behind)
        process, start, end = f"stage {stage}", timeline.start[own], timeline.end[own]
        chunks = np.flatnonzero(order.rank_of == stage).searchsorted(order.stage[own])
        named = zip(order.kind[own].tolist(), order.micro_batch[own].tolist(), strict=True)
        yield Track(
            process,
            "passes",
            [f"{PASSES[kind]} {micro_batch}" for kind, micro_batch in named],
            start,
            end - start,
            "pass",
            {"micro-batch": order.micro_batch[own], "chunk": chunks},
        )
        begin = np.concatenate(([0.0], end))
        waits = np.concatenate((start, [found.makespan])) - begin
        idle = np.flatnonzero(waits > 4.0 * np.spacing(found.makespan))
        if idle.size:
            names = ["waits or sends"] * idle.size
            yield Track(process, "between passes", names, begin[idle], waits[idle], "wait")
        yield Counter(process, "kept [B]", found.kept_from[own], {"kept": found.kept[own]})
