"""``perfmodel kernel`` and the figure of ``perfmodel compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

from perfmodel.sweeps.grids import KERNELS
from tests.cli.running import assert_one_line, run
from tests.data import table_of

GEMM = ("kernel", "gemm", "--hardware", "dgx-h100", "--n", "4096", "--k", "4096")


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["schema_version"]
    found: list[dict[str, Any]] = document["rows"]
    return found


def test_gemm_table_has_a_line_per_shape_and_names_what_is_fixed() -> None:
    result = run(*GEMM, "--m", "1,16,4096", "--precision", "bf16,fp8")
    assert result.exit_code == 0, result.stderr
    head, *lines = result.stdout.splitlines()
    assert head.split()[:3] == ["precision", "m", "time"]
    assert len(lines) == 7
    assert lines[-1].startswith("all: hardware dgx-h100 · n 4,096 · k 4,096")


def test_what_only_means_another_axis_is_not_named() -> None:
    text = run("kernel", "attention", "--hardware", "dgx-h100", "--heads", "8", "--q-len", "4096")
    last = text.stdout.splitlines()[-1]
    assert last.startswith("all: hardware dgx-h100 · phase forward · precision bf16 · batch 1")
    assert "q_len 4,096" in last
    for name in ("kv_len", "head_dim_v", "window", "kv_precision"):
        assert name not in last


def test_gemm_json_has_si_units() -> None:
    result = run(*GEMM, "--m", "4096", "--json")
    document = json.loads(result.stdout)
    (row,) = document["rows"]
    assert document["units"]["time"] == "s"
    assert row["flops"] == 2 * 4096**3
    assert row["flops_per_second"] == pytest.approx(row["flops"] / row["time"])
    assert 0.3 < row["peak_share"] < 1.0
    assert row["bound"] in ("compute", "l2", "memory", "latency")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,16,4096", [1, 16, 4096]),
        ("256:1024:4", [256, 512, 768, 1024]),
        ("1:64:x2", [1, 2, 4, 8, 16, 32, 64]),
        ("1:1000:4:log", [1, 10, 100, 1000]),
        ("1:3:9,7", [1, 2, 3, 7]),
        ("8:100:x10", [8, 80]),
    ],
)
def test_axes_take_lists_and_ranges(text: str, values: list[int]) -> None:
    assert sorted(row["m"] for row in rows(*GEMM, "--m", text)) == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    table_of(__file__, "wrong_input_is_one_line_and_code_2"),
)
def test_wrong_input_is_one_line_and_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*GEMM, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_precision_that_no_device_has_is_wrong_input() -> None:
    result = run("kernel", "gemm", "--hardware", "dgx-a100", "--m", "1", "--n", "1", "--k", "1",
                 "--precision", "fp8")  # fmt: skip
    assert result.exit_code == 2
    assert "no matrix rate for precision 'fp8'" in result.stderr


def test_grouped_products_take_no_longer_than_one_launch_each() -> None:
    one, each = rows(*GEMM, "--m", "64", "--groups", "8", "--launches", "one,each")
    (alone,) = rows(*GEMM, "--m", "64")
    assert one["flops"] == each["flops"] == 8 * alone["flops"]
    assert alone["time"] < one["time"] < each["time"]
    assert each["time"] == pytest.approx(8 * alone["time"], rel=0.05)
    result = run(*GEMM, "--m", "64", "--groups", "8", "--batch", "2")
    assert result.exit_code == 2
    assert "--groups of 1 and more stand alone" in result.stderr


def test_netcdf_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "gemm.nc"
    result = run(*GEMM, "--hardware", "dgx-a100", "--m", "1,4096", "--precision", "bf16,fp8",
                 "-o", str(path))  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert f"wrote {path}" in result.stderr
    with xr.open_dataset(path) as found:
        assert dict(found.sizes) == {"hardware": 2, "shape": 4, "kernel_class": 7}
        assert found["hardware"].values.tolist() == ["dgx-h100", "dgx-a100"]
        assert found["precision"].values.tolist() == ["bf16", "bf16", "fp8", "fp8"]
        assert found["time"].attrs == {
            "units": "s",
            "long_name": "time of one call on the device, without the host's launch",
        }
        meanings = found["bound"].attrs["flag_meanings"].split()
        assert meanings[int(found["bound"][1, 3])] == "unsupported"
    assert [child.name for child in tmp_path.iterdir()] == ["gemm.nc"]


def test_swept_hardware_makes_rows() -> None:
    found = rows(*GEMM, "--m", "16", "--sweep", "device.memory.bandwidth=2e12,4e12")
    assert [row["device.memory.bandwidth"] for row in found] == [2e12, 4e12]
    assert found[0]["time"] > found[1]["time"]


def test_long_tables_are_cut_with_a_hint() -> None:
    result = run(*GEMM, "--m", "1:100:100", "--lines", "7")
    assert "… and 93 more; --lines, --json or -o FILE shows them" in result.stdout


def test_attention_phases_and_shapes() -> None:
    found = rows(
        *("kernel", "attention", "--hardware", "dgx-h100", "--heads", "32", "--kv-heads", "8"),
        *("--kv-len", "1024:8192:x2", "--phase", "forward,backward,decode"),
    )
    assert len(found) == 12
    times = {(row["phase"], row["kv_len"]): row["time"] for row in found}
    for length in (1024, 2048, 4096, 8192):
        assert times["decode", length] < times["forward", length] < times["backward", length]
    wide = rows(
        *("kernel", "attention", "--hardware", "dgx-h100", "--heads", "16", "--head-dim", "192"),
        *("--head-dim-v", "128", "--kv-len", "4096", "--no-causal", "--precision", "bf16"),
    )
    assert wide[0]["flops"] == pytest.approx(2 * 16 * 4096**2 * (192 + 128))


def test_attention_with_uneven_heads_is_wrong_input() -> None:
    result = run("kernel", "attention", "--hardware", "dgx-h100", "--heads", "12", "--kv-heads",
                 "8", "--kv-len", "128")  # fmt: skip
    assert result.exit_code == 2
    assert "12 is not a multiple of" in result.stderr


SPARSE = ("kernel", "sparse-attention", "--hardware", "dgx-h100")


def test_sparse_attention_by_its_kinds() -> None:
    mla = ("--heads", "128", "--head-dim", "576", "--head-dim-v", "512", "--selected", "2048")
    phases = ("--kv-len", "8192", "--phase", "forward,backward,decode")
    found = {row["phase"]: row for row in rows(*SPARSE, *mla, *phases)}
    assert found["decode"]["time"] < found["forward"]["time"] < found["backward"]["time"]
    # 2 a (2 r_kv + d_rope) FLOP for each of the 2,048 keys of one query
    assert found["decode"]["flops"] == 2 * 128 * (576 + 512) * 2048
    v4 = ("--heads", "64", "--window", "128", "--q-len", "4096", "--compression", "0,4,128")
    kinds = rows(*SPARSE, *v4, "--selected", "0,512")
    assert [(row["selected"], row["compression"]) for row in kinds[:3]] == [
        (0, 0),
        (0, 4),
        (0, 128),
    ]
    window, _, heavy = (row["flops"] for row in kinds[:3])
    assert heavy - window == 4 * 64 * 512 * sum((i + 1) // 128 for i in range(4096))
    blocks = ("--heads", "64", "--kv-heads", "4", "--head-dim", "128", "--selected", "2048")
    own, shared = (
        rows(*SPARSE, *blocks, "--block", "128", "--q-len", "8192", flag)[0]
        for flag in ("--own-values", "--shared-values")
    )
    assert own["memory_traffic"] > shared["memory_traffic"]
    assert own["flops"] == shared["flops"]


def test_sparse_attention_without_keys_is_wrong_input() -> None:
    result = run(*SPARSE, "--heads", "4", "--q-len", "64")
    assert_one_line(result, "neither window, selected nor compression")


def test_indexer_scores_all_pairs_and_says_what_the_choice_takes() -> None:
    indexer = ("kernel", "indexer", "--hardware", "dgx-h100", "--heads", "64", "--top-k", "2048")
    short, long = rows(*indexer, "--q-len", "2048,8192")
    assert long["flops"] == 2 * 64 * 128 * 8192 * 8193 / 2
    assert 0 < short["choice_time"] < long["choice_time"] < long["time"]
    found = rows(*indexer, "--hardware", "dgx-a100", "--q-len", "4096")
    assert [row["bound"] == "unsupported" for row in found] == [False, True]  # no fp8


SCAN = ("kernel", "scan", "--hardware", "dgx-h100")


def test_scans_by_their_kinds() -> None:
    found = rows(*SCAN, "--heads", "32", "--key-heads", "16", "--phase", "forward,backward,decode")
    times = {row["phase"]: row["time"] for row in found}
    assert times["decode"] < times["forward"] < times["backward"]
    assert found[0]["flops"] == 4096 * 32 * 180_224
    assert found[1]["flops"] == 2 * found[0]["flops"]
    (scan,) = rows(*SCAN, "--kind", "mamba1", "--heads", "8192", "--key-dim", "16")
    assert scan["flops"] == 4096 * 9 * 8192 * 16
    assert (scan["key_heads"], scan["value_dim"], scan["bound"]) == (0, 0, "vector")
    short, long = rows(*SCAN, "--heads", "1", "--seq-len", "524288,1048576")
    assert long["time"] == pytest.approx(2 * short["time"], rel=0.05)
    assert long["bound"] == "latency"


def test_what_a_scan_takes_from_another_axis_is_not_named() -> None:
    text = run(*SCAN, "--heads", "32").stdout.splitlines()[-1]
    assert "heads 32" in text
    assert "chunk 64" in text
    assert "key_heads" not in text
    assert "value_dim" not in text


def test_convolutions_are_memory_bound() -> None:
    convolution = ("kernel", "convolution", "--hardware", "dgx-h100", "--channels", "8192")
    found = rows(*convolution, "--tokens", "65536", "--phase", "forward,backward")
    assert [row["bound"] for row in found] == ["memory", "memory"]
    assert found[0]["flops"] == 2 * 4 * 8192 * 65536
    assert 0.6 < found[0]["bandwidth_share"] < 0.8
    assert found[1]["memory_traffic"] == pytest.approx(1.5 * found[0]["memory_traffic"], rel=1e-3)
    (plain,) = rows(*convolution, "--tokens", "64", "--kernel-size", "3", "--no-activation")
    assert plain["flops"] == 2 * 3 * 8192 * 64


def test_wrong_scans_are_one_line() -> None:
    result = run(*SCAN, "--heads", "12", "--key-heads", "5")
    assert_one_line(result, "is not a multiple of key_heads")
    result = run(*SCAN, "--heads", "12", "--kind", "mamba3")
    assert_one_line(result, "did you mean")


def test_streams_by_operation_or_by_bytes() -> None:
    found = rows("kernel", "stream", "rms_norm,gated", "--hardware", "dgx-h100", "--rows",
                 "16,4096", "--columns", "8192", "--dtype", "bf16,fp32")  # fmt: skip
    assert len(found) == 8
    assert {row["operation"] for row in found} == {"rms_norm", "gated"}
    (row,) = rows("kernel", "stream", "--hardware", "dgx-h100", "--bytes-read", "1000000000")
    assert 0.5 < row["bandwidth_share"] < 1.0
    assert row["bound"] == "memory"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name either an OPERATION, or --bytes-read"),
        (("copy", "--bytes-read", "100"), "name either an OPERATION, or --bytes-read"),
        (("rmsnorm",), "unknown operation 'rmsnorm'; did you mean rms_norm"),
        (("copy", "--cached", "2"), "2.0 is not in the range"),
    ],
)
def test_wrong_streams_are_explained(arguments: tuple[str, ...], message: str) -> None:
    result = run("kernel", "stream", *arguments, "--hardware", "dgx-h100")
    assert result.exit_code == 2
    assert message in result.stderr


MOE = ("kernel", "moe", "--hardware", "dgx-h100", "--hidden", "4096", "--intermediate", "14336",
       "--experts", "8", "--top-k", "2")  # fmt: skip


def test_moe_layers_take_longer_with_unbalanced_loads() -> None:
    found = rows(*MOE, "--tokens", "4096", "--routing", "balanced,identical", "--ep", "4")
    times = {row["routing"]: row["time"] for row in found}
    assert times["identical"] > times["balanced"]
    loads = {row["routing"]: row["largest_load"] for row in found}
    assert loads["identical"] > loads["balanced"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tokens", "16", "--routing", "unifrm"), "did you mean uniform"),
        (("--tokens", "16", "--routing", "empirical:/nowhere.json"), "cannot read '/nowhere.json'"),
        (("--tokens", "16", "--tp", "3"), "does not divide among 3"),
        (("--tokens", "16", "--kernel", "tritn"), "triton"),
    ],
)
def test_wrong_moe_layers_are_explained(arguments: tuple[str, ...], message: str) -> None:
    result = run(*MOE, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


@pytest.mark.parametrize("command", list(KERNELS))
def test_help_has_examples_and_units(command: str) -> None:
    text = run("kernel", command, "--help").stdout
    assert "Examples:" in text
    assert "Units:" in text


def test_all_operations_of_streams_are_named() -> None:
    from perfmodel.sweeps.kernel_kinds.evaluations import stream_kernels

    text = " ".join(run("kernel", "stream", "--help").stdout.split())
    listed = text.partition("a list of: ")[2].partition(". Without OPERATION")[0]
    assert [item.partition(" ")[0] for item in listed.split(", ")] == list(stream_kernels())
    result = run("kernel", "stream", "foo", "--hardware", "dgx-h100")
    assert_one_line(result, "unknown operation 'foo'; known: copy, fill", "quantise_mxfp4")
    near = run("kernel", "stream", "rms_nrom", "--hardware", "dgx-h100")
    assert_one_line(near, "did you mean rms_norm")
