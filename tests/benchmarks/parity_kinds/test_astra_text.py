"""The script that compares text workloads with runs of ASTRA-sim 1.0: what it finds and refuses."""

from __future__ import annotations

import csv

import pytest

from perfmodel.base.errors import FormatError

SIMULATED = ("native_runs.csv", "native_layers.csv", "native_extra.csv", "native_extra_layers.csv")
WORKLOAD = "MICRO 1 conv1 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5"
ROW = {
    "row": "0", "workload": "micro", "network": "ring4", "npus": "4", "passes": "1",
    "splits": "1", "active_chunks": "1", "queues_per_dim": "1", "policy": "LIFO",
    "collective_opt": "localBWAware", "intra_sched": "FIFO", "inter_sched": "baseline",
    "endpoint_delay": "10", "topology": "Ring", "npus_count": "4", "links_count": "2",
    "link_bandwidth_GiBps": "25", "link_latency_ns": "500", "nic_latency": "0",
    "router_latency": "0", "hbm_latency": "500", "hbm_bandwidth": "370", "hbm_scale": "0",
    "ar_ag_rs_algo": "ring", "a2a_algo": "ring", "comm_scale": "1", "compute_scale": "1",
    "status": "ok", "total_ns": "32367", "pass_end_ns": "", "sum_compute_us": "0.000000",
    "sum_exposed_us": "32.367000", "streams": "1", "total_payload_MB_npu0": "1.500000",
    "payload_MB_per_dim_npu0": "1.500000", "avg_chunk_latency_per_logical_dim": "32362",
}  # fmt: skip
LAYER = {
    **{name: ROW[name] for name in ("row", "workload", "network", "npus", "passes", "splits",
       "active_chunks", "queues_per_dim", "policy", "intra_sched", "inter_sched",
       "endpoint_delay")},
    "layer_index": "0", "layer": "conv1", "collectives": "1", "fwd_compute": "0",
    "ig_compute": "0", "wg_compute": "0", "exposed_fwd": "0", "exposed_ig": "0",
    "exposed_wg": "32367", "comm_fwd": "0", "comm_ig": "0", "comm_wg": "32367",
}  # fmt: skip


@pytest.fixture
def comparison(script):
    return script.load("parity_kinds.astra_text")


def folder_with(folder, runs=(ROW,), layers=(LAYER,)):
    """A folder of reference runs, the same rows in both of its tables."""
    (folder / "workloads").mkdir(exist_ok=True)
    (folder / "workloads" / "micro.txt").write_text(WORKLOAD)
    for name in SIMULATED:
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = layers if "layers" in name else runs
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def test_every_run_of_the_simulator_is_exact(comparison, development_table, tmp_path):
    source = development_table("astra/text/native_runs.csv").parent
    for name in (*SIMULATED, "workloads"):
        (tmp_path / name).symlink_to((source / name).resolve())
    document = comparison.compare(tmp_path)
    assert document["rows"] == 1493
    assert document["uncovered"] == {comparison.ABORTED: 10}
    assert document["count"] == 1483
    assert document["exact"] == 1483
    assert document["worst_relative_error"] == 0.0
    assert document["differences"] == []


def test_parity_of_equal_runs(comparison, tmp_path):
    document = comparison.compare(folder_with(tmp_path))
    assert (document["rows"], document["count"], document["exact"]) == (2, 2, 2)
    assert document["worst_relative_error"] == 0.0
    assert set(document["groups"]) == {"workload", "network", "intra_sched", "inter_sched"}
    assert document["groups"]["network"]["ring4"]["exact"] == 2
    assert document["differences"] == []
    assert any(line.startswith("native_extra.csv") for line in comparison.table(document))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("total_ns", "32368"),
        ("pass_end_ns", "32366"),
        ("sum_compute_us", "0.000001"),
        ("sum_exposed_us", "32.366000"),
        ("streams", "2"),
        ("total_payload_MB_npu0", "1.500001"),
        ("payload_MB_per_dim_npu0", "1.5|0"),
        ("avg_chunk_latency_per_logical_dim", "32363"),
        ("splits", "2"),
        ("link_latency_ns", "501"),
        ("endpoint_delay", "11"),
    ],
)
def test_parity_finds_a_changed_run(comparison, tmp_path, column, value):
    layer = LAYER | {column: value} if column in LAYER else LAYER
    document = comparison.compare(folder_with(tmp_path, [ROW | {column: value}], [layer]))
    assert (document["count"], document["exact"]) == (2, 0)
    assert len(document["differences"]) == 2
    assert any(line.startswith("differs: micro on ring4: ") for line in comparison.table(document))


@pytest.mark.parametrize(
    "column",
    ["collectives", "fwd_compute", "ig_compute", "wg_compute", "exposed_fwd", "exposed_ig",
     "exposed_wg", "comm_fwd", "comm_ig", "comm_wg"],
)  # fmt: skip
def test_parity_finds_a_changed_counter(comparison, tmp_path, column):
    document = comparison.compare(folder_with(tmp_path, layers=[LAYER | {column: "7"}]))
    assert (document["count"], document["exact"]) == (2, 0)
    assert f"layer 0 {column} " in document["differences"][0]


def test_parity_finds_a_layer_too_many(comparison, tmp_path):
    document = comparison.compare(folder_with(tmp_path, layers=[LAYER, LAYER]))
    assert document["exact"] == 0
    assert "2 layers in the reference, 1 here" in document["differences"][0]


def test_parity_says_what_is_not_compared(comparison, tmp_path):
    runs = [
        ROW,
        ROW | {"status": "rc=-6 <SendRecvTrackingMap::insert_send> Same ke", "total_ns": ""},
        ROW | {"status": "timeout", "total_ns": ""},
        ROW | {"ar_ag_rs_algo": "doubleBinaryTree"},
        ROW | {"workload": "none"},
    ]
    document = comparison.compare(folder_with(tmp_path, runs))
    assert (document["rows"], document["count"], document["exact"]) == (10, 2, 2)
    reasons = document["uncovered"]
    assert sum(reasons.values()) == 8
    for words in ("Same key entry", "timeout", "doubleBinaryTree is not covered", "cannot read"):
        assert sum(count for reason, count in reasons.items() if words in reason) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"total_ns": "fast"}, "'fast'"),
        ({"total_ns": "0"}, "total_ns is 0"),
        ({"total_ns": "-5"}, "total_ns is -5"),
        ({"splits": ""}, "native_runs.csv"),
        ({"link_latency_ns": "x"}, "'x'"),
    ],
)
def test_parity_refuses_rows_that_are_none(comparison, tmp_path, change, words):
    with pytest.raises(FormatError) as caught:
        comparison.compare(folder_with(tmp_path, [ROW | change], [LAYER]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parity_refuses_files_that_are_none(comparison, tmp_path):
    with pytest.raises(FormatError, match="cannot read"):
        comparison.compare(tmp_path)
    short = {name: ROW[name] for name in ROW if name != "npus_count"}
    with pytest.raises(FormatError, match="column 'npus_count' is missing"):
        comparison.compare(folder_with(tmp_path, [short]))
    folder_with(tmp_path)
    (tmp_path / "native_runs.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not a CSV file in UTF-8"):
        comparison.compare(tmp_path)
    (tmp_path / "native_runs.csv").write_text("row,workload\n")
    with pytest.raises(FormatError, match="has no rows"):
        comparison.compare(tmp_path)
