"""Reading the output of nccl-tests and rccl-tests.

The logs are made up; their layout is that of NVIDIA/nccl-tests src/common.cu (2.13, without
`# Collective test starting`) and src/util.cu (2.17), and of ROCm/rccl-tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.base.errors import FormatError
from perfmodel.measured.nccl_tests import is_nccl_tests, read_nccl_tests

HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: {program}
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 1024(factor) warmup iters: 1 iters: 20 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""
RANK = "#  Rank {rank:2d} Group {group:2d} Pid {pid:6d} on {host:>10s} device {device:2d} \
[0000:{device:02x}:00] {name}\n"
COLUMNS = """\
NCCL version 2.28.7+cuda12.9
#
#                                            out-of-place                    in-place
#   size   count   type  redop  root    time  algbw  busbw #wrong    time  algbw  busbw  #wrong
#    (B) (elements)                     (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)
"""
ROWS = """\
    1024     256  float    sum    -1   15.20   0.07   0.12      0   14.90   0.07   0.12       0
 1048576  262144  float    sum    -1   32.00  32.77  57.34      0   31.50  33.29  58.25     N/A
"""
FOOT = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 28.9575
#
# Collective test concluded: all_reduce_perf
"""


def ranks(
    count: int = 8, per_host: int = 8, name: str = "NVIDIA H100 80GB HBM3", groups: int = 1
) -> str:
    return "".join(
        RANK.format(
            rank=rank,
            group=rank % groups,
            pid=1000 + rank,
            host=f"node-{rank // per_host}",
            device=rank % per_host,
            name=name,
        )
        for rank in range(count)
    )


def log(program: str = "all_reduce_perf", devices: str | None = None, rows: str = ROWS) -> str:
    return HEAD.format(program=program) + (devices or ranks()) + COLUMNS + rows + FOOT


def written(tmp_path: Path, text: str, name: str = "out.txt") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_in_the_documented_layout(tmp_path: Path) -> None:
    path = written(tmp_path, log())
    assert is_nccl_tests(path)
    (found,) = read_nccl_tests(path)
    assert (found.test, found.collective, found.timer) == ("all_reduce", "all_reduce", "time")
    assert (found.members, found.nodes, found.device) == (8, 1, "NVIDIA H100 80GB HBM3")
    assert found.average_bus_bandwidth == pytest.approx(28.9575e9)
    small, large = found.rows
    assert (small.size, small.dtype, small.line) == (1024, "float", 19)
    assert small.out_of_place.time == pytest.approx(15.2e-6)
    assert large.in_place.time == pytest.approx(31.5e-6)
    assert large.out_of_place.algorithm_bandwidth == pytest.approx(32.77e9)
    assert large.out_of_place.bus_bandwidth == pytest.approx(57.34e9)
    assert (large.out_of_place.wrong, large.in_place.wrong) == (0, None)


