"""What holds an operating point back, in a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfmodel.serving.fields import is_closed_loop

LIMITS: Mapping[str, str] = {
    "cache": "requests wait for room in the cache; more devices per worker, shorter requests or "
    "--kv-precision fp8 let more of them run",
    "max_sequences": "requests wait because the engine runs no more sequences (--max-sequences)",
    "load": "no request waits for room; more of them under way raise throughput, and times",
    "rate": "requests come by themselves; what is served is what arrives",
}
"""Word -> what it means."""


def limit_of(row: Mapping[str, Any]) -> str:
    """Return what holds a point back, one of `LIMITS`.

    Parameters
    ----------
    row : mapping of str to value
        Fields and results of one point, as `perfmodel.store.results.rows` returns them.

    Notes
    -----
    A rank's share of the requests under way against what its blocks hold, each request halfway
    through its answer, and against the sequences that it runs at most.
    """
    if not is_closed_loop(row):
        return "rate"
    ranks = row["workers"] * row["attention_data_parallel"]
    clients = row["concurrency"] / ranks
    spread = 0.5 * (1.0 + row["length_spread"])
    tokens = spread * (row["input_length"] + 0.5 * row["output_length"])
    each = math.ceil(tokens / row["block_tokens"])
    room = row["kv_blocks"] / max(each, 1)
    if clients <= min(room, row["max_sequences"]):
        return "load"
    return "cache" if room < row["max_sequences"] else "max_sequences"
