"""Each kernel is compiled for one set of argument types, whoever calls it.

An integer where others hand over a float, a strided row or a column of another width makes Numba
compile a kernel once more, and all that it calls: seconds of a first run, with equal results.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numba
import pytest

pytestmark = pytest.mark.skipif(
    numba.config.DISABLE_JIT, reason="NUMBA_DISABLE_JIT=1: nothing is compiled"
)

# What the program does, over two devices, several models, lists and arrays, whole numbers and
# fractions; then the types that each kernel was compiled or loaded for.
CALLS = """
import importlib, json, pkgutil
import numpy as np
import perfmodel.kernels
from perfmodel import *
from perfmodel.compute.collectives import collective_choices, collective_times
from perfmodel.compute.expert_exchange import moe_exchange_times
from perfmodel.analysis.explain import operation_costs
from perfmodel.training import project
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, TraceBuilder, TraceSet

project.CHUNK = 64  # several pieces of a grid
devices = [load_hardware(name) for name in ("dgx-h100", "mi300x-server")]
for name in ("llama-3.1-8b", "mixtral-8x7b"):
    model = load_model(name)
    grid = strategy_grid(model, 64, sequence_length=4096, global_batch_size=256)
    sweep(model, grid, devices)
    row = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 1}
    row |= {"sequence_length": 4096, "global_batch_size": 16}
    one = strategies_from_rows(model, 16, [row])
    for hardware in devices:
        operation_costs(model, one, hardware)
        projected_workload(model, one, hardware)
for hardware in devices:
    for sizes in (4096, [128, 256], np.array([64.0, 4096.0]), np.arange(1, 4, dtype=np.int32)):
        gemm_times(hardware, "bf16", sizes, 4096, 4096)
        gemm_times(hardware, "fp8", sizes, 4096.0, 4096, output_bytes=2)
        attention_times(hardware, "bf16", 1, sizes, sizes, 32, 8, 128, 128)
        attention_times(hardware, "bf16", 4, 1, sizes, 32, 8, 128, 128, causal=False, copies=1)
        stream_times(hardware, sizes, 1024)
        collective_times(hardware, "all_reduce", sizes, 8)
        collective_choices(hardware, ["all_gather", "all_to_all"], 1e6, [8, 16], 1, "direct")
    moe_times(hardware, "bf16", [1024, 2048], 4096, 14336, 8, 2)
    builder = TraceBuilder()
    builder.add("a", COMPUTE, num_ops=10**12, tensor_size=10**6)
    builder.add("b", COLLECTIVE, collective=0, communication_size=2**20)
    trace = builder.build()
    simulate(TraceSet((trace, trace)), HardwareCosts(hardware))
moe_exchange_times(devices[0], "dispatch", "normal", 128, 7168, 8, 256, [8, 16])
moe_exchange_times(devices[0], "combine", "low_latency", [64.0, 128.0], 7168, 8, 256, 64)

counts = {}
for module in pkgutil.walk_packages(perfmodel.kernels.__path__, "perfmodel.kernels."):
    for value in vars(importlib.import_module(module.name)).values():
        if hasattr(value, "nopython_signatures") and value.__module__ == module.name:
            counts[f"{module.name}.{value.__name__}"] = [str(s) for s in value.signatures]
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def signatures() -> dict[str, list[str]]:
    """Types that each kernel was compiled for in a fresh process, by its name."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CALLS], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, list[str]] = json.loads(run.stdout)
    return found


def test_the_calls_reach_the_kernels(signatures):
    used = {name.removeprefix("perfmodel.kernels.") for name, types in signatures.items() if types}
    assert used >= {
        "matmul.gemm.gemm_times",
        "matmul.grouped.grouped_gemm_times",
        "attention.columns.attention_times",
        "stream.stream_times",
        "collective.times.collective_choices",
        "collective.expert_exchange.moe_exchange_times",
        "step.close.close_strategies",
        "workloads.trace.schedule.run_traces",
    }


def test_no_kernel_is_compiled_for_two_sets_of_types(signatures):
    # Two kinds of devices have a cache and a power limit; kernels take either.
    both = ("matmul.power.power_limited_time", "stream.hit_share")
    most = {f"perfmodel.kernels.{name}": 2 for name in both}
    often = {name: types for name, types in signatures.items() if len(types) > most.get(name, 1)}
    assert often == {}
