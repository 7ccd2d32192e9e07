"""Compare the streaming model with measured kernels, and refit its constants.

    python benchmarks/fit/stream.py DATA_FOLDER [--fit] [--json]

DATA_FOLDER holds ``elementwise.csv`` and ``training_ops.csv``. Errors are printed by
device, framework and operation. With ``--fit``, the constants of every device are fitted
to its reference rows (`REFERENCES`) and printed beside those in use; nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import score_and_fit

from perfmodel.measured.calibrate import calibrate_file
from perfmodel.measured.compare import compare_file

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


def print_fit(profile: str, constants: dict[str, tuple[float, float, float]]) -> None:
    """Print the constants of one fit."""
    print(profile)
    for path, (before, after, deviation) in constants.items():
        print(f"  {path:40} {before:9.4g} -> {after:9.4g} +- {deviation:.2g}")


if __name__ == "__main__":
    score_and_fit(__doc__ or "", errors, refit, print_fit)
