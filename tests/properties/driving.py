"""Calls that reach every kernel, over random inputs."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from perfmodel import (
    HardwareCosts,
    attention_times,
    gemm_times,
    load_hardware,
    load_model,
    moe_times,
    projected_workload,
    simulate,
    strategies_from_rows,
    strategy_grid,
    stream_times,
    sweep,
)
from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES
from perfmodel.base.errors import PerfModelError
from perfmodel.base.pipelines import SCHEDULE_FACTS, SCHEDULES
from perfmodel.base.routing import COUNTED, DISTRIBUTIONS, parse_routing
from perfmodel.base.strategy_fields import MAPPINGS
from perfmodel.compute.collectives import (
    collective_choices,
    link_occupancies,
    serving_all_reduce_times,
)
from perfmodel.compute.expected_loads import draw_tokens, draw_weights
from perfmodel.compute.expert_exchange import moe_exchange_times
from perfmodel.compute.grouped_gemm import even_loads, grouped_gemm_times
from perfmodel.compute.network import network_table
from perfmodel.compute.recurrence import recurrence_times
from perfmodel.compute.recurrence_counts import RECURRENCE_PHASES, RECURRENCES
from perfmodel.compute.routing import assign, rank_loads
from perfmodel.compute.sparse_attention import SPARSE_PHASES, indexer_times, sparse_attention_times
from perfmodel.hwprofiles import load_mesh
from perfmodel.kernels.serving.tables import ROWS
from perfmodel.kernels.work import kernel_work
from perfmodel.serving.replay import replay_trace
from perfmodel.serving.requests import RequestTrace, random_trace
from perfmodel.software.framework import load_framework
from perfmodel.strategy.pipelines import usual_chunks
from perfmodel.training.stages import pipeline_timeline, stage_memories
from perfmodel.training.step.timeline import step_timeline
from perfmodel.wafer.core_trace import format_pieces
from perfmodel.wafer.cores.attention import AttentionSizes, Part, decode_attention
from perfmodel.wafer.cores.instructions import bytes_times_links, multicasts
from perfmodel.wafer.cores.layout import even_layout
from perfmodel.wafer.cores.products import product
from perfmodel.wafer.nodes.workload import node_operations
from perfmodel.wafer.routing import core_routing
from perfmodel.wafer.search import search_mapping
from perfmodel.wafer.setting import CoreSetting
from perfmodel.wafer.system import WaferSystem
from perfmodel.wafer.tiles import best_tiles
from perfmodel.wafer.twin.core_pieces import (
    CoreNode,
    all_reduce_pieces,
    attention_pieces,
    multicast_piece,
    product_pieces,
)
from perfmodel.wafer.walk import ABSORBED, AttentionShape
from perfmodel.workloads.formats.astra_machine import uniform_system
from perfmodel.workloads.formats.astra_text_machine import INTER_DIMENSION, INTRA_DIMENSION
from perfmodel.workloads.schedules.schedule import operation_loads, schedule
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from perfmodel.workloads.twins.astra.collective import simulate_collectives
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.kernels.pipeline.cases import random_durations
from tests.kernels.serving import cases as serving
from tests.kernels.serving.test_passes import linear_tables
from tests.workloads.schedules.networks import CASES, TOPOLOGIES, nodes, options_of
from tests.workloads.twins.astra import networks as astra
from tests.workloads.twins.astra.networks import simulate_collective
from tests.workloads.twins.astra_text import test_native as astra_text

DEVICES = ("dgx-h100", "dgx-a100", "mi300x-server", "tpu-v5p-pod")


def everything(random: np.random.Generator) -> None:
    """Call all that calls kernels."""
    for drive in (
        training,
        pipelines,
        schedules,
        single_operations,
        recurrent_mixers,
        expert_routing,
        collectives,
        topologies,
        traces,
        sparse_operations,
        astra_collectives,
        astra_texts,
        operating_points,
        served_requests,
        meshes,
        core_traces,
        core_programs,
        mesh_tiles,
        mesh_searches,
        mesh_mappings,
    ):
        drive(random)


def sizes(random: np.random.Generator, low: float, high: float, count: int) -> np.ndarray:
    """Whole numbers, log-uniform."""
    return np.floor(np.exp(random.uniform(np.log(low), np.log(high), count))).astype(np.int64)


def training(random: np.random.Generator) -> None:
    """Grids of strategies, with all orders of the axes, and one of them as a workload."""
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"):
        model = load_model(name, mtp="stated")
        grid = strategy_grid(
            model,
            32,
            sequence_length=4096,
            global_batch_size=256,
            mapping=[MAPPINGS[code] for code in (0, 5, 14, 20)],
            shard_group=[0, 8],
        )
        some = grid.take(np.sort(random.choice(len(grid), min(len(grid), 8), replace=False)))
        for device in DEVICES:
            hardware = load_hardware(device)
            sweep(model, some, hardware, framework="megatron-deepep")
        row = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 1}
        row |= {"sequence_length": 4096, "global_batch_size": 16}
        projected_workload(model, strategies_from_rows(model, 16, [row]), load_hardware("dgx-h100"))


def pipelines(random: np.random.Generator) -> None:
    """Every schedule, its passes over uneven stages, what ranks keep, and closed forms."""
    from perfmodel.kernels.pipeline import closed, events, link, orders, paced

    for name in SCHEDULES:
        chunks, placement = usual_chunks(name), SCHEDULE_FACTS[name].placement
        for ranks, batches in ((4, 8), (2, 12)):
            order = orders.make_order(name, placement, ranks, chunks, batches, ranks)
            program = link.link_order(order)
            stages = order.rank_of.size
            steady = paced.repetitions(order, program, ranks)
            steps = paced.steps_of(program, np.arange(4 * stages).reshape(4, -1), steady)
            work, sends = random.uniform(0.1, 2.0, (4 * stages, 3)), random.uniform(0.0, 0.5, 3)
            paced.paced_makespans(*steps, work, sends, 1.0)
            timeline = events.run_order(order, program, random_durations(random, stages))
            until_input, until_weight = random.uniform(0.0, 1.0, (2, stages))
            events.peaks(order, until_input, until_weight)
            events.fullest(order.first, order.kind, order.stage % 2, 2)
            events.held_over_time(order, timeline, until_input, until_weight)
    link.link_order(order._replace(stage=order.stage[::-1].copy()))  # out of order
    events.plain_durations(*random.uniform(0.1, 2.0, (3, 4)))
    closed.one_f_one_b_makespan(*random.uniform(0.1, 1.0, (4, 5, 4))[:2, 0], 9)
    ends = closed.Ends(1.0, 2.0, 0.7, 0.9, 0.5, 0.2)
    closed.ends_wait(False, 4, 1, 8, ends)
    closed.ends_wait(False, 4, 2, 8, ends)


def schedules(random: np.random.Generator) -> None:
    """Strategies whose passes run one by one: each schedule, uneven, sharded and offloaded."""
    hardware, model = load_hardware("dgx-h100"), load_model("llama-3.1-8b")
    run = {"pipeline_parallel": 4, "global_batch_size": 64, "sequence_length": 2048}
    rows = [
        {**run, "pipeline_schedule": name, "zero_stage": int(random.choice([0, 3]))}
        for name in SCHEDULES
    ]
    rows += [{**run, "virtual_pipeline": chunks, "zero_stage": 3} for chunks in (1, 2)]
    rows += [{**run, "offload_optimizer": 0.5, "offload_activations": 0.25}]
    rows += [{**rows[-1], f"offload_{state}_to": "nvme"} for state in ("optimizer", "activations")]
    rows += [{**run, "offload_activations": 1.0, "offload_activations_to": "stage"}]
    rows += [{**run, "pipeline_schedule": "gpipe", "recompute": "full"}]
    for split in ("even", "by_cost", "first=6,last=4"):
        framework = replace(load_framework("megatron"), stage_split=split)
        with contextlib.suppress(PerfModelError):  # not every schedule takes a layout
            sweep(model, strategies_from_rows(model, 8, rows), hardware, framework=framework)
    framework = replace(load_framework("megatron"), layer_graphs=True)
    sweep(model, strategies_from_rows(model, 8, rows[:1]), hardware, framework=framework)
    tied = load_model("bloom-176b")
    sweep(tied, strategies_from_rows(tied, 8, rows[:3]), hardware)
    framework = load_framework("megatron")
    several = [{**row, "global_batch_size": batch} for row in rows for batch in (64, 256)]
    front = ["step_time", "memory_total"]
    grid = strategies_from_rows(model, 8, several)
    sweep(model, grid, hardware)
    sweep(model, grid, hardware, keep="best", top=3, pareto=front)
    for row in rows:
        grid = strategies_from_rows(model, 8, [row])
        if not grid.status.any():
            pipeline_timeline(model, grid, hardware, framework)
            step_timeline(model, grid, hardware)
            stage_memories(model, grid, hardware, load_framework("fsdp"))


def single_operations(random: np.random.Generator) -> None:
    """Products, attention, streams and layers of experts of any size."""
    count = 12
    for device in DEVICES:
        hardware = load_hardware(device)
        m, n, k = (sizes(random, 1, 30_000, count) for _ in range(3))
        gemm_times(hardware, "bf16", m, n, k, batch=random.integers(1, 9, count))
        gemm_times(hardware, "bf16", m, n, k, accumulate=True, steady=True)
        keys = sizes(random, 16, 60_000, count)
        for phase in ("prefill", "decode", "backward"):
            attention_times(
                hardware,
                "bf16",
                batch=random.integers(1, 64, count),
                query_length=1 if phase == "decode" else keys,
                key_length=keys,
                heads=32,
                key_value_heads=random.choice([1, 4, 8, 32], count),
                head_dim_qk=random.choice([64, 128, 192], count),
                head_dim_v=128,
                causal=random.integers(0, 2, count).astype(bool),
                window=random.choice([0, 0, 1024], count),
                backward=phase == "backward",
            )
        for library in ("serving", "portable"):
            with contextlib.suppress(PerfModelError):  # not every profile knows both
                latent = {"latent": True, "library": library}
                attention_times(hardware, "bf16", 8, 1, keys, 64, 1, 576, 512, **latent)
                windowed = {"window": 128, "library": library}
                attention_times(hardware, "bf16", 8, keys, keys, 64, 8, 64, 64, **windowed)
                attention_times(hardware, "bf16", 8, 1, keys, 64, 8, 64, 64, library=library)
        read = sizes(random, 1, 1e10, count)
        stream_times(hardware, read, read[::-1].copy(), flops=read * 3.0, bytes_reread=read)
        with contextlib.suppress(PerfModelError):  # not every profile has constants of layers
            grouped_gemm_times(hardware, "bf16", even_loads([8], [512]), 4096, 4096)
            moe_times(hardware, "bf16", sizes(random, 1, 1000, 4), 4096, 14336, 8, 2)


def sparse_operations(random: np.random.Generator) -> None:
    """Attention over chosen keys and its indexer, of any size and in every pass."""
    count = 12
    for device in DEVICES:
        for phase in SPARSE_PHASES:
            keys = sizes(random, 16, 200_000, count)
            lengths = {
                "batch": random.integers(1, 64, count),
                "query_length": 1 if phase == "decode" else np.minimum(keys, 8192),
                "key_length": keys,
                "block": (block := random.choice([1, 1, 128], count)),
                "compression": np.where(block > 1, 1, random.choice([1, 4, 128], count)),
                "phase": phase,
            }
            sparse_attention_times(
                device,
                "bf16",
                heads=random.choice([16, 64, 128], count),
                head_dim_qk=random.choice([128, 512, 576], count),
                head_dim_v=128,
                selected=random.choice([0, 512, 2048], count),
                window=random.choice([0, 128], count),
                shared_key_value=random.integers(0, 2, count),
                **lengths,
            )
            heads = random.choice([4, 32, 64], count)
            indexer_times(device, heads=heads, head_dim=128, top_k=1024, **lengths)


def recurrent_mixers(random: np.random.Generator) -> None:
    """Every kind of recurrent mixer in every phase, of any size."""
    count = len(RECURRENCES) * len(RECURRENCE_PHASES)
    for device in (*DEVICES, "dgx-b200"):
        groups = random.choice([1, 2, 8], count)
        recurrence_times(
            load_hardware(device),
            "bf16",
            kind=np.repeat(RECURRENCES, len(RECURRENCE_PHASES)),
            phase=np.tile(RECURRENCE_PHASES, len(RECURRENCES)),
            batch=sizes(random, 1, 64, count),
            length=sizes(random, 1, 60_000, count),
            heads=groups * sizes(random, 1, 100, count),
            key_heads=groups,
            key_dim=random.choice([16, 64, 96, 128, 256], count),
            value_dim=random.choice([1, 64, 128, 256], count),
            chunk=random.choice([16, 64, 128, 256], count),
        )


def expert_routing(random: np.random.Generator) -> None:
    """Every distribution of tokens over experts, by draws and by loads."""
    for name in DISTRIBUTIONS:
        if name == "empirical":
            continue
        routing = parse_routing(name, int(random.integers(1000)))
        assign(routing, 200, 64, 8)
        if name not in COUNTED:
            weights = draw_weights(routing, 64, 8)
            draw_tokens(weights, 60, 8)
            draw_tokens(weights, 60, 8, groups=8, group_limit=4)
        rank_loads(routing, 300, 64, 8, 4)
        rank_loads(routing, 70_000, 64, 8, 4)  # more than are drawn one by one
    system = WaferSystem(
        nodes=8, node_grid=(2, 4), data_parallel=8, expert_parallel=2, ffn_tensor_parallel=2,
        ffn_data_parallel=2, expert_exchange="multicast",
    )  # fmt: skip
    setting = CoreSetting(load_model("mixtral-8x7b"), system, "decode", 12, 50)
    node_operations(setting, (0, 1), core_routing(setting, "two_level"), ["decode0"])


def collectives(random: np.random.Generator) -> None:
    """Every collective by every algorithm."""
    from perfmodel.kernels.collective import times

    count = 16
    for device in (*DEVICES, "trn2-48xl"):
        hardware = load_hardware(device)
        size = 2.0 ** random.uniform(8, 34, count)
        members = np.append(2 ** random.integers(0, 9, count // 2), range(3, count // 2 + 3))
        stride = 2 ** random.integers(0, 4, count)
        for kind in COLLECTIVES:
            collective_choices(hardware, kind, size, members, stride)
            link_occupancies(hardware, kind, size, members, stride)
            for algorithm in ALGORITHMS:
                with contextlib.suppress(PerfModelError):  # not every algorithm does all
                    collective_choices(hardware, kind, size, members, stride, algorithm)
        serving_all_reduce_times(hardware, size, members, stride)
        kinds = random.integers(0, len(COLLECTIVES), count)
        times.collective_times(kinds, size, members, stride, network_table(hardware))
        times.serving_all_reduce_times(size, members, stride, network_table(hardware))
    for mode in ("normal", "low_latency"):
        for phase in ("dispatch", "combine"):
            tokens = sizes(random, 1, 8192, 10)
            hardware = load_hardware("dgx-h100")
            moe_exchange_times(hardware, phase, mode, tokens, 7168, 8, 256, [8] * 5 + [64] * 5)


def topologies(random: np.random.Generator) -> None:
    """Routes and loads on every topology, and schedules on them."""
    for topology in (*TOPOLOGIES.values(), nodes(1e-6)):
        count = topology.device_count
        source, target = random.integers(0, count, (2, 30))
        size = random.uniform(1, 1e9, 30)
        topology.routes(source, target)
        topology.hops(source, target)
        topology.link_loads(source, target, size)
    for name, collective, algorithm in CASES:
        plan = schedule(collective, algorithm, 8, 1e6, **options_of(collective, algorithm))
        operation_loads(TOPOLOGIES[name], plan, range(8))


def trace_set(random: np.random.Generator) -> TraceSet:
    """Four ranks with work, collectives, messages and tensors."""
    builders = []
    for rank in range(4):
        builder = TraceBuilder()
        last = -1
        for step in range(6):
            after = [last] if last >= 0 else []
            work = builder.add(
                f"work {step}",
                COMPUTE,
                num_ops=int(10.0 ** random.uniform(9, 13)),
                tensor_size=10**6,
                data=after,
                inputs=[(f"tensor {step}", 1000 * (step + 1))],
                outputs=[(f"tensor {step + 1}", 2000 * (step + 1))],
            )
            last = builder.add(
                f"sum {step}",
                COLLECTIVE,
                collective=(0, 2, 6, 7)[step % 4],
                communication_size=2 ** (16 + step),
                data=[work],
            )
            kind = SEND if rank % 2 == step % 2 else RECEIVE
            pair = rank ^ 1
            sides = (rank, pair) if kind == SEND else (pair, rank)
            builder.add(
                f"message {step}",
                kind,
                communication_size=2**20,
                tag=step,
                source=sides[0],
                destination=sides[1],
                data=[work],
            )
        builders.append(builder.build())
    return TraceSet(tuple(builders))


def traces(random: np.random.Generator) -> None:
    """Traces on a profile, with and without contention, and as ASTRA-sim."""
    found = trace_set(random)
    for contention in (False, True):
        simulate(found, HardwareCosts(load_hardware("dgx-h100"), contention=contention))
    system = uniform_system(["ring"], roofline_enabled=True, peak_performance_teraflops=900.0)
    for engine in ("congestion-unaware", "congestion-aware"):
        simulate(found, AstraCosts(astra.one_dimension(members=4), system, engine))
    builders = [TraceBuilder() for _ in range(16)]
    for rank, builder in enumerate(builders[1:], 1):  # messages wait until all have come
        last = [builder.add("work", COMPUTE, duration=1.0)]
        for _ in range(20):
            sides = {"source": 0, "destination": rank, "communication_size": 1000}
            builders[0].add("send", SEND, **sides)
            last = [builder.add("receive", RECEIVE, data=last, **sides)]
    late = TraceSet(tuple(builder.build() for builder in builders))
    simulate(late, AstraCosts(astra.one_dimension(members=16), system, "congestion-aware"))


def astra_collectives(random: np.random.Generator) -> None:
    """Every collective of ASTRA-sim, without and with congestion, whole and in groups."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for kind in kinds:
        for size in sizes(random, 2**12, 2**24, 1):
            for algorithm in ("ring", "direct", "halvingDoubling", "doubleBinaryTree"):
                system = uniform_system([algorithm], preferred_dataset_splits=4)
                for topology in ("Ring", "Switch", "FullyConnected"):
                    network = astra.one_dimension(topology, 8)
                    for engine in ("congestion-unaware", "congestion-aware"):
                        with contextlib.suppress(PerfModelError):  # nor here
                            simulate_collective(network, system, kind, int(size), engine=engine)
            network = astra.two_dimensions()
            with contextlib.suppress(PerfModelError):
                astra.time_of(network, "ring|halvingDoubling", kind, int(size))
            system = uniform_system(["ring"], preferred_dataset_splits=3)
            network = astra.one_dimension(members=16)
            simulate_collective(network, system, kind, int(size), members=[0, 3, 5, 11])
            for algorithm in ("direct", "halvingDoubling"):  # of groups, on main
                with contextlib.suppress(PerfModelError):
                    simulate_collectives(
                        network,
                        system,
                        kind,
                        [int(size)],
                        members=[0, 3, 5, 11],
                        group_algorithm=algorithm,
                    )


