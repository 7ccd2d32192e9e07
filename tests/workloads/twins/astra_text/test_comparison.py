"""Both modes side by side, and the reference runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from perfmodel.cli.main import cli
from perfmodel.workloads.formats.astra_text import read_astra_text
from perfmodel.workloads.formats.astra_text_machine import (
    IMPLEMENTATION_KEYS,
    NETWORK_KEYS,
    NativeNetwork,
    read_native_network,
    read_native_system,
)
from perfmodel.workloads.twins.astra_text.comparison import (
    LONGER,
    REASONS,
    RUN_REASONS,
    SHORTER,
    compare_modes,
)
from tests.data import MISSING
from tests.workloads.twins.astra_text.networks import (
    CUBE,
    CUBE_SYSTEM,
    DATA,
    MIB,
    TYPICAL,
    micro,
    network_of,
    system_of,
    typed,
)

REASONED = [
    ("FullyConnected", 8, 7, "ring", "ALLREDUCE", {}, "one_peer", 7.0),
    ("Switch", 8, 1, "direct", "ALLREDUCE", {}, "shared_port", 1 / 7),
    ("Ring", 8, 2, "ring", "ALLTOALL", {}, "relayed_blocks", 3.5 / 2),
    ("Ring", 8, 2, "direct", "ALLTOALL", {}, "shared_ring", 1 / 8 / 2),
    (
        "Ring",
        8,
        2,
        "ring",
        "ALLREDUCE",
        {"active_chunks_per_dimension": 4},
        "chunks_at_once",
        1 / 4,
    ),
]


@pytest.mark.parametrize(
    ("topology", "members", "links", "algorithm", "collective", "extra", "reason", "factor"),
    REASONED,
)
def test_reasons_have_the_effect_that_follows_from_them(
    topology, members, links, algorithm, collective, extra, reason, factor
):
    """`factor`: ASTRA-sim's time over ours for large messages, by hand."""
    network = network_of((topology, members, links, 25.0), latency=1.0)
    system = system_of(algorithm, preferred_dataset_splits=4, **extra)
    found = compare_modes(micro(collective, 2**30), network, system)
    assert reason in found.reasons[2][0]
    exact, ours = found.exact_collective_time[2, 0], found.physical.collective_time[2, 0]
    assert exact / ours == pytest.approx(factor, rel=1e-2)
    assert found.ratio[2, 0] == pytest.approx(ours / exact)
    assert found.largest_differences() == [(2, 0)]
    assert (reason in LONGER) == (factor > 1)


def test_every_reason_is_worded_and_given_somewhere():
    assert set(LONGER).isdisjoint(SHORTER)
    assert all(len(text) > 30 for text in (REASONS | RUN_REASONS).values())
    network = network_of(("Ring", 4, 2, 25.0), ("Switch", 4, 1, 25.0), memory_scale=1.0)
    mixed = system_of(
        "halvingDoubling_direct",
        "ring_direct",
        preferred_dataset_splits=8,
        active_chunks_per_dimension=2,
        inter_dimension_scheduling="roundRobin",
    )
    found = compare_modes(typed("MODEL", forward="ALLTOALL"), network, mixed)
    given_reasons = {name for row in found.reasons for names in row for name in names}
    assert given_reasons >= {
        *("serial_chunks", "serial_dimensions", "memory_latency", "relayed_blocks"),
        *("shared_port", "shared_ring", "chunks_at_once", "turning_dimensions", "shared_memory"),
    }
    assert "slow_memory" not in given_reasons
    slow = network_of(("Ring", 4, 2, 200.0), memory_scale=1.0)
    assert "slow_memory" in compare_modes(micro("ALLREDUCE", MIB), slow, system_of()).reasons[2][0]
    assert set(found.run_reasons) == {"chunk_order", "collectives_at_once", "following_dimensions"}
    other = compare_modes(micro("ALLREDUCE", MIB), network_of(("Switch", 8, 1, 25.0)), system_of())
    assert other.reasons[2][0] == ("stated_algorithm",)
    assert other.run_reasons == ()


