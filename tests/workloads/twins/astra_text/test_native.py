"""Text workloads exactly as ASTRA-sim 1.0 runs them: its own figures, its ends, properties.

Figures marked RUN come from runs of the simulator (astra-sim, branch ASTRA-sim-1.0 07d5d19,
with astra-network-analytical d27635b) on its published workloads ``MLP_ModelParallel`` etc.
and on ``custom_odd_sizes``, which was written to have sizes that divide badly.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import FormatError, HardwareError, PerfModelError, StrategyError
from perfmodel.workloads.formats.astra_text import (
    CUSTOMIZED,
    POLICIES,
    RECOMMENDERS,
    RECOMPUTING,
    TRANSFORMERS,
    astra_text_from_columns,
    parse_astra_text,
)
from perfmodel.workloads.formats.astra_text_machine import INTER_DIMENSION, INTRA_DIMENSION
from perfmodel.workloads.twins.astra_text import native as machine
from perfmodel.workloads.twins.astra_text.loop import involved_dimensions, split_dimensions
from perfmodel.workloads.twins.astra_text.native import (
    NativeNetwork,
    NativeSystem,
    reason_to_stop,
    run_native,
)
from tests.amount import cases

MIB = 2**20


def network_of(topology, members, links, bandwidth, latency, nic=0, router=0, memory_scale=0):
    """A network of names joined by bars, and of numbers; memory as in all reference runs."""
    topology = tuple(topology.split("|"))

    def column(values):
        return values if isinstance(values, tuple) else (values,) * len(topology)

    return NativeNetwork(
        topology,
        column(members),
        column(links),
        column(bandwidth),
        column(latency),
        column(nic),
        column(router),
        column(500),
        column(370),
        column(memory_scale),
    )


def system_of(ring="ring", all_to_all=None, **settings_):
    """A system with one algorithm per dimension for all collectives but the exchange."""
    names, others = ring.split("|"), (all_to_all or ring).split("|")
    return NativeSystem(tuple(names), tuple(names), tuple(names), tuple(others), **settings_)


# Networks of the reference runs, and their algorithms.
RING4 = network_of("Ring", (4,), 2, 25, 500), ("ring",)
RING8 = network_of("Ring", (8,), 2, 25, 500), ("ring",)
RING4SW2 = (
    network_of("Ring|Switch", (4, 2), (2, 1), (25, 12.5), (50, 500), router=(0, 10)),
    ("ring|halvingDoubling", "ring|direct"),
)
CUBE222 = network_of("Ring|Ring|Ring", 2, 2, (50, 25, 12.5), (50, 200, 500)), ("ring|ring|ring",)
RING3RING5 = network_of("Ring|Ring", (3, 5), 2, (10, 7), (33, 77), nic=(1, 0)), ("ring|ring",)
RING2FC8SW2 = (
    network_of("Ring|FullyConnected|Switch", (2, 8, 2), (2, 7, 1), (250, 25, 12.5), 500),
    ("ring|direct|halvingDoubling", "ring|direct|direct"),
)
FC3X5 = (
    network_of("FullyConnected|FullyConnected", (3, 5), (2, 4), (10, 7), (33, 77), nic=(1, 0)),
    ("direct|direct",),
)
FC4SW4 = (
    network_of("FullyConnected|Switch", 4, (3, 1), (25, 10), (100, 700), router=(0, 20)),
    ("direct|halvingDoubling", "direct|direct"),
)

# Workloads of the reference runs.
MICRO = "MICRO 1 conv1 -1 5 NONE 0 5 NONE 0 5 {} 1048576 5"
DLRM = """HYBRID_DLRM 4
8
Embedding -1 300 ALLTOALL 98304 300 ALLTOALL 98304 300 NONE 0 98
MLP_Bottom_0 -1 1280 NONE 0 794 NONE 0 896 ALLREDUCE 13312 13
MLP_Bottom_1 -1 2560 NONE 0 2560 NONE 0 1792 ALLREDUCE 524288 524
MLP_Bottom_2 -1 2560 NONE 0 2560 NONE 0 1792 ALLREDUCE 524288 524
MLP_Bottom_3 -1 800 NONE 0 1280 NONE 0 800 ALLREDUCE 16384 16
MLP_Top_0 -1 6400 NONE 0 6400 NONE 0 4480 ALLREDUCE 1064960 1065
MLP_Top_1 -1 2560 NONE 0 2560 NONE 0 1792 ALLREDUCE 524288 524
MLP_Top_2 -1 2560 NONE 0 2560 NONE 0 1792 ALLREDUCE 524288 524
"""
MODEL = """MODEL
6
layer_64_1_mlp0 -1 32291 ALLGATHER 37632 32291 ALLREDUCE 37632 12864 NONE 0 3229
layer_64_1_mlp1 -1 7488 ALLGATHER 65536 7488 ALLREDUCE 65536 3648 NONE 0 749
layer_64_1_mlp2 -1 7488 ALLGATHER 65536 7488 ALLREDUCE 65536 3456 NONE 0 749
layer_64_1_mlp3 -1 14144 ALLGATHER 147456 14144 ALLREDUCE 147456 10368 NONE 0 1414
layer_64_1_mlp4 -1 7488 ALLGATHER 65536 7488 ALLREDUCE 65536 3648 NONE 0 749
layer_64_2_mlp5 -1 9984 ALLGATHER 65536 9984 ALLREDUCE 65536 3456 NONE 0 998
"""


def mlp(policy):
    """Text of the hybrid MLP: all three collectives in every layer."""
    rows = zip((32291, 7488, 7488, 14144, 7488, 9984), (37632, 65536, 65536, 147456, 65536, 65536),
               (3229, 749, 749, 1414, 749, 998), strict=True)  # fmt: skip
    lines = [
        f"mlp{i} -1 {time} ALLGATHER {size} {time} ALLREDUCE {size} {time} ALLREDUCE {size} "
        f"{update}"
        for i, (time, size, update) in enumerate(rows)
    ]
    return "\n".join([policy, "6", *lines])


VANILLA = """DATA
4
conv1 -1 13003 NONE 0 12864 NONE 0 32291 ALLREDUCE 37632 3229
layer_64_1_conv4 -1 3456 NONE 0 3648 NONE 0 7488 ALLREDUCE 65536 749
layer_64_1_conv1 -1 3456 NONE 0 3456 NONE 0 7488 ALLREDUCE 16384 749
layer_64_1_conv2 -1 10944 NONE 0 10368 NONE 0 14144 ALLREDUCE 147456 1414
"""
ODD = """HYBRID_CUSTOMIZED
4
a -1 1000 ALLTOALL 1000003 500 NONE 0 700 ALLREDUCE 4096 7 MODEL
b -1 0 NONE 0 0 ALLTOALL 777777 0 ALLREDUCE 65537 2 HYBRID_MODEL_DATA
c -1 2000 REDUCESCATTER 123456 900 ALLGATHER 4321 800 REDUCESCATTER 99999 3 HYBRID_DATA_MODEL
d -1 10 ALLREDUCE 12345678 20 NONE 0 30 ALLGATHER 10001 1 DATA
"""


def transformer():
    """Text of Transformer_HybridParallel_Fwd_In_Bckwd: 21 layers, the forward pass run again."""

    def row(name, time, forward=0, input_gradient=0, weight_gradient=0):
        words = [
            f"{time} {'ALLREDUCE' if size else 'NONE'} {size}"
            for size in (forward, input_gradient, weight_gradient)
        ]
        return " ".join([name, "-1", *words, "10"])

    long, hidden, square, wide = 4946203, 69730304, 36227072, 144908288
    rows = [
        row("TokenEmbedding", 100000, hidden, 0, 306432000),
        row("EmbeddingSparse", 100000, 0, 0, 851200),
    ]
    for _ in range(2):
        rows += [
            row("Q", long, 0, hidden, square),
            row("K", long, 0, 0, square),
            row("V", long, 0, 0, square),
            row("QK", 297516),
            row("softmax", 297516),
            row("concat", long, hidden, 0, square),
            row("Xw1b", 19784812, 0, hidden, wide),
            row("Xw2b", 19784812, hidden, 0, wide),
            row("layerNorm", long),
        ]
    rows.append(row("projection", 41838182, 49152, hidden))
    header = f"{RECOMPUTING} G: 4 checkpoints: 2 2 11 checkpoint_initiates: 2 19 10"
    return "\n".join([header, "21", *rows])


def run(text, where=RING4, *, memory_scale=0, passes=1, communication=1.0, compute=1.0, queues=1,
        **settings_):  # fmt: skip
    """Run a text on one of the networks above."""
    network, algorithms = where
    network = replace(network, memory_scale=(memory_scale,) * network.dimensions)
    return run_native(
        parse_astra_text(text),
        network,
        system_of(*algorithms, **settings_),
        passes=passes,
        communication_scale=communication,
        compute_scale=compute,
        queues_per_dimension=queues,
    )


# --- Runs of the simulator ---------------------------------------------------------------

SPLITS = "preferred_dataset_splits"
ACTIVE = "active_chunks_per_dimension"
DELAY = "endpoint_delay_nanoseconds"
POLICY = "scheduling_policy"
WHOLE = "collective_optimization"
INTRA = "intra_dimension_scheduling"
INTER = "inter_dimension_scheduling"
REDUCE, EXCHANGE = MICRO.format("ALLREDUCE"), MICRO.format("ALLTOALL")
TWO4 = {"passes": 2, SPLITS: 4}
TWO8 = {"passes": 2, SPLITS: 8}


@pytest.mark.parametrize(
    ("text", "where", "settings_", "total", "pass_ends", "chunks", "mebibytes"),
    [
        # RUN: total and ends of passes [ns], chunks, bytes sent by a device [MiB].
        (REDUCE, RING4, {}, 32367, (), 1, 1.5),
        (REDUCE, RING4, {SPLITS: 4}, 41565, (), 4, 1.5),
        (REDUCE, RING4SW2, TWO4, 63161, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {ACTIVE: 2}, 35433, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {"queues": 2}, 44669, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {INTRA: "SCF"}, 64687, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {INTRA: "RG"}, 63161, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {INTER: "themis"}, 74039, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {INTER: "roundRobin"}, 114093, (), 8, 3.5),
        (REDUCE, RING4SW2, TWO4 | {DELAY: 1}, 62873, (), 8, 3.5),
        (REDUCE, CUBE222, TWO4 | {INTER: "roundRobin"}, 52450, (), 8, 3.5),
        (EXCHANGE, RING4SW2, {"passes": 2}, 109851, (), 2, 4.0),
        (EXCHANGE, RING4SW2, TWO4 | {ACTIVE: 2}, 50875, (), 8, 4.0),
        (EXCHANGE, CUBE222, TWO4, 47172, (), 8, 3.0),
        (EXCHANGE, CUBE222, TWO4 | {INTER: "roundRobin"}, 43221, (), 8, 3.0),
        (VANILLA, RING4, TWO4, 252586, (109752, 236045), 32, 0.763916),
        (VANILLA, CUBE222, TWO4 | {POLICY: "FIFO"}, 236394, (109752, 227949), 32, 0.891235),
        (VANILLA.replace("DATA", "DATA_REORDER"), FC4SW4, {"passes": 3, SPLITS: 4}, 439366,
         (109752, 250093, 390434), 48, 1.432343),
        (VANILLA.replace("DATA", "DATA_REORDER"), RING8, {}, 121349, (109752,), 4, 0.445618),
        (DLRM, RING4, TWO4, 429323, (67808, 277789), 72, 9.694336),
        (DLRM, CUBE222, TWO4 | {POLICY: "FIFO"}, 173837, (51400, 140122), 72, 11.216309),
        (DLRM, CUBE222, TWO4 | {INTER: "themis"}, 167874, (51400, 132178), 72, 11.216309),
        (DLRM, CUBE222, TWO4 | {INTER: "roundRobin"}, 230353, (51400, 160297), 72, 11.216309),
        (DLRM, CUBE222, TWO4 | {"queues": 2}, 118391, (51400, 110778), 72, 11.216309),
        (DLRM.replace("DLRM", "DLRM_ENHANCED"), RING8, TWO4, 881451, (107838, 543883), 72,
         11.966309),
        (DLRM.replace("DLRM", "DLRM_ENHANCED"), FC4SW4, TWO4, 600663, (52690, 348167), 72,
         11.977295),
        (MODEL, RING4SW2, TWO4, 619600, (309799, 619599), 88, 7.338379),
        (MODEL, RING4SW2, TWO4 | {INTER: "themis"}, 810936, (405467, 810935), 88, 7.338379),
        (mlp("HYBRID_DATA_MODEL"), RING4SW2, TWO4, 576630, (274086, 562401), 136, 4.583984),
        (mlp("HYBRID_MODEL_DATA"), RING4SW2, TWO4, 675770, (332144, 670029), 136, 2.913818),
        (mlp("DISTRIBUTED_INFERENCE"), RING8, {"passes": 2, SPLITS: 7}, 626498, (), 94,
         5.971191),
        (transformer(), RING4SW2, {"passes": 2}, 1356258700, (652929688, 1331059038), 58,
         5037.58057),
        (transformer(), RING4SW2, TWO4 | {INTER: "themis"}, 1356318172,
         (652940864, 1331099950), 232, 5037.58057),
        (transformer(), RING4, {"passes": 2}, 1305913378, (652956688, 1305913377), 30,
         2793.140625),
        (ODD, RING8, {"passes": 2, SPLITS: 7}, 661946, (273416, 603888), 80, 7.291569),
        (ODD, RING8, TWO4 | {ACTIVE: 3, "queues": 2}, 147986, (64437, 134354), 48, 7.291729),
        (ODD, RING8, {"passes": 3, SPLITS: 4, POLICY: "FIFO", DELAY: 1}, 683682,
         (192559, 420119, 647679), 72, 10.937593),
        (ODD, RING8, TWO8 | {INTRA: "SCF"}, 719472, (268777, 628012), 88, 7.291729),
        (ODD, RING8, TWO8 | {INTRA: "RG"}, 719482, (294964, 654204), 88, 7.291729),
        (ODD, RING8, TWO8 | {INTRA: "lessRemainingPhaseFirst"}, 719472, (265197, 624432), 88,
         7.291729),
        (ODD, RING8, TWO4 | {"compute": 0.001}, 456983, (190615, 419105), 48, 7.291729),
        (ODD, RING8, TWO4 | {"communication": 50.0}, 7440370, (3579344, 7299028), 48, 364.58741),
        (ODD, RING3RING5, TWO4 | {"memory_scale": 1}, 589943, (294970, 589942), 68, 9.448698),
        # These two depend on which events of the system layer share a nanosecond.
        (DLRM, RING3RING5, TWO4 | {"memory_scale": 1}, 494720, (88375, 322978), 72, 12.4888),
        (DLRM, FC3X5, TWO4 | {"memory_scale": 1}, 449764, (51400, 269682), 72, 11.913818),
        (ODD, RING3RING5, TWO4 | {WHOLE: "baseline"}, 554250, (277124, 554249), 68, 9.448698),
        (ODD, RING3RING5, TWO8 | {INTER: "themis"}, 574258, (287128, 574257), 124, 9.448622),
        (ODD, RING3RING5, TWO8 | {INTER: "themisFlex"}, 573542, (286770, 573541), 122, 9.448622),
        (ODD, RING2FC8SW2, TWO8 | {INTER: "themisFlex"}, 232850, (116424, 232849), 114,
         6.637074),
        (ODD, RING2FC8SW2, TWO8 | {INTER: "roundRobin"}, 236274, (117886, 236273), 124,
         6.637081),
        (ODD, RING2FC8SW2, TWO4 | {"memory_scale": 1}, 193801, (96899, 193800), 68, 6.637127),
        (ODD, FC3X5, {"passes": 2, SPLITS: 7}, 143114, (71556, 143113), 110, 4.743923),
        (ODD, FC4SW4, TWO4 | {ACTIVE: 3, "queues": 2}, 65708, (32853, 65707), 68, 4.791639),
    ],
)  # fmt: skip
def test_runs_of_the_simulator(text, where, settings_, total, pass_ends, chunks, mebibytes):
    result = run(text, where, **settings_)
    assert result.total_ns == total
    assert tuple(result.pass_end_ns) == pass_ends
    assert result.chunks == chunks
    assert result.payload_bytes.sum() / MIB == pytest.approx(mebibytes, rel=1e-6, abs=6e-7)


@pytest.mark.parametrize(
    ("text", "total", "latency", "counters"),
    [
        # RUN: cube222, 2 passes, 4 splits. Mean time of a chunk per dimension [ns]; per layer
        # collectives, compute of the three phases, exposed, communication [ns].
        (DLRM, 169584, (548.375, 712.625, 1843.33), [
            (4, 600, 0, 600, 0, 0, 0, 10249, 13954, 0),
            (2, 2560, 1588, 1792, 0, 0, 9025, 0, 0, 17785),
            (2, 5120, 5120, 3584, 0, 0, 7170, 0, 0, 40756),
            (2, 5120, 5120, 3584, 0, 0, 1939, 0, 0, 58464),
            (2, 1600, 2560, 1600, 0, 0, 21, 0, 0, 69776),
            (2, 12800, 12800, 8960, 0, 0, 13212, 0, 0, 112206),
            (2, 5120, 5120, 3584, 0, 0, 0, 0, 0, 65263),
            (2, 5120, 5120, 3584, 0, 0, 0, 0, 0, 135900),
        ]),
        (MODEL, 507582, (389.562, 539.562, 1216.64), [
            (2, 64582, 64582, 25728, 15398, 0, 0, 15398, 0, 0),
            (4, 14976, 14976, 7296, 13558, 5424, 0, 13558, 12722, 0),
            (4, 14976, 14976, 6912, 13558, 5808, 0, 13558, 12722, 0),
            (4, 28288, 28288, 20736, 24044, 0, 0, 24044, 16332, 0),
            (4, 14976, 14976, 7296, 13558, 5424, 0, 13558, 12722, 0),
            (4, 19968, 19968, 6912, 14056, 6306, 0, 14056, 13220, 0),
        ]),
    ],
)  # fmt: skip
def test_counters_of_every_layer(text, total, latency, counters):
    result = run(text, CUBE222, **TWO4)
    assert result.total_ns == total
    assert result.names == parse_astra_text(text).names
    columns = np.vstack(
        [result.collectives, result.compute_ns, result.exposed_ns, result.communication_ns]
    )
    assert columns.T.tolist() == [list(row) for row in counters]
    assert result.chunk_latency_ns == pytest.approx(latency, rel=1e-5)


def test_payload_and_latency_of_each_dimension():
    # RUN: custom_odd_sizes on fc3x5direct, 2 passes, 7 splits.
    result = run(ODD, FC3X5, **{"passes": 2, SPLITS: 7})
    assert result.payload_bytes / MIB == pytest.approx([1.802402, 2.941521], abs=6e-7)
    assert result.chunk_latency_ns == pytest.approx([1163.4, 1751.26], rel=1e-5)


# --- Small cases by hand -----------------------------------------------------------------


def test_one_collective_by_hand():
    """(n - 1) messages there and back, each latency + m / (2 links) cut to whole ns + delay."""
    steps, message = 2 * 3, MIB // 4
    time = int(500 + message / (2 * 25 * 2**30 / 1e9))
    assert run(REDUCE).total_ns == 10 + steps * (time + 10) + 5  # delay at first, update at last


@pytest.mark.parametrize(
    ("policy", "changes"),
    [("DATA", 3 * 4 - 1), ("DATA_REORDER", 3 * 4 - 1), ("HYBRID_DATA_MODEL", 3 * 4),
     ("MODEL", 3 * 4), ("DISTRIBUTED_INFERENCE", 4)],
)  # fmt: skip
def test_without_collectives_a_pass_is_computation_and_a_nanosecond_per_change(policy, changes):
    """Data parallelism never computes the first layer's input gradient."""
    text = VANILLA.replace("ALLREDUCE", "NONE").replace("DATA", policy)
    result = run(text, passes=3)
    assert result.total_ns == result.compute_ns.sum() + 3 * changes
    assert result.compute_ns[0].tolist() == [3 * 13003, 3 * 3456, 3 * 3456, 3 * 10944]
    assert (result.compute_ns[1, 0] == 0) == (policy not in ("HYBRID_DATA_MODEL", "MODEL"))
    assert result.chunks == result.payload_bytes.sum() == result.exposed_ns.sum() == 0
    assert np.isnan(result.chunk_latency_ns).all()


