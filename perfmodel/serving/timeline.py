"""The timeline of a served model: pass after pass of every batch under way, and its cache.

Closed loops (clients that send a request when the one before has ended) and traces of requests run
pass by pass; what they come to is what ``serve --exact`` and ``serve --replay`` project. Rates of
arrivals and pools of two kinds are closed in formulas, which have no passes one could look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.base.errors import StrategyError
from perfmodel.base.timelines import Counter, Track, write_timeline
from perfmodel.kernels.serving.variables import TIME_COMPONENTS
from perfmodel.serving.grid import (
    CACHE_BELOW_ONE_REQUEST,
    CONTEXT_TOO_LONG,
    STATUS_REASONS,
    DeploymentGrid,
    LoadGrid,
)
from perfmodel.serving.project import context_too_long, prepare
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace

if TYPE_CHECKING:
    from perfmodel.base.routing import Routing
    from perfmodel.hwprofiles import Hardware
    from perfmodel.kernels.serving.tables import Deployments, PassTables

ENTRIES = 4096
"""Passes of a batch for which there is room at first; those alike in a row are one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The passes of one batch under way: of an attention rank, or of ranks in step.

    Attributes
    ----------
    name : str
    alike : float
        Batches that do the same.
    log : ndarray of float64, shape (LOG, entries)
        Rows as of `perfmodel.kernels.serving.rank`; begins count from 0.
    """

    name: str
    alike: float
    log: Floats

    @property
    def start(self) -> Floats:
        """When passes alike begin [s]."""
        from perfmodel.kernels.serving.rank import START

        return self.log[START]

    @property
    def count(self) -> Floats:
        """How many of them follow each other."""
        from perfmodel.kernels.serving.rank import SAME_PASSES

        return self.log[SAME_PASSES]

    @property
    def duration(self) -> Floats:
        """What all of them take [s]."""
        from perfmodel.kernels.serving.rank import TIME

        return self.count * self.log[TIME]

    @property
    def parts(self) -> Floats:
        """What one of them consists of, shape (components, entries) [s].

        Rows as `perfmodel.kernels.serving.variables.TIME_COMPONENTS`.
        """
        from perfmodel.kernels.serving.rank import PARTS_FROM

        return self.log[PARTS_FROM:]


@dataclass(frozen=True, slots=True)
class ServingTimeline:
    """What a deployment does under a load, pass by pass.

    Attributes
    ----------
    title : str
    batches : tuple of Batch
        One of each kind that does the same.
    end : float
        Of the last pass [s].
    duration : float
        Of the time that counts, with the way of the last token to its client [s].
    groups : float
        Batches that have anything to do.
    block_bytes : float
        A block of the cache on the fullest device [B].
    note : str
        What it leaves out; "" for nothing.
    """

    title: str
    batches: tuple[Batch, ...]
    end: float
    duration: float
    groups: float
    block_bytes: float
    note: str = ""

    @property
    def passes(self) -> int:
        """Passes of all batches, those alike counted each."""
        return round(sum(float(it.count.sum()) for it in self.batches))

    @property
    def events(self) -> int:
        """Slices and values of counters that a file of it has."""
        return sum(it.start.size * (1 + len(TIME_COMPONENTS) + 2) for it in self.batches)

    def totals(self) -> dict[str, float]:
        """Return what all passes come to, by the names of the projection.

        A mean pass (``pass_time``, and its components) [s], ``utilization`` [1] and ``passes``.
        """
        counts = sum(it.alike * float(it.count.sum()) for it in self.batches)
        parts = np.sum([it.alike * (it.parts @ it.count) for it in self.batches], axis=0)
        busy = sum(it.alike * float(it.duration.sum()) for it in self.batches)
        found = dict(zip(TIME_COMPONENTS, (parts / counts).tolist(), strict=True))
        utilization = busy / self.duration / self.groups
        return {
            "passes": counts,
            "pass_time": busy / counts,
            **found,
            "utilization": utilization,
        }

    def tracks(self, most: int | None = None) -> Iterator[Track | Counter]:
        """Yield what a file of it shows: of each batch the first entries."""
        for batch in self.batches:
            yield from _batch_tracks(self, batch, most)

    def write(self, path: str | Path, most: int | None = None) -> int:
        """Write it as a file for https://ui.perfetto.dev, completely or not at all.

        Parameters
        ----------
        path : str or Path
            ``.json``, or ``.json.gz``.
        most : int, optional
            Entries of each batch, from the first on; passes alike in a row are one.

        Returns
        -------
        int
            Events written.
        """
        about: dict[str, Any] = {"title": self.title, **self.totals()}
        return write_timeline(self.tracks(most), path, about)


def serving_timeline(
    grid: DeploymentGrid,
    loads: LoadGrid,
    hardware: Hardware,
    *,
    routing: Routing | None = None,
) -> ServingTimeline:
    """Run a closed loop on one deployment, pass by pass.

    Parameters
    ----------
    grid : DeploymentGrid
        One deployment, of one pool.
    loads : LoadGrid
        One load with a concurrency.
    hardware : Hardware
    routing : Routing, optional

    Returns
    -------
    ServingTimeline
        Endless loops from where the projection begins to count. Its totals are those of the
        projection's method "recursion", where requests are of one length or more than 300.

    Raises
    ------
    StrategyError
        More than one point, an impossible one, a rate of arrivals, or two pools.
    """
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import recursion
    from perfmodel.kernels.serving.cycle import BEGINNING
    from perfmodel.kernels.serving.rank import LOG, START
    from perfmodel.kernels.serving.tables import NO_ROOM, ROWS
    from perfmodel.kernels.work import kernel_work

    tables, deployments, block_bytes = _ready(grid, loads, hardware, routing)
    if not loads.is_closed_loop[0]:
        raise StrategyError(
            "a rate of arrivals is closed in formulas, without passes; a timeline takes "
            "--concurrency, or a trace (--replay)"
        )
    asked = loads.kernel_columns()
    with kernel_work(recursions=1):
        arguments = [*map(plain, (tables, deployments, asked))]

        def run(entries: int) -> tuple[Floats, Floats, Floats]:
            out, about = np.empty((len(ROWS), 1, 1)), np.zeros((2, recursion.ABOUT))
            log = np.zeros((2, LOG, entries))
            recursion.recurse_points(*arguments, out, log, about)
            return out, log, about

        out, logs, about = run(ENTRIES)
        most = int(about[:, recursion.LOGGED_ENTRIES].max())
        if most > ENTRIES:
            out, logs, about = run(most)
    if out[ROWS.status, 0, 0] == NO_ROOM:
        raise _impossible(CACHE_BELOW_ONE_REQUEST)
    clients = float(loads["concurrency"][0])
    lockstep = max(float(deployments.lockstep_ranks[0]), 1.0)
    groups = float(deployments.ranks[0] * deployments.stages[0]) / lockstep
    fewer = max(int(clients / groups), 1)
    found, duration = [], 0.0
    for own, log, (logged, since, until, alike, *_) in zip(
        (fewer, fewer + 1), logs, about.tolist(), strict=True
    ):
        if not alike:
            continue
        log = log[:, : int(logged)]
        log = log[:, log[START] >= since].copy()
        log[START] -= since
        duration = max(duration, until + float(deployments.output_host[0]) - since)
        text = f"{own:,} client" if own == 1 else f"{own:,} clients"
        found.append(Batch(f"batch of {text}, one of {alike:,.0f}", alike, log))
    note, rounds = "", float(loads["rounds"][0]) or 2.0 * BEGINNING
    if loads["length_spread"][0] < 1.0 and fewer * rounds < recursion.LEAST_REQUESTS:
        note = "the first of several orders of lengths, over which the projection is a mean"
    end = max(float((it.start + it.duration).max()) for it in found)
    return ServingTimeline(
        _title(grid, hardware),
        tuple(found),
        end,
        duration,
        min(groups, clients),
        block_bytes,
        note,
    )


def replay_timeline(
    grid: DeploymentGrid,
    trace: RequestTrace,
    hardware: Hardware,
    *,
    concurrency: int | None = None,
    dispatch: str = "least_loaded",
    cached: bool = True,
    routing: Routing | None = None,
) -> ServingTimeline:
    """Replay a trace of requests on one deployment, pass by pass.

    Parameters
    ----------
    grid : DeploymentGrid
        One deployment, of one pool.
    trace : RequestTrace
    hardware : Hardware
    concurrency, dispatch, cached
        As of `perfmodel.serving.replay.replay_trace`.
    routing : Routing, optional

    Returns
    -------
    ServingTimeline
        Its totals are those of the replay.

    Raises
    ------
    StrategyError, DataError
        As of `serving_timeline` and `replay_trace`.
    """
    tables, deployments, block_bytes = _ready(grid, None, hardware, routing)
    replayed = replay_trace(
        tables,
        deployments,
        trace,
        concurrency=concurrency,
        dispatch=dispatch,
        cached=cached,
        entries=ENTRIES,
    )
    found = [
        Batch(f"batch {number}", 1.0, log) for number, log in enumerate(replayed.passes) if log.size
    ]
    ends = [float((it.start + it.duration).max()) for it in found]
    duration = max(ends) + float(deployments.output_host[0])
    lanes = len(replayed.passes) if concurrency is None else min(len(replayed.passes), concurrency)
    return ServingTimeline(
        _title(grid, hardware), tuple(found), max(ends), duration, lanes, block_bytes
    )


def _ready(
    grid: DeploymentGrid, loads: LoadGrid | None, hardware: Hardware, routing: Routing | None
) -> tuple[PassTables, Deployments, float]:
    """Return the passes of one possible deployment, its limits, and a block of its cache [B].

    Raises
    ------
    StrategyError
        There is not one, or it is impossible.
    """
    points = len(grid) * (1 if loads is None else len(loads))
    if points != 1:
        raise StrategyError(f"a timeline takes exactly one operating point, not {points:,}")
    if grid["prefill_workers"].any():
        raise StrategyError(
            "two pools are closed in formulas, without passes; a timeline takes one pool"
        )
    ready = prepare(grid, hardware, routing=routing)
    if loads is not None and context_too_long(grid, loads).any():
        raise _impossible(CONTEXT_TOO_LONG)
    if ready.tables is None or ready.deployments is None:
        raise _impossible(int(ready.status[0]))
    blocks = float(ready.memory.blocks[0])
    return ready.tables, ready.deployments, float(ready.memory.cache[0]) / max(blocks, 1.0)


def _impossible(status: int) -> StrategyError:
    return StrategyError(f"impossible deployment: {STATUS_REASONS[status]}")


def _title(grid: DeploymentGrid, hardware: Hardware) -> str:
    devices, engine = int(grid.devices[0]), grid.engines[int(grid["engine"][0])].name
    return f"{grid.model.name} on {devices:,} × {hardware.name}, {engine}"


def _batch_tracks(
    found: ServingTimeline, batch: Batch, most: int | None
) -> Iterator[Track | Counter]:
    """Yield the tracks of one batch."""
    from perfmodel.kernels.serving.rank import BATCH, BLOCKS, CHUNK, PROMPTS, TIME

    log = batch.log[:, :most]
    start, count = batch.start[:most], batch.count[:most]
    prompts, decoding = log[PROMPTS], log[BATCH]
    names = [
        _pass_name(*values)
        for values in zip(
            prompts.tolist(), log[CHUNK].tolist(), decoding.tolist(), count.tolist(), strict=True
        )
    ]
    yield Track(
        batch.name,
        "passes",
        names,
        start,
        count * log[TIME],
        "pass",
        {
            "passes": count.astype(np.int64),
            "one takes [s]": log[TIME],
            "sequences that decode": decoding,
            "prompts": prompts,
            "tokens of each chunk": log[CHUNK],
        },
    )
    yield from _part_tracks(batch, start, count, most)
    # The counters say what is there from the begin of a pass on.
    end = np.array([start[-1] + count[-1] * log[TIME, -1]])
    times = np.concatenate((start, end))
    none = np.zeros(1)
    yield Counter(
        batch.name,
        "sequences",
        times,
        {
            "decode": np.concatenate((decoding, none)),
            "prompts": np.concatenate((prompts, none)),
        },
    )
    held = np.concatenate((log[BLOCKS], none)) * found.block_bytes
    yield Counter(batch.name, "cache in use [B]", times, {"cache": held})


def _pass_name(prompts: float, chunk: float, decoding: float, count: float) -> str:
    words = []
    if prompts:
        words.append(f"prefill {prompts:g} × {chunk:,.0f} tokens")
    if decoding:
        words.append(f"decode {decoding:,.0f}")
    text = " + ".join(words) or "pass"
    return text if count == 1 else f"{text}, {count:,.0f} passes"


def _part_tracks(batch: Batch, start: Floats, count: Floats, most: int | None) -> Iterator[Track]:
    """Yield what passes consist of, in turn: the device's time, and what it waits for the host."""
    times = batch.parts[:, :most] * count
    begin = start + np.cumsum(times, axis=0) - times
    threads: Mapping[str, Sequence[str]] = {
        "compute": ("attention_time", "matrices_time", "experts_time", "other_time"),
        "communication": ("communication_time",),
        "host": ("host_time",),
    }
    for thread, names in threads.items():
        rows = np.array([TIME_COMPONENTS.index(name) for name in names])
        shown: NDArray[np.float64] = times[rows].T.ravel()
        places = np.flatnonzero(shown > 0.0)
        if not places.size:
            continue
        labels = np.tile(np.array(names), start.size)[places]
        yield Track(
            batch.name,
            thread,
            [name.removesuffix("_time") for name in labels.tolist()],
            begin[rows].T.ravel()[places],
            shown[places],
            labels.tolist(),
        )
