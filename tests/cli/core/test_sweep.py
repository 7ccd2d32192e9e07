"""``perfmodel sweep``: what it prints, writes and returns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from perfmodel import load_hardware, load_model, open_results, strategy_grid, sweep
from perfmodel.base import memory
from perfmodel.kernels.variables import SCHEMA_VERSION, VARIABLES
from tests.cli.running import assert_one_line, document, run
from tests.cli.sweeping import AXES, PROBLEM, run_sweep


def test_the_file_is_what_the_python_interface_gives(file: Path) -> None:
    model = load_model("llama-3.1-8b")
    grid = strategy_grid(
        model,
        16,
        sequence_length=4096,
        global_batch_size=64,
        tensor_parallel=[1, 2, 3],
        pipeline_parallel=[1, 2],
        context_parallel=1,
        virtual_pipeline=1,
        micro_batch_size=[1, 2],
        recompute=["none", "full"],
    )
    expected = sweep(model, grid, [load_hardware("dgx-h100"), load_hardware("dgx-b200")])
    with open_results(file) as found:
        xr.testing.assert_identical(found.load(), expected)


def test_the_summary_counts_explains_and_suggests(tmp_path: Path) -> None:
    path = tmp_path / "out.nc"
    result = run_sweep("--hardware dgx-h100 --top 2", "-o", str(path))
    assert result.exit_code == 0
    for text in (
        "llama-3.1-8b, 8.03 G parameters, on 16 devices",
        "strategies possible",
        "do not multiply to the number of devices",
        "fit in memory",
        "Best by tokens per second and device",
        "Share of the step",
        "fwd",
    ):
        assert text in result.stdout
    for text in (f"wrote {path}", "What to try next", "perfmodel best", "perfmodel explain"):
        assert text in result.stderr
    assert path.is_file()


def test_the_suggested_command_projects_the_best_strategy(file: Path) -> None:
    result = run_sweep("--hardware dgx-h100 --top 1")
    line = next(line for line in result.stderr.splitlines() if "perfmodel explain" in line)
    projected = run("project", *shlex.split(line)[2:], "--json")
    top = json.loads(run("best", str(file), "--where", 'hardware == "dgx-h100"', "--json").stdout)
    row = json.loads(projected.stdout)
    assert row["step_time"] == pytest.approx(top["strategies"][0]["step_time"], rel=1e-7)
    assert row["recompute"] == top["strategies"][0]["recompute"]


def test_quiet_says_nothing_on_stderr_and_verbose_says_more() -> None:
    assert run_sweep("--hardware dgx-h100 --quiet").stderr == ""
    assert "enumerated" in run_sweep("--hardware dgx-h100 -v").stderr
    arguments = shlex.split(f"{PROBLEM} {AXES} --hardware dgx-h100")
    assert run("-q", "sweep", *arguments).stderr == ""


def test_json_has_counts_units_and_strategies() -> None:
    result = run_sweep("--hardware dgx-h100 --json --top 3")
    document = json.loads(result.stdout)
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["model"] == "llama-3.1-8b"
    assert document["devices"] == 16
    assert document["possible"] > 0
    assert document["impossible"]["devices_mismatch"] > 0
    assert document["output"] is None
    assert 0 < document["fitting"]["dgx-h100"] <= document["possible"]
    assert len(document["strategies"]) == 3
    assert {*VARIABLES} <= {*document["units"]}
    assert {*VARIABLES} <= {*document["strategies"][0]}


def test_swept_values_become_rows_and_a_coordinate(tmp_path: Path) -> None:
    path = tmp_path / "network.nc"
    result = run_sweep(
        "--hardware dgx-h100 --set device.tdp=500 "
        "--sweep system.network.1.bandwidth=25e9:400e9:4 "
        "--sweep system.network.0.bandwidth=100e9:400e9:3:log -o",
        str(path),
    )
    assert result.exit_code == 0, result.stderr
    with open_results(path) as dataset:
        assert dataset.sizes["hardware"] == 12
        outer = dataset["system.network.1.bandwidth"].values
        inner = dataset["system.network.0.bandwidth"].values
        np.testing.assert_allclose(np.unique(outer), [25e9, 150e9, 275e9, 400e9])
        np.testing.assert_allclose(np.unique(inner), [100e9, 200e9, 400e9])
        assert len(set(dataset["hardware"].values.tolist())) == 12
        profiles = json.loads(dataset.attrs["provenance"])["hardware"]
        assert all(profile["device"]["tdp"] == 500 for profile in profiles.values())
        fastest = dataset["step_time"].min("strategy")
        assert fastest.isel(hardware=-1) < fastest.isel(hardware=0)


def test_keep_impossible_keeps_them_with_their_reason(tmp_path: Path) -> None:
    path = tmp_path / "all.nc"
    result = run_sweep("--hardware dgx-h100 --keep-impossible --json -o", str(path))
    document = json.loads(result.stdout)
    with open_results(path) as dataset:
        assert dataset.sizes["strategy"] > document["possible"]
        valid = int((dataset["status"] == "valid").sum())
    assert valid == document["possible"]


def test_double_precision_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    for option, kind in (("", np.float32), ("--float64", np.float64)):
        path = tmp_path / f"{kind.__name__}.nc"
        assert run_sweep(f"--hardware dgx-h100 {option} -o", str(path)).exit_code == 0
        with open_results(path) as dataset:
            assert dataset["step_time"].dtype == kind
            assert dataset["tensor_parallel"].dtype == np.int32
    assert_one_line(run_sweep("--hardware dgx-h100 --float32"), "No such option", "--float32")


def test_digits_are_those_that_are_kept() -> None:
    (row,) = document("sweep", *shlex.split(f"{PROBLEM} {AXES} --hardware dgx-h100 --top 1"))[
        "strategies"
    ]
    assert float(np.float32(row["step_time"])) != row["step_time"]
    assert str(np.float32(row["step_time"])) == str(row["step_time"])


def test_nothing_fits_is_exit_code_3_and_the_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "big.nc"
    arguments = "--model llama-3.1-405b --devices 8 --seq-len 4096 --global-batch 8"
    axes = "--hardware l40s-server --tp 8 --pp 1 --micro-batch 1 -o"
    result = run("sweep", *shlex.split(f"{arguments} {axes}"), str(path))
    assert result.exit_code == 3
    assert "no strategy fits in memory (l40s-server needs" in result.stderr
    assert path.is_file()
    assert run("best", str(path)).exit_code == 3
    assert "--all shows" in run("best", str(path)).stderr
    shown = run("best", str(path), "--all")
    assert shown.exit_code == 0
    assert "(no)" in shown.stdout


def test_the_same_profile_twice_is_one_row() -> None:
    result = run_sweep("--hardware dgx-h100 --hardware H100-80GB-SXM --json")
    assert json.loads(result.stdout)["hardware"] == ["dgx-h100"]


def best(file: Path, *arguments: str) -> Any:
    result = run("best", str(file), *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_sweep_beyond_the_memory_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(memory, "memory_limit", lambda: 1e4)
    found = run_sweep("--hardware dgx-h100 --mapping all")
    assert_one_line(found, "strategies need about", "there are 10 kB", "fewer values per axis")


SEVERAL = (
    "--hardware dgx-h100 --seq-len 1024 --global-batch 32 --pp 1 --cp 1 --micro-batch 1,2 "
    "--recompute none"
)


def test_several_models_frameworks_and_devices_are_one_sweep(folder: Path) -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2,gpt2-medium --framework megatron,fsdp")
    result = run("sweep", *words, "--devices", "4,8", "-o", "x.nc")
    assert result.exit_code == 0, result.stderr
    assert "gpt2, 124 M parameters; gpt2-medium" in result.stdout
    assert "on 4 and 8 devices" in result.stdout
    assert "software megatron, fsdp" in result.stdout
    assert "Best of each model and framework" in result.stdout
    assert "Strong scaling: the batch stays" in result.stdout
    found = document("best", "x.nc", "--where", "devices <= 4 and model == 'gpt2'")
    assert {row["devices"] for row in found["strategies"]} == {4}
    assert {row["model"] for row in found["strategies"]} == {"gpt2"}
    assert found["devices"] == [4, 8]
    assert found["framework"] == ["megatron", "fsdp"]
    shown = run("best", "x.nc", "--top", "40").stdout
    headers = next(line for line in shown.splitlines() if line.startswith(" #")).split()
    assert headers[:4] == ["#", "model", "framework", "devices"]
    shown = run("best", "x.nc", "--where", "model == 'gpt2-medium' and devices == 8").stdout
    assert "all: gpt2-medium · " in shown
    assert "8 devices" in shown


def test_scaling_is_printed_and_in_json() -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2 --devices 4:16:x2 --scaling weak")
    shown = run("sweep", *words).stdout
    assert "Weak scaling: the batch grows with the devices" in shown
    found = document("sweep", *words)["scaling"]
    assert found["kind"] == "weak"
    assert [row["devices"] for row in found["rows"]] == [4, 8, 16]
    assert [row["global_batch_size"] for row in found["rows"]] == [32, 64, 128]
    for row in found["rows"]:
        assert f"{100 * row['scaling_efficiency']:.1f} %" in shown
    one = shlex.split(f"{SEVERAL} --model gpt2 --devices 4")
    assert "scaling" not in document("sweep", *one)


def test_what_several_suggest_is_one_of_them() -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2,gpt2-medium --devices 8,4")
    swept = ["--sweep", "software.optimizer_bytes=8,12"]
    result = run("sweep", *words, "--framework", "fsdp", *swept)
    line = next(line for line in result.stderr.splitlines() if "perfmodel explain" in line)
    top = document("sweep", *words, "--framework", "fsdp", *swept)["strategies"][0]
    again = document("project", *shlex.split(line)[2:])
    assert again["step_time"] == pytest.approx(top["step_time"], rel=1e-7)
    assert again["framework"] == top["framework"]
    assert (again["model"], again["devices"]) == (top["model"], top["devices"])


def test_software_may_be_swept() -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2 --devices 8 --sweep software.dropout=true,false")
    found = document("sweep", *words, "--sweep", "software.bucket_bytes=1e7:1e8:2")
    assert found["framework"] == [
        "megatron[bucket_bytes=1e+07,dropout=true]",
        "megatron[bucket_bytes=1e+08,dropout=true]",
        "megatron[bucket_bytes=1e+07]",
        "megatron[bucket_bytes=1e+08]",
    ]
    both = run("sweep", *words, "--set", "software.dropout=true")
    assert_one_line(both, "'software.dropout' is both set and swept")


def test_a_number_of_devices_without_a_strategy_is_a_note() -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2 --devices 4,7 --tp 1")
    result = run("sweep", *words)
    assert result.exit_code == 0
    assert "note: no strategy of gpt2 is possible on 7 devices" in result.stderr


def test_a_strategy_of_several_can_be_launched(folder: Path) -> None:
    words = shlex.split(f"{SEVERAL} --model gpt2,gpt2-medium --framework megatron,megatron-tuned")
    assert run("sweep", *words, "--devices", "4,8", "-o", "x.nc").exit_code == 0
    where = "model == 'gpt2-medium' and devices == 8 and framework == 'megatron-tuned'"
    result = run("launch", "x.nc", "--where", where, "--for", "megatron")
    assert result.exit_code == 0, result.stderr
    assert "gpt2-medium on 8 devices" in result.stdout + result.stderr
    assert "projected as megatron-tuned" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("hardware", "devices", "path"),
    [
        ("gh200", 16, "system.network.0.bandwidth"),
        ("dgx-h100", 16, "system.network.1.bandwidth"),
        ("dgx-h100", 8, "system.network.0.bandwidth"),
        ("dgx-h100", 1, "device.memory.bandwidth"),
        ("gb200-nvl72", 64, "system.network.0.bandwidth"),
        ("h100-nvl", 16, "system.network.2.bandwidth"),
    ],
)
def test_what_to_try_next_is_in_the_words_of_the_profile(
    hardware: str, devices: int, path: str
) -> None:
    words = shlex.split(
        f"--model gpt2 --hardware {hardware} --devices {devices} --seq-len 1024 --global-batch 64 "
        "--tp 1 --pp 1 --micro-batch 1 --recompute none"
    )
    result = run("sweep", *words)
    line = next(line for line in result.stderr.splitlines() if "--sweep" in line)
    assert path in line
    again = run("sweep", *words, *shlex.split(line.split("   ")[0]), "--json")
    assert again.exit_code == 0, again.stderr
    assert len(json.loads(again.stdout)["hardware"]) == 8


def test_what_fits_nowhere_is_answered_with_what_was_not_tried() -> None:
    words = "--model llama-3.1-70b --hardware dgx-h100 --devices 8 --seq-len 8192 --global-batch 64"
    free = run("sweep", *words.split())
    assert free.exit_code == 3
    assert "; try more devices, or hardware with more memory\n" in free.stderr
    fixed = run("sweep", *words.split(), "--recompute", "none", "--zero", "1", "--tp", "2")
    assert "--recompute full, --zero 3, larger --tp, or hardware" in fixed.stderr


def test_keeping_the_best_prints_what_keeping_all_prints() -> None:
    words = [*shlex.split(f"{PROBLEM} {AXES} --hardware dgx-h100,dgx-b200"), "--top", "3"]
    every = document("sweep", *words, "--float64")
    few = document("sweep", *words, "--keep", "best")
    for row in (*few["strategies"], *every["strategies"]):
        del row["strategy"]  # its place, among fewer
    assert few["strategies"] == every["strategies"]
    for name in ("possible", "impossible", "fitting", "hardware", "units"):
        assert few[name] == every[name], name


def front(file: str) -> list[float]:
    asked = ("--pareto", "step_time,memory_total", "--where", "hardware == 'dgx-b200'")
    return [row["step_time"] for row in document("best", file, *asked)["strategies"]]


def test_keeping_the_front_keeps_all_of_it(folder: Path, file: Path) -> None:
    words = shlex.split(f"{PROBLEM} {AXES} --hardware dgx-h100 --hardware dgx-b200 --top 1")
    options = ("--keep", "best", "--pareto", "step_time,memory_total", "-o", "front.nc")
    assert run("sweep", *words, *options).exit_code == 0
    assert front("front.nc") == pytest.approx(front(str(file)), rel=1e-7)
    assert len(front("front.nc")) > 1
    with open_results(folder / "front.nc") as kept, open_results(file) as whole:
        assert kept.sizes["strategy"] < whole.sizes["strategy"]


def test_keeping_the_best_by_another_variable(folder: Path) -> None:
    words = shlex.split(f"{PROBLEM} {AXES} --hardware dgx-h100 --top 2 -o")
    assert run("sweep", *words, "all.nc", "--float64").exit_code == 0
    asked = ("--by", "memory_total")
    assert run("sweep", *words, "few.nc", "--keep", "best", *asked).exit_code == 0
    needs = [
        [row["memory_total"] for row in document("best", file, "--top", "2", *asked)["strategies"]]
        for file in ("few.nc", "all.nc")
    ]
    assert needs[0] == needs[1] == sorted(needs[0])
    with open_results(folder / "few.nc") as kept:
        assert kept.sizes["strategy"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--keep best --resume -o x.nc", "leave out --resume"),
        ("--keep best --workers 2 -o x.nc", "leave out --resume"),
        ("--keep best --keep-impossible", "and --keep-impossible"),
        ("--pareto step_time,memory_total", "--pareto needs --keep best"),
        ("--keep best --pareto step_time", "needs two or more variables"),
        ("--keep best --by step_tim", "did you mean step_time"),
        ("--keep some", "'some' is not one of 'all', 'best'"),
    ],
)
def test_what_keeping_the_best_excludes(folder: Path, options: str, message: str) -> None:
    result = run_sweep(f"--hardware dgx-h100 {options}")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert not list(folder.iterdir())