def test_a_collective_without_devices_is_not_sent():
    network = network_of("Ring", (1,), 2, 25, 500)
    result = run(REDUCE, (network, ("ring",)), passes=5)
    assert (result.total_ns, result.chunks, result.collectives.tolist()) == (0, 0, [0])


def test_micro_runs_the_first_layer_alone():
    text = REDUCE.replace("MICRO 1", "MICRO 2") + " second -1 9 NONE 0 9 NONE 0 9 ALLREDUCE 8 9"
    result = run(text)
    assert result.total_ns == run(REDUCE).total_ns
    assert result.collectives.tolist() == [1, 0]


@pytest.mark.parametrize("count", [300, 3000])
def test_pools_grow_with_the_chunks(count):
    result = run(REDUCE.replace("1048576", str(4 * count)), **{SPLITS: count})
    assert result.chunks == count
    assert result.total_ns == count * (10 + 6 * (500 + 10)) + 5


def test_messages_count_bytes_of_the_collectives():
    """Payload of a device: n - 1 of n parts of what each dimension gets, there and back."""
    network = network_of("Ring|Switch", (4, 8), (2, 1), (25, 12.5), (50, 500))
    size = 2**20
    shares = {  # of the bytes of the collective, per dimension
        "ALLREDUCE": (2 * 3 / 4, 2 * 7 / 8 / 4),
        "REDUCESCATTER": (3 / 4, 7 / 8 / 4),
        "ALLGATHER": (3 * 8, 7),  # the outer dimension first; the size is that of a part
    }
    for ring in ("ring|ring", "direct|direct", "halvingDoubling|halvingDoubling"):
        for word, share in shares.items():
            for splits in (1, 4):
                text = MICRO.format(word)
                result = run(text, (network, (ring, "direct|direct")), **{SPLITS: splits})
                assert result.payload_bytes.tolist() == [size * part for part in share], (
                    ring,
                    word,
                )
    for ring, share in (("direct", (3 / 4, 7 / 8)), ("ring", (3 / 2, 7 / 2))):
        result = run(EXCHANGE, (network, (f"{ring}|{ring}",)))
        assert result.payload_bytes.tolist() == [size * part for part in share]