@pytest.mark.parametrize(
    ("program", "collective"),
    [
        ("all_gather_perf", "all_gather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("alltoall_perf", "all_to_all"),
        ("broadcast_perf", "broadcast"),
        ("sendrecv_perf", "point_to_point"),
        ("gather_perf", "gather"),
        ("scatter_perf", "scatter"),
        ("reduce_perf", None),
    ],
)
def test_every_test_has_its_collective(
    tmp_path: Path, program: str, collective: str | None
) -> None:
    (found,) = read_nccl_tests(written(tmp_path, log(program)))
    assert (found.test, found.collective) == (program.removesuffix("_perf"), collective)


def test_the_older_layout_without_root_and_with_error_columns(tmp_path: Path) -> None:
    text = """\
mpirun -np 4 ./build/all_gather_perf -b 8M -e 8M
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 8388608 step: 1048576(bytes) validation: 1
#
#   Rank  0 Pid   2041 on      gpu-a device  0 [0x07] Tesla V100-SXM2-32GB
#   Rank  1 Pid   2042 on      gpu-a device  1 [0x0a] Tesla V100-SXM2-32GB
#   Rank  2 Pid   1207 on      gpu-b device  0 [0x07] Tesla V100-SXM2-32GB
#   Rank  3 Pid   1208 on      gpu-b device  1 [0x0a] Tesla V100-SXM2-32GB
#
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608        524288   float   410.00   20.46   15.34  0e+00   400.00   20.97   15.73  0e+00
"""
    (found,) = read_nccl_tests(written(tmp_path, text))
    assert (found.collective, found.members, found.nodes) == ("all_gather", 4, 2)
    assert found.average_bus_bandwidth is None
    (row,) = found.rows
    assert row.in_place.time == pytest.approx(400e-6)
    assert row.out_of_place.wrong == 0


def test_a_blank_redop_timestamps_and_labels_of_launchers(tmp_path: Path) -> None:
    columns = COLUMNS.replace("  #wrong\n", "  #wrong            timestamp\n").replace(
        "(GB/s)\n", "(GB/s)        %Y-%m-%d %H:%M:%S\n"
    )
    row = (
        "       65536         2048     float              -1    20.00    3.28    2.87      0"
        "    19.00    3.45    3.02    N/A  2025-11-03 10:11:12\n"
    )
    text = HEAD.format(program="alltoall_perf") + ranks() + columns + row
    labelled = "".join(f" 0: {line}\n" for line in text.splitlines())
    for prefixed in (text, labelled, labelled.replace(" 0: ", "[1,0]<stdout>: ")):
        (found,) = read_nccl_tests(written(tmp_path, prefixed))
        assert found.rows[0].out_of_place.time == pytest.approx(20e-6)
        assert found.rows[0].in_place.wrong is None


def test_columns_per_iteration_and_times_of_the_host(tmp_path: Path) -> None:
    wide = (
        "#  size  count  type  redop  root  cputime algbw busbw #wrong i_min i_max i_p99 i_cv%"
        + (" cputime algbw busbw #wrong i_min i_max i_p99 i_cv%\n")
    )
    row = " 1024 256 float sum -1  9.5 0.1 0.2 0 9 11 10.9 3.1  8.5 0.1 0.2 0 8 10 9.9 2.5\n"
    text = HEAD.format(program="all_reduce_perf") + ranks() + wide + row
    (found,) = read_nccl_tests(written(tmp_path, text))
    assert found.timer == "cputime"
    assert found.rows[0].out_of_place.time == pytest.approx(9.5e-6)
    assert found.rows[0].in_place.time == pytest.approx(8.5e-6)


def test_groups_of_a_split_run_count_their_own_ranks(tmp_path: Path) -> None:
    (found,) = read_nccl_tests(written(tmp_path, log(devices=ranks(16, groups=8))))
    assert (found.members, found.nodes) == (2, 2)


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    both = (
        log()
        + "rccl-tests: Version develop:1234abc\n"
        + log("broadcast_perf", ranks(4, name="AMD Instinct MI300X"), ROWS.replace("sum", "none"))
    )
    first, second = read_nccl_tests(written(tmp_path, both))
    assert (first.collective, first.members) == ("all_reduce", 8)
    assert (second.collective, second.members) == ("broadcast", 4)
    assert second.device == "AMD Instinct MI300X"


def test_the_name_of_the_file_may_say_the_test(tmp_path: Path) -> None:
    anonymous = "\n".join(line for line in log().splitlines() if "Collective test" not in line)
    (found,) = read_nccl_tests(written(tmp_path, anonymous, "reduce_scatter-8.log"))
    assert found.collective == "reduce_scatter"
    with pytest.raises(FormatError, match=r"no line says which test ran"):
        read_nccl_tests(written(tmp_path, anonymous, "monday.log"))


def test_a_log_cut_in_a_row_is_refused_with_its_line(tmp_path: Path) -> None:
    whole = log(rows=ROWS)
    cut = whole[: whole.index("31.50")]
    with pytest.raises(FormatError, match=r"out\.txt, line 20: .*is the log cut off"):
        read_nccl_tests(written(tmp_path, cut))
    (found,) = read_nccl_tests(written(tmp_path, whole[: whole.index("# Out of")]))
    assert len(found.rows) == 2
    assert found.average_bus_bandwidth is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "no results of nccl-tests"),
        (log(rows=""), "no results of nccl-tests"),
        (HEAD.format(program="all_reduce_perf") + COLUMNS + ROWS, "no line '#  Rank  0"),
        (log(rows=ROWS.replace("15.20", "15,20")), "line 19: time '15,20' should be a number"),
        (log(rows=ROWS.replace("57.34", "  nan")), "line 20: busbw 'nan' should be a number"),
        (log(devices=ranks(1) + ranks(1)), "line 7: rank 0 stands there twice"),
        (log().replace("busbw", "busbw more", 1), "line 19: the columns above should be size"),
    ],
)
def test_broken_logs_are_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_nccl_tests(written(tmp_path, text))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*none\.txt': No such file"):
        read_nccl_tests(tmp_path / "none.txt")
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not UTF-8 text"):
        read_nccl_tests(binary)
    assert not is_nccl_tests(binary)
    assert not is_nccl_tests(tmp_path / "none.txt")
    assert not is_nccl_tests(written(tmp_path, "hardware,op,n_gpus\nH100_SXM,all_reduce,8\n"))


