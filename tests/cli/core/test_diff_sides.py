"""What A and B may be: projections with changed options, and strategies of files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.core.diff_pairs import RUN, SWEEP, diff, printed
from tests.cli.running import assert_one_line, document, run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sides")
    for ending in ("nc", "json"):
        assert run(*shlex.split(SWEEP), "-o", folder / f"sweep.{ending}").exit_code == 0
    for name, command in (
        ("one.json", f"project {RUN}"),
        ("ranked.json", f"best {folder / 'sweep.nc'}"),
    ):
        (folder / name).write_text(run(*shlex.split(command), "--json").stdout)
    (folder / "text.json").write_text("{")
    (folder / "list.json").write_text("[1]")
    (folder / "other.json").write_text('{"a": 1}')
    return folder


def projected(more: str, run: str = RUN) -> Any:
    for name in ("--micro-batch 1", "--recompute none"):
        run = run.replace(name, "") if name.split()[0] in more.split() else run
    return document("project", *shlex.split(f"{run} {more}"))


@pytest.mark.parametrize(
    ("side", "same"),
    [
        ("-", ""),
        ("dp=8", "--dp 8"),
        ("zero=3 recompute=full", "--zero 3 --recompute full"),
        ("sp=false", "--sp false"),
        ("micro_batch=2", "--micro-batch 2"),
        ("device.memory.bandwidth=4e12", "--set device.memory.bandwidth=4e12"),
        ("software.gradient_bytes=2", "--set software.gradient_bytes=2"),
        ("framework=fsdp", "--framework fsdp"),
        ("tokens=1e12 price=2 goodput=true", "--tokens 1e12 --price 2 --goodput"),
        ("goodput=false", ""),
    ],
)
def test_a_side_is_the_projection_with_these_options(side: str, same: str) -> None:
    row = diff(side, "-")["a"]
    expected = projected(same)
    shared = row.keys() & expected.keys()
    assert {"step_time", "memory_total", "framework", "hardware"} <= shared
    assert {key: row[key] for key in shared} == {key: expected[key] for key in shared}


def test_what_a_side_names_replaces_what_both_share() -> None:
    more = f"{RUN} --sp --set device.memory.bandwidth=4e12 --set device.tdp=600"
    found = diff("tp=4 hardware=b200 device.memory.bandwidth=5e12", "sp=false", more)
    a, b = found["a"], found["b"]
    assert (a["tensor_parallel"], b["tensor_parallel"]) == (4, 2)
    assert (a["sequence_parallel"], b["sequence_parallel"]) == (True, False)
    assert a["hardware"] == "dgx-b200[device.memory.bandwidth=5e+12,device.tdp=600]"
    assert b["hardware"] == "dgx-h100[device.memory.bandwidth=4e+12,device.tdp=600]"


def test_a_side_has_its_own_clock_however_it_is_spelt() -> None:
    for common in ("", "--gpu-clock-mhz 1500", "--set device.boost_clock=1.5e9"):
        for one in ("gpu-clock=1.2GHz", "device.boost_clock=1.2e9"):
            found = diff(one, "gpu-clock=1.4GHz", f"{RUN} {common}")
            assert found["a"]["hardware"] == "dgx-h100[device.boost_clock=1.2e+09]"
            assert found["b"]["hardware"] == "dgx-h100[device.boost_clock=1.4e+09]"


def test_one_price_list_serves_both() -> None:
    found = diff("hardware=h100", "hardware=b200", f"{RUN} --price h100=2,b200=4")
    for side, price in ((found["a"], 2), (found["b"], 4)):
        hourly = side["cost_per_token"] * side["tokens_per_second_per_device"] * 3600
        assert hourly == pytest.approx(price)


def test_a_side_may_bring_what_the_other_need_not() -> None:
    without = RUN.replace("--model llama-3.1-8b ", "")
    found = diff("model=llama-3.1-8b", "model=llama-2-7b", without)
    assert found["changed"]["model"] == {"a": "llama-3.1-8b", "b": "llama-2-7b"}
    assert_one_line(
        printed("tp=4", "model=llama-2-7b", without), "tp=4", "Missing option '--model'"
    )


def test_options_come_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'model = "llama-3.1-8b"\nhardware = "dgx-h100"\ndevices = 16\ntp = 2\n'
        'global-batch = 64\nseq-len = 4096\nmicro-batch = 1\nrecompute = "none"\n'
    )
    found = diff("-", "tp=4", f"--config {config}")
    assert found["a"]["step_time"] == projected("")["step_time"]
    assert found["b"]["step_time"] == projected("", RUN.replace("--tp 2", "--tp 4"))["step_time"]


def test_files_give_their_best_and_their_nth(files: Path) -> None:
    ranked = document("best", files / "sweep.nc", "--top", "1000")["strategies"]
    for name in ("sweep.nc", "ranked.json", "sweep.json"):
        found = diff(files / name, f"{files / name}#3", "")
        assert found["a"]["step_time"] == ranked[0]["step_time"], name
        assert found["b"]["step_time"] == ranked[2]["step_time"], name
        assert found["a"]["model"] == "llama-3.1-8b"
    found = diff(files / "sweep.nc", files / "one.json", "--by memory_total")
    assert found["a"]["memory_total"] == min(row["memory_total"] for row in ranked)
    assert found["b"]["tensor_parallel"] == 2


def test_a_file_and_a_projection(files: Path) -> None:
    found = diff(files / "one.json", "tp=4")
    assert found["changed"]["tensor_parallel"] == {"a": 2, "b": 4}
    assert found["changes"] == diff("-", "tp=4")["changes"]


def test_costs_of_stored_strategies(files: Path) -> None:
    found = diff(f"{files / 'sweep.nc'}#1", f"{files / 'sweep.nc'}#2", "--tokens 1e12 --price 2")
    cost = found["changes"]["training_cost"]
    # Costs follow from rates, and both are stored in single precision.
    assert cost["relative"] == pytest.approx(found["changes"]["step_time"]["relative"], abs=1e-7)
    assert found["a"]["training_cost"] == cost["a"]


@pytest.mark.parametrize(
    ("a", "b", "more", "parts"),
    [
        ("tp=x", "-", RUN, ("tp=x: ", "'x' is not a whole number")),
        ("-", "tp=3", RUN, ("tp=3: 16 devices are not a multiple",)),
        ("-", "tp", RUN, ("results file 'tp' does not exist",)),
        ("-", "tp=", RUN, ("'tp=' should be KEY=VALUE",)),
        ("-", "tp=4 pp", RUN, ("'pp' should be KEY=VALUE",)),
        ("-", "tp=4 tp=8", RUN, ("'tp' is there twice",)),
        ("-", "tensor=4", RUN, ("'perfmodel project' has no option 'tensor'",)),
        ("-", "json=true", RUN, ("'perfmodel project' has no option 'json'",)),
        ("-", "tp='4", RUN, ("cannot be read",)),
        ("-", "device.memory.speed=1", RUN, ("has no value at 'device.memory.speed'",)),
        ("-", "hardware=h1000", RUN, ("unknown hardware 'h1000'",)),
        ("-", "price=x", RUN, ("'x' should be USD per device-hour",)),
        ("x" * 5000, "-", RUN, ("xxx",)),
        ("a\0b.nc", "-", RUN, ("a",)),
        ("none.nc", "-", RUN, ("results file 'none.nc' does not exist",)),
        ("none.json", "-", RUN, ("none.json",)),
        ("text.json", "-", RUN, ("text.json",)),
        ("list.json", "-", RUN, ("'list.json' holds no projection",)),
        ("other.json", "-", RUN, ("'other.json' holds no projection",)),
        ("one.json#2", "-", RUN, ("'one.json' holds 1 strategies, no #2",)),
        ("sweep.nc#0", "-", RUN, ("should end in #1, #2",)),
        ("sweep.nc#99999", "-", RUN, ("no #99999",)),
        ("sweep.nc", "one.json", "--tp 2", ("--tp has no effect: A and B are files",)),
        ("sweep.nc", "-", f"{RUN} --by stepp", ("no variable 'stepp'",)),
    ],
)
def test_wrong_input_is_one_line(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    a: str,
    b: str,
    more: str,
    parts: tuple[str, ...],
) -> None:
    monkeypatch.chdir(files)
    assert_one_line(printed(a, b, more), *parts)


def test_json_that_is_written_is_read_again(files: Path) -> None:
    text = (files / "one.json").read_text()
    assert json.loads(text)["step_time"] == diff(files / "one.json", "-")["a"]["step_time"]


def test_a_side_may_be_a_launch_file(files: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    launch = ("launch", files / "sweep.nc", "--pick", "1", "--for", "megatron", "-o", script)
    assert run(*launch).exit_code == 0
    found = diff(f"from={script}", files / "sweep.nc", "--hardware dgx-h100")
    assert found["changes"]["step_time"]["relative"] == pytest.approx(0, abs=1e-7)  # as stored
    tensor = 4 if found["a"]["tensor_parallel"] == 2 else 2
    other = diff("-", f"tp={tensor} dp={16 // tensor}", f"--from {script} --hardware dgx-h100")
    assert other["b"]["tensor_parallel"] == tensor
    assert other["a"]["step_time"] == found["a"]["step_time"]