# --- Dimensions --------------------------------------------------------------------------


def test_groups_fill_dimensions_or_split_one():
    assert split_dimensions((4, 2), 0).model_parallel == 0
    assert split_dimensions((4, 2), 1).model_parallel == 0
    whole = split_dimensions((4, 2), 4)
    assert (whole.members, whole.model_parallel, whole.count) == ((4, 2), 1, 2)
    assert split_dimensions((4, 2), 8).model_parallel == 2
    inner = split_dimensions((8, 2), 4)
    assert (inner.members, inner.stride) == ((4, 2, 2), (1, 4, 1))
    assert (inner.physical, inner.model_parallel) == ((0, 0, 1), 1)
    outer = split_dimensions((4, 6), 12)
    assert (outer.members, outer.stride) == ((4, 3, 2), (1, 1, 3))
    assert (outer.physical, outer.model_parallel) == ((0, 1, 1), 2)


def test_a_group_larger_than_the_network_has_no_collectives():
    """The published gpt3, of groups of 16, runs on 8 devices so."""
    assert split_dimensions((4, 2), 16).model_parallel == 0
    assert split_dimensions((4, 2), 16).members == (4, 2)


@pytest.mark.parametrize(("members", "group"), [((4,), 3), ((3, 4), 4), ((2, 3), 4), ((4, 2), 6)])
def test_groups_that_do_not_divide_the_network(members, group):
    with pytest.raises(StrategyError, match=f"group of {group} devices does not divide"):
        split_dimensions(members, group)


