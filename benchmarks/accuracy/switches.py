"""What each declared fact and constant of training moves, family by family.

    python benchmarks/accuracy/switches.py DATA/e2e [--only NAME ...] [--json]

Every entry of `SWITCHES` turns one behaviour off: all runs are projected again without it, and
the median error and the bias of each family that moves are printed with it and without. So nobody
has to believe that a switch serves more than one source.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.base.errors import HardwareError, PerfModelError
from perfmodel.base.fields import facts_of
from perfmodel.measured.kinds.training import KIND, Case, case_of
from perfmodel.software.framework import FRAMEWORKS, IDENTITY, Framework, find_framework

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.families import compared, scores

Change = Callable[[Case], Case]


def software(**values: Any) -> Change:
    """Give every framework these values, whatever its own."""
    return lambda case: replace(case, framework=replace(case.framework, **values))


def profile(values: Mapping[str, float]) -> Change:
    """Give every profile these values at their dotted paths, whatever its own."""
    return lambda case: replace(case, hardware=case.hardware.with_values(dict(values)))


def strategy(**values: Any) -> Change:
    """Give every candidate these values where the row leaves the field open."""
    return lambda case: replace(
        case,
        candidates=[
            {**it, **{key: v for key, v in values.items() if key in case.opened}}
            for it in case.candidates
        ],
    )


def even_generations(case: Case) -> Case:
    """Let older attention kernels lose backward what they lose forward."""
    forward = "calibration.attention.generation_2_slowdown"
    backward = forward.replace("slowdown", "backward_slowdown")
    try:
        case.hardware.value(backward)
    except HardwareError:
        return replace(case)  # nothing to turn off
    return replace(
        case, hardware=case.hardware.with_values({backward: case.hardware.value(forward)})
    )


def even_power(case: Case) -> Case:
    """Let 8-bit products draw at their own peak what 16-bit ones draw at theirs."""
    hardware = case.hardware
    values = {}
    for name in ("fp8", "mxfp8"):
        path = f"calibration.gemm.energy_per_flop_{name}_training"
        try:
            hardware.value(path)
        except HardwareError:
            continue
        peaks = hardware.device.peak("bf16") / hardware.device.peak("fp8")
        values[path] = hardware.calibrated("gemm", "energy_per_flop") * peaks
    return replace(case, hardware=hardware.with_values(values))


def newest(case: Case) -> Case:
    """Take what the newest release does for what the run's own does."""
    own = FRAMEWORKS[case.framework.name.partition("[")[0]]
    new = FRAMEWORKS[find_framework(own.software)] if own.software else own
    kept = (key for key in facts_of(Framework) if key not in IDENTITY)
    values = {
        key: getattr(new, key)
        for key in kept
        if getattr(case.framework, key) == getattr(own, key) != getattr(new, key)
    }
    return replace(case, framework=replace(case.framework, **values))


