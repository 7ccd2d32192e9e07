"""What a family that was never calibrated takes from the others."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.compute.gemm import gemm_times
from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.constants import known
from perfmodel.hwprofiles.family import load_family
from perfmodel.hwprofiles.trust import PRIOR_CLOCK
from perfmodel.measured.problem import with_constants
from perfmodel.measured.row_software import software_of
from perfmodel.measured.rows import MeasuredRow


def write(data: Path, name: str, *lines: str) -> None:
    """Write a table of measured rows into a folder of development data."""
    (data / "measured").mkdir()
    (data / "measured" / name).write_text("\n".join(lines), encoding="utf-8")


def test_what_was_fitted_comes_from_the_classes_beside_it(script: Any) -> None:
    left_out = script.load("accuracy.left_out")
    found, trust = left_out.borrowed(load_family("nvidia-hopper"))
    gemm, own = found.calibration["gemm"], load_family("nvidia-hopper").calibration["gemm"]
    clocks = []
    for name in ("dgx-a100", "l40s-server", "dgx-b200"):
        other = load_hardware(name)
        clocks.append(other.calibrated("gemm", "launch_latency") * other.device.boost_clock)
    clocks.append(known("gemm")["launch_latency"].prior * PRIOR_CLOCK)
    expected = np.mean(clocks) / load_hardware("dgx-h100").device.boost_clock
    assert gemm["launch_latency"].value == pytest.approx(expected)
    assert gemm["cluster_units"].value == own["cluster_units"].value  # public, not borrowed
    assert trust["gemm"] == "prior"
    assert left_out.borrowed(load_family("nvidia-ada"))[1]["gemm"] == "transferred"


def test_errors_are_those_of_the_device_s_own_rows(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = script.load("accuracy.left_out")
    monkeypatch.setattr(left_out, "FEWEST", 1)
    times = {"A100_SXM": 520.0, "H100_SXM": 210.0, "B200": 90.0}
    rows = [f"{name},bf16,4096,4096,4096,{time}" for name, time in times.items()]
    write(tmp_path, "gemm.csv", "hardware,dtype,m,n,k,time_us", *rows)
    found = {item.device: item for item in left_out.left_out(tmp_path, [], ["products, 16 bits"])}
    assert set(found) == set(times)
    hopper = found["H100_SXM"].errors("borrowed")
    assert hopper["count"] == 1
    borrowed = left_out.borrowed(load_family("nvidia-hopper"))[0].calibration["gemm"]
    values = {key: entry.value for key, entry in borrowed.items()}
    hardware = with_constants(load_hardware("dgx-h100"), "gemm", values)
    time = gemm_times(hardware, "bf16", 4096.0, 4096.0, 4096.0).time[0]
    assert hopper["bias"] == pytest.approx(time / 210e-6 - 1.0)
    bands = left_out.bands(list(found.values()))
    assert set(bands) == {"transferred", "prior"}
    assert bands["prior"]["gemm"] == 0.0  # one row of a device has no spread


def test_without_tables_there_is_nothing_to_say(script: Any, tmp_path: Path) -> None:
    code, printed, _ = script("accuracy.left_out", str(tmp_path))
    assert code == 0
    assert len(printed.splitlines()) == 2  # the head of the table


def test_the_bands_that_ship_are_of_known_classes() -> None:
    from perfmodel.hwprofiles.trust import FILE, KERNELS

    for classes in tomllib.loads(FILE.read_text()).values():
        assert set(classes) <= set(KERNELS)
        assert all(0.0 < width < 1.0 for width in classes.values())


def test_collectives_are_left_out_too(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = script.load("accuracy.left_out")
    monkeypatch.setattr(left_out, "FEWEST", 1)
    rows = [f"{name},all_reduce,nccl,8,1,1024,12" for name in ("A100_SXM", "H100_SXM")]
    write(tmp_path, "collective.csv", "hardware,op,impl,n_gpus,nodes,bytes,time_us", *rows)
    found = {item.device: item for item in left_out.left_out(tmp_path, [], ["collectives"])}
    assert {item.rows for item in found.values()} == {"collectives"}
    assert set(found) == {"A100_SXM", "H100_SXM"}
    assert found["H100_SXM"].errors("borrowed")["bias"] > found["H100_SXM"].errors("own")["bias"]
    mesh = left_out.borrowed(load_family("amd-cdna4"))[0].calibration["network"]
    assert mesh["irregular_mesh_links"].value == 1.0  # one ring, one link
    assert mesh["scale_up_efficiency"].value == 0.75  # AMD's, of its other machine


def test_chosen_devices_and_rows_alone(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = script.load("accuracy.left_out")
    monkeypatch.setattr(left_out, "FEWEST", 1)
    write(
        tmp_path,
        "mla.csv",
        "hardware,framework,kernel,phase,batch,heads,d_qk,d_v,q_len,kv_len,kv_dtype,time_us",
        *(
            f"{name},{library},decode,8,16,576,512,1,4096,bf16,{time}"
            for name, library, time in (
                ("A100_SXM", "trtllm,default", 510),
                ("H100_SXM", "sglang,flash_attention", 30),
                ("H100_SXM", "trtllm,default", 30),
            )
        ),
    )
    latent = list(left_out.left_out(tmp_path, [], ["latent decode"]))
    assert [(item.device, item.errors("own")["count"]) for item in latent] == [
        ("A100_SXM", 1),
        ("H100_SXM", 1),  # TensorRT-LLM counts only where SGLang has no library of its own
    ]
    # TensorRT-LLM's time per key is that of the other device of the class, in clocks.
    taken = left_out.borrowed(load_family("nvidia-ampere"))[0].calibration["attention"]
    clocks = taken["trtllm_latent_key_time"].value * load_family("nvidia-ampere").clock
    ada = load_family("nvidia-ada")
    own = ada.calibration["attention"]["trtllm_latent_key_time"].value
    assert clocks == pytest.approx(own * ada.clock)
    assert not list(left_out.left_out(tmp_path, ["B200"], []))
    assert left_out.bands(latent)["prior"] == {"decode": 0.0}


def test_bands_are_of_all_devices(script: Any, tmp_path: Path) -> None:
    code, _, error = script("accuracy.left_out", str(tmp_path), "--rows", "streams", "--write")
    assert code == 2
    assert "--write takes all devices and rows" in error


def row(**cells: str) -> MeasuredRow:
    basic = {"hardware": "H100-80GB-SXM", "n_gpus": "64", "tp": "4", "pp": "8"}
    return MeasuredRow({**basic, **cells}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cells", "preset"),
    [
        ({"framework": "NeMo/Megatron-Core", "version": "NeMo 24.07"}, "plain-megatron-2023"),
        ({"framework": "PyTorch NVIDIA Release 25.09", "version": "MLPerf v5.1"}, "plain-megatron"),
        ({"framework": "torchtitan (FSDP2)", "version": "2024-12"}, "plain-2024"),
        ({"framework": "MaxText", "hardware": "TPU-v5e"}, "plain-jax"),
        ({"framework": "Megatron-Core", "version": "r0.8.0"}, "plain-megatron-2023"),
    ],
)
def test_software_without_its_page_is_the_plain_stack_of_its_kind(
    script: Any, cells: dict[str, str], preset: str
) -> None:
    less = script.load("accuracy.left_out").without_software(row(**cells))
    assert software_of(less)[0].startswith(preset)
    assert software_of(row(**cells))[0] != software_of(less)[0]


def test_a_machine_without_calibration_has_what_relatives_say(script: Any) -> None:
    left_out = script.load("accuracy.left_out")
    hopper, less = load_hardware("dgx-h100"), left_out.borrowed(load_family("nvidia-hopper"))[0]
    found = left_out.without_calibration(hopper)
    for key in ("launch_latency", "cluster_units"):
        expected = less.calibration["gemm"][key].value
        assert found.calibration["gemm"][key].value == pytest.approx(expected)
    tpu = load_hardware("tpu-v5p-pod")
    assert left_out.without_calibration(tpu) is tpu


def test_tables_set_what_was_left_out_side_by_side(script: Any) -> None:
    left_out = script.load("accuracy.left_out")
    one = {"median": 0.1, "mean": 0.2, "p90": 0.3, "worst": 0.4, "bias": -0.1}
    counted = {**one, "rows": 3, "count": 2}
    sets = dict.fromkeys(left_out.SHOWN[1:], counted)
    scores = {"average": one, "sets": sets, "families": {"NeMo": counted}}
    found = {"in sample": scores, "software left out": scores}
    lines = left_out.steps_markdown(found).splitlines()
    assert lines[3].startswith("| families alike: software left out |")
    assert lines[4] == "| all: in sample | 3 | 2 | 10.0 % | 20.0 % | 30.0 % | 40.0 % | -10.0 % |"
    assert left_out.families_markdown(found).splitlines()[2] == (
        "| NeMo | 10.0 (-10.0) | 10.0 (-10.0) |"
    )