def used(text, members=(4, 2, 2)):
    """Dimensions of the collectives of forward, input and weight gradient of each layer."""
    workload = parse_astra_text(text)
    dimensions = split_dimensions(members, workload.model_parallel_group)
    involved = involved_dimensions(workload, dimensions)
    return [
        tuple("".join(map(str, np.flatnonzero(phase[layer]))) for phase in involved)
        for layer in range(workload.layers)
    ]


@pytest.mark.parametrize(
    ("header", "dimensions"),
    [
        ("DATA", ("", "", "012")),
        ("DATA_REORDER", ("", "", "012")),
        ("MICRO", ("", "", "012")),
        ("MODEL", ("012", "012", "")),
        ("DISTRIBUTED_INFERENCE", ("012", "012", "")),
        ("HYBRID_DATA_MODEL", ("0", "0", "12")),
        ("HYBRID_MODEL_DATA", ("12", "12", "0")),
        ("HYBRID_TRANSFORMER G: 4", ("0", "0", "12")),
        ("HYBRID_TRANSFORMER G: 8", ("01", "01", "2")),
        ("HYBRID_TRANSFORMER G: 1", ("", "", "012")),
        ("HYBRID_TRANSFORMER G: 2", ("0", "0", "123")),  # the first dimension is split
        ("HYBRID_TRANSFORMER_FWD_IN_BCKWD G: 16 c: 0 i: 0", ("012", "012", "")),
    ],
)
def test_dimensions_of_every_kind(header, dimensions):
    row = "x -1 0 NONE 0 0 NONE 0 0 NONE 0 0"
    assert used(f"{header} 2 {row} {row}") == [dimensions] * 2