def document(**changes: Any) -> dict[str, Any]:
    half = {"time": 32.0, "alg_bw": 32.768, "bus_bw": 57.344, "nwrong": 0.0}
    made: dict[str, Any] = {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-g", "4"],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": 4,
            "devices": [
                {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device": 0,
                 "device_hex": "0000:1b:00", "device_info": "NVIDIA H100 80GB HBM3"},
                {"rank": 4, "group": 0, "pid": 2, "hostname": "b", "device": 0,
                 "device_hex": "0000:1b:00", "device_info": "NVIDIA H100 80GB HBM3"},
            ],
        },
        "results": [
            {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": half, "in_place": {**half, "nwrong": None}},
        ],
        "average_bus_bandwidth": {"bandwidth": 57.344, "okay": "unchecked"},
    }  # fmt: skip
    return made | changes


def test_the_json_file_lists_one_device_of_each_process(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(document()), "x.json")
    assert is_nccl_tests(path)
    (found,) = read_nccl_tests(path)
    assert (found.collective, found.members, found.nodes) == ("all_reduce", 8, 2)
    assert found.average_bus_bandwidth == pytest.approx(57.344e9)
    assert found.rows[0].in_place.wrong is None
    assert found.rows[0].out_of_place.time == pytest.approx(32e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(document())[:-30], "line 1: .*is the file cut off"),
        (json.dumps(document(results=[])), "results is empty"),
        (json.dumps(document(results=[{"size": -1}])), r"results\[0\]: size '-1'"),
        (json.dumps(document(results=[{"size": 8}])), r"results\[0\]: no key 'out_of_place'"),
        (json.dumps(document(config={})), "config.devices is empty"),
        (json.dumps(document(config=3)), "config should be an object"),
        (json.dumps(document(config={"devices": 1})), "config.devices should be a list"),
        (
            json.dumps(document(config={"devices": [{}], "ngpus": None})),
            "config.ngpus 'None' should be a whole number >= 1",
        ),
        (json.dumps(document(average_bus_bandwidth=3)), "average_bus_bandwidth should be an obj"),
        (json.dumps(document(args=3)), "args should be a list"),
        (json.dumps(document(results=[{"size": 2**63}])), "should be a whole number from 0 to"),
        ('{"nccl_version":' + "9" * 5000 + "}", "not the JSON of nccl-tests -J"),
        ('{"nccl_version":' + "[" * 100_000, "not the JSON of nccl-tests -J"),
        ('{"nccl_version": 1}', "no key 'config'"),
    ],
)
def test_broken_json_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_nccl_tests(written(tmp_path, text, "x.json"))


def test_sizes_that_no_run_can_have_and_byte_order_marks(tmp_path: Path) -> None:
    huge = written(tmp_path, log(rows=ROWS.replace(" 1048576 ", f" {'9' * 5000} ")))
    with pytest.raises(FormatError, match=r"line \d+: size '9{19}' should be a whole number"):
        read_nccl_tests(huge)
    marked = written(tmp_path, "\ufeff" + ranks() + COLUMNS + ROWS, "all_reduce.log")
    assert is_nccl_tests(marked)
    assert read_nccl_tests(marked)[0].members == 8