# Behaviour -> what turns it off.
SWITCHES: Mapping[str, Change] = {
    "dated releases": newest,
    "overlap_gradient_reduce": software(overlap_gradient_reduce=False),
    "overlap_parameter_gather": software(overlap_parameter_gather=False),
    "overlap_tensor_parallel": software(overlap_tensor_parallel="none"),
    "overlap_pipeline": software(overlap_pipeline=False),
    "overlap_expert_parallel": software(overlap_expert_parallel=False),
    "overlap_shared_experts": software(overlap_shared_experts=False),
    "expert_dispatch": software(expert_dispatch="all_to_all"),
    "capacity_factor": software(capacity_factor=0.0),
    "expert_buffer": software(expert_buffer=0.0),
    "expert_tile_rows": software(expert_tile_rows=0.0),
    "gathers_alone": software(gathers_alone=False),
    "graph_scope": software(graph_scope="none"),
    "grouped_gemm": software(grouped_gemm=False),
    "fused_elementwise": software(fused_elementwise=True),
    "fused_norm_and_rotary": software(fused_norm_and_rotary=True),
    "copies_heads": software(copies_heads=False),
    "selective_recompute": software(selective_recompute="cheap"),
    "attention_generation": software(attention_generation=0),
    "routing": software(routing="balanced"),
    "expert_counts_on_host": software(expert_counts_on_host=False),
    "operators_per_kernel": software(operators_per_kernel=1.0),
    "sorts_chunks": software(sorts_chunks=False),
    "checks_collectives": software(checks_collectives=False),
    "launch_time": profile({"calibration.host.launch_time": 1e-5}),
    "collective_call_time": profile({"calibration.host.collective_call_time": 0.0}),
    "gradient_accumulation": software(gradient_accumulation="fused"),
    "stage_split": software(stage_split="even"),
    "best_attention_is_plain": software(best_attention_is_plain=False),
    "best_attention_one_width": software(best_attention_one_width=False),
    "bucket_bytes_per_rank": software(bucket_bytes_per_rank=0.0),
    "merges_attention": software(merges_attention="kernel"),
    "scatters_sends": software(scatters_sends=False),
    "reduces_whole_gradients": software(reduces_whole_gradients=False),
    "reduces_scales": software(reduces_scales=False),
    "low_precision_parameters": software(low_precision_parameters=False),
    "overlap_update_gather": software(overlap_update_gather=False),
    "broadcasts_parameters": software(broadcasts_parameters=False),
    "overlap_gradient_copies": software(overlap_gradient_copies=True),
    "gradient_copies_bytes": software(gradient_copies_bytes=0.0),
    "copies of shards": software(gather_copy_bytes=0.0, reduce_copy_bytes=0.0),
    "dropout": software(dropout=False),
    "scaling": software(scaling="current"),
    "gathers_quantised": software(gathers_quantised=False),
    "power of 8-bit products": even_power,
    "energy inside a step": profile({"calibration.gemm.steady_energy_ratio": 1.0}),
    "generation_2_backward_slowdown": even_generations,
    "layers_per_chunk": strategy(virtual_pipeline=1),
    "likely recompute": strategy(recompute="none"),
    "likely micro-batch": strategy(micro_batch_size=1),
    "prediction_modules": lambda case: replace(case, model=case.model.without_mtp()),
    "speed_spread": profile({"calibration.host.speed_spread": 0.0}),
}
MOVED = 0.002
"""Families whose median or bias changes by less are left out."""


def without(change: Change) -> Any:
    """Return the kind of table whose rows run without a behaviour."""
    return replace(KIND, case_of=lambda row: change(case_of(row)))


def moved(with_it: Mapping[str, Any], without_it: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return what changes per family: median and bias with and without."""
    found = {}
    for family, one in with_it["families"].items():
        other = without_it["families"][family]
        numbers = {
            f"{name}_{label}": it[name]
            for label, it in (("with", one), ("without", other))
            for name in ("median", "bias")
        }
        if any(abs(one[name] - other[name]) > MOVED for name in ("median", "bias")):
            found[family] = numbers
    return found


def all_moved(folder: Path, names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return what each switch moves."""
    base = scores(compared(folder))
    return {
        name: moved(base, scores(compared(folder, kind=without(SWITCHES[name])))) for name in names
    }


def markdown(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Write what moves as a Markdown table, in percent."""
    lines = ["| switch | families: median (bias) without it → with it |", "|---|---|"]
    for name, families in found.items():
        cells = [
            f"{family} {100 * it['median_without']:.1f} ({100 * it['bias_without']:+.1f}) → "
            f"{100 * it['median_with']:.1f} ({100 * it['bias_with']:+.1f})"
            for family, it in families.items()
        ]
        lines.append(f"| `{name}` | {'; '.join(cells) or 'none'} |")
    return "\n".join(lines)


def main() -> int:
    """Print what every switch moves, as a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder with the tables of measured runs")
    parser.add_argument("--only", nargs="*", default=list(SWITCHES), choices=list(SWITCHES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        found = all_moved(options.folder, options.only)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=1) if options.json else markdown(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
