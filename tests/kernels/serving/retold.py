"""A served rank retold pass by pass with objects and lists: slow, plain, and nothing skipped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from perfmodel.kernels.serving.admission import MOST_SET_ASIDE, SET_ASIDE, blocks_needed
from perfmodel.kernels.serving.passes import pass_times
from perfmodel.kernels.serving.tables import ADMISSIONS, SCHEDULERS, Deployments, PassTables


@dataclass
class Request:
    """A request, and when what happened to it."""

    prompt: int
    answer: int
    sent: float = 0.0
    ready: float = 0.0
    done: int = 0  # tokens of its prompt, and of its answer so far, that are computed
    passes: int = 0  # since its prompt was complete
    before: int = 0  # tokens that it had when it was put back
    times: list[float] = field(default_factory=list)  # when tokens reached it


class RetoldRank:
    """One rank with the requests of a closed loop (`clients`) or of a trace (`sent` given)."""

    def __init__(self, tables: PassTables, deployments: Deployments) -> None:
        self.tables = tables
        self.limits = {
            name: column[0].item()
            for name, column in zip(Deployments._fields, deployments, strict=True)
        }
        self.fused = SCHEDULERS[self.limits["scheduler"]] == "fused"
        self.admission = ADMISSIONS[self.limits["admission"]]
        self.drafted, alpha = self.limits["draft_length"], self.limits["acceptance"]
        self.per_pass = sum(alpha**power for power in range(int(self.drafted) + 1))
        self.waiting: list[Request] = []
        self.prompts: list[Request] = []
        self.decoding: list[Request] = []
        self.clock = 0.0
        self.put_back = 0

    def given(self, it: Request) -> int:
        """Tokens of its answer so far."""
        return min(it.before + 1 + math.floor(it.passes * self.per_pass + 1e-9), it.answer)

    def blocks(self, tokens: float) -> float:
        names = ("block_tokens", "state_blocks", "window_tokens")
        return blocks_needed(tokens, *(self.limits[name] for name in names))

    def used(self, ahead: int = 0) -> float:
        if self.admission == "guaranteed_no_evict":
            both = self.decoding + self.prompts
            return sum(self.blocks(it.prompt + it.answer + self.drafted) for it in both)
        used = sum(self.blocks(it.prompt + it.before + self.drafted) for it in self.prompts)
        for it in self.decoding:
            used += self.blocks(it.prompt + it.before + 1 + it.passes * self.per_pass + ahead)
        return used

    def fits(self, it: Request) -> bool:
        if not self.decoding and not self.prompts:
            return True
        needed = self.blocks(it.prompt + it.before + self.drafted)
        used = self.used()
        if self.admission == "guaranteed_no_evict":
            needed = self.blocks(it.prompt + it.answer + self.drafted)
        elif self.admission == "estimate":
            block = self.limits["block_tokens"]
            needed += min(it.answer - it.before, MOST_SET_ASIDE) / block
            left = sum(one.answer - self.given(one) for one in self.decoding)
            used += SET_ASIDE * left / block
        return used + needed <= self.limits["blocks"]

    def plan(self) -> float:
        """Choose what runs in the next pass; return its time."""
        enough = True
        while self.admission != "guaranteed_no_evict" and self.decoding:
            if len(self.decoding + self.prompts) <= 1:
                break
            if self.used(ahead=math.ceil(self.per_pass)) <= self.limits["blocks"]:
                break
            if self.prompts:
                last = self.prompts.pop()
            else:
                last = self.decoding.pop()
                last.before, last.passes = min(self.given(last), last.answer - 1), 0
            last.done = 0
            self.waiting.insert(0, last)
            self.put_back += 1
            enough = False
        room = self.limits["token_budget"]
        most = self.limits["max_sequences"]
        if self.fused:
            room -= len(self.decoding) * (1 + self.drafted)
            most = min(most, self.limits["token_budget"] // (1 + self.drafted))
        chunks = []
        while room >= 1:
            if len(chunks) == len(self.prompts):
                if not enough or not self.waiting or self.waiting[0].ready > self.clock:
                    break
                running = len(self.decoding) + len(self.prompts)
                if running >= most or not self.fits(self.waiting[0]):
                    break
                self.prompts.append(self.waiting.pop(0))
            it = self.prompts[len(chunks)]
            chunks.append(min(it.prompt + it.before - it.done, room))
            room -= chunks[-1]
        self.beside = self.decoding if self.fused or not chunks else []
        return self.priced(chunks)

    def priced(self, chunks: list[float]) -> float:
        """Return the time of a pass with these chunks, and keep them."""
        self.chunks = chunks
        self.ready = [
            it
            for it, chunk in zip(self.prompts, chunks, strict=False)
            if it.done + chunk == it.prompt + it.before
        ]
        tokens = sum(chunks)
        chunk = tokens / len(chunks) if chunks else 0.0
        seen = sum(
            chunk * (it.done + 0.5 * chunk) for it, chunk in zip(self.prompts, chunks, strict=False)
        )
        before = max(seen / tokens - 0.5 * chunk, 0.0) if chunks else 0.0
        kept = [it.prompt + it.before + 1 + it.passes * self.per_pass for it in self.beside]
        context = float(np.mean(kept)) if kept else 0.0
        return pass_times(
            self.tables, 0, len(chunks), chunk, before, len(self.beside), context,
            1 + self.drafted, len(self.ready),
        )[0]  # fmt: skip

    def finish(self, time: float) -> list[Request]:
        """Let the pass that was planned take a time; return the requests that it ends."""
        self.clock += time
        for it, chunk in zip(self.prompts, self.chunks, strict=False):
            it.done += int(chunk)
        for it in self.beside:
            it.passes += 1
            it.times.append(self.clock)
        ended = [it for it in self.beside if self.given(it) >= it.answer]
        for it in self.ready:
            it.times.append(self.clock)
            self.prompts.remove(it)
            (ended if it.before + 1 >= it.answer else self.decoding).append(it)
        self.decoding = [it for it in self.decoding if it not in ended]
        return ended

    def step(self) -> list[Request]:
        """Run one pass; return the requests that it ends."""
        return self.finish(self.plan())

    @property
    def under_way(self) -> int:
        """Requests sent and not ended."""
        return len(self.waiting) + len(self.prompts) + len(self.decoding)

    def send(self, it: Request, time: float) -> None:
        it.sent = time
        host = self.limits["request_host"] + self.limits["token_host"] * it.prompt
        it.ready = time + host
        self.waiting.append(it)

    def idle_until(self) -> None:
        """Let time go by until there is something to do."""
        if not self.decoding and not self.prompts and self.waiting:
            self.clock = max(self.clock, self.waiting[0].ready)

    def closed_loop(self, requests: list[Request], clients: int) -> list[Request]:
        """Run a closed loop; return all requests."""
        left = list(requests)
        for it in left[:clients]:
            self.send(it, 0.0)
        del left[:clients]
        while self.under_way:
            self.idle_until()
            for _ in self.step():
                if left:
                    self.send(left.pop(0), self.clock + self.limits["output_host"])
        return requests

    def trace(self, requests: list[Request]) -> list[Request]:
        """Run requests that come at the times that they say."""
        for it in requests:
            self.send(it, it.sent)
        while self.under_way:
            self.idle_until()
            self.step()
        return requests


def in_step(ranks: list[RetoldRank], requests: list[Request], clients: int) -> list[Request]:
    """Run a closed loop on ranks whose passes all take as long as the longest of them."""
    left = list(requests)

    def send(time: float) -> None:
        min(ranks, key=lambda rank: rank.under_way).send(left.pop(0), time)

    for _ in range(clients):
        send(0.0)
    while any(rank.under_way for rank in ranks):
        clock = ranks[0].clock
        first = min((it.ready for rank in ranks for it in rank.waiting[:1]), default=clock)
        if not any(rank.decoding or rank.prompts for rank in ranks):
            clock = max(clock, first)
        for rank in ranks:
            rank.clock = clock
        working = [
            rank
            for rank in ranks
            if rank.prompts or rank.decoding or (rank.waiting and rank.waiting[0].ready <= clock)
        ]
        time = max([rank.plan() for rank in working])
        ended = sum(len(rank.finish(time)) for rank in working)
        for rank in ranks:
            rank.clock = clock + time
        for _ in range(min(ended, len(left))):
            send(clock + time + ranks[0].limits["output_host"])
    return requests
