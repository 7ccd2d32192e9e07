"""Memory of engines when they start: projected against what their logs say.

    python benchmarks/accuracy/startup_memory.py --data ../shared/data [--json]

Rows of ``e2e/startup_memory.csv``: weights, memory that is left for the cache, tokens that the
logged memory holds, and whether the engine starts with the context that it is asked for (the
model's own, where none is stated), each where ``scoreable`` or ``started`` says that a row can
judge it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfmodel.base.errors import PerfModelError
from perfmodel.base.facts import release_key
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.measured.row_hardware import profile_name
from perfmodel.measured.row_model import served_model
from perfmodel.measured.rows import MeasuredRow, Skip, read_rows
from perfmodel.measured.serving_rows import engine_of, formats_of
from perfmodel.serving.enumerate import deployments_from_rows
from perfmodel.serving.memory import DeploymentMemory, deployment_memory

GIB = 2.0**30
LIMITS = {
    "max_model_len": "context_length",
    "max_num_seqs": "max_sequences",
    "max_num_batched_tokens": "token_budget",
}
WANTED = {"weights_gib": 1.5, "available_kv_gib": 6.0, "kv_tokens": 2.0}
"""Quantity -> median error that is asked for [%]."""


STAND_INS = {
    "3090": "rtx-4090-server",
    "a6000": "a40-server",
    "5070": "rtx-5090-server",
    "80 gb gpu|gib gpu": "dgx-h100",
}
"""Devices without a profile -> one of another memory that engines treat alike."""


def device_of(row: MeasuredRow) -> Hardware:
    """Return the device of a row, with the memory that it states; raises Skip."""
    text = row.text("gpu").partition("+")[0].strip()
    name = profile_name(text)
    if not name:
        found = [to for words, to in STAND_INS.items() if re.search(words, text.lower())]
        if not found:
            raise Skip("device without a profile", text)
        name = found[0]
    hardware = load_hardware(name)
    total = row.positive("gpu_total_gib")
    stated = re.search(r"(\d+) ?GB", text)
    if total:
        return hardware.with_values({"device.memory.capacity": total * GIB})
    if stated and not profile_name(text):
        # As much of the nominal memory is there as on other devices.
        usable = 0.98 * float(stated[1]) * GIB
        return hardware.with_values({"device.memory.capacity": usable})
    return hardware


def memory_of(row: MeasuredRow, **more: Any) -> DeploymentMemory:
    """Return the memory of the engine of a row; raises Skip."""
    model, _ = served_model(row)
    hardware = device_of(row)
    month = re.search(r"20\d\d-\d\d|20\d\d", row.text("release"))
    version = row.text("release").partition("(")[0]
    known = release_key(version) and not version.strip().startswith("20")
    cells = {**row.cells, "version": version if known else "", "measured": ""}
    if month and not known:
        cells["measured"] = month.group() if len(month.group()) > 4 else f"{month.group()}-12"
    stated = MeasuredRow(cells, row.file, row.line)
    engine, _ = engine_of(stated)
    formats, _ = formats_of(stated, model)
    devices, tensor = row.whole("n_gpus") or 1, row.whole("tp") or 1
    fields: dict[str, Any] = {**formats, "tensor_parallel": tensor}
    stages = max(devices // tensor, 1)
    if first := re.search(r"VLLM_PP_LAYER_PARTITION=(\d+)", row.text("flags")):
        # The stage of the first device: as of so many stages with as many layers.
        stages = max(model.num_layers // int(first[1]), 1)
    fields |= {"pipeline_parallel": stages, "context_length": model.max_positions}
    fields |= {to: row.whole(at) for at, to in LIMITS.items() if row.whole(at)}
    if share := row.positive("memory_share"):
        fields["memory_share"] = share
    grid = deployments_from_rows(model, [{**fields, **more}], engine=engine)
    layouts, layout, _ = grid.layouts()
    return deployment_memory(grid, layouts, layout, hardware)


def compare(row: MeasuredRow) -> dict[str, Any]:
    """Return what a row says beside what is projected of it."""
    judges = row.text("scoreable")
    found = memory_of(row)
    pairs = {}
    if "weights_gib" in judges and row.positive("weights_gib"):
        pairs["weights_gib"] = float(found.weights[0]) / GIB
    left = float(row.text("available_kv_gib") or "nan")
    if "available_kv_gib" in judges and left > 0.0:
        pairs["available_kv_gib"] = float(found.cache[0]) / GIB
    if "kv_tokens" in judges and left > 0.0:
        held = memory_of(row, cache_bytes=left * GIB)
        # What a log says of a stage is the longest request that its check lets pass.
        staged = (row.whole("n_gpus") or 1) > (row.whole("tp") or 1)
        ratio = held.admitted[0] / held.concurrency[0] if staged else 1.0
        pairs["kv_tokens"] = float(held.tokens[0] * ratio)
    starts = bool(found.fits[0] and not found.refused[0] and not found.starved[0])
    errors = {name: value / (row.number(name) or 1.0) - 1.0 for name, value in pairs.items()}
    return {"id": row.text("id"), "projected": pairs, "errors": errors, "starts": starts}


def score(path: Path) -> dict[str, Any]:
    """Return errors of every row, and their medians."""
    _, rows = read_rows(path, ("model",))
    results, skipped, verdicts = [], {}, []
    for row in rows:
        try:
            found = compare(row)
        except (Skip, PerfModelError) as error:
            skipped[row.text("id")] = str(error)
            continue
        if row.lower("started") in ("yes", "no"):
            found["right"] = found["starts"] == (row.lower("started") == "yes")
            verdicts.append(found["right"])
        results.append(found)
    medians = {}
    for name in WANTED:
        errors = [abs(item["errors"][name]) for item in results if name in item["errors"]]
        medians[name] = {"count": len(errors), "median": statistics.median(errors)}
    starts = {"count": len(verdicts), "right": sum(verdicts) / max(len(verdicts), 1)}
    return {"rows": results, "skipped": skipped, "medians": medians, "starts": starts}


def markdown(document: Mapping[str, Any]) -> str:
    """Write everything as text."""
    lines = []
    for item in document["rows"]:
        errors = ", ".join(
            f"{name} {item['projected'][name]:,.2f} ({100 * error:+.1f} %)"
            for name, error in item["errors"].items()
        )
        verdict = {True: "right", False: "WRONG"}.get(item.get("right"), "not stated")
        lines.append(f"{item['id']}  {errors or '-'}; starts: {item['starts']} ({verdict})")
    lines += [f"{name}  not scored: {why}" for name, why in document["skipped"].items()]
    for name, found in document["medians"].items():
        lines.append(
            f"{name}: median {100 * found['median']:.2f} % of {found['count']} rows, "
            f"asked {WANTED[name]:g} %"
        )
    starts = document["starts"]
    lines.append(f"starts or not: {starts['right']:.0%} of {starts['count']} right, asked 90 %")
    return "\n".join(lines)


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that has e2e/")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    document = score(options.data / "e2e/startup_memory.csv")
    print(json.dumps(document, indent=2) if options.json else markdown(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