def astra_texts(random: np.random.Generator) -> None:
    """Workloads of ASTRA-sim 1.0 on its networks."""
    rings, cubes = (astra_text.RING4, astra_text.RING4SW2), (astra_text.CUBE222, astra_text.FC4SW4)
    texts = [
        *(astra_text.DLRM, astra_text.MODEL, astra_text.VANILLA, astra_text.ODD),
        astra_text.mlp("HYBRID_MODEL"),
        astra_text.transformer(),
    ]
    rules = list(zip(INTER_DIMENSION, INTRA_DIMENSION, strict=True))
    for number, text in enumerate(texts):
        for place, where in enumerate((*rings, *cubes)):
            rule, own = rules[(number + place) % len(rules)]
            options = {"preferred_dataset_splits": 4, "passes": 2, "queues": 2}
            options |= {"inter_dimension_scheduling": rule, "memory_scale": len(own) % 2}
            options |= {"intra_dimension_scheduling": own}
            with contextlib.suppress(PerfModelError):  # not every network runs every text
                astra_text.run(text, where, **options)
    too_much = "MICRO 1 conv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1 5"
    with contextlib.suppress(PerfModelError):  # too small to be cut in pieces
        astra_text.run(too_much, astra_text.RING8, preferred_dataset_splits=64)


