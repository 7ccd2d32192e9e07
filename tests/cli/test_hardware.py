"""``perfmodel hardware``: the profiles that there are, and every value of one."""

from __future__ import annotations

from perfmodel.hwprofiles import list_hardware, load_hardware
from tests.cli.running import document, run


def test_hardware_list_names_every_profile() -> None:
    names = [entry["name"] for entry in document("hardware", "list")["hardware"]]
    assert names == list_hardware()
    text = run("hardware", "list").stdout
    assert all(name in text for name in names)
    assert "nvidia-hopper" not in text
    assert "nvidia-hopper" in run("hardware", "list", "--all").stdout
    assert "nvidia-hopper" in document("hardware", "list", "--all")["parts"]


def test_hardware_show_gives_every_value_by_its_path() -> None:
    text = run("hardware", "show", "H100-80GB-SXM").stdout
    assert text.startswith("dgx-h100: ")
    for part in ("device.peak_flops.bf16", "9.894e+14", "FLOP/s", "system.network.1.bandwidth"):
        assert part in text
    found = document("hardware", "show", "dgx-h100", "--set", "device.tdp=500")
    assert found["device"]["tdp"] == 500
    assert found["calibration"]["gemm"]
    assert found["system"]["network"][0]["bandwidth"] == (
        load_hardware("dgx-h100").system.network[0].bandwidth
    )
