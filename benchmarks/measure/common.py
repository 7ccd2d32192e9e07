"""What the measuring scripts share: arguments, shapes, and the table they write.

The scripts need PyTorch with CUDA or ROCm and nothing of perfmodel, so that this folder
can be copied to the machine that is to be measured. PyTorch is imported late: `--list`
and `--help` work anywhere.

How a time comes about stands in `timing`.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from state import STATE, Monitor, output_of, profile_name
from timing import Call, Timer, Timing, copies_of

Shape = Mapping[str, Any]

MEASURED = ("time_us", "t_min_us", "t_max_us", "repeats", "copies", "timer", "steady")
STEADY_WARMUP = 0.1  # seconds, after which the power limit is felt
DEFAULT_CACHE = 128 * 2**20  # bytes, where the runtime does not tell
MACHINE = ("device", "driver", "runtime", "torch", "measured_at")


# ---------------------------------------------------------------- arguments


def parser(text: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts have."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("-o", "--output", metavar="FILE.csv", help="table to write; needed to run")
    made.add_argument("--append", action="store_true", help="add to FILE.csv where it exists")
    made.add_argument("--list", action="store_true", help="print the shapes, measure nothing")
    made.add_argument("--limit", type=whole, metavar="N", help="measure N shapes, drawn at random")
    made.add_argument("--seed", type=int, default=0, help="of the draw and of the data")
    made.add_argument("--hardware", metavar="NAME", help="profile of this device, if not found")
    made.add_argument("--device", type=int, default=0, metavar="I", help="which device")
    made.add_argument("--warmup", type=positive, default=0.1, metavar="S", help="seconds")
    made.add_argument("--repeats", type=whole, default=20, metavar="N", help="timed runs")
    made.add_argument(
        "--least", type=positive, default=2e-3, metavar="S", help="seconds of a timed run"
    )
    made.add_argument(
        "--no-graph",
        dest="graph",
        action="store_false",
        help="launch every call from the host, as eager PyTorch does",
    )
    made.add_argument(
        "--warm", action="store_true", help="the same tensors again and again: caches stay warm"
    )
    return made


def whole(text: str) -> int:
    """Read a whole number above 0."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return value


def positive(text: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


def wholes(text: str) -> list[int]:
    """Read a list such as ``1,16,4096``."""
    return [whole(item.strip()) for item in text.split(",")]


def choices(*known: str) -> Callable[[str], list[str]]:
    """Return a reader of a comma-separated list of known names."""

    def read(text: str) -> list[str]:
        names = [item.strip() for item in text.split(",")]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(known)}")
        return names

    return read


def drawn(shapes: Iterable[Shape], limit: int | None, seed: int) -> list[Shape]:
    """Return the shapes, or `limit` of them drawn at random, in their order."""
    every = list(shapes)
    if limit is None or limit >= len(every):
        return every
    chosen = sorted(random.Random(seed).sample(range(len(every)), limit))
    return [every[i] for i in chosen]


# ---------------------------------------------------------------- the table


class Writer:
    """Appends rows to a table, one line as soon as it is measured."""

    def __init__(self, path: str, columns: Sequence[str], append: bool) -> None:
        self.path, self.columns = Path(path), list(columns)
        if self.path.exists() and not append:
            sys.exit(f"{path} exists; name another file, or use --append")
        if self.path.exists():
            header = self.path.read_text(encoding="utf-8").partition("\n")[0].strip()
            if header != ",".join(self.columns):
                sys.exit(f"{path}: its columns are not those that this script writes")
        elif not self.path.parent.is_dir():
            sys.exit(f"{path}: the folder does not exist")
        else:
            self._write(self.columns)

    def row(self, cells: Mapping[str, Any]) -> None:
        """Write a row; what it does not name stays empty."""
        self._write([cells.get(name, "") for name in self.columns])

    def _write(self, cells: Sequence[Any]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerow(cells)


@dataclass(frozen=True)
class Operation:
    """One shape, ready to be timed.

    Attributes
    ----------
    size : float
        Bytes of the tensors of one copy.
    make : callable
        Makes a copy and returns the call on it.
    cells : mapping
        Further cells of the row.
    graph : bool
        Whether the call can be captured.
    """

    size: float
    make: Callable[[], Call]
    cells: Mapping[str, Any]
    graph: bool = True


def import_torch(device: int) -> Any:
    """Import PyTorch and choose the device, or end with a clear message."""
    try:
        import torch
    except ImportError:
        sys.exit("this needs PyTorch with CUDA or ROCm: see https://pytorch.org (--list does not)")
    if not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} finds no CUDA or ROCm device")
    if device >= torch.cuda.device_count():
        sys.exit(f"--device {device}: there are {torch.cuda.device_count()} devices")
    torch.cuda.set_device(device)
    return torch


