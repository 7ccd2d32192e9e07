"""Compare the streaming model with measured kernels, and refit its constants.

    python benchmarks/fit_stream.py DATA_FOLDER [--fit] [--json]

DATA_FOLDER holds ``elementwise.csv`` and ``training_ops.csv``. Errors are printed by
device, framework and operation. With ``--fit``, the constants of every device are fitted
to its reference rows (`REFERENCES`) and printed beside those in use; nothing is written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from perfmodel.calibrate import calibrate_file
from perfmodel.compare import compare_file

GRAPH = ("memory_efficiency", "cache_efficiency", "launch_latency")
GRAPH += ("round_trip_latency", "block_start")
EAGER = ("memory_efficiency", "reduction_latency", "eager_latency", "compiled_latency")

# profile: reference rows, constants that they say something about. TensorRT-LLM's kernel
# loads element by element and is no measure of a device; the fp16 row kernels of MI210 are
# not vectorised either.
REFERENCES = {
    "dgx-a100": ('hardware == "A100_SXM"', EAGER),
    "dgx-h100": ('hardware == "H100_SXM" and framework != "trtllm"', GRAPH),
    "dgx-b200": ('hardware == "B200" and framework != "trtllm"', GRAPH),
    "v100-pcie": ('hardware == "V100_PCIE"', EAGER[:3]),
    "mi210-server": (
        'hardware == "MI210" and dtype == "fp32"',
        (*EAGER[:3], "special_operations"),
    ),
}

ROWS = 600  # that a fit sees


def errors(folder: Path) -> dict[str, dict[str, Any]]:
    """Return error statistics by device, framework and operation, and of the graphs."""
    single = compare_file("stream", folder / "elementwise.csv", by=())
    groups = {(r.cells["hardware"], r.cells["framework"], r.cells["op"]) for r in single.rows}
    report = {}
    for hardware, framework, operation in sorted(groups):
        where = f'hardware == "{hardware}" and framework == "{framework}" and op == "{operation}"'
        found = compare_file("stream", folder / "elementwise.csv", where, by=())
        report[f"{hardware} {framework} {operation}"] = found.to_json_dict()
    report["training graphs"] = compare_file(
        "stream", folder / "training_ops.csv", by=()
    ).to_json_dict()
    return report


def refit(folder: Path) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return value in use, fitted value and its standard deviation of every constant."""
    report = {}
    for profile, (where, only) in REFERENCES.items():
        found = calibrate_file(
            profile, folder / "elementwise.csv", kind="stream", where=where, only=only, limit=ROWS
        )
        report[profile] = {
            item.path: (item.before, item.after, item.uncertainty) for item in found.parameters
        }
    return report


def main() -> None:
    """Print errors, and fitted constants where asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the measured tables")
    parser.add_argument("--fit", action="store_true", help="fit the constants too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"errors": errors(arguments.folder)}
    if arguments.fit:
        report["fits"] = refit(arguments.folder)
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    for name, e in report["errors"].items():
        print(
            f"{name:38} n {e['count']:4}  median {e['median_absolute_error']:6.1%}  mean "
            f"{e['mean_absolute_error']:6.1%}  p90 {e['p90_absolute_error']:6.1%}  "
            f"bias {e['bias']:+6.1%}"
        )
    for profile, constants in report.get("fits", {}).items():
        print(profile)
        for path, (before, after, deviation) in constants.items():
            print(f"  {path:40} {before:9.4g} -> {after:9.4g} +- {deviation:.2g}")


if __name__ == "__main__":
    main()
