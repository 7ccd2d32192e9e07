"""Replay of a trace of requests on a deployment, pass by pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, StrategyError, did_you_mean
from perfmodel.serving.requests import RequestTrace

if TYPE_CHECKING:
    from perfmodel.kernels.serving.replay import Prompts
    from perfmodel.kernels.serving.tables import Deployments, PassTables

DISPATCHES = ("least_loaded", "round_robin")
MOST_REQUESTS = 2**26
"""Requests of a trace, whose numbers share 64 bits with those of passes."""
MOST_NEIGHBOURS = 2**28
"""Distinct blocks of prompts times caches that are kept track of (6 GB)."""


@dataclass(frozen=True)
class Replay:
    """What became of the requests of a trace.

    Attributes
    ----------
    columns : dict of str to ndarray of float64, shape (request,)
        ``time_to_first_token``, ``time_per_output_token`` (NaN for answers of one token),
        ``finish_time`` (counted as arrivals are) and ``queue_time`` [s], ``cached_tokens`` of its
        prompt, and the ``rank`` (with pipeline stages the batch) that ran it.
    summary : dict of str to float
        The variables of an operating point, by the names of
        `perfmodel.kernels.serving.tables.ROWS`, over all requests.
    passes : tuple of ndarray of float64, shape (LOG, entries)
        Of every batch under way, where they were asked for: rows as of
        `perfmodel.kernels.serving.rank.LOG`.
    """

    columns: Mapping[str, Floats]
    summary: Mapping[str, float]
    passes: tuple[Floats, ...] = ()


def requests_work(requests: float, closed: bool) -> dict[str, float]:
    """Return what replaying some requests is to `perfmodel.kernels.work`, by who sends them."""
    return {"client_requests" if closed else "served_requests": float(requests)}


def replay_trace(
    tables: PassTables,
    deployments: Deployments,
    trace: RequestTrace,
    *,
    deployment: int = 0,
    dispatch: str = "least_loaded",
    cached: bool = True,
    concurrency: int | None = None,
    entries: int = 0,
) -> Replay:
    """Run a trace through the passes of a deployment.

    Parameters
    ----------
    tables : PassTables
        Of the deployments' layouts.
    deployments : Deployments
    trace : RequestTrace
    deployment : int
        Which of them.
    dispatch : {"least_loaded", "round_robin"}
        Requests go to the rank with the fewest under way, or to ranks in turn.
    cached : bool
        Whether blocks of earlier prompts are kept while there is room.
    concurrency : int, optional
        Send so many requests at once, and each other one when one has ended, assigned to ranks in
        turn: arrivals don't count, and prompts have nothing in common.
    entries : int
        Keep the passes, in so many entries of each batch under way: those alike that follow each
        other are one. Where they are too few, as many as are needed.

    Returns
    -------
    Replay

    Raises
    ------
    StrategyError
        An unknown way of dispatch, a deployment of two pools, or no concurrency.
    DataError
        A cache that does not hold the longest request, or too many requests.
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import replay
    from perfmodel.kernels.serving.rank import LOG
    from perfmodel.kernels.serving.tables import ROWS
    from perfmodel.kernels.work import kernel_work

    if dispatch not in DISPATCHES:
        raise StrategyError(f"unknown dispatch '{dispatch}'{did_you_mean(dispatch, DISPATCHES)}")
    d = deployment
    if deployments.prefill_layout[d] >= 0:
        raise StrategyError("a trace is replayed on one pool; this deployment has two")
    if concurrency is not None and concurrency < 1:
        raise StrategyError(f"concurrency {concurrency} should be 1 or more")
    if len(trace) >= MOST_REQUESTS:
        raise DataError(
            f"a trace of {len(trace)} requests; at most {MOST_REQUESTS - 1} are replayed"
        )
    if lacking := lacks_room(deployments, d, trace):
        raise DataError(lacking)
    with kernel_work(**requests_work(len(trace), concurrency is not None)):
        columns = np.empty((replay.COLUMNS, len(trace)))
        values = np.empty(len(ROWS))
        deployed = *map(plain, (tables, deployments)), d
        lengths = trace.input_length.astype(np.float64), trace.output_length.astype(np.float64)
        begin = 0.0 if concurrency is not None else float(trace.arrival[0])
        lanes = int(deployments.ranks[d] * deployments.stages[d])
        lanes = max(int(lanes / max(deployments.lockstep_ranks[d], 1.0)), 1)
        logged = np.zeros(lanes, np.int64)

        def run(room: int) -> Floats:
            log = np.zeros((lanes, LOG, room))
            kept = columns, values, log, logged
            if concurrency is not None:
                replay.replay_clients(*deployed, concurrency, *lengths, *kept)
            else:
                arrivals, way = trace.arrival - begin, replay.DISPATCHES.index(dispatch)
                prompts = _prompts(trace, deployments, d, cached)
                replay.replay_requests(*deployed, arrivals, *lengths, *prompts, way, *kept)
            return log

        log = run(entries)
        if entries and logged.max() > entries:
            log = run(int(logged.max()))
    found = dict(zip(replay.COLUMN_NAMES, columns, strict=True))
    found["finish_time"] += begin
    summary = dict(zip(ROWS._fields, values.tolist(), strict=True))
    passes = tuple(one[:, :count] for one, count in zip(log, logged, strict=True))
    return Replay(found, summary, passes if entries else ())


def lacks_room(deployments: Deployments, d: int, trace: RequestTrace) -> str:
    """Say why the cache of a deployment does not hold the longest request; empty where it does."""
    from perfmodel.kernels.serving import admission
    from perfmodel.kernels.work import kernel_work

    tokens = int((trace.input_length + trace.output_length).max())
    columns = (deployments.block_tokens, deployments.state_blocks, deployments.window_tokens)
    limits = [float(column[d]) for column in columns]
    with kernel_work():
        needed = admission.blocks_needed(tokens + float(deployments.draft_length[d]), *limits)
    if needed <= deployments.blocks[d]:
        return ""
    return (
        f"a request of {tokens} tokens needs {needed:.0f} blocks of the cache, which has "
        f"{deployments.blocks[d]:.0f}"
    )


def _prompts(
    trace: RequestTrace, deployments: Deployments, d: int, cached: bool
) -> tuple[Prompts, float]:
    """Return the blocks of prompts with numbers from 0 on, and how many a rank's cache holds."""
    from perfmodel.kernels.serving.replay import Prompts

    nothing = np.zeros(0, np.int64)
    if not cached or not trace.blocks.size:
        return Prompts(nothing, nothing, float(trace.block_tokens)), math.inf
    names, blocks = np.unique(trace.blocks, return_inverse=True)
    if names.size * float(deployments.ranks[d]) > MOST_NEIGHBOURS:
        raise DataError(
            f"{names.size} distinct blocks of prompts on {deployments.ranks[d]:.0f} ranks; "
            f"at most {MOST_NEIGHBOURS} are kept track of"
        )
    kept = float(deployments.blocks[d] * deployments.block_tokens[d])
    starts: Integers = np.asarray(trace.block_starts, np.int64)
    prompts = Prompts(starts, blocks.astype(np.int64), float(trace.block_tokens))
    return prompts, kept / trace.block_tokens
