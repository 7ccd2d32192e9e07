"""Speed of the kernel models: predictions per second on one core.

Usage: python benchmarks/speed/kernels.py [--kind gemm|attention|stream] [--count N] [--json]

Shapes are drawn log-uniformly from the ranges of the measured tables (products of 1 to
32768 rows and 32 to 65536 columns and depth; attention of 1 to 65536 tokens). Each
product goes through the full search over tiles and splits. The first call, which
compiles, is not counted; the rate is that of the median CPU time of seven calls.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.compute.attention import attention_times
from perfmodel.compute.gemm import gemm_times
from perfmodel.compute.stream import stream_times
from perfmodel.hwprofiles import load_hardware

REPEATS = 7


def whole(random: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """Return whole numbers drawn log-uniformly."""
    return np.floor(np.exp(random.uniform(np.log(low), np.log(high + 1), count)))


def gemm_call(count: int) -> Callable[[], object]:
    """Return a call that times `count` products on an H100."""
    random = np.random.default_rng(0)
    m = whole(random, 1, 32768, count)
    n, k = whole(random, 32, 65536, count), whole(random, 32, 65536, count)
    hardware = load_hardware("dgx-h100")
    return lambda: gemm_times(hardware, "bf16", m, n, k)


def attention_call(count: int) -> Callable[[], object]:
    """Return a call that times `count` attention calls on an H100: forward, backward, decode."""
    random = np.random.default_rng(0)
    hardware = load_hardware("dgx-h100")
    key_length = whole(random, 16, 65536, count).astype(np.int64)
    phase = random.integers(0, 3, count)
    columns = {
        "batch": whole(random, 1, 64, count).astype(np.int64),
        "query_length": np.where(phase == 2, 1, key_length),
        "key_length": key_length,
        "heads": np.full(count, 32),
        "key_value_heads": random.choice([1, 4, 8, 32], count),
        "head_dim_qk": random.choice([64, 128, 192], count),
        "head_dim_v": np.full(count, 128),
        "causal": random.integers(0, 2, count).astype(bool),
        "window": random.choice([0, 0, 0, 1024], count),
        "backward": phase == 1,
    }
    return lambda: attention_times(hardware, "bf16", **columns)


def stream_call(count: int) -> Callable[[], object]:
    """Return a call that times `count` streaming operations on an H100."""
    random = np.random.default_rng(0)
    size = whole(random, 1e3, 1e9, count)
    hardware = load_hardware("dgx-h100")
    return lambda: stream_times(hardware, size, size)


KINDS = {"gemm": gemm_call, "attention": attention_call, "stream": stream_call}


def measure(kind: str, count: int) -> dict[str, Any]:
    """Return the rate of one kind, from the median of the repeats."""
    call = KINDS[kind](count)
    call()  # compiles, touches the memory
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    median = statistics.median(seconds)
    return {
        "kind": kind,
        "rate_per_core": count / median,
        "unit": "predictions/s",
        "count": count,
        "seconds": median,
        "fastest": min(seconds),
        "slowest": max(seconds),
    }


def rates(count: int = 200_000) -> dict[str, float]:
    """Return the predictions per second and core of every kind."""
    return {kind: measure(kind, count)["rate_per_core"] for kind in KINDS}


def main(arguments: list[str] | None = None) -> int:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error("--count must be at least 1")
    found = [measure(kind, options.count) for kind in options.kind or KINDS]
    if options.json:
        # The first kind stands at the top, where a reader of any speed script looks.
        kinds = {item["kind"]: item for item in found}
        print(json.dumps(found[0] | ({"kinds": kinds} if len(found) > 1 else {}), indent=2))
        return 0
    for item in found:
        print(f"{item['kind']:10s} {item['rate_per_core']:12,.0f} predictions/s and core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