def test_only_the_embeddings_of_a_recommender_use_all_dimensions():
    assert used(DLRM) == [("012",) * 3, *[("", "", "012")] * 7]


def test_layers_may_have_their_own_dimensions():
    assert used(ODD) == [
        ("012", "012", ""), ("12", "12", "0"), ("0", "0", "12"), ("", "", "012"),
    ]  # fmt: skip
    with pytest.raises(StrategyError, match=r"layer 3 \(d\) has the policy HYBRID_TRANSFORMER"):
        used(ODD.replace("1 DATA", "1 HYBRID_TRANSFORMER"))


# --- Ends that are none ------------------------------------------------------------------


def recomputing(lists):
    row = "x -1 1 NONE 0 1 NONE 0 1 NONE 0 1"
    return f"{RECOMPUTING} G: 1 {lists} 3 {row} {row} {row}"


@pytest.mark.parametrize(
    ("text", "settings_", "words"),
    [
        (REDUCE.replace("1048576", "0"), {},
         r"layer 0 \(conv1\): the weight-gradient collective ALLREDUCE has 0 bytes"),
        (VANILLA, {"communication": 0.0}, r"layer 3 \(layer_64_1_conv2\): the weight-gradient"),
        (REDUCE.replace("1048576", "3"), {SPLITS: 4},
         r"has fewer bytes \(3\) than preferred-dataset-splits 4"),
        (REDUCE.replace("1048576", str(2**31)), {}, r"chunks of more than 2\^31 - 1 bytes"),
        (REDUCE.replace("1048576", str(2**63 - 1)), {SPLITS: 2**31 - 1}, "beyond 62 bits"),
        (REDUCE.replace("1048576", str(2**61)), {SPLITS: 8}, r"chunks of more than 2\^31 - 1"),
        (MODEL.replace("ALLGATHER 65536", "ALLREDUCEALLTOALL 65536", 1), {},
         r"layer 1 \(layer_64_1_mlp1\): the forward collective ALLREDUCEALLTOALL: ASTRA-sim 1.0"),
        (recomputing("c: 0 i: 1 2"), {}, r"layer 2 \(x\) initiates a forward pass, but neither"),
        (recomputing("c: 1 2 i: 1 1"), {}, r"layer 1 \(x\) initiates a forward pass, but neither"),
        (recomputing("c: 1 2 i: 1 2"), {}, r"pass runs past layer 2 \(x\), the last one"),
        (recomputing("c: 1 0 i: 1 0"), {}, r"pass runs past layer 2 \(x\), the last one"),
        (transformer(), {}, r"layer 20 \(projection\): the forward collective .*Same key entry"),
        (transformer(), {SPLITS: 4}, "half of a dimension, whose devices do not keep step"),
        (REDUCE.replace("MICRO 1", f"MODEL {1}").replace("5 NONE 0", f"{2**31} NONE 0"), {},
         r"layer 0 \(conv1\) has a compute time of 2147483648 ns; .* at most 2147483647"),
        (REDUCE.removesuffix("5") + str(2**31), {}, "has a update time of 2147483648 ns"),
    ],
)  # fmt: skip
def test_where_the_simulator_would_stop_or_never_end(text, settings_, words):
    with pytest.raises(FormatError, match=words) as caught:
        run(text, RING8, **settings_)
    assert "\n" not in str(caught.value)


