"""Draw the figures of docs/plots.md, from results made on the way.

    python benchmarks/figures.py [NAME …] [--results FOLDER] [--output FOLDER] [--json]

Every figure of the page is a line of `FIGURES`, and what it shows one of `RESULTS`. With --results
the results stay in a folder, and those that are there are not made again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 120_000  # B

RUN = "--model llama-3.1-70b --seq-len 8192"
RESULTS = {
    "sweep.nc": f"sweep {RUN} --global-batch 512 --devices 256 --hardware dgx-h100 "
    "--hardware dgx-b200 --hardware mi300x-server --vpp 1,2,4",
    "scaling.nc": f"sweep {RUN} --global-batch 2048 --devices 64:4096:x2 --hardware dgx-h100 "
    "--hardware dgx-b200 --vpp 1 --micro-batch 1,2",
    "pipeline.nc": "sweep --model llama-3.1-70b --seq-len 8192 --global-batch 64 --devices 32 "
    "--hardware dgx-b200 --tp 8 --pp 4 --cp 1 --vpp 1 --micro-batch 4 --recompute full",
    "serve.nc": "serve --model llama-3.1-70b --hardware dgx-h100 --hardware dgx-h200 "
    "--hardware dgx-b200 --tp 4,8 --isl 8192 --osl 1024 --concurrency 1:256:x2",
    "gemm.nc": "kernel gemm --hardware dgx-h100 --m 1:16384:x4 --n 8192 --k 8192 "
    "--precision bf16,fp8",
    "rows.csv": "compare gemm docs/samples/gemm.csv",
    "sensitivity.nc": f"sensitivity {RUN} --hardware dgx-h100 --devices 256 --global-batch 512 "
    "--tp 4 --pp 4",
}
"""File -> the command that writes it."""

FIGURES = {
    "pareto": "pareto sweep.nc --where 'cp == 1 and vpp == 1'",
    "pareto-serving": "pareto serve.nc --where 'ttft_p95 < 20'",
    "breakdown": "breakdown sweep.nc --each hardware,tp --where 'hardware != \"mi300x-server\"'",
    "memory": "memory sweep.nc --each hardware",
    "memory-stages": "memory sweep.nc --where 'hardware == \"dgx-h100\" and pp == 4' --stages",
    "heatmap": "heatmap sweep.nc --where 'hardware == \"dgx-h100\"'",
    "scaling": "scaling scaling.nc",
    "roofline": "roofline sweep.nc --where 'hardware == \"dgx-h100\"'",
    "roofline-kernels": "roofline gemm.nc",
    "pipeline": "pipeline pipeline.nc --width page",
    "sensitivity": "sensitivity sensitivity.nc --top 10",
    "accuracy": "accuracy rows.csv",
}
"""Figure -> what follows ``perfmodel plot``."""


def main() -> None:
    """Make what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--results", type=Path, help="folder in which results stay")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "plots")
    parser.add_argument("--suffix", default=".svg", help="of the figures: .svg, .png, .pdf, .html")
    parser.add_argument("--json", action="store_true", help="print names, sizes and times")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or FIGURES:
            kind, file, *options = shlex.split(FIGURES[name])
            if not (folder / file).exists():
                _perfmodel(*shlex.split(RESULTS[file]), "-o", str(folder / file), "-q")
            output = arguments.output / f"{name}{arguments.suffix}"
            start = time.perf_counter()
            _perfmodel("plot", kind, str(folder / file), *options, "-o", str(output))
            seconds, size = time.perf_counter() - start, output.stat().st_size
            found.append({"name": name, "bytes": size, "seconds": seconds})
            if not arguments.json:
                print(f"{name:18} {size / 1000:7.1f} kB {seconds:6.1f} s")
    if arguments.json:
        print(json.dumps(found, indent=2))
    large = [it["name"] for it in found if it["bytes"] > LARGEST and arguments.suffix == ".svg"]
    if large:
        sys.exit(f"larger than {LARGEST / 1000:.0f} kB: {', '.join(map(str, large))}")


def _perfmodel(*words: str) -> None:
    """Run the program; its results are not shown, its errors are."""
    subprocess.run(
        [sys.executable, "-m", "perfmodel", *words],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
