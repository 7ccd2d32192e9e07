"""Measured collectives: reading tables and logs, what is left out and why, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from perfmodel.base.errors import DataError, FormatError
from perfmodel.compute.collectives import collective_times
from perfmodel.compute.expert_exchange import moe_exchange_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.calibrate import calibrate_file
from perfmodel.measured.compare import Comparison, compare_file, statistics
from perfmodel.measured.problem import infer_kind
from perfmodel.software.engine import load_engine
from tests.data import table_of

HEADER = "hardware,op,impl,n_gpus,nodes,bytes,dtype,time_us"
LOG = """\
# Collective test starting: {test}_perf
# Using devices
#  Rank  0 Group  0 Pid   101 on node-a device  0 [0000:0f:00] {name}
#  Rank  1 Group  0 Pid   102 on node-a device  1 [0000:2d:00] {name}
#  Rank  2 Group  0 Pid   103 on node-b device  0 [0000:0f:00] {name}
#  Rank  3 Group  0 Pid   104 on node-b device  1 [0000:2d:00] {name}
#
#   size   count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
#    (B) (elements)                     (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
       0       0  float    sum    -1    0.10   0.00   0.00      0    0.10   0.00   0.00      0
 1048576  262144  float    sum    -1   50.00  20.97  31.46      0   40.00  26.21  39.32      0