def mesh_tiles(random: np.random.Generator) -> None:
    """Products on the cores of a node, of any size."""
    for grid in ((2, 3), (4, 4), (1, 20)):
        m, k, n = (int(one) for one in sizes(random, 1, 5000, 3))
        best_tiles(m, k, n, grid, groups=int(random.integers(1, 5)))


def mesh_mappings(random: np.random.Generator) -> None:
    """Models on regions of a mesh of any size, in both phases."""
    from perfmodel.wafer.project import wafer_table

    for name in ("llama-3-8b", "deepseek-v3", "gpt-oss-20b"):
        for phase in ("decode", "prefill"):
            wafer_table(
                name,
                "wse-2",
                grid=sizes(random, 2, 760, 2).tolist(),
                phase=phase,
                context=int(sizes(random, 1, 4000, 1)[0]),
                batch=[1, 5],
                product="all",
                collective=["chain", "ring", "two_level"],
                cache_layout="all",
                parts=True,
            )


def mesh_searches(random: np.random.Generator) -> None:
    """Mappings of a model on a corner of a wafer."""
    sides = {"mesh.rows": 5, "mesh.columns": 4, "mesh.sram_per_core": 4e9}
    mesh = load_mesh("wse-2").with_values(sides)
    for phase in ("decode", "prefill"):
        context = int(random.integers(1, 100))
        asked = {"phase": phase, "context": context, "shape": "rectangle", "exhaustive": False}
        search_mapping("llama-3-8b", mesh, **asked)