def machine(torch: Any, arguments: argparse.Namespace) -> dict[str, str]:
    """Return the cells that say which machine and software was measured."""
    name = torch.cuda.get_device_name(arguments.device)
    hip = getattr(torch.version, "hip", None)
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "hardware": profile_name(name, arguments.hardware),
        "device": name,
        "driver": driver.split("\n")[0].strip(),
        "runtime": f"rocm {hip}" if hip else f"cuda {torch.version.cuda}",
        "torch": torch.__version__,
        "measured_at": _now(),
    }


def _now() -> str:
    utc = datetime.timezone.utc  # noqa: UP017 (Python 3.10 is common beside PyTorch)
    return datetime.datetime.now(utc).isoformat(timespec="seconds")


def measure(
    shapes: Sequence[Shape],
    prepare: Callable[[Shape], Operation],
    timer: Any,
    writer: Writer,
    facts: Mapping[str, str],
    arguments: argparse.Namespace,
    memory: Callable[[], tuple[float, float]],
    monitor: Monitor | None = None,
) -> int:
    """Time every shape and write a row each; shapes that fail are named and left out.

    Parameters
    ----------
    shapes : sequence of mapping
        Their items become cells of the row.
    prepare : callable
        Shape -> `Operation`.
    timer : Timer
        Anything with its ``time``.
    writer : Writer
    facts : mapping
        Cells of every row, `machine`.
    arguments : Namespace
    memory : callable
        Gives the bytes of the last cache and of the free device memory.
    monitor : Monitor, optional

    Returns
    -------
    int
        Rows written.
    """
    watch = monitor or Monitor(arguments.device)
    written = 0
    for number, shape in enumerate(shapes, 1):
        label = " ".join(f"{key}={value}" for key, value in shape.items())
        try:
            operation = prepare(shape)
            cache, free = memory()
            count = copies_of(operation.size, cache, free, arguments.warm)
            graph = arguments.graph and operation.graph
            timing = timer.time(operation.make, count, watch, graph)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, ImportError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            print(f"{label}: left out: {reason[0][:160]}", file=sys.stderr)
            continue
        writer.row(
            {
                **facts,
                **shape,
                **operation.cells,
                **times_of(timing),
                "copies": count,
                "timer": "graph" if graph else "events",
                "steady": "alone" if graph and arguments.warmup >= STEADY_WARMUP else "",
                **watch.state(),
            }
        )
        written += 1
        print(f"{number}/{len(shapes)} {label}: {timing.median * 1e6:.4g} us", file=sys.stderr)
    return written


def times_of(timing: Timing) -> dict[str, Any]:
    """Return the cells of a time [us]."""
    return {
        "time_us": f"{timing.median * 1e6:.6g}",
        "t_min_us": f"{timing.low * 1e6:.6g}",
        "t_max_us": f"{timing.high * 1e6:.6g}",
        "repeats": timing.repeats,
    }


def run(
    arguments: argparse.Namespace,
    shapes: Sequence[Shape],
    columns: Sequence[str],
    prepare: Callable[[Any, Shape, argparse.Namespace], Operation],
) -> int:
    """List the shapes, or measure them; returns an exit code."""
    chosen = drawn(shapes, arguments.limit, arguments.seed)
    if arguments.list:
        for shape in chosen:
            print(" ".join(f"{key}={value}" for key, value in shape.items()))
        print(f"{len(chosen):,} shapes", file=sys.stderr)
        return 0
    if not arguments.output:
        sys.exit("name the table to write: -o FILE.csv (or --list)")
    torch = import_torch(arguments.device)
    torch.manual_seed(arguments.seed)
    writer = Writer(arguments.output, [*columns, *MEASURED, *STATE, *MACHINE], arguments.append)
    cache = getattr(torch.cuda.get_device_properties(arguments.device), "L2_cache_size", 0)

    def memory() -> tuple[float, float]:
        torch.cuda.empty_cache()
        return float(max(cache or DEFAULT_CACHE, 2**20)), float(torch.cuda.mem_get_info()[0])

    written = measure(
        chosen,
        lambda shape: prepare(torch, shape, arguments),
        Timer(torch, arguments),
        writer,
        machine(torch, arguments),
        arguments,
        memory,
    )
    print(f"{written:,} of {len(chosen):,} shapes measured -> {arguments.output}", file=sys.stderr)
    return 0 if written else 1
