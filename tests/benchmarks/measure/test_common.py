"""The measuring scripts without a device: arguments, shapes, tables, copies."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfmodel.hwprofiles import load_hardware
from perfmodel.measured.compare import read_table
from perfmodel.measured.kind import KernelKind
from tests.benchmarks.measure.scripts import FOLDER, SCRIPTS, arguments_of
from tests.data import table_of


class FakeTimer:
    """Gives 3 s per call, and remembers how many copies it was given."""

    def __init__(self) -> None:
        from timing import Timing

        self.timing, self.copies = Timing, []

    def time(
        self,
        make: Callable[[], Any],
        count: int,
        watch: AbstractContextManager[Any],
        graph: bool | None = None,
    ) -> Any:
        self.copies.append(count)
        with watch:
            for _ in range(count):
                make()()
        return self.timing(3.0, 2.5, 4.0, 20)


def fake_table(common: ModuleType, module: ModuleType, path: Path, *words: str) -> FakeTimer:
    """Write the table that a script would write, with a fake timer and no tensors."""
    arguments = arguments_of(module, *words)
    ranks = (8, 1) if module.__name__ == "collective" else ()
    shapes = common.drawn(module.shapes(arguments, *ranks), arguments.limit, arguments.seed)
    columns = [*module.COLUMNS, *common.MEASURED, *common.STATE, *common.MACHINE]
    timer = FakeTimer()
    common.measure(
        shapes,
        lambda shape: common.Operation(1e6, lambda: lambda: None, {"framework": "pytorch"}),
        timer,
        common.Writer(path, columns, append=False),
        {"hardware": common.profile_name("NVIDIA H100 80GB HBM3"), "torch": "2.9"},
        arguments,
        lambda: (50e6, 80e9),
    )
    return timer


@pytest.mark.parametrize(
    ("name", "words"),
    table_of(__file__, "tables_are_read_by_compare"),
)
def test_tables_are_read_by_compare(
    script: Any, common: ModuleType, tmp_path: Path, name: str, words: Sequence[str]
) -> None:
    path = tmp_path / f"{name}.csv"
    fake_table(common, script(name), path, *words)
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 40
    assert {row["time_us"] for row in rows} == {"3e+06"}
    assert {row["hardware"] for row in rows} == {"dgx-h100"}
    assert all(None not in row and None not in row.values() for row in rows)
    table = read_table(name, path)
    assert isinstance(table.kind, KernelKind)
    assert len(table.rows) == 40
    for row in table.rows:
        case = table.kind.case_of(row)
        assert case.measured == pytest.approx(3.0)
        assert case.hardware.name == "dgx-h100"


def test_copies_rotate_over_twice_the_cache(
    script: Any, common: ModuleType, tmp_path: Path
) -> None:
    gemm = script("gemm")
    cold = fake_table(common, gemm, tmp_path / "cold.csv", "--limit", "1")
    warm = fake_table(common, gemm, tmp_path / "warm.csv", "--limit", "1", "--warm")
    assert cold.copies == [64]  # 1 MB each: 101 would be wanted, 64 are the most
    assert warm.copies == [1]


def test_copies_fit_the_memory(common: ModuleType) -> None:
    assert common.copies_of(10e6, cache=50e6, free=80e9, warm=False) == 11
    assert common.copies_of(1e9, cache=50e6, free=80e9, warm=False) == 2
    assert common.copies_of(60e9, cache=50e6, free=80e9, warm=False) == 1
    assert common.copies_of(10e6, cache=50e6, free=60e6, warm=False) == 2


def test_shapes_that_fail_are_named_and_left_out(
    common: ModuleType, script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = arguments_of(script("gemm"), "--m", "1,2")

    def prepare(shape: Any) -> Any:
        if shape["m"] == 2:
            raise RuntimeError("CUDA out of memory\nand more")
        return common.Operation(1.0, lambda: lambda: None, {})

    written = common.measure(
        [{"m": 1}, {"m": 2}],
        prepare,
        FakeTimer(),
        common.Writer(tmp_path / "t.csv", ["m", "time_us"], False),
        {},
        arguments,
        lambda: (1.0, 1e9),
    )
    assert written == 1
    assert "m=2: left out: CUDA out of memory\n" in capsys.readouterr().err
    assert (tmp_path / "t.csv").read_text() == "m,time_us\n1,3e+06\n"


def test_tables_are_added_to_only_when_asked(common: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    common.Writer(path, ["a"], append=False).row({"a": 1})
    with pytest.raises(SystemExit, match="exists; name another file, or use --append"):
        common.Writer(path, ["a"], append=False)
    common.Writer(path, ["a"], append=True).row({"a": 2})
    assert path.read_text() == "a\n1\n2\n"
    with pytest.raises(SystemExit, match="its columns are not those"):
        common.Writer(path, ["b"], append=True)
    with pytest.raises(SystemExit, match="the folder does not exist"):
        common.Writer(tmp_path / "no" / "t.csv", ["b"], append=False)


def test_every_known_device_has_a_profile(script: Any) -> None:
    state = script("state")
    for pattern, name in state.DEVICES:
        assert load_hardware(name).name == name
        assert state.profile_name(f"Vendor {pattern.upper()} x") == name, pattern
    assert state.profile_name("NVIDIA GB200") == "gb200-nvl72"
    assert state.profile_name("Some Card") == "Some Card"
    assert state.profile_name("NVIDIA H200", told="mine.toml") == "mine.toml"


@pytest.mark.usefixtures("script")  # skips where there are none
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_list_their_shapes_without_a_device(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--list", "--limit", "3"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) <= 3
    assert "shapes" in done.stderr


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("gemm", ("--m", "0"), "'0' is not a whole number above 0"),
        ("gemm", ("--dtypes", "fp7"), "'fp7' is not one of bf16"),
        ("gemm", ("--warmup", "nan"), "'nan' is not a number above 0"),
        ("gemm", ("--n", "4096", "--list"), "--n and --k belong together"),
        ("attention", ("--phases", "forward"), "is not one of fwd, bwd, decode"),
        ("stream", (), "name the table to write"),
        ("collective", ("-o", "x.csv"), "start it with torchrun"),
    ],
)
def test_wrong_arguments_are_explained(
    script: Any, name: str, words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script(name)
    with pytest.raises(SystemExit) as stopped:
        module.main(words)
    assert stopped.value.code
    assert message in f"{stopped.value.code} {capsys.readouterr().err}"


def test_a_missing_pytorch_is_one_clear_message(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="needs PyTorch with CUDA or ROCm"):
        script("gemm").main(["-o", str(tmp_path / "t.csv")])
    assert not list(tmp_path.iterdir())


def test_draws_are_the_same_for_a_seed(common: ModuleType) -> None:
    every = [{"i": i} for i in range(100)]
    first = common.drawn(every, 10, 1)
    assert first == common.drawn(every, 10, 1)
    assert first != common.drawn(every, 10, 2)
    assert [item["i"] for item in first] == sorted(item["i"] for item in first)
    assert common.drawn(every, None, 0) == every