# Avg bus bandwidth    : 20.0
"""


def compared(tmp_path: Path, *rows: str, header: str = HEADER, **options: Any) -> Comparison:
    """Compare a table of the given rows."""
    path = tmp_path / "collective.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return compare_file("collective", path, **options)


def microseconds(*call: Any) -> float:
    return float(collective_times(load_hardware("dgx-h100"), *call)[0]) * 1e6


def test_rows_that_the_model_made_have_no_error(tmp_path: Path) -> None:
    inside = microseconds("all_reduce", 2**20, 8, 1)
    across = microseconds("all_gather", 2**28, 16, 1)
    one_each = microseconds("all_to_all", 2**24, 4, 8)
    found = compared(
        tmp_path,
        f"H100_SXM,all_reduce,nccl,8,1,{2**20},bf16,{inside:.9f}",
        f"H100_SXM,all_gather,,16,2,{2**28},bf16,{across:.9f}",
        f"H100_SXM,alltoall,nccl,4,4,{2**24},bf16,{one_each:.9f}",
    )
    assert [row.error for row in found.rows] == pytest.approx([0.0] * 3, abs=1e-8)
    assert found.by == ("hardware", "op", "n_gpus", "regime")
    assert [row.cells["regime"] for row in found.rows] == ["middle", "large", "middle"]
    details = found.rows[0].outcome.details
    assert details["bus_bandwidth"] == pytest.approx(2 * 7 / 8 * 2**20 / (inside * 1e-6))
    assert isinstance(details["algorithm"], str)
    assert isinstance(details["protocol"], str)


def test_members_of_other_nodes_wait_for_the_network(tmp_path: Path) -> None:
    rows = [f"H100_SXM,all_reduce,nccl,8,{nodes},{2**28},bf16,1000" for nodes in (1, 2, 8)]
    inside, halves, apart = (row.outcome.projected for row in compared(tmp_path, *rows).rows)
    assert inside is not None
    assert halves is not None
    assert apart is not None
    assert inside < halves < apart


@pytest.mark.parametrize(
    ("row", "reason"),
    table_of(__file__, "rows_that_cannot_be_scored_are_counted_by_reason"),
)
def test_rows_that_cannot_be_scored_are_counted_by_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    assert compared(tmp_path, row).skipped() == {reason: 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("H100_SXM,all_reduce,nccl,8,1,-4,bf16,9", r"line 2, column 'bytes': '-4' should be"),
        ("H100_SXM,all_reduce,nccl,2.5,1,4,bf16,9", r"line 2, column 'n_gpus': '2.5' should be"),
        ("H100_SXM,all_reduce,nccl,8,0,4,bf16,9", r"line 2, column 'nodes': '0' should be"),
        ("H100_SXM,all_reduce,nccl,8,1,4,bf16,fast", r"line 2, column 'time_us': 'fast'"),
        ("H100_SXM,all_reduce,nccl,8,1,4,bf16,nan,5", "line 2: 9 cells"),
    ],
)
def test_broken_cells_are_refused_with_file_and_line(
    tmp_path: Path, row: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        compared(tmp_path, row)


def test_published_tables_name_the_device_in_their_source(tmp_path: Path) -> None:
    header = "source,collective,n_gpus,n_nodes,msg_bytes,measured_us"
    found = compared(
        tmp_path,
        '"a cloud (8x MI355X, ROCm 7), rccl-tests",all_reduce,8,1,1048576,80',
        header=header,
    )
    assert found.rows[0].scored
    assert found.rows[0].cells["hardware"] == "mi355x-server"
    unnamed = compared(tmp_path, "a cloud,all_reduce,8,1,1048576,80", header=header)
    assert unnamed.skipped() == {"hardware not stated": 1}
    path = tmp_path / "rccl_mi300x.csv"
    path.write_text(f"{header}\na cloud,all_reduce,8,1,1048576,80\n", encoding="utf-8")
    assert compare_file("collective", path).rows[0].cells["hardware"] == "mi300x-server"


def test_logs_of_nccl_tests_are_rows_out_of_place_and_in_place(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(LOG.format(test="all_reduce", name="NVIDIA H100 80GB HBM3"), encoding="utf-8")
    found = compare_file("collective", path, by=["placement", "nodes"])
    assert [row.cells["placement"] for row in found.rows] == ["out_of_place", "in_place"]
    assert [row.outcome.measured for row in found.rows] == pytest.approx([50e-6, 40e-6])
    assert {row.line for row in found.rows} == {11}
    # Two of four ranks on each host: every fourth of the 8 devices of a node.
    expected = microseconds("all_reduce", 2**20, 4, 4)
    assert found.rows[0].outcome.projected == pytest.approx(expected * 1e-6)
    assert found.to_json_dict()["groups"]["nodes"]["2"]["count"] == 2


def test_an_exchange_is_never_in_place_and_other_tests_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    for test, rows in (("alltoall", 1), ("sendrecv", 1), ("reduce", 2)):
        text = LOG.format(test=test, name="AMD Instinct MI300X")
        path.write_text(text, encoding="utf-8")
        found = compare_file("collective", path)
        assert len(found.rows) == rows
        assert found.rows[0].scored == (test != "reduce")
    assert found.skipped() == {"unknown collective": 2}


def test_a_log_of_an_unknown_device_takes_the_named_profile(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(LOG.format(test="all_reduce", name="Some Accelerator"), encoding="utf-8")
    assert compare_file("collective", path).skipped() == {"no hardware profile": 2}
    assert compare_file("collective", path, hardware="dgx-b200").rows[0].scored
    host = LOG.format(test="all_reduce", name="NVIDIA H100 80GB HBM3").replace(
        " time ", " cputime "
    )
    path.write_text(host, encoding="utf-8")
    assert compare_file("collective", path).skipped() == {"time of the host, not of the device": 2}


def test_a_truncated_log_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    text = LOG.format(test="all_reduce", name="NVIDIA H100 80GB HBM3")
    path.write_text(text[: text.index("26.21")], encoding="utf-8")
    with pytest.raises(FormatError, match=r"out\.log, line 11: .*is the log cut off"):
        compare_file("collective", path)


# Targets of the collective model on what NCCL and RCCL do by themselves.
@pytest.mark.in_sample("collective-a100", "collective-h100", "collective-b200", "collective-mi355x")
@pytest.mark.parametrize("name", ["measured/collective.csv", "primus/measured_rccl_mi355x.csv"])
def test_measured_collectives(development_table: Any, name: str) -> None:
    libraries = "impl == 'nccl'" if name.startswith("measured/") else None
    found = compare_file("collective", development_table(name), where=libraries)
    for hardware, group in found.group("hardware").items():
        assert group["median_absolute_error"] <= 0.05, hardware
        assert group["mean_absolute_error"] <= 0.08, hardware
        assert group["p90_absolute_error"] <= 0.18, hardware
        assert group["count"] >= 80, hardware
        large = [
            row.error
            for row in found.rows
            if row.cells["hardware"] == hardware
            and row.error is not None
            and float(row.cells["bytes"]) >= 2**24
        ]
        assert abs(median(large)) < 0.03, hardware


@pytest.mark.in_sample(
    "collective-a100-engines", "collective-h100-engines", "collective-b200-engines"
)
def test_measured_all_reduces_of_engines(development_table: Any) -> None:
    found = compare_file("collective", development_table("measured/collective.csv"))
    for impl, group in found.group("impl").items():
        if impl.startswith("nccl"):
            continue
        assert group["coverage"] == 1.0, impl
        assert group["median_absolute_error"] <= 0.07, impl
        assert group["mean_absolute_error"] <= (0.19 if "eager" in impl else 0.12), impl


def test_an_engine_waits_for_its_host_where_calls_are_not_replayed(tmp_path: Path) -> None:
    cells = [
        f"H100_SXM,all_reduce,{impl},8,1,{size},bf16,9"
        for size in (4096, 2**30)
        for impl in ("vllm_graph", "vllm_eager", "sglang_graph", "trtllm")
    ]
    found = [float(row.outcome.projected or 0.0) for row in compared(tmp_path, *cells).rows]
    assert found[1] == load_engine("vllm").all_reduce_call_time  # the device is done before
    assert found[0] > 1.5e-6 + found[2]  # copied to where switches reduce
    assert found[2] == found[3]
    assert 1.1 * found[4] < found[5] < 1.4 * found[4]  # a result of its own: one copy
    assert found[4] == found[6] == found[7]  # the library's


def test_a_benchmark_that_waits_for_each_call_pays_the_host(tmp_path: Path) -> None:
    path = tmp_path / "rccl.csv"
    sources = ("mi355x rccl-tests", "mi355x Primus benchmark rccl p50")
    rows = [f"{source},all_reduce,8,{2**14},30" for source in sources]
    path.write_text("\n".join(["source,op,n_gpus,bytes,time_us", *rows]), encoding="utf-8")
    alone, waited = (row.outcome.projected for row in compare_file("collective", path).rows)
    assert waited - alone == pytest.approx(load_engine("vllm").all_reduce_call_time)


def test_what_is_scored_of_the_measured_collectives(development_table: Any) -> None:
    found = compare_file("collective", development_table("measured/collective.csv"))
    assert statistics(found.rows)["count"] == 1306
    assert found.skipped() == {"per-call timing through a framework": 423}
    rccl = compare_file("collective", development_table("primus/measured_rccl_mi355x.csv"))
    assert statistics(rccl.rows)["coverage"] == 1.0
    assert set(rccl.group("hardware")) == {"mi355x-server"}


def test_a_network_is_calibrated_to_its_own_measurements(tmp_path: Path) -> None:
    # Times of a network that launches 3 us later: the fit finds the latency, and nothing else.
    h100 = load_hardware("dgx-h100")
    network = h100.calibration["network"]
    later = replace(network["base_latency"], value=7.44e-6)
    slower = replace(h100, calibration={"network": {**network, "base_latency": later}})
    path = tmp_path / "measured.csv"
    lines = ["hardware,op,impl,n_gpus,bytes,time_us"]
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for members in (2, 4, 8):
            sizes = 2.0 ** np.arange(9, 30)
            times = collective_times(slower, op, sizes, members)
            lines += [
                f"H100_SXM,{op},nccl,{members},{size:.0f},{time * 1e6:.6g}"
                for size, time in zip(sizes, times, strict=True)
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = calibrate_file("dgx-h100", path, only=("base_latency",))
    (latency,) = found.parameters
    assert latency.before == pytest.approx(4.44e-6)
    assert latency.after == pytest.approx(7.44e-6, rel=0.01)
    assert found.errors("after")["all"]["worst_absolute_error"] < 0.02


def test_rows_with_wrong_elements_are_not_scored(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    text = LOG.format(test="all_reduce", name="NVIDIA H100 80GB HBM3")
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:1] == ["1048576"])
    words = lines[place].split()
    lines[place] = "  ".join([*words[:-1], "3"])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = compare_file("collective", path)
    assert [row.scored for row in found.rows] == [True, False]
    assert found.skipped() == {"wrong results": 1}


def test_a_log_needs_no_kind_to_calibrate(tmp_path: Path) -> None:
    log = tmp_path / "all_reduce_perf.log"
    log.write_text(LOG.format(test="all_reduce", name="NVIDIA H100 80GB HBM3"), encoding="utf-8")
    assert infer_kind(str(log)) == "collective"


EXCHANGES = "hardware,mode,phase,nodes,ep,tokens_per_rank,hidden,topk,experts,sms,time_us"


def exchanged(tmp_path: Path, *rows: str) -> Comparison:
    """Compare a table of exchanges of the given rows."""
    path = tmp_path / "exchange.csv"
    path.write_text("\n".join([EXCHANGES, *rows]) + "\n", encoding="utf-8")
    return compare_file("moe-alltoall", path)


def test_exchanges_that_the_model_made_have_no_error(tmp_path: Path) -> None:
    hardware = load_hardware("dgx-h100")
    rows = []
    for mode, phase in (("normal", "dispatch"), ("low_latency", "combine")):
        (time,) = moe_exchange_times(hardware, phase, mode, 128, 7168, 8, 256, 16, compute_units=24)
        rows.append(f"H100_SXM,deepep_{mode},{phase},2,16,128,7168,8,256,24,{time * 1e6:.9f}")
    found = exchanged(tmp_path, *rows)
    assert [row.error for row in found.rows] == pytest.approx([0.0, 0.0], abs=1e-8)
    assert found.by == ("hardware", "mode", "phase", "nodes", "regime")
    assert {row.cells["regime"] for row in found.rows} == {"middle"}  # 14 MiB


def test_a_table_may_say_among_how_many_nodes_tokens_choose(tmp_path: Path) -> None:
    path = tmp_path / "exchange.csv"
    row = "H100_SXM,deepep_normal,combine,8,64,8192,7168,8,256,24,8742"
    lines = [f"{EXCHANGES},topk_groups", f"{row},", f"{row},8", f"{row},4", f"{row},20"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    free, eight, four, more = (
        row.outcome.projected for row in compare_file("moe-alltoall", path).rows
    )
    assert free == eight == more
    assert four == pytest.approx(0.757 * free, rel=0.02)  # 4 nodes a token instead of 5.3
    path.write_text("\n".join([lines[0], f"{row},x"]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="topk_groups"):
        compare_file("moe-alltoall", path)


@pytest.mark.parametrize(
    ("row", "reason"),
    table_of(__file__, "exchanges_that_cannot_be_scored_are_counted_by_reason"),
)
def test_exchanges_that_cannot_be_scored_are_counted_by_reason(
    tmp_path: Path, row: str, reason: str
) -> None:
    assert exchanged(tmp_path, row).skipped() == {reason: 1}


def test_broken_cells_of_exchanges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2, column 'topk': 'two' should be"):
        exchanged(tmp_path, "H100_SXM,deepep_normal,dispatch,1,8,128,7168,two,256,,50")


@pytest.mark.in_sample("exchange-h100", "exchange-b200")
def test_measured_exchanges(development_table: Any) -> None:
    found = compare_file("moe-alltoall", development_table("measured/moe_alltoall.csv"))
    errors = statistics(found.rows)
    assert errors["count"] == 2235
    assert errors["median_absolute_error"] <= 0.15
