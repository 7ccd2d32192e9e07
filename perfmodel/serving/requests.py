"""Traces of requests: when they come, how long they are, what prompts share; their files.

Mooncake (kvcache-ai/Mooncake, FAST25-release/traces): a JSON object per line with ``timestamp``
in milliseconds, ``input_length``, ``output_length`` and ``hash_ids``, one for every 512 tokens
of the prompt; prompts that begin alike have the same ids first.

CSV: a header with one column each of `COLUMNS`, however it is spelled there. Times are seconds,
or dates as in Azure's traces (Azure/AzurePublicDataset, ``AzureLLMInferenceTrace_*.csv``:
TIMESTAMP, ContextTokens, GeneratedTokens), of which the first becomes 0.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from perfmodel.base.columns import Floats, Integers
from perfmodel.base.errors import DataError, FormatError
from perfmodel.base.files import atomic_path, read_text, shortened

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


LARGEST_FILE = 2**30  # B
LATEST = 1e12  # s
MOONCAKE_BLOCK = 512  # tokens
MOST_ID = 2**63 - 1

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "arrival": ("arrival", "arrival_time", "arrived_at", "timestamp", "time"),
    "input_length": (
        *("input_length", "input", "input_tokens", "isl", "contexttokens", "context_tokens"),
        *("prompt_tokens", "prompt_length", "prompt_len", "num_prefill_tokens", "request_tokens"),
    ),
    "output_length": (
        *("output_length", "output", "output_tokens", "osl", "generatedtokens"),
        *("generated_tokens", "completion_tokens", "output_len", "num_decode_tokens"),
        "response_tokens",
    ),
}
"""Column -> spellings, apart from case, spaces and hyphens: also those of Vidur and BurstGPT."""


def read_requests(path: str | os.PathLike[str], block_tokens: int = MOONCAKE_BLOCK) -> RequestTrace:
    """Read a trace of requests: JSON lines where it begins with a brace, else CSV.

    Parameters
    ----------
    path : str or path
    block_tokens : int
        Tokens of a block that ``hash_ids`` name.

    Raises
    ------
    FormatError
        The file cannot be read or is no such trace, has no requests, times that fall or are
        negative, lengths below 1; says where.
    """
    text = read_text(path, "a trace of requests, JSON lines or CSV", LARGEST_FILE)
    return parse_requests(text, str(path), block_tokens)


def parse_requests(
    text: str, file: str = "trace", block_tokens: int = MOONCAKE_BLOCK
) -> RequestTrace:
    """Read a trace of requests from text; `file` is what errors call it.

    Raises
    ------
    FormatError
        As of `read_requests`.
    """
    if text.lstrip()[:1] == "{":
        return _json_lines(text, file, block_tokens)
    return _csv(text, file)


def format_requests(trace: RequestTrace) -> str:
    """Return a trace as CSV; what prompts have in common is left out."""
    rows = zip(
        trace.arrival.tolist(),
        trace.input_length.tolist(),
        trace.output_length.tolist(),
        strict=True,
    )
    return "\n".join([",".join(COLUMNS), *(f"{a!r},{i},{o}" for a, i, o in rows)]) + "\n"


def write_requests(trace: RequestTrace, path: str | os.PathLike[str]) -> None:
    """Write a trace as CSV, completely or not at all.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    with atomic_path(os.fspath(path)) as temporary:
        temporary.write_text(format_requests(trace), encoding="utf-8")


def _json_lines(text: str, file: str, block_tokens: int) -> RequestTrace:
    arrivals: list[float] = []
    lengths: list[tuple[int, int]] = []
    blocks: list[int] = []
    starts = [0]
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            reason = getattr(error, "msg", "nested too deeply or too long a number")
            raise FormatError(f"{place}: no JSON: {reason}") from None
        if not isinstance(record, dict):
            raise FormatError(f"{place}: should be a JSON object with timestamp, input_length, …")
        time = record.get("timestamp")
        if isinstance(time, bool) or not isinstance(time, int | float):
            raise FormatError(f"{place}: timestamp {_shown(time)} should be a number [ms]")
        arrivals.append(_time(min(time, 2 * LATEST * 1e3) * 1e-3, arrivals, place))
        both = [_json_length(record.get(name), name, place) for name in list(COLUMNS)[1:]]
        lengths.append((both[0], both[1]))
        ids = record.get("hash_ids", [])
        if not isinstance(ids, list) or not all(
            type(one) is int and 0 <= one <= MOST_ID for one in ids
        ):
            raise FormatError(f"{place}: hash_ids should be a list of whole numbers >= 0")
        if len(ids) > math.ceil(both[0] / block_tokens):
            raise FormatError(
                f"{place}: {len(ids)} hash_ids of {block_tokens} tokens each are too many for "
                f"input_length {both[0]}"
            )
        blocks += ids
        starts.append(len(blocks))
    return _trace(file, arrivals, lengths, starts, blocks, block_tokens)


