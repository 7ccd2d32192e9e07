"""Search of a space of 1e12 strategies: GPT-3 175B on H100 and B200, eight numbers of devices.

All mappings, layers recomputed one by one, in groups or in part, ZeRO stages and shard sets, two
precisions, eight batches and shares of the optimizer's state that wait elsewhere, at once. The
time covers everything after the imports: enumeration of layouts, bounds, and what is projected.

    python benchmarks/speed/search.py [--devices N,N] [--seconds S] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from perfmodel import search

DEVICES = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
HARDWARE = ("dgx-h100", "dgx-b200")
AXES = {
    "sequence_length": 2048,
    "global_batch_size": [1536, 2304, 3072, 3840, 4608, 6144, 7680, 9216],
    "tensor_parallel": [1, 2, 4, 8],
    "context_parallel": [1, 2],
    "virtual_pipeline": [1, 2, 3, 4, 6, 8, 12, 16, 24],
    "micro_batch_size": [1, 2, 3, 4, 6, 8],
    "zero_stage": [0, 1, 2, 3],
    "shard_group": [0, 8, 16, 32, 64],
    "precision": ["bf16", "fp8"],
    "mapping": "all",
    "recompute": "all",
    "recompute_method": "all",
    "recompute_num_layers": list(range(97)),
    "offload_optimizer": [share / 20 for share in range(21)],
    "offload_optimizer_to": "all",
}


def cpu_seconds() -> float:
    """Return user and system time of this process [s], all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Parse arguments, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("--seconds", type=float, help="stop then, and print the proved gap")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    devices = [int(count) for count in arguments.devices.split(",")]
    wall, cpu = time.perf_counter(), cpu_seconds()
    found = search("gpt3-175b", HARDWARE, devices, seconds=arguments.seconds, **AXES)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    result = {
        "rate_per_core": (found.possible - found.unsettled) / cpu,
        "unit": "strategies/s/core (CPU time, settled)",
        "count": found.possible,
        "seconds": wall,
        "cpu_seconds": cpu,
        "proved": found.proved,
        "projected": found.evaluated,
        "unsettled": found.unsettled,
        "gap": found.gap,
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:<14} {value}")
    print(found.strategies)


if __name__ == "__main__":
    main()