def test_the_algorithm_direct_on_half_of_a_ring():
    """Peers of the first half are 1, 2 and 3 hops away, those of its last device 3, 2 and 1."""
    row = "x -1 1 ALLREDUCE 1024 1 NONE 0 1 NONE 0 1"
    with pytest.raises(FormatError, match="Same key entry"):
        run(f"HYBRID_TRANSFORMER G: 4 1 {row}", (RING8[0], ("direct",)))


def test_messages_that_take_too_long():
    slow = network_of("Ring", (4,), 2, 1e-9, 500)
    with pytest.raises(FormatError, match=r"a message of more than 2\^31 - 1 ns"):
        run(REDUCE, (slow, ("ring",)))


def test_times_that_cannot_be_counted():
    with pytest.raises(FormatError, match=r"times beyond 2\^52 ns cannot be counted"):
        run(REDUCE, memory_scale=1e15)


def test_every_end_has_its_words():
    from perfmodel.kernels.workloads.astra_text import state as ends

    ordinary = (ends.RUNNING, ends.FINISHED, ends.FULL, ends.TOO_MANY_EVENTS)
    words = {
        reason_to_stop(parse_astra_text(REDUCE), status, 0, 2, 1, 8)
        for status in range(ends.TOO_LATE + 1)
        if status not in ordinary
    }
    assert len(words) == ends.TOO_LATE + 1 - len(ordinary)
    assert any("nothing is left to do" in text for text in words)  # a slip of ours, not the file's


# --- What is refused ---------------------------------------------------------------------


def test_runs_that_are_too_large(monkeypatch):
    monkeypatch.setattr(machine, "MOST_POOL", 3000)
    for text, settings_ in ((REDUCE, {SPLITS: 3001}), (REDUCE, {"passes": 3001})):
        with pytest.raises(StrategyError, match="more than 3000 chunks or collectives would wait"):
            run(text, **settings_)
    assert run(REDUCE, passes=3000).chunks == 3000
    monkeypatch.setattr(machine, "MOST_PLACES", 300 * 2 * 4)
    with pytest.raises(StrategyError, match="more than 300 chunks or collectives would wait at"):
        run(REDUCE, RING4SW2, queues=4, **{SPLITS: 301})
    assert run(REDUCE, RING4SW2, queues=4, **{SPLITS: 299}).chunks == 300
    monkeypatch.setattr(machine, "MOST_EVENTS", 50)
    with pytest.raises(StrategyError, match="more than 50 events"):
        run(VANILLA, passes=10)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"passes": 0}, "passes is 0; it should be a whole number from 1 to 1000000"),
        ({"passes": 1000001}, "passes is 1000001"),
        ({"passes": 1.0}, "passes is 1.0"),
        ({"passes": True}, "passes is True"),
        ({"queues": 0}, "queues per dimension is 0"),
        ({"queues": 1025}, "queues per dimension is 1025; it should be a whole number from 1 to 1"),
        ({"communication": -1.0}, "communication scale is -1.0"),
        ({"communication": float("nan")}, "communication scale is nan"),
        ({"compute": float("inf")}, "compute scale is inf; it should be a number from 0 to 1e"),
        ({"compute": "1"}, "compute scale is 1"),
    ],
)
def test_arguments_out_of_range(settings_, words):
    with pytest.raises(StrategyError, match=words):
        run(REDUCE, **settings_)


