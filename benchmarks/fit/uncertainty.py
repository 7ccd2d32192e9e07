"""Take the bands of [calibration.uncertainty] from the residuals of measured kernels.

Usage: python benchmarks/fit/uncertainty.py DATA [--write]

DATA is the folder with ``measured/`` and ``primus/``. For each family, kernel class and
regime the half-width of the 10-90 % band of ln(measured / predicted) over the rows of
the reference framework is printed; ``--write`` puts it into the family's profile, with
the count of rows. Classes without twenty such rows keep what the profile says; so do
AMD's kernels, whose rows are best cases of tuned kernels in other precisions than
training's (its collectives are measured as they run).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perfmodel.base.regimes import REGIMES
from perfmodel.measured.compare import compare_file

PROFILES = Path(__file__).resolve().parents[1] / "hwprofiles"
FEWEST = 20
DEVICES = {
    "A100_SXM": "nvidia-ampere",
    "H100_SXM": "nvidia-hopper",
    "B200": "nvidia-blackwell",
    "mi355x-server": "amd-cdna4",
}
LATENT = "framework == 'sglang' or hardware == 'A100_SXM' and framework == 'trtllm'"
# kind, file, reference rows
TABLES = (
    ("gemm", "measured/gemm.csv", None),
    ("attention", "measured/attention.csv", "framework == 'sglang'"),
    (
        "attention",
        "measured/attention_fwd_bwd.csv",
        "phase == 'bwd' and framework == 'TransformerEngine/flash-attn'",
    ),
    ("mla", "measured/mla.csv", LATENT),
    ("moe", "measured/moe.csv", "framework == 'sglang'"),
    ("stream", "measured/elementwise.csv", "framework != 'trtllm'"),
    ("collective", "measured/collective.csv", "impl == 'nccl'"),
    ("collective", "primus/measured_rccl_mi355x.csv", None),
)
PHASES = {"fwd": "attention", "bwd": "attention_backward", "decode": "decode"}


def residuals(data: Path) -> Iterator[tuple[str, str, float]]:
    """Give (family, key, ln(measured / predicted)) of every scored reference row."""
    for kind, file, where in TABLES:
        if not (data / file).exists():
            continue
        for row in compare_file(kind, data / file, where).rows:
            family = DEVICES.get(row.cells.get("hardware", ""))
            regime = row.cells.get("regime", "")
            if not row.scored or family is None or regime not in REGIMES:
                continue
            kernel_class = PHASES.get(row.cells.get("phase", ""), kind)
            kernel_class = kernel_class if kind in ("attention", "mla") else kind
            yield family, f"{kernel_class}_{regime}", -float(np.log1p(row.error))


def bands(data: Path) -> dict[str, dict[str, tuple[float, int]]]:
    """Return (half-width, rows) by family and key."""
    found: dict[str, dict[str, list[float]]] = {}
    for family, key, value in residuals(data):
        found.setdefault(family, {}).setdefault(key, []).append(value)
    return {
        family: {
            key: (float(np.diff(np.quantile(values, [0.1, 0.9]))[0] / 2.0), len(values))
            for key, values in sorted(keys.items())
            if len(values) >= FEWEST
        }
        for family, keys in found.items()
    }


def write(family: str, keys: dict[str, tuple[float, int]]) -> None:
    """Replace the values of a family's profile, and their sources."""
    path = PROFILES / f"{family}.toml"
    text = path.read_text(encoding="utf-8")
    for key, (value, rows) in keys.items():
        pattern = rf'^({key} = \{{ )value = [^,]+(,.*)source = "[^"]*"'
        source = f"residuals of {rows} measured rows (benchmarks/fit/uncertainty.py)"
        text, count = re.subn(
            pattern, rf'\g<1>value = {value:.3f}\g<2>source = "{source}"', text, flags=re.M
        )
        if count != 1:
            raise SystemExit(f"{path.name} has {count} entries '{key}', expected one")
    path.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Print the bands, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with measured/ and primus/")
    parser.add_argument("--write", action="store_true", help="put them into hwprofiles/*.toml")
    options = parser.parse_args(arguments)
    for family, keys in bands(options.data).items():
        print(family)
        for key, (value, rows) in keys.items():
            print(f"  {key:26s} {value:6.3f}  {rows:6,} rows")
        if options.write:
            write(family, keys)
    return 0


if __name__ == "__main__":
    sys.exit(main())
