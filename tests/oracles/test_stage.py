"""STAGE workloads as a whole: the traces that its generator wrote, and what ASTRA-sim says of them.

The sanity check (16 devices) and the exploration (64 devices, 56 strategies, two models) are
those of a lab exercise on STAGE (branch ``recomp``, 0b44904) and ASTRA-sim (branch
``stage``, af2492b). Figures typed here are of those programs, or of the exercise itself.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from perfmodel.base.errors import StrategyError
from perfmodel.cli.main import cli
from perfmodel.workloads.formats.astra_machine import AstraNetwork, uniform_system
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.twins.astra.costs import AstraCosts
from perfmodel.workloads.twins.stage.arguments import stage_arguments
from perfmodel.workloads.twins.stage.traces import stage_traces
from tests.workloads.twins.stage.runs import (
    GPT,
    HASH_ORDER_RUNS,
    SANITY,
    SYSTEMS,
    costs_of,
    figures,
    run_point,
    strategies,
)

# What the exercise prints of the sanity check, in the order of issue of its time.
LAB_TIMES = {
    "wall_time": 3_556_872_116,
    "exposed_communication": 2_637_085_435,
    "communication_time": 3_521_411_134,
}
LAB_PEAK = 19_676_528_640


def digest(trace) -> str:
    """Return a digest of all that a trace says, node by node in file order."""
    scalars = ("identifiers", "kinds", "num_ops", "tensor_size", "collective",
               "communication_size", "source", "destination", "tag")  # fmt: skip
    columns = [getattr(trace, name).tolist() for name in scalars]
    groups = [trace.group_names[index] if index >= 0 else "" for index in trace.group.tolist()]
    found = hashlib.sha256()
    for node, values in enumerate(zip(trace.names, *columns, groups, strict=True)):
        parents = trace.data_parents[node].tolist(), trace.control_parents[node].tolist()
        tensors = [
            f"{name}={size}"
            for lists in (trace.inputs, trace.outputs)
            for name, size in [*(trace.tensors[place] for place in lists[node]), ("", 0)]
        ]
        words = [*map(str, values), *map(str, parents), *tensors]
        found.update("\t".join(words).encode() + b"\n")
    return found.hexdigest()[:16]


# Of the 16 files that STAGE itself wrote for the sanity check, with its random first label.
STAGE_TAG = 376055

STAGE_DIGESTS = """
9e8c9eb0540a4e7c 209d0880bcf26815 5c79c32b9035ec12 896e04cec277d68a
65299224339ee779 2df682cee8daa97f 4cdca0221b25e06e 640b862c8b340a0b
097b7f3011079652 ab022be529ed3b28 d4da44312e2ff7f5 03446a96effb18a4
306529259e8c8e28 175e3f201d466df5 e7b589ecea4fdd9a bcf76b578ee8aea9
"""


def test_traces_are_those_that_stage_wrote():
    traces = stage_traces(SANITY, STAGE_TAG)
    assert [digest(trace) for trace in traces.traces] == STAGE_DIGESTS.split()
    # The file of groups: tensor-parallel pairs are neighbours but one, and so on.
    groups = {name: tuple(members) for name, members in traces.groups.items()}
    assert len(groups) == 24
    assert [groups[str(name)] for name in (1, 2, 5, 9, 12, 17, 24)] == [
        (0, 1), (4, 5), (8, 9), (0, 2), (5, 7), (0, 4), (11, 15)
    ]  # fmt: skip


def test_digests_are_those_of_the_files(development_table):
    """What is typed above is what the files say."""
    from perfmodel.workloads.formats.chakra.files import read_traces

    folder = development_table("astra/et_sanity")
    traces = read_traces(folder, folder / "comm_group.json")
    assert [digest(trace) for trace in traces.traces] == STAGE_DIGESTS.split()


def test_a_digest_sees_every_size():
    """Not a test of STAGE, but that the one above can fail."""
    other = replace(SANITY, feed_forward_size=SANITY.feed_forward_size * 2)
    assert digest(stage_traces(other, STAGE_TAG).traces[0]) not in STAGE_DIGESTS


@pytest.fixture(scope="module")
def sanity_costs():
    """Network and system of the sanity check."""
    network = AstraNetwork(("Ring",) * 3, (2, 4, 2), (450.0, 50.0, 25.0), (50.0, 200.0, 500.0))
    system = uniform_system(
        ["ring"] * 3,
        preferred_dataset_splits=4,
        active_chunks_per_dimension=1,
        endpoint_delay_nanoseconds=10,
        roofline_enabled=True,
        peak_performance_teraflops=900.0,
        local_memory_bandwidth_gb_per_second=1600.0,
    )
    return AstraCosts(network, system)


@pytest.mark.parametrize("issue_order", ["identifier", "hash"])
def test_sanity_check_figures_that_no_order_changes(sanity_costs, issue_order):
    result = simulate(stage_traces(SANITY), sanity_costs, issue_order=issue_order)
    assert result.ticks("gpu_time")[0] == 919_786_681
    assert round(100 * result.compute_bound_fraction[0], 3) == 83.794
    assert round(100 * result.compute_utilization[0], 3) == 85.661
    assert round(100 * result.memory_utilization[0], 3) == 28.401
    assert round(result.operation_intensity[0], 3) == 3523.082


def test_sanity_check_times_in_the_order_of_identifiers(sanity_costs):
    """Within 1.5 % of what a release with another order printed; no faster than its parts."""
    result = simulate(stage_traces(SANITY), sanity_costs)
    for name, printed in LAB_TIMES.items():
        assert result.ticks(name)[0] == pytest.approx(printed, rel=0.015)
        assert result.ticks(name)[0] != printed
    wall, exposed, gpu, communication, _ = figures(result)
    assert exposed == wall - gpu
    assert max(gpu, communication) <= wall <= gpu + communication


def test_sanity_check_in_hash_order_is_exact(sanity_costs):
    """All that the exercise prints, to the nanosecond and the byte."""
    result = simulate(stage_traces(SANITY), sanity_costs, issue_order="hash")
    assert {name: int(result.ticks(name)[0]) for name in LAB_TIMES} == LAB_TIMES
    assert int(result.peak_memory[0]) == LAB_PEAK


NETWORK = """
topology: [ Ring, Ring, Ring ]
npus_count: [ 2, 4, 2 ]
bandwidth: [ 450.0, 50.0, 25.0 ]
latency: [ 50.0, 200.0, 500.0 ]
"""

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    **{f"{name}-implementation": ["ring"] * 3
       for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")},
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "roofline-enabled": 1,
    "peak-perf": 900,
}  # fmt: skip


def test_sanity_check_on_the_command_line(tmp_path):
    """Written to files by one command, run from them by another: all nine figures."""
    (tmp_path / "network.yml").write_text(NETWORK, encoding="utf-8")
    (tmp_path / "system.json").write_text(json.dumps(SYSTEM), encoding="utf-8")
    words = [word.replace("_", "-") if word[:2] == "--" else word for word in SANITY.command_line()]
    runner = CliRunner()
    written = runner.invoke(cli, ["workload", "stage", *words, "-o", str(tmp_path / "traces/s")])
    assert written.exit_code == 0, written.stderr
    files = ["--network", str(tmp_path / "network.yml"), "--system", str(tmp_path / "system.json")]
    command = ["simulate", str(tmp_path / "traces/s"), *files]
    for order in ("hash", "identifier"):
        result = runner.invoke(cli, [*command, "--issue-order", order])
        assert result.exit_code == 0, result.stderr
        printed = result.stdout
        assert "919,786,681 ns" in printed
        for figure in LAB_TIMES.values():
            assert (f"{figure:,} ns" in printed) is (order == "hash")
        assert ("19.7 GB" in printed) is (order == "hash")
        for share in ("83.79 %", "85.66 %", "28.40 %", "3,523.1 FLOP/B"):
            assert share in printed
    refused = runner.invoke(
        cli, [*command[:2], "--hardware", "dgx-h100", "--issue-order", "hash"]
    )  # fmt: skip
    assert refused.exit_code == 2
    assert "--issue-order is for runs as ASTRA-sim" in refused.stderr


# Runs of ASTRA-sim (id order): dp, tp, sp, recomputation; layers; wall, exposed, GPU and
# communication time [ns]; peak memory [B], None where it was not followed.
RUNS = [
    ("llama", (32, 1, 2, 0), 2, (108600710, 415962, 108184748, 19030920), 5182062592),
    ("llama", (4, 4, 4, 1), 2, (135991988, 12206766, 123785222, 41663625), 2339373056),
    ("llama", (8, 1, 8, 1), 2, (130575780, 4138020, 126437760, 41199084), 4208984064),
    ("gpt", (16, 4, 1, 0), 2, (2564191883, 2327049, 2561864834, 15288765), 5942256640),
    ("gpt", (4, 8, 2, 1), 2, (2962698622, 10292482, 2952406140, 32547837), 4041126400),
    ("llama", (64, 1, 1, 0), 2, (107916320, 0, 107916320, 7889056), 5444206592),
    ("llama", (1, 64, 1, 1), 2, (534548433, 404023646, 130524787, 496851491), 16877584384),
    ("llama", (1, 1, 64, 0), 2, (232131368, 107303616, 124827752, 153429170), 8940158976),
    ("llama", (32, 1, 2, 0), 80, (3206889878, 16638480, 3190251398, 583491804), 143896084480),
    ("llama", (8, 1, 8, 1), 80, (4088264658, 167892780, 3920371878, 1436722200), 67022880768),
    ("gpt", (16, 4, 1, 0), 96, (91220641939, 99543447, 91121098492, 623860275), None),
]


@pytest.mark.parametrize(("model", "strategy", "layers", "times", "peak"), RUNS)
def test_points_are_those_of_astra_sim(model, strategy, layers, times, peak):
    found = figures(run_point(model, strategy, layers))
    assert found[:4] == times
    assert peak in (found[4], None)


@pytest.mark.parametrize(("model", "strategy", "layers", "times", "peak"), HASH_ORDER_RUNS)
def test_points_in_hash_order_are_those_of_older_releases(model, strategy, layers, times, peak):
    found = figures(run_point(model, strategy, layers, issue_order="hash"))
    assert found == (*times, peak)
    assert figures(run_point(model, strategy, layers)) != found


@pytest.mark.parametrize(
    ("model", "limit", "strategy", "seconds", "gigabytes"),
    [
        ("llama", None, (64, 1, 1, 0), 3.1795, 144.2),
        ("llama", 80e9, (32, 2, 1, 1), 3.8810, 39.4),
        ("gpt", None, (16, 4, 1, 0), 91.221, 205.8),
        ("gpt", 80e9, (16, 4, 1, 1), 110.015, 64.5),
    ],
)
def test_winners_of_all_56(model, limit, strategy, seconds, gigabytes):
    within = {
        key: found for key, found in explored()[model].items() if found[4] <= (limit or found[4])
    }
    assert len(explored()[model]) == 56
    assert (len(within) < 56) is (limit is not None)
    best = min(within, key=lambda key: within[key][0])
    assert best == strategy
    assert within[best][0] * 1e-9 == pytest.approx(seconds, abs=5e-4)
    assert within[best][4] * 1e-9 == pytest.approx(gigabytes, abs=0.05)


@functools.cache
def explored():
    """All points of both models, at full depth."""
    return {
        model: {strategy: figures(run_point(model, strategy)) for strategy in strategies()}
        for model in SYSTEMS
    }


def test_the_larger_memory_bandwidth_of_the_network_never_slows():
    """More bandwidth on every link shortens communication, or leaves a point alone."""
    model, _ = SYSTEMS["llama"]
    faster = costs_of(200.0, 450.0, 3000.0)
    for strategy in [(1, 8, 8, 0), (8, 8, 1, 1), (64, 1, 1, 0)]:
        dp, tp, sp, recompute = strategy
        arguments = replace(
            model,
            data_parallel=dp,
            tensor_parallel=tp,
            sequence_parallel=sp,
            activation_recompute=bool(recompute),
        )
        found = figures(simulate(stage_traces(arguments), faster))
        assert found[3] < explored()["llama"][strategy][3]
        assert found[0] <= explored()["llama"][strategy][0]


@pytest.mark.parametrize("stages", [1, 4])
def test_1024_ranks_and_96_layers(stages):
    """Columns are shared by ranks that do the same, and each different rank runs once."""
    arguments = replace(
        GPT,
        data_parallel=64 // stages,
        tensor_parallel=8,
        sequence_parallel=2,
        pipeline_parallel=stages,
    )
    traces = stage_traces(arguments)
    assert traces.devices == 1024
    assert len({id(trace.num_ops) for trace in traces.traces}) == stages
    if stages == 1:
        _, costs = SYSTEMS["gpt"]
        network = AstraNetwork(("Ring",) * 3, (8, 8, 16), (100.0,) * 3, (50.0,) * 3)
        result = simulate(traces, AstraCosts(network, costs.system))
        # Tensor groups are half a ring of 16, whose way back is longer: a class for each place.
        assert len(result.classes) == 8
        assert len(set(result.ticks("wall_time"))) > 1


def test_micro_batches_are_none_of_the_generators():
    """Its pipeline passes the whole batch down and up once: one message per link and way."""
    from perfmodel.workloads.trace import SEND

    arguments = replace(SANITY, layers=4, pipeline_parallel=3)
    traces = stage_traces(arguments)
    sends = sum(int((trace.kinds == SEND).sum()) for trace in traces.traces)
    assert sends == 2 * 5 * arguments.ranks_per_stage  # 6 blocks, round-robin over 3 stages
    with pytest.raises(StrategyError, match="unknown argument 'micro_batch'"):
        stage_arguments({"micro_batch": 2})