def test_systems_that_do_not_fit():
    for where, text, settings_, words in (
        ((RING4[0], ("ring|ring",)), REDUCE, {}, "all_reduce has 2 implementations .* for 1 dim"),
        ((RING4[0], ("doubleBinaryTree",)), REDUCE, {}, "doubleBinaryTree is not covered"),
        ((RING4[0], ("direct4",)), REDUCE, {}, "direct4 is not covered"),
        ((RING4[0], ("halvingDoubling",)), EXCHANGE, {}, "halvingDoubling cannot do all_to_all"),
        ((RING3RING5[0], ("ring|halvingDoubling",)), REDUCE, {}, "all_reduce on 5 devices"),
        (RING4, REDUCE, {DELAY: 0}, "endpoint-delay is 0"),
        ((network_of("Ring", (2**16 + 1,), 2, 1, 1), ("ring",)), REDUCE, {}, "65537 devices"),
    ):
        with pytest.raises(HardwareError, match=words):
            run(text, where, **settings_)
    # What a workload does not use need not fit.
    assert run(REDUCE, (RING4[0], ("ring", "halvingDoubling"))).total_ns == 32367


def test_a_workload_without_layers():
    workload = astra_text_from_columns("DATA", [[]] * 12)
    with pytest.raises(FormatError, match="the workload has no layers"):
        run_native(workload, RING4[0], system_of("ring"))


def test_a_group_that_does_not_fit():
    row = "x -1 1 ALLREDUCE 1024 1 NONE 0 1 NONE 0 1"
    with pytest.raises(StrategyError, match="group of 3 devices"):
        run(f"HYBRID_TRANSFORMER G: 3 1 {row}")


# --- Properties --------------------------------------------------------------------------

