"""Compare runs of a projection's own traces with the projected step.

Usage::

    python benchmarks/accuracy/traces.py [--hardware NAME] [--every N] [--json]

A fixed list of strategies of six models, with every framework: the projection writes its
traces, the simulator runs them with the recorded times, and the wall time is divided by the
step time that a sweep finds for the same strategy. Traces are by operation and by layer,
with a stream per group, and by operation with one stream (and its order of collectives).
Strategies that shard over part of the data ranks (HSDP) stand apart. FLOP, memory traffic
and bytes by collective of a device of every stage are added up on both sides; traces round
every node to whole FLOP and bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.collectives import TRACED
from perfmodel.base.errors import PerfModelError, StrategyError
from perfmodel.hwprofiles import Hardware, load_hardware
from perfmodel.model.presets import load_model
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import FRAMEWORKS
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.rules import STATUS_REASONS
from perfmodel.sweeps.several import sweep
from perfmodel.training.step.groups import rank_groups
from perfmodel.training.step.types import ProjectedOperation, ProjectedWorkload
from perfmodel.training.step.workload import projected_workload
from perfmodel.workloads.export.chakra import projected_traces
from perfmodel.workloads.simulation.hardware_costs import HardwareCosts
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, SEND, TraceSet

# Presets and how many layers are kept; 0: all.
MODELS = {
    "gpt3-6.7b": 0,
    "llama-3.1-8b": 0,
    "mixtral-8x7b": 0,
    "qwen3-30b-a3b": 0,
    "deepseek-v2-lite": 0,
    "deepseek-v3": 8,
}
SHORT = {
    "tp": "tensor_parallel",
    "sp": "sequence_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_pipeline",
    "schedule": "pipeline_schedule",
    "dp": "data_parallel",
    "zero": "zero_stage",
    "shard": "shard_group",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "cp": "context_parallel",
    "kind": "context_parallel_kind",
    "batch": "micro_batch_size",
}
# Strategies by their differences from one device: 2,048 tokens, 4 micro-batches.
STRATEGIES = """
    tp=1
    tp=4
    tp=4 sp=off
    tp=4 sp=off dp=2 recompute=full
    tp=8 dp=4 micro_batches=8
    cp=4 recompute=full
    cp=2 kind=all_to_all dp=2
    cp=2 kind=all_gather tp=2 recompute=selective
    pp=4 micro_batches=8
    pp=4 dp=2 zero=0 micro_batches=8
    pp=2 schedule=gpipe
    pp=2 vpp=2 micro_batches=8
    pp=2 vpp=4 tp=2 micro_batches=8
    pp=4 vpp=2 dp=2 micro_batches=8 recompute=selective
    dp=8 zero=0
    dp=8 zero=1
    dp=8 zero=2
    dp=8 zero=3
    dp=16 zero=3 shard=8
    dp=16 zero=1 shard=4
    dp=4 zero=3 recompute=full batch=2
    tp=2 dp=4 precision=fp16 batch=2
    tp=2 dp=2 precision=fp8
    tp=2 cp=2 pp=2 dp=2
    tp=2 cp=2 pp=2 dp=2 mapping=tensor-pipeline-context-data
    tp=8 pp=2 vpp=2 dp=2 recompute=full micro_batches=8
"""
EXPERT_STRATEGIES = """
    dp=8 ep=8
    dp=8 ep=4 zero=3
    tp=2 dp=4 ep=4
    tp=2 dp=4 ep=2 etp=2 recompute=selective
    pp=2 dp=4 ep=4 micro_batches=8
    pp=2 vpp=2 dp=4 ep=4 recompute=full micro_batches=8
    cp=2 dp=4 ep=4 zero=2
    dp=16 ep=4 zero=3 shard=8
    dp=8 ep=8 precision=fp8
    dp=8 ep=2 zero=0
