"""The selection of rows behind the families that ship, and the script that fits them again."""

from __future__ import annotations

import importlib.util
import shutil
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.constants import fits
from perfmodel.hwprofiles.family import load_family
from perfmodel.hwprofiles.loader import FOLDER
from perfmodel.measured.calibrate import calibrate_family
from perfmodel.measured.problem import MeasuredTable
from tests.data import BENCHMARKS

SCRIPT = BENCHMARKS / "fit/run.py"

pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="an installed package has no benchmarks"
)


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_fits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def selection(run: ModuleType) -> dict[str, Any]:
    return tomllib.loads(run.SELECTION.read_text(encoding="utf-8"))


def test_every_fit_that_ships_has_its_rows_selected_once(
    run: ModuleType, selection: dict[str, Any]
) -> None:
    selected = [fit for step in selection["fit"] for fit in step["ids"].values()]
    assert len(selected) == len(set(selected))
    assert set(selected) == {name for name, fit in fits().items() if fit.script == run.SCRIPT}


def test_selections_name_sets_and_constants_that_exist(
    run: ModuleType, selection: dict[str, Any]
) -> None:
    for step in selection["fit"]:
        sets = [selection["rows"][name] for name in step["rows"]]
        tables = [MeasuredTable(rows["file"], rows["kind"]) for rows in sets]
        for name in step["ids"]:
            family = load_family(name)
            for pattern in step.get("keys", ["*"]) if not step.get("bands") else ():
                assert run.keys_of(family, tables, [pattern]), (name, pattern)
            keys = step.get("keys", ())
            assert all(any(fnmatch(one, key) for key in keys) for one in step.get("aside", ()))
    used = {name for step in selection["fit"] for name in step["rows"]}
    assert used == set(selection["rows"])


def test_ratios_of_a_peak_become_times_of_all_gathers(run: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "busbw_ratio_tables.csv"
    header = "source,table,msg_bytes,column,ratio_of_peak_busbw\n"
    lines = ("x,nic,16000000,2Node-16GPU(NIC ),0.5\n", "x,nic,16000000,Multi 16,0.5\n")
    path.write_text(header + "".join(lines) + "x,nvlink,16000000,2Node-16GPU(NIC ),0.5\n")
    (tmp_path / "out").mkdir()
    rows = run.bus_bandwidth_rows(path, tmp_path / "out").read_text().splitlines()[1:]
    # 16 devices over 8 adapters of 48.5 GB/s, half of them reached; then 16 over one each.
    times = [16e6 * 15 / 16 / (0.5 * 8 * 48.5e9), 16e6 * 15 / 16 / (0.5 * 48.5e9)]
    cells = [row.split(",") for row in rows]
    assert [row[2:4] for row in cells] == [["16", "2"], ["16", "16"]]
    assert [float(row[5]) * 1e-6 for row in cells] == pytest.approx(times)


def test_written_values_stand_in_place_of_the_former(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia-hopper.toml", "fits.toml"):
        shutil.copy(FOLDER / name, tmp_path / name)
    hardware = load_hardware("dgx-h100")
    truth = hardware.calibrated("gemm", "launch_latency") * 1.2
    shifted = hardware.with_values({"calibration.gemm.launch_latency": truth})
    sizes = np.array([128.0, 256.0, 512.0, 1024.0])
    times = gemm_times(shifted, "bf16", sizes, sizes, sizes).time
    lines = [
        f"dgx-h100,bf16,{s:.0f},{s:.0f},{s:.0f},{t * 1e6}"
        for s, t in zip(sizes, times, strict=True)
    ]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["hardware,dtype,m,n,k,time_us", *lines]))
    found = calibrate_family(
        "nvidia-hopper", [MeasuredTable(str(path), "gemm")], only=["launch_latency"], fold_count=0
    )
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    run.write("nvidia-hopper", "gemm-h100-bf16", found)
    after = tomllib.loads((tmp_path / "nvidia-hopper.toml").read_text(encoding="utf-8"))
    before = tomllib.loads((FOLDER / "nvidia-hopper.toml").read_text(encoding="utf-8"))
    entry = after["calibration"]["gemm"].pop("launch_latency")
    assert entry == {"value": pytest.approx(truth, rel=0.05), "fit": "gemm-h100-bf16"}
    del before["calibration"]["gemm"]["launch_latency"]
    assert after == before
    entries = tomllib.loads((tmp_path / "fits.toml").read_text(encoding="utf-8"))
    shipped = tomllib.loads((FOLDER / "fits.toml").read_text(encoding="utf-8"))
    fit = entries.pop("gemm-h100-bf16")
    assert (fit["rows"], fit["script"]) == (4, run.SCRIPT)
    assert fit["data"] == shipped.pop("gemm-h100-bf16")["data"]
    assert entries == shipped


def test_a_missing_table_is_one_line_and_code_2(
    run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([str(tmp_path), "--fit", "gemm-h100-fp8"]) == 2
    assert "run.py: cannot read" in capsys.readouterr().err