NETWORKS = (RING4, RING4SW2, CUBE222, RING3RING5, FC4SW4, RING2FC8SW2)
TIMES = st.integers(0, 5000)
WORDS = st.sampled_from(["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "NONE"])
SIZES = st.integers(8, 300_000)


@st.composite
def workloads(draw, policies=POLICIES):
    policy = draw(st.sampled_from(policies))
    layers = draw(st.integers(1, 5))

    def column(values):
        return draw(st.lists(values, min_size=layers, max_size=layers))

    phases = [column(values) for _ in range(3) for values in (TIMES, WORDS, SIZES)]
    columns = [[f"l{i}" for i in range(layers)], [-1] * layers, *phases, column(TIMES)]
    header = {}
    if policy == CUSTOMIZED:
        own = [name for name in POLICIES if name not in (*TRANSFORMERS, CUSTOMIZED)]
        columns.append(column(st.sampled_from(own)))
    if policy in TRANSFORMERS:
        header["model_parallel_group"] = draw(st.sampled_from([1, 2, 4, 8]))
    if policy == RECOMPUTING:
        header["checkpoints"] = (0,)
        header["checkpoint_initiates"] = (layers - 1,) if layers > 1 else ()
    if policy in RECOMMENDERS:
        header["last_bottom_layer"] = draw(st.integers(0, layers - 1))
    return astra_text_from_columns(policy, columns, **header)


SYSTEMS = st.fixed_dictionaries(
    {
        SPLITS: st.integers(1, 8),
        ACTIVE: st.integers(1, 3),
        POLICY: st.sampled_from(["LIFO", "FIFO"]),
        WHOLE: st.sampled_from(["localBWAware", "baseline"]),
        INTRA: st.sampled_from(INTRA_DIMENSION),
        INTER: st.sampled_from(INTER_DIMENSION),
    }
)


def run_or_skip(workload, where, system, **arguments):
    network, algorithms = where
    try:
        return run_native(workload, network, system_of(*algorithms, **system), **arguments)
    except StrategyError:
        assume(False)  # a group that this network does not hold
    except FormatError as error:
        if "Same key entry" not in str(error):
            raise
        assume(False)


@settings(max_examples=cases(60))
@given(workloads(), st.sampled_from(NETWORKS), SYSTEMS, st.integers(1, 3), st.integers(1, 2))
def test_any_run(workload, where, system, passes, queues):
    result = run_or_skip(workload, where, system, passes=passes, queues_per_dimension=queues)
    # A device computes or waits for one thing at a time.
    assert result.total_ns >= result.compute_ns.sum() + result.exposed_ns.sum()
    # What is waited for is part of a collective's time.
    assert (result.exposed_ns <= result.communication_ns).all()
    assert (result.compute_ns >= 0).all()
    assert (result.exposed_ns >= 0).all()
    assert (result.communication_ns.sum(axis=0)[result.collectives == 0] == 0).all()
    assert (result.payload_bytes >= 0).all()
    assert (result.chunks == 0) == (result.collectives.sum() == 0)
    assert (result.payload_bytes.sum() == 0) == (result.chunks == 0)
    assert (np.isnan(result.chunk_latency_ns).all()) == (result.chunks == 0)
    ends = result.pass_end_ns
    assert (np.diff(ends) > 0).all()
    assert ends.max(initial=-1) < result.total_ns or workload.policy == "MICRO"
    # Another pass changes nothing before it, and only adds to what is counted.
    more = run_or_skip(workload, where, system, passes=passes + 1, queues_per_dimension=queues)
    assert more.pass_end_ns[:passes].tolist() == ends.tolist()
    assert more.total_ns >= result.total_ns
    assert (more.collectives * passes == result.collectives * (passes + 1)).all()
    assert (more.compute_ns * passes == result.compute_ns * (passes + 1)).all()
    if system[INTER] not in ("roundRobin", "themis", "themisFlex"):
        assert (more.payload_bytes * passes == result.payload_bytes * (passes + 1)).all()


@settings(max_examples=cases(30))
@given(workloads(), st.sampled_from(NETWORKS), SYSTEMS)
def test_names_and_dependencies_change_nothing(workload, where, system):
    result = run_or_skip(workload, where, system)
    other = replace(
        workload,
        names=tuple(f"other{name}" for name in workload.names),
        dependency=workload.dependency + 3,
    )
    again = run_or_skip(other, where, system)
    for field in fields(result):
        if field.name != "names":
            np.testing.assert_array_equal(getattr(result, field.name), getattr(again, field.name))


@settings(max_examples=cases(30))
@given(
    workloads(("MICRO", "DATA", "MODEL", "HYBRID_DLRM")),
    SYSTEMS,
    st.sampled_from([0, 1]),
)
def test_a_dimension_of_one_device_changes_nothing(workload, system, where):
    assume(system[INTER] == "baseline")
    plain = run_or_skip(workload, RING4, system)
    members = (1, 4) if where == 0 else (4, 1)
    wider = (network_of("Ring|Ring", members, 2, 25, 500), ("ring|ring",))
    result = run_or_skip(workload, wider, system)
    assert result.total_ns == plain.total_ns
    assert result.exposed_ns.tolist() == plain.exposed_ns.tolist()
    assert result.payload_bytes.sum() == plain.payload_bytes.sum()
    assert result.payload_bytes[where] == 0


@settings(max_examples=cases(40))
@given(
    workloads(("MICRO", "MODEL", "DISTRIBUTED_INFERENCE")),
    st.sampled_from(["ring", "direct"]),
    st.floats(0.1, 1000),
    st.floats(1, 10),
    st.integers(0, 1000),
)
def test_no_link_is_too_fast(workload, algorithm, bandwidth, factor, latency):
    """One dimension and collectives in turn: more bandwidth or less latency never costs time."""

    def total(bandwidth, latency):
        network = network_of("FullyConnected", (4,), 3, bandwidth, latency)
        return run_or_skip(workload, (network, (algorithm,)), {}).total_ns

    slow = total(bandwidth, latency)
    assert total(bandwidth * factor, latency) <= slow
    assert total(bandwidth, latency // 2) <= slow


EXTREME = st.sampled_from([0, 1, 2, 3, 7, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1])
SCALES = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 3.7, 1e9])


@settings(max_examples=cases(80))
@given(workloads(), st.data())
def test_extreme_numbers_run_or_are_refused_in_one_line(workload, data):
    def some(column):
        return np.array([data.draw(st.one_of(st.just(int(n)), EXTREME)) for n in column])

    phases = [
        replace(phase, compute_time=some(phase.compute_time), size=some(phase.size))
        for phase in workload.phases
    ]
    workload = replace(
        workload,
        forward=phases[0],
        input_gradient=phases[1],
        weight_gradient=phases[2],
        update_time=some(workload.update_time),
    )
    number = st.sampled_from([1e-9, 1e-3, 7, 1e15])
    any_number = st.sampled_from([0, 0.3, 500, 1e15])
    network = network_of(
        data.draw(st.sampled_from(["Ring|Switch", "FullyConnected|Ring"])),
        data.draw(st.sampled_from([(1, 1), (4, 2), (3, 5), (16, 32), (512, 1)])),
        2**17,
        data.draw(number),
        data.draw(any_number),
        data.draw(any_number),
        data.draw(any_number),
        data.draw(any_number),
    )
    network = replace(
        network,
        memory_bandwidth_gb_per_second=(data.draw(number),) * 2,
        memory_latency_nanoseconds=(data.draw(any_number),) * 2,
    )
    drawn = data.draw(SYSTEMS) | {ACTIVE: data.draw(st.sampled_from([1, 2**31 - 1]))}
    system = system_of("ring|ring", "direct|direct", **drawn)
    message = "ran"
    try:
        result = run_native(
            workload,
            network,
            system,
            passes=2,
            communication_scale=data.draw(SCALES),
            compute_scale=data.draw(SCALES),
            queues_per_dimension=data.draw(st.sampled_from([1, 3, 1024])),
        )
    except PerfModelError as error:
        message = str(error)
    else:
        assert result.total_ns >= result.compute_ns.sum()
    assert message.isprintable()
