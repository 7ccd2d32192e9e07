"""Open loops played out: random arrivals at one rank, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import PassTables


@dataclass
class Request:
    """One request: when it came, what is left of its prompt and answer, when tokens came."""

    arrival: float
    prompt: float
    answer: int
    kept: float = 0.0
    first: float = 0.0
    tokens: int = 0
    last: float = 0.0


def play(
    tables: PassTables,
    scheduler: str,
    rate: float,
    *,
    prompt: float = 1024.0,
    answer: int = 64,
    spread: float = 1.0,
    budget: float = 8192.0,
    most: int = 1024,
    requests: int = 1500,
    seed: int = 1,
) -> dict[str, np.ndarray]:
    """Return times to first tokens, times per token, and the mean number that decode."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate, requests))
    coming = [
        Request(
            moment,
            round(random.uniform(spread, 1.0) * prompt),
            max(round(random.uniform(spread, 1.0) * answer), 2),
        )
        for moment in arrivals
    ]
    waiting: list[Request] = []
    prefilling: list[Request] = []
    decoding: list[Request] = []
    done: list[Request] = []
    clock, at, area = 0.0, 0, 0.0
    while len(done) < requests:
        while at < requests and coming[at].arrival <= clock:
            waiting.append(coming[at])
            at += 1
        while waiting and len(prefilling) + len(decoding) < most:
            prefilling.append(waiting.pop(0))
        if not prefilling and not decoding:
            clock = coming[at].arrival
            continue
        paused = scheduler == "prefill_first" and prefilling
        running = [] if paused else list(decoding)
        room = budget - len(running)
        chunks, finished = [], []
        for one in prefilling:
            chunk = min(one.prompt, room)
            if chunk <= 0:
                break
            chunks.append((chunk, one.kept))
            room -= chunk
            one.prompt -= chunk
            one.kept += chunk
            if one.prompt <= 0:
                finished.append(one)
        n = len(chunks)
        size, before = np.mean(chunks, axis=0) if n else (0.0, 0.0)
        context = float(np.mean([one.kept for one in running])) if running else 0.0
        took = pass_times(
            tables, 0, float(n), size, before, float(len(running)), context, 1.0, len(finished)
        )[0]
        clock += took
        area += took * len(decoding)
        for one in running:
            one.tokens += 1
            one.kept += 1
            if one.tokens == one.answer:
                one.last = clock
                decoding.remove(one)
                done.append(one)
        for one in finished:
            one.first, one.tokens = clock, 1
            prefilling.remove(one)
            decoding.append(one)
    settled = [one for one in done if one.arrival > 0.1 * clock]
    return {
        "first": np.array([one.first - one.arrival for one in settled]),
        "per_token": np.array([(one.last - one.first) / (one.answer - 1) for one in settled]),
        "request": np.array([one.last - one.arrival for one in settled]),
        "batch": np.array(area / clock),
    }
