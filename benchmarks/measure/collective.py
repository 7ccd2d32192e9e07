"""Measure collectives with torch.distributed: the table ``collective`` of docs/calibration.md.

    torchrun --nproc-per-node 8 benchmarks/measure/collective.py -o collective.csv
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
        benchmarks/measure/collective.py -o collective.csv --ops all_reduce,alltoall

``bytes`` is counted as nccl-tests do: all_reduce the buffer of a rank, all_gather the
whole output, reduce_scatter the whole input, alltoall the whole buffer that a rank
sends, send_recv the message (rank 0 to the last). The time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import state
import timing

COLUMNS = ("source", "hardware", "op", "impl", "n_gpus", "nodes", "bytes", "dtype", "link")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "send_recv")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def options() -> Any:
    """Return the parser."""
    made = common.parser(__doc__.split("\n\n")[0])
    made.add_argument("--ops", type=common.choices(*OPERATIONS), default=list(OPERATIONS))
    made.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    made.add_argument("--smallest", type=common.whole, default=512, metavar="B", help="bytes")
    made.add_argument("--largest", type=common.whole, default=2**29, metavar="B", help="bytes")
    made.add_argument("--link", default="", help="what joins the devices, for the table")
    return made


def shapes(arguments: argparse.Namespace, ranks: int = 1, nodes: int = 1) -> list[dict[str, Any]]:
    """Return every operation and size, doubling from the smallest to the largest."""
    sizes = [arguments.smallest]
    while sizes[-1] * 2 <= arguments.largest:
        sizes.append(sizes[-1] * 2)
    least = BYTES[arguments.dtype] * ranks
    return [
        {
            "op": op,
            "n_gpus": ranks,
            "nodes": nodes,
            "bytes": max(size // least, 1) * least,
            "dtype": arguments.dtype,
        }
        for op, size in itertools.product(arguments.ops, sizes)
        if size >= least
    ]


def prepare(torch: Any, shape: common.Shape, arguments: argparse.Namespace) -> common.Operation:
    """Return the operation of a shape; every rank calls this in the same order."""
    distributed = torch.distributed
    dtype = getattr(torch, DTYPES[shape["dtype"]])
    ranks, count = shape["n_gpus"], shape["bytes"] // BYTES[shape["dtype"]]
    op, rank = shape["op"], distributed.get_rank()

    def call() -> timing.Call:
        whole = torch.ones(count, device="cuda", dtype=dtype)
        part = torch.ones(count // ranks, device="cuda", dtype=dtype)
        other = torch.empty_like(whole)
        if op == "send_recv":
            if rank == 0:
                return lambda: distributed.send(whole, ranks - 1)
            return (lambda: distributed.recv(other, 0)) if rank == ranks - 1 else lambda: None
        return {
            "all_reduce": lambda: distributed.all_reduce(whole),
            "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
            "alltoall": lambda: distributed.all_to_all_single(other, whole),
        }[op]

    cells = {"source": "torch.distributed", "impl": "nccl", "link": arguments.link}
    return common.Operation(0.0, call, cells, graph=False)


class SlowestRank:
    """A timer that gives all ranks the same number of calls, and the time of the slowest."""

    def __init__(self, torch: Any, arguments: argparse.Namespace) -> None:
        self.torch, self.repeats, self.least = torch, arguments.repeats, arguments.least

    def time(
        self,
        make: Callable[[], timing.Call],
        count: int,
        watch: AbstractContextManager[Any],
        graph: bool | None = None,
    ) -> timing.Timing:
        """Return the times of the call; see `timing.Timer`."""
        call = make()
        for _ in range(5):
            call()
        once = self._elapsed(call, 5)
        loops = min(max(round(self.least / max(once, 1e-7)), 5), 1000)
        for _ in range(loops):
            call()
        with watch:
            samples = sorted(self._elapsed(call, loops) for _ in range(self.repeats))
        return timing.Timing(samples[len(samples) // 2], samples[0], samples[-1], len(samples))

    def _elapsed(self, call: timing.Call, loops: int) -> float:
        cuda, distributed = self.torch.cuda, self.torch.distributed
        distributed.barrier()
        cuda.synchronize()
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        for _ in range(loops):
            call()
        end.record()
        cuda.synchronize()
        slowest = self.torch.tensor([start.elapsed_time(end) * 1e-3 / loops], device="cuda")
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
        return float(slowest.item())


class Silent:
    """Takes the rows of the ranks that write none."""

    def row(self, cells: Any) -> None:
        """Drop a row."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names; one process per device."""
    arguments = options().parse_args(words)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(ranks)))
    every = shapes(arguments, ranks, -(-ranks // local))
    chosen = common.drawn(every, arguments.limit, arguments.seed)
    if arguments.list:
        return common.run(arguments, every, COLUMNS, prepare)
    if ranks < 2:
        sys.exit("start it with torchrun: one process per device, at least 2")
    if not arguments.output:
        sys.exit("name the table to write: -o FILE.csv (or --list)")
    arguments.device = int(os.environ.get("LOCAL_RANK", "0"))
    arguments.warm = True  # the buffers of a collective stay where they are
    torch = common.import_torch(arguments.device)
    torch.distributed.init_process_group("nccl")
    try:
        first = torch.distributed.get_rank() == 0
        columns = [*COLUMNS, *common.MEASURED, *state.STATE, *common.MACHINE]
        writer: Any = (
            common.Writer(arguments.output, columns, arguments.append) if first else Silent()
        )
        written = common.measure(
            chosen,
            lambda shape: prepare(torch, shape, arguments),
            SlowestRank(torch, arguments),
            writer,
            common.machine(torch, arguments),
            arguments,
            lambda: (0.0, 0.0),
        )
    finally:
        torch.distributed.destroy_process_group()
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
