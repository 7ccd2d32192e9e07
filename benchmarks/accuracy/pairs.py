"""Compare the ratio of two machines with published ones.

    python benchmarks/accuracy/pairs.py [PAIRS.csv] [--json]

PAIRS.csv (default: ``benchmarks/published_pairs.csv``, typed from the cited sources before
anything was projected) holds two rows a pair. ``training``: the columns of docs/accuracy.md;
what is compared is tokens per second and device of the first row over that of the second.
``mamf``: the best rate of a matrix product that anybody found on a device (``value``), over
that of the second; ours is the best of the model over a grid of sizes, under a short load.
``claim``: what a maker says of one machine over another (``value`` of the first row); nobody
states a strategy or a release, so each side has the fastest strategy that fits its memory, under
the framework that the row names. Errors are our ratio over the published one, less 1; pairs
beyond 10 % are marked.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.published import HEADER, error_cells, run

from perfmodel.base.errors import PerfModelError
from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import compare_file, error_statistics
from perfmodel.store.results import best
from perfmodel.strategy.enumerate import strategy_grid
from perfmodel.sweeps.several import sweep

PAIRS = Path(__file__).resolve().parents[1] / "published_pairs.csv"
LIMIT = 0.10
SIZES = np.array([1024, 2048, 4096, 6144, 8192, 12288, 16384])
"""Sides that the search for the best rate tries, of the range of mamf-finder."""

Row = dict[str, str]


@dataclass(frozen=True)
class Pair:
    """One published ratio and ours.

    Attributes
    ----------
    pair, kind, what, first, second : str
    published, ours : float
        First over second.
    """

    pair: str
    kind: str
    what: str
    first: str
    second: str
    published: float
    ours: float

    @property
    def error(self) -> float:
        """Our ratio over the published one, less 1."""
        return self.ours / self.published - 1.0

    @property
    def missed(self) -> bool:
        """Whether the error is larger than `LIMIT`."""
        return abs(self.error) > LIMIT


def read_pairs(path: Path) -> dict[str, list[Row]]:
    """Return the two rows of every pair.

    Raises
    ------
    PerfModelError
        A pair does not have two rows of one kind.
    """
    found: dict[str, list[Row]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(row["pair"], []).append(row)
    for name, rows in found.items():
        if len(rows) != 2 or rows[0]["kind"] != rows[1]["kind"]:
            raise PerfModelError(f"{path}: pair '{name}' needs two rows of one kind")
    return found


def training(pairs: dict[str, list[Row]]) -> Iterator[Pair]:
    """Yield the pairs of training runs, projected as `perfmodel compare training` does."""
    rows = [row for two in pairs.values() for row in two]
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.csv"
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        found = compare_file("training", file).rows
    steps = [row.error for row in found]
    for position, (name, (first, second)) in enumerate(pairs.items()):
        errors = steps[2 * position], steps[2 * position + 1]
        if errors[0] is None or errors[1] is None:
            continue
        published = rate(first) / rate(second)
        ours = published * (1.0 + errors[1]) / (1.0 + errors[0])
        what = f"{first['model']}, {first['seq']} tokens, {first['precision']}, {first['family']}"
        yield Pair(name, "training", what, first["hardware"], second["hardware"], published, ours)


def rate(row: Row) -> float:
    """Return the published tokens per second and device."""
    return float(row["meas_tokens_s_gpu"] or row["der_tokens_s_gpu"])


def ceilings(pairs: dict[str, list[Row]]) -> Iterator[Pair]:
    """Yield the pairs of best rates."""
    for name, (first, second) in pairs.items():
        published = float(first["value"]) / float(second["value"])
        best = [best_rate(row["hardware"], row["precision"]) for row in (first, second)]
        what = f"best matrix product, {first['precision']}"
        yield Pair(
            name, "mamf", what, first["hardware"], second["hardware"], published, best[0] / best[1]
        )


def claims(pairs: dict[str, list[Row]]) -> Iterator[Pair]:
    """Yield what makers say of two machines, each projected at its best."""
    for name, (first, second) in pairs.items():
        ours = fastest(first) / fastest(second)
        machines = first["hardware"], second["hardware"]
        what = f"{first['model']}, {first['precision']}, {first['framework']}, {first['family']}"
        yield Pair(name, "claim", what, *machines, float(first["value"]), ours)


def fastest(row: Row) -> float:
    """Return tokens per second and device of the fastest strategy that fits.

    Raises
    ------
    PerfModelError
        An unknown name, a number that is none, or no strategy that fits.
    """
    numbers = {}
    for name in ("n_gpus", "seq", "gbs"):
        if not row[name].isdecimal():
            raise PerfModelError(f"pair '{row['pair']}': {name} is a number, not {row[name]!r}")
        numbers[name] = int(row[name])
    grid = strategy_grid(
        row["model"],
        numbers["n_gpus"],
        sequence_length=numbers["seq"],
        global_batch_size=numbers["gbs"],
        hardware=row["hardware"],
        precision=row["precision"],
    )
    found = best(
        sweep(row["model"], grid, row["hardware"], framework=row["framework"], dtype="float64"), 1
    )
    return float(found[0]["tokens_per_second_per_device"])


@cache
def best_rate(name: str, precision: str) -> float:
    """Return the best rate of a product in the model [FLOP/s]."""
    m, n, k = (axis.ravel() for axis in np.meshgrid(SIZES, SIZES, SIZES))
    hardware = load_hardware(name)
    times = gemm_times(hardware, precision, m, n, k, library="training")
    return float(np.max(times.flops / times.time))


def evaluate(path: Path) -> list[Pair]:
    """Return every pair that could be projected."""
    pairs = read_pairs(path)

    def of(kind: str) -> dict[str, list[Row]]:
        return {name: rows for name, rows in pairs.items() if rows[0]["kind"] == kind}

    return [*training(of("training")), *claims(of("claim")), *ceilings(of("mamf"))]


def markdown(found: Sequence[Pair]) -> Iterator[str]:
    """Yield the table, worst last, and the statistics of each kind."""
    yield from table(found)
    yield ""
    yield from summary(found)


def table(found: Sequence[Pair]) -> Iterator[str]:
    """Yield pairs as a table, worst last within their kind."""
    yield "| what | machines | published | ours | error | |"
    yield "|---|---|---:|---:|---:|---|"
    for pair in sorted(found, key=lambda item: (item.kind, abs(item.error))):
        yield (
            f"| {pair.what} | {pair.first} / {pair.second} | {pair.published:.2f} "
            f"| {pair.ours:.2f} | {100 * pair.error:+.1f} % | {'missed' if pair.missed else ''} |"
        )


def summary(found: Sequence[Pair]) -> Iterator[str]:
    """Yield the errors of each kind as a table."""
    yield f"| kind | pairs | within 10 % | {HEADER} |"
    yield "|---|" + "---:|" * 7
    for kind in dict.fromkeys(pair.kind for pair in found):
        members = [pair for pair in found if pair.kind == kind]
        within = sum(not pair.missed for pair in members)
        errors = error_cells([pair.error for pair in members])
        cells = [kind, f"{len(members)}", f"{within}", *errors]
        yield f"| {' | '.join(cells)} |"


def block(found: Sequence[Pair]) -> str:
    """Return what docs/accuracy.md shows: errors of each kind, and the misses."""
    missed = [pair for pair in found if pair.missed]
    return "\n".join([*summary(found), "", *table(missed)])


def document(found: Sequence[Pair]) -> dict[str, Any]:
    """Return everything, fit for JSON."""
    errors = np.array([pair.error for pair in found])
    return {
        "count": len(found),
        **error_statistics(errors),
        "pairs": [asdict(pair) | {"error": pair.error} for pair in found],
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison."""
    description = (__doc__ or "").splitlines()[0]
    return run("pairs.py", description, PAIRS, evaluate, markdown, document, arguments)


if __name__ == "__main__":
    sys.exit(main())
