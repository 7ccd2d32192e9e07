"""Compare matrix products under a long load with published ones.

    python benchmarks/accuracy/sustained.py [RATES.csv] [--json]

RATES.csv (default: ``benchmarks/published_sustained.csv``, typed from the cited sources) holds
the rate [TFLOP/s] of one shape that a device keeps up for seconds. Ours is given twice: of a
product alone, under the board's limit (no time to heat up, `steady_energy_ratio` 1), and of one
inside a training step. Errors are our rate over the published one, less 1; what stands between
the two columns is what training draws beyond products alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from perfmodel.base.errors import PerfModelError
from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.compare import error_statistics

RATES = Path(__file__).resolve().parents[1] / "published_sustained.csv"
ALONE = {"calibration.gemm.steady_energy_ratio": 1.0}
ERRORS = [f"{name}_absolute_error" for name in ("median", "mean", "p90", "worst")]


@dataclass(frozen=True)
class Sustained:
    """One published rate and ours.

    Attributes
    ----------
    hardware, precision, shape, source : str
    published, alone, in_step : float
        Rates [FLOP/s].
    """

    hardware: str
    precision: str
    shape: str
    source: str
    published: float
    alone: float
    in_step: float

    def error(self, name: str) -> float:
        """Our rate of one kind over the published one, less 1."""
        return float(getattr(self, name)) / self.published - 1.0


def steady_rate(hardware: Hardware, precision: str, shape: str) -> float:
    """Return the rate of a product under a load that lasts [FLOP/s]."""
    m, n, k = map(int, shape.split("x"))
    found = gemm_times(hardware, precision, m, n, k, steady=True)
    return float(found.flops[0] / found.time[0])


def evaluate(path: Path) -> list[Sustained]:
    """Return every published rate with ours."""
    found = []
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            hardware = load_hardware(row["profile"])
            call = row["precision"], row["shape"]
            found.append(
                Sustained(
                    row["hardware"],
                    *call,
                    row["source"],
                    float(row["rate"]) * 1e12,
                    steady_rate(hardware.with_values(ALONE), *call),
                    steady_rate(hardware, *call),
                )
            )
    return found


def markdown(found: Sequence[Sustained]) -> Iterator[str]:
    """Yield the rates and the statistics of both kinds of ours as tables."""
    yield "| sustained product, TFLOP/s | shape | published | alone | | in a training step | |"
    yield "|---|---|" + "---:|" * 5
    for it in found:
        cells = [f"{it.hardware} · {it.precision}", it.shape, f"{it.published / 1e12:,.0f}"]
        for name in ("alone", "in_step"):
            cells += [f"{getattr(it, name) / 1e12:,.0f}", f"{100 * it.error(name):+.1f} %"]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "| ours | rates | median | mean | p90 | worst | bias |"
    yield "|---|" + "---:|" * 6
    for name, words in (("alone", "alone"), ("in_step", "in a training step")):
        stated = error_statistics(np.array([it.error(name) for it in found]))
        errors = [f"{100 * stated[key]:.1f} %" for key in ERRORS]
        cells = [words, f"{len(found)}", *errors, f"{100 * stated['bias']:+.1f} %"]
        yield f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=RATES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found = evaluate(options.file)
    except (PerfModelError, OSError) as error:
        print(f"sustained.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(it) for it in found], indent=1))
    else:
        print("\n".join(markdown(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
