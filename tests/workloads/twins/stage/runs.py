"""Models, machines and points of the exploration that STAGE and ASTRA-sim ran."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.stage.arguments import StageArguments
from perfmodel.workloads.twins.stage.traces import stage_traces

TIMES = ("wall_time", "exposed_communication", "gpu_time", "communication_time")

LLAMA = StageArguments(
    input_size=32000,
    output_size=32000,
    hidden_size=8192,
    feed_forward_size=28672,
    heads=64,
    sequence_length=1024,
    batch=512,
    layers=80,
)

GPT = replace(
    LLAMA,
    input_size=50257,
    output_size=50257,
    hidden_size=12288,
    feed_forward_size=49152,
    heads=96,
    layers=96,
)

SANITY = replace(
    LLAMA,
    data_parallel=2,
    tensor_parallel=2,
    sequence_parallel=2,
    pipeline_parallel=2,
    activation_recompute=True,
    layers=8,
)


def costs_of(bandwidth, performance, memory_bandwidth):
    """4 × 4 × 4 devices on rings."""
    system = uniform_system(
        ["ring"] * 3,
        preferred_dataset_splits=10,
        active_chunks_per_dimension=4,
        roofline_enabled=True,
        peak_performance_teraflops=performance,
        local_memory_bandwidth_gb_per_second=memory_bandwidth,
    )
    network = AstraNetwork(("Ring",) * 3, (4, 4, 4), (bandwidth,) * 3, (50.0,) * 3)
    return AstraCosts(network, system)


SYSTEMS = {"llama": (LLAMA, costs_of(100.0, 450.0, 3000.0)),
           "gpt": (GPT, costs_of(2000.0, 45.0, 300.0))}  # fmt: skip


def run_point(model, strategy, layers=None, **options):
    """Run one point of the exploration."""
    base, costs = SYSTEMS[model]
    dp, tp, sp, recompute = strategy
    arguments = replace(
        base,
        data_parallel=dp,
        tensor_parallel=tp,
        sequence_parallel=sp,
        activation_recompute=bool(recompute),
        layers=layers or base.layers,
    )
    return simulate(stage_traces(arguments), costs, **options)


def figures(result):
    """Return the times [ns] in the order of `TIMES`, and the peak memory [B]."""
    return *(int(result.ticks(name)[0]) for name in TIMES), int(result.peak_memory[0])


def strategies():
    """Return all 56: powers of two whose product is 64, without and with recomputation."""
    powers = [2**i for i in range(7)]
    return [
        (dp, tp, 64 // (dp * tp), recompute)
        for recompute in (0, 1)
        for dp in powers
        for tp in powers
        if dp * tp <= 64
    ]


# The same of releases before April 2025.
HASH_ORDER_RUNS = [
    ("gpt", (4, 8, 2, 1), 4, (5244911748, 16181392, 5228730356, 61238469), 5121108992),
    ("gpt", (4, 8, 2, 1), 8, (9810888823, 29510035, 9781378788, 118619733), 6756887552),
    ("llama", (8, 1, 8, 1), 4, (230875502, 7157380, 223718122, 76981728), 6618611712),
    ("llama", (8, 1, 8, 1), 8, (435589912, 17311066, 418278846, 148547016), 9040822272),
    ("llama", (32, 1, 2, 0), 8, (347455483, 2188685, 345266798, 62450988), 15812526080),
    ("gpt", (16, 4, 1, 0), 8, (8223756851, 9174975, 8214581876, 54133755), 18726631424),
]


CASE_NAMES = {"llama": "llama70b@system1", "gpt": "gpt175b@system2"}