"""
DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")
# Setting: options of the traces, streams.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "by operation": ({}, "per-group"),
    "by layer": ({"granularity": "layer"}, "per-group"),
    "one stream": ({"serial_communication": True}, "one"),
}
HSDP = "HSDP, "
FIGURES = ("median", "p10", "p90", "lowest", "highest")
Totals = dict[str, float]


def models() -> Iterator[ModelSpec]:
    """Yield the models, cut to the stated number of layers."""
    for name, layers in MODELS.items():
        model = load_model(name)
        yield replace(model, layers=model.layers[:layers]) if layers else model


def strategy_row(words: str) -> dict[str, Any]:
    """Return the fields of one line of the list."""
    row: dict[str, Any] = {"sequence_length": 2048, "data_parallel": 1, "micro_batch_size": 1}
    row |= dict.fromkeys(DEGREES, 1)
    batches = 4
    for word in words.split():
        key, _, text = word.partition("=")
        value: Any = int(text) if text.isdigit() else text
        if key == "micro_batches":
            batches = value
        elif key == "sp":
            row["sequence_parallel"] = value == "on"
        else:
            row[SHORT.get(key, key)] = value
    row["global_batch_size"] = batches * row["data_parallel"] * row["micro_batch_size"]
    return row


def strategies(model: ModelSpec) -> Iterator[StrategyGrid]:
    """Yield the strategies of a model, each as a grid of its own."""
    lines = STRATEGIES.strip().splitlines()
    if any(layer.mlp.kind == "moe" for layer in model.layers):
        lines += EXPERT_STRATEGIES.strip().splitlines()
    for words in lines:
        row = strategy_row(words)
        devices = int(np.prod([row[name] for name in DEGREES]))
        yield strategies_from_rows(model, devices, [row])


def projected_totals(workload: ProjectedWorkload, stage: int) -> Totals:
    """Add up what one device of a stage does, from the projection's operations."""
    found: Totals = defaultdict(float)

    def add(item: ProjectedOperation, runs: float) -> None:
        if item.communicates:
            found[item.collective] += runs * item.count * item.size
        else:
            found["FLOP"] += runs * item.flops
            found["memory traffic"] += runs * item.traffic

    own = workload.stages[stage]
    for block in own.blocks():
        for item in block.part.operations:
            add(item, workload.micro_batches)
        for item in block.gathers:
            add(item, workload.gathers)
        for item in block.reductions:
            add(item, workload.reductions)
    add(own.optimizer, 1)
    if own.table:
        add(own.table, 1)
    if workload.boundary:
        add(workload.boundary, workload.sends(stage))
    return found


def traced_totals(traces: TraceSet, rank: int) -> Totals:
    """Add up what a rank does, from the nodes of its trace."""
    trace = traces.traces[rank]
    found: Totals = defaultdict(float)
    device = (trace.kinds == COMPUTE) & (trace.on_cpu == 0)
    found["FLOP"] = float(trace.num_ops[device & (trace.num_ops > 1)].sum())
    found["memory traffic"] = float(trace.tensor_size[device].sum())
    found["point_to_point"] = float(trace.communication_size[trace.kinds == SEND].sum())
    for number, name in enumerate(TRACED):
        # The projection counts whole buffers, traces the shard that a rank gives to a gather.
        for group in np.unique(trace.group):
            nodes = (trace.kinds == COLLECTIVE) & (trace.collective == number)
            nodes &= trace.group == group
            if nodes.any():
                position = int(np.flatnonzero(nodes)[0])
                shards = len(traces.members(rank, position)) if name == "all_gather" else 1
                found[name] += shards * float(trace.communication_size[nodes].sum())
    return found


def differences(workload: ProjectedWorkload, traces: TraceSet) -> Totals:
    """Return the worst relative difference of each total over the stages."""
    stages = rank_groups(workload.strategy).stage
    worst: Totals = {}
    for stage in range(len(workload.stages)):
        expected = projected_totals(workload, stage)
        found = traced_totals(traces, int(np.flatnonzero(stages == stage)[0]))
        names = [name for name in {**expected, **found} if expected[name] or found[name]]
        keep_worst(
            worst,
            {
                name: abs(found[name] - expected[name]) / max(found[name], expected[name])
                for name in names
            },
        )
    return worst


