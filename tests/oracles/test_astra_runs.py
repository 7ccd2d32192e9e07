"""Execution traces against runs of ASTRA-sim, to the nanosecond."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem, uniform_system
from perfmodel.workloads.simulation.result import FIGURES
from perfmodel.workloads.simulation.run import simulate
from perfmodel.workloads.twins.astra.costs import AstraCosts
from tests.workloads.simulation.made import ring

FIGURE_COLUMNS = {
    "wall": "wall_time",
    "exposed": "exposed_communication",
    "gpu_time": "gpu_time",
    "comm_time": "communication_time",
}


@pytest.mark.parametrize("case", ["chain", "groups", "dims", "pipe", "types"])
def test_handwritten_files_equal_the_simulator(development_table, case):
    from perfmodel.workloads.formats.chakra.files import read_traces

    table = development_table("astra/et_handwritten/results.csv")
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["case"] == case]

    def numbers(column, kind):
        return tuple(kind(text) for text in rows[0][column].split("|"))

    network = AstraNetwork(
        tuple(rows[0]["topology"].split("|")),
        numbers("npus", int),
        numbers("bandwidth", float),
        numbers("latency", float),
    )
    system = uniform_system(
        rows[0]["algos"].split("|"), preferred_dataset_splits=int(rows[0]["splits"])
    )
    groups = rows[0]["comm_groups"]
    traces = read_traces(
        [table.parent / f"{case}.{rank}.et" for rank in range(network.devices)],
        None if groups == "empty" else table.parent / groups,
    )
    result = simulate(traces, AstraCosts(network, system, version="astra-sim@af2492b"))
    assert len(rows) == network.devices
    for row in rows:
        for column, name in FIGURE_COLUMNS.items():
            # No GPU time is printed where nothing computes.
            assert result.ticks(name)[int(row["rank"])] == int(row[column] or 0)


def test_samples_of_the_text_converter_equal_the_simulator(development_table):
    from perfmodel.workloads.formats.chakra.files import read_traces

    with development_table("astra/text/et_runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["npus"] == "4" and r["backend"] == "unaware"]
    folder = development_table("astra/et_samples")
    traces, compared = {}, 0
    for row in rows:
        name = f"{row['workload']}_p{row['passes']}"
        files = [folder / f"{name}.{rank}.et" for rank in range(4)]
        if not files[0].exists():
            continue
        if name not in traces:
            traces[name] = read_traces(files)
        network = AstraNetwork(
            tuple(row["topology"].split("|")),
            tuple(map(int, row["npus_count"].split("|"))),
            tuple(map(float, row["bandwidth_GiBps"].split("|"))),
            tuple(map(float, row["latency_ns"].split("|"))),
        )
        all_algorithms = [row["ar_ag_rs_algo"]] * 3 + [row["a2a_algo"]]
        system = AstraSystem(
            *(tuple(text.split("|")) for text in all_algorithms),
            int(row["splits"]),
            int(row["active_chunks"]),
            int(row["endpoint_delay"]),
            row["policy"],
            row["collective_opt"],
            float(row["local_mem_bw"]),
        )
        result = simulate(traces[name], AstraCosts(network, system))
        assert len(result.classes) == 1  # identifiers differ from rank to rank, nothing else
        for column, figure in FIGURE_COLUMNS.items():
            assert result.ticks(figure)[0] == int(row[f"{column}_sys0"] or 0), (row, figure)
        compared += 1
    assert compared >= 40


def test_sanity_check_of_16_ranks(development_table):
    """Lab figures; those that depend on the order of issue are within 1.5 %."""
    from perfmodel.workloads.formats.astra_files import read_network, read_system
    from perfmodel.workloads.formats.chakra.files import read_traces

    folder = development_table("astra/et_sanity")
    traces = read_traces(
        [folder / f"sanity_check.{rank}.et" for rank in range(16)], folder / "comm_group.json"
    )
    files = folder.parent / "sanity"
    costs = AstraCosts(read_network(files / "network.yml"), read_system(files / "system.json"))
    result = simulate(traces, costs)
    assert len(result.classes) == 2  # the two pipeline stages
    assert result.ticks("gpu_time")[0] == 919_786_681
    assert round(100 * result.compute_bound_fraction[0], 3) == 83.794
    assert round(100 * result.compute_utilization[0], 3) == 85.661
    assert round(100 * result.memory_utilization[0], 3) == 28.401
    assert round(result.operation_intensity[0], 3) == 3523.082
    for name, lab in (
        ("wall_time", 3556872116),
        ("exposed_communication", 2637085435),
        ("communication_time", 3521411134),
    ):
        assert result.ticks(name)[0] == pytest.approx(lab, rel=0.015)
    full = simulate(traces, costs, symmetry=False)
    for name in (figure.name for figure in FIGURES):
        np.testing.assert_array_equal(getattr(full, name), getattr(result, name))


@pytest.mark.parametrize("name", ["pytorch_converted.0.et", "small_chakra.0.json"])
def test_recordings_of_one_rank_run(development_table, name):
    from perfmodel.workloads.formats.chakra.files import read_traces

    traces = read_traces(development_table(f"astra/chakra_samples/{name}"))
    result = simulate(traces, ring())
    trace = traces.traces[0]
    host = trace.on_cpu == 1
    # Nothing lasts shorter than one resource's work, or longer than all of it.
    durations = np.maximum(np.rint(trace.duration * 1e9), 1)
    assert result.ticks("wall_time")[0] >= max(durations[host].sum(), durations[~host].max())
    assert result.ticks("wall_time")[0] <= durations.sum()