def _csv(text: str, file: str) -> RequestTrace:
    rows = csv.reader(io.StringIO(text, newline=""))
    arrivals: list[float] = []
    lengths: list[tuple[int, int]] = []
    first: datetime | None = None
    try:
        at = _places(next(rows, []), file)
        for row in rows:
            if not row:
                continue
            place = f"{file}, line {rows.line_num}"
            if len(row) <= max(at):
                raise FormatError(f"{place}: {len(row)} columns; should be {max(at) + 1} or more")
            try:
                time = float(row[at[0]])
            except ValueError:
                date = _date(row[at[0]], place)
                first = first or date
                time = (date - first).total_seconds()
            arrivals.append(_time(time, arrivals, place))
            pair = [_csv_length(row[at[n]], list(COLUMNS)[n], place) for n in (1, 2)]
            lengths.append((pair[0], pair[1]))
    except csv.Error as error:
        raise FormatError(f"{file}, line {rows.line_num}: no CSV: {error}") from None
    return _trace(file, arrivals, lengths, [], [], MOONCAKE_BLOCK)


def _trace(
    file: str,
    arrivals: Sequence[float],
    lengths: Sequence[tuple[int, int]],
    starts: Sequence[int],
    blocks: Sequence[int],
    block_tokens: int,
) -> RequestTrace:
    """Return columns as a trace."""
    if not arrivals:
        raise FormatError(f"{file}: no requests; a trace has one or more")
    inputs, outputs = np.array(lengths, np.int64).T
    return RequestTrace(
        np.array(arrivals),
        inputs.copy(),
        outputs.copy(),
        np.array(starts if blocks else [], np.int64),
        np.array(blocks, np.int64),
        block_tokens,
    )


def _places(header: Sequence[str], file: str) -> list[int]:
    """Return where the columns stand."""
    names = [name.strip().lower().replace(" ", "_").replace("-", "_") for name in header]
    places = []
    for column, spellings in COLUMNS.items():
        found = [names.index(name) for name in spellings if name in names]
        if not found:
            raise FormatError(
                f"{file}, line 1: no column '{column}' (or {', '.join(spellings[1:4])}, …); "
                f"a trace has {', '.join(COLUMNS)}"
            )
        places.append(found[0])
    return places


def _date(cell: str, place: str) -> datetime:
    try:
        date = datetime.fromisoformat(cell.strip())
    except ValueError:
        raise FormatError(
            f"{place}: arrival '{shortened(cell)}' should be seconds, or a date and time"
        ) from None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _time(time: float, earlier: Sequence[float], place: str) -> float:
    """Return a time that comes after those before it."""
    if not 0.0 <= time <= LATEST:
        raise FormatError(f"{place}: time {time:g} s should be 0 to {LATEST:g} s")
    if earlier and time < earlier[-1]:
        raise FormatError(
            f"{place}: time {time:g} s comes after {earlier[-1]:g} s; times should never fall"
        )
    return time


def _json_length(value: Any, name: str, place: str) -> int:
    if type(value) is not int or not 1 <= value <= LONGEST:
        raise FormatError(f"{place}: {name} {_shown(value)} should be a whole number of tokens > 0")
    return value


def _csv_length(cell: str, name: str, place: str) -> int:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 1 <= value <= LONGEST or value != int(value):
        raise FormatError(
            f"{place}: {name} '{shortened(cell)}' should be a whole number of tokens > 0"
        )
    return int(value)


def _shown(value: Any) -> str:
    return "is missing and" if value is None else f"'{shortened(value)}'"