def keep_worst(worst: Totals, other: Totals) -> None:
    """Raise each difference to that of `other`."""
    for name, apart in other.items():
        worst[name] = max(worst.get(name, 0.0), apart)


def run(
    model: ModelSpec, grid: StrategyGrid, hardware: Hardware, framework: str
) -> tuple[dict[str, float], Totals]:
    """Return wall time over projected step time by setting, and differences of totals."""
    projected = sweep(model, grid, hardware, framework=framework, threads=1, dtype="float64")
    step = float(projected["step_time"].values[0, 0])
    workload = projected_workload(model, grid, hardware, framework=framework)
    ratios: dict[str, float] = {}
    apart: Totals = {}
    for setting, (options, streams) in SETTINGS.items():
        traces = projected_traces(workload, **options)
        costs = HardwareCosts(
            hardware,
            str(workload.strategy["precision"]),
            communication_streams=streams,
            compute="recorded",
        )
        wall = float(simulate(traces, costs, memory=False).wall_time.max())
        ratios[setting] = wall / step
        keep_worst(apart, differences(workload, traces))
    return ratios, apart


def survey(hardware: Hardware, every: int) -> dict[str, Any]:
    """Run all combinations, or each `every`-th; return the document."""
    ratios: dict[str, list[float]] = defaultdict(list)
    totals: Totals = {}
    left_out: Counter[str] = Counter()
    combinations = [
        (model, grid, framework)
        for model in models()
        for grid in strategies(model)
        for framework in FRAMEWORKS
    ]
    for model, grid, framework in combinations[::every]:
        if grid.status[0] != VALID:
            left_out[f"impossible: {STATUS_REASONS[int(grid.status[0])]}"] += 1
            continue
        try:
            found, apart = run(model, grid, hardware, framework)
        except StrategyError as error:
            left_out[str(error)] += 1
            continue
        keep_worst(totals, apart)
        prefix = HSDP if grid["shard_group"][0] else ""
        for setting, ratio in found.items():
            ratios[prefix + setting].append(ratio)
    return {
        "hardware": hardware.name,
        "combinations": len(combinations[::every]),
        "settings": {
            name: statistics_of(ratios[name])
            for name in (*SETTINGS, *(HSDP + setting for setting in SETTINGS))
            if name in ratios
        },
        "worst_relative_difference": totals,
        "left_out": dict(left_out),
    }


def statistics_of(ratios: list[float]) -> dict[str, float]:
    """Return count and quantiles of some ratios."""
    quantiles = np.quantile(ratios, (0.5, 0.1, 0.9, 0.0, 1.0)).tolist()
    return {"count": len(ratios), **dict(zip(FIGURES, quantiles, strict=True))}


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield f"{'wall / projected step':<24}{'runs':>6}" + "".join(f"{name:>9}" for name in FIGURES)
    for name, row in document["settings"].items():
        yield f"{name:<24}{row['count']:>6}" + "".join(f"{row[item]:9.3f}" for item in FIGURES)
    yield "\ntotals of traces against the projection's, worst relative difference"
    for name, apart in document["worst_relative_difference"].items():
        yield f"{name:<24}{apart:9.1e}"
    yield ""
    for reason, count in document["left_out"].items():
        yield f"left out: {count} × {reason}"


def main() -> int:
    """Print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hardware", default="dgx-h100", help="profile")
    parser.add_argument("--every", type=int, default=1, help="only each N-th combination")
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f"--every is {options.every}; it should be > 0")
    try:
        document = survey(load_hardware(options.hardware), options.every)
    except PerfModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    for text in lines_of(document):
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