@pytest.fixture
def files(tmp_path):
    """Workload, network and system files."""
    paths = [str(tmp_path / name) for name in ("text.txt", "network.json", "system.txt")]
    row = TYPICAL.format(f="ALLREDUCE", i="ALLREDUCE", w="ALLREDUCE")
    text = "HYBRID_TRANSFORMER group: 4 2 a -1 " + row + " b -1 " + row
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    network = {
        "topology-name": "Hierarchical",
        "topologies-per-dim": CUBE.topology,
        "dimension-type": ["N", "N"],
        "dimensions-count": 2,
    }
    network |= {key: getattr(CUBE, field) for key, (field, _, _) in NETWORK_KEYS.items()}
    (tmp_path / "network.json").write_text(json.dumps(network))
    lines = ["scheduling-policy: LIFO", "collective-optimization: localBWAware"]
    lines += [f"preferred-dataset-splits: {CUBE_SYSTEM.preferred_dataset_splits}"]
    for key, name in IMPLEMENTATION_KEYS.items():
        lines.append(f"{key}: {'_'.join(CUBE_SYSTEM.implementation(name))}")
    (tmp_path / "system.txt").write_text("\n".join(lines))
    assert (read_native_network(paths[1]), read_native_system(paths[2])) == (CUBE, CUBE_SYSTEM)
    return paths


def simulate(files, *more):
    text, network, system = files
    command = ["simulate", text, "--network", network, "--system", system]
    return CliRunner().invoke(cli, [*command, "--model", "physical", *more], prog_name="perfmodel")


def test_the_command_shows_both_modes_and_why_they_differ(files):
    run = simulate(files, "--by", "layer")
    assert run.exit_code == 0, run.output
    for words in ("ours / exact", "total time", "exposed communication", "weight gradient"):
        assert words in run.output
    assert "serial chunks: " + REASONS["serial_chunks"] in run.output
    assert "chunk order: " + RUN_REASONS["chunk_order"] in run.output


def test_the_commands_json_is_the_comparison(files, tmp_path):
    run = simulate(files, "--json", "--passes", "2", "-o", str(tmp_path / "out.nc"))
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    workload = read_astra_text(files[0])
    found = compare_modes(workload, CUBE, CUBE_SYSTEM, passes=2)
    assert document["total_time"] == found.physical.total_time
    assert document["exact"]["total_time"] == pytest.approx(found.native.total_ns * 1e-9)
    assert document["exact_stopped"] is None
    first = document["layers"][0]
    assert first["weight_gradient"]["collective"] == found.physical.collective_time[2, 0]
    assert first["weight_gradient"]["ratio"] == found.ratio[2, 0]
    assert first["forward"]["reasons"] == list(found.reasons[0][0])
    assert set(document["reasons"]) <= set(REASONS)
    assert (tmp_path / "out.nc").exists()


def test_the_command_says_where_the_exact_mode_stops(files):
    text = "DATA 1 a -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 3 1"
    Path(files[0]).write_text(text, encoding="utf-8")
    run = simulate(files)
    assert run.exit_code == 0, run.output
    assert "ASTRA-sim 1.0 has no result" in run.output


def reference_rows():
    """Every 40th of the reference runs, as (network, system, workload, row)."""
    with (DATA / "native_runs.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    for row in rows[::40]:
        kinds = row["topology"].split("|")

        def column(name, row=row, kind=float):
            return tuple(kind(word) for word in row[name].split("|"))

        network = NativeNetwork(
            tuple(kinds),
            column("npus_count", kind=int),
            column("links_count", kind=int),
            column("link_bandwidth_GiBps"),
            column("link_latency_ns"),
            column("nic_latency"),
            column("router_latency"),
            *((value,) * len(kinds) for value in (500.0, 370.0, float(row["hbm_scale"]))),
        )
        names = "_".join(row["ar_ag_rs_algo"].split("|"))
        system = system_of(
            names,
            "_".join(row["a2a_algo"].split("|")),
            preferred_dataset_splits=int(row["splits"]),
            active_chunks_per_dimension=int(row["active_chunks"]),
            endpoint_delay_nanoseconds=int(row["endpoint_delay"]),
            scheduling_policy=row["policy"],
            intra_dimension_scheduling=row["intra_sched"],
            inter_dimension_scheduling=row["inter_sched"],
        )
        yield network, system, read_astra_text(DATA / f"workloads/{row['workload']}.txt"), row


@pytest.mark.skipif(not DATA.exists(), reason=MISSING)
def test_on_the_reference_runs_reasons_say_which_mode_is_slower():
    checked = 0
    for network, system, workload, row in reference_rows():
        found = compare_modes(
            workload,
            network,
            system,
            passes=int(row["passes"]),
            queues_per_dimension=int(row["queues_per_dim"]),
        )
        assert abs(found.native.total_ns - int(row["total_ns"])) <= 1
        for phase, layer in np.argwhere(~np.isnan(found.ratio)):
            reasons, ratio = set(found.reasons[phase][layer]), found.ratio[phase, layer]
            assert reasons
            if not reasons & set(SHORTER):
                assert ratio <= 1.001
            if not reasons & set(LONGER):
                assert ratio >= 0.9  # one endpoint delay of few
            checked += 1
    assert checked > 100
