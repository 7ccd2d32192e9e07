"""Traces of requests: when they come, how long they are, what their prompts have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError

LONGEST = 2**31
"""Tokens of a prompt or an answer at most."""


def _nothing() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class RequestTrace:
    """Requests in the order in which they come.

    Attributes
    ----------
    arrival : ndarray of float64, shape (request,)
        When clients send them [s]; only differences count.
    input_length, output_length : ndarray of int64, shape (request,)
        Tokens of prompts and of answers.
    block_starts : ndarray of int64, shape (request + 1,)
        Where in `blocks` those of each prompt begin and end; empty where nothing is known.
    blocks : ndarray of int64
        Names of the blocks of prompts: two are alike where their tokens, and all before them,
        are.
    block_tokens : int
        Tokens of each block; the last of a prompt may have fewer.

    Raises
    ------
    DataError
        Columns of different lengths or none, times that fall or are no numbers, lengths below 1.
    """

    arrival: Floats
    input_length: Integers
    output_length: Integers
    block_starts: Integers = field(default_factory=_nothing)
    blocks: Integers = field(default_factory=_nothing)
    block_tokens: int = 512

    def __post_init__(self) -> None:
        arrival = np.asarray(self.arrival, np.float64)
        if arrival.size == 0:
            raise DataError("a trace has no requests; it should have one or more")
        if not np.isfinite(arrival).all() or (np.diff(arrival) < 0).any():
            raise DataError("the arrivals of a trace should be finite times that never fall")
        for name in ("input_length", "output_length"):
            lengths = np.asarray(getattr(self, name))
            if lengths.shape != arrival.shape:
                raise DataError(f"a trace has {arrival.size} arrivals and {lengths.size} {name}s")
            if lengths.min() < 1 or lengths.max() > LONGEST:
                raise DataError(f"{name} should be 1 to {LONGEST} tokens in every request")
        if self.blocks.size and self.block_starts.shape != (arrival.size + 1,):
            raise DataError("block_starts should have one entry more than there are requests")

    def __len__(self) -> int:
        return int(self.arrival.size)


def random_trace(
    count: int,
    rate: float,
    input_length: int | Sequence[int],
    output_length: int | Sequence[int],
    *,
    seed: int = 0,
) -> RequestTrace:
    """Return requests that come at random, one after another at a mean rate (Poisson).

    Parameters
    ----------
    count : int
        Requests.
    rate : float
        That come per second on average [1/s].
    input_length, output_length : int or pair of int
        Tokens, or the least and the most of lengths that are spread evenly.
    seed : int
        Other requests of the same kind.

    Raises
    ------
    DataError
        A count, rate or length that is not above 0.
    """
    if count < 1 or not rate > 0.0:
        raise DataError(f"{count} requests at {rate} per second; both should be above 0")
    random = np.random.default_rng(seed)
    lengths: list[Integers] = []
    for name, given in (("input_length", input_length), ("output_length", output_length)):
        least, most = (given, given) if isinstance(given, int) else given
        if not 1 <= least <= most <= LONGEST:
            raise DataError(f"{name} {least} to {most}: should be 1 to {LONGEST} tokens, rising")
        lengths.append(random.integers(least, most + 1, count))
    arrival = np.cumsum(random.exponential(1.0 / rate, count))
    return RequestTrace(arrival, lengths[0], lengths[1])