def meshes(random: np.random.Generator) -> None:
    """Sums and products on meshes of cores, of any size."""
    from perfmodel.kernels.wafer import products, reduce, routes
    from perfmodel.wafer.collectives import reduction, simulated_cycles

    for name in reduce.ALGORITHMS:
        flows = reduction(name, 1, int(random.integers(2, 20)), int(random.integers(1, 40)))
        simulated_cycles(flows, 1, 20, stage_cycles=3)
    source, target = random.integers(0, 63, (2, 200))
    size = random.integers(0, 9, 200).astype(float)
    for tree in (np.full(200, routes.ALONE), np.arange(200) // 5):
        routes.flow_loads(9, 7, source // 5 * 5, target, size, tree)
    for kind in (routes.EACH, routes.DEDUPLICATED, routes.TREE):
        for back in (False, True):
            routes.exchange_loads(9, 7, source, target.reshape(-1, 4).repeat(4, 0), kind, back)
    core = (2.0, 4.0, 16.0, 8.0, 20.0)
    links = (2.0, 1.0, 20.0, 2.0)
    for _ in range(4):
        cores, elements = (float(one) for one in sizes(random, 1, 800, 2))
        for algorithm in range(len(reduce.ALGORITHMS)):
            reduce.reduce_cycles(algorithm, cores, elements, *links)
            reduce.all_reduce_counts(algorithm, cores, elements, 2.0)
            reduce.all_gather_cycles(algorithm, cores, elements, *links)
            reduce.grid_all_reduce_cycles(algorithm, cores, elements, 64.0, *links)
        reduce.phase_cycles(elements, 2.0 * elements, cores, cores, 3.0, 2.0)
        m, n, k = (float(one) for one in sizes(random, 1, 30_000, 3))
        products.gemv_cycles(k, n, cores, cores, reduce.TWO_LEVEL, *core, *links)
        for algorithm in range(len(products.PRODUCTS)):
            products.mesh_gemm_cycles(algorithm, m, n, k, cores, *core, *links)
            products.mesh_gemm_cycles(algorithm, m, n, k, cores, *core, *links, 24.0)
        products.transposed_product_cycles(reduce.TWO_LEVEL, m, n, k, cores, *core, *links)


def core_traces(random: np.random.Generator) -> None:
    """Tiles of products, attention and a ring on cores, as text."""
    node = CoreNode(9, 9, 2)
    following = np.zeros(9, np.int64)
    for _ in range(3):
        m, k, n = sizes(random, 4, 300, 3).tolist()
        source = node.fresh((m, k), (max(1, m // 3), k))
        pieces = product_pieces("product", node, source, (m, k, n), (m, -(-k // 2), -(-n // 3)))
        rows = node.fresh((4, 1, 2, 24), (1, 1, 1, 8))
        tiles = (1, 1, 2, 16), (1, 2 * m, 16)
        pieces += attention_pieces("attention", node, rows, (4, 2, 3 * m, 16, 8), *tiles)
        pieces += all_reduce_pieces("ring", node, rows, rows, (1, 2), 1)
        pieces.append(multicast_piece("cast", node, rows, [rows, rows]))
        for _ in format_pieces(pieces, following):
            pass


def core_programs(random: np.random.Generator) -> None:
    """Attention, products and multicasts of nodes on their cores."""
    grid = (2, 3)
    for _ in range(2):
        sequences, keys, heads = sizes(random, 2, 40, 3).tolist()
        source = even_layout(sequences, heads * 24, grid)
        shape = AttentionShape(ABSORBED, heads, 1, 24, 16, 24, 24)
        size = AttentionSizes(shape, sequences, 1, keys)
        made, layout = decode_attention((Part(source, 0, 24, 24),), (), size, grid, True)
        bytes_times_links(made, WaferSystem(core_grid=grid))
        shape = (1, sequences, heads * 16, keys)
        made, _ = product(layout, shape, grid, (2.0, 2.0, 2.0, 2.0))
        bytes_times_links(made, WaferSystem(core_grid=grid))
        trees = np.array([2, 3]), np.array([8, 16]), random.permutation(6)[:5], np.array([2, 3])
        bytes_times_links(multicasts(*trees), WaferSystem(core_grid=grid))


def operating_points(random: np.random.Generator) -> None:
    """Open loops of one pool, and both loops of two."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import steady
    from perfmodel.kernels.serving.tables import ADMISSIONS, ROWS, SCHEDULERS

    tables = linear_tables(graph_limit=64.0, graph_time=2e-3, pass_host=1e-3)
    tables.body[0, :, 1] += 3e-3 + 4e-6 * tables.tokens
    for number in range(40):
        draft = float(random.integers(0, 3))
        deployments = serving.deployment(
            SCHEDULERS[number // 2 % 2],
            ADMISSIONS[number % 3],
            ranks=float(random.integers(1, 9)),
            lockstep_ranks=float(random.integers(1, 3)),
            stages=float(random.integers(1, 3)),
            token_budget=float(random.choice([512, 2048, 8192])),
            max_sequences=float(random.choice([8, 256])),
            blocks=float(random.choice([200, 20_000])),
            state_blocks=float(random.integers(0, 3)),
            window_tokens=float(random.choice([600.0, np.inf])),
            draft_length=draft,
            acceptance=0.7 * (draft > 0),
            prefill_layout=-(number % 2),
            prefill_ranks=4.0 * float(random.integers(1, 5)),
            prefill_lockstep_ranks=float(random.choice([1, 4])),
        )
        loads = serving.load(
            input_length=float(random.choice([100, 1024, 8192])),
            output_length=float(random.choice([1, 64, 1024])),
            length_spread=float(random.choice([0.2, 1.0])),
            concurrency=float(random.integers(1, 300)) * (number % 4 == 0),
            request_rate=float(random.uniform(0.1, 20.0)) * (number % 4 > 0),
            rounds=float(random.choice([10.0, np.inf])),
        )
        out = np.empty((len(ROWS), 1, 1))
        with kernel_work(operating_points=1):
            steady.close_points(*map(plain, (tables, deployments, loads)), out)


def served_requests(random: np.random.Generator) -> None:
    """Served loads pass by pass and closed, with all schedulers and admissions, and traces."""
    from perfmodel.kernels.plain import plain
    from perfmodel.kernels.serving import recursion, steady

    tables = serving.pass_tables()
    loads = serving.load(
        # The last grow out of their blocks, so that some are put back.
        input_length=[*sizes(random, 20, 900, 2), 64.0],
        output_length=[*sizes(random, 1, 60, 2), 60.0],
        length_spread=[0.5, 1.0, 0.8],
        prefix=[0.0, 0.0, 16.0],
        concurrency=[1, 7, 30],
        rounds=[2.0, 3.0, np.inf],
        request_rate=np.zeros(3),
        arrival_variation=np.ones(3),
    )
    trace = random_trace(40, 20.0, (20, 900), (1, 60), seed=int(random.integers(1000)))
    starts = np.arange(41) * 2
    blocks = random.integers(0, 9, 80)
    trace = RequestTrace(trace.arrival, trace.input_length, trace.output_length, starts, blocks, 16)
    for scheduler, admission in (
        ("fused", "preemption"),
        ("fused", "guaranteed_no_evict"),
        ("prefill_first", "estimate"),
    ):
        limits = {"blocks": 60.0, "ranks": 2.0, "token_budget": 300.0, "draft_length": 1.0}
        limits["lockstep_ranks"] = 2.0 if scheduler == "prefill_first" else 1.0
        deployments = serving.deployment(scheduler, admission, acceptance=0.7, **limits)
        out = np.empty((len(ROWS), 1, 3))
        recursion.recurse_points(tables, deployments, loads, out, *recursion.no_log())
        with kernel_work(operating_points=3):
            closed = map(plain, (tables, deployments, loads))
            steady.close_points(*closed, np.empty((len(ROWS), 1, 3)))
        for decoding in (False, True):
            steady.close_phase(tables, deployments, loads, decoding, np.empty((len(ROWS), 1, 3)))
        replay_trace(tables, deployments, trace)
        replay_trace(tables, deployments, trace, concurrency=5, entries=3)
