"""Compare matrix products under a long load with published ones.

    python benchmarks/accuracy/sustained.py [RATES.csv] [--json]

RATES.csv (default: ``benchmarks/published_sustained.csv``, typed from the cited sources) holds
the rate [TFLOP/s] of one shape that a device keeps up for seconds. Ours is given twice: of a
product alone, under the board's limit (no time to heat up, `steady_energy_ratio` 1), and of one
inside a training step. Errors are our rate over the published one, less 1; what stands between
the two columns is what training draws beyond products alone.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.published import HEADER, error_cells, run

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import Hardware, load_hardware

RATES = Path(__file__).resolve().parents[1] / "published_sustained.csv"


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


def steady_rate(hardware: Hardware, precision: str, shape: str, alone: bool) -> float:
    """Return the rate of a product under a load that lasts [FLOP/s]."""
    m, n, k = map(int, shape.split("x"))
    found = gemm_times(hardware, precision, m, n, k, steady=True, alone=alone)
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
                    steady_rate(hardware, *call, alone=True),
                    steady_rate(hardware, *call, alone=False),
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
    yield f"| ours | rates | {HEADER} |"
    yield "|---|" + "---:|" * 6
    for name, words in (("alone", "alone"), ("in_step", "in a training step")):
        cells = [words, f"{len(found)}", *error_cells([it.error(name) for it in found])]
        yield f"| {' | '.join(cells)} |"


def document(found: Sequence[Sustained]) -> list[dict[str, Any]]:
    """Return everything, fit for JSON."""
    return [asdict(it) for it in found]


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison."""
    description = (__doc__ or "").splitlines()[0]
    return run("sustained.py", description, RATES, evaluate, markdown, document, arguments)


if __name__ == "__main__":
    sys.exit(main())
