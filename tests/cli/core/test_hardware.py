"""``perfmodel hardware``: the profiles that there are, and every value of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.hwprofiles import list_hardware, list_meshes, load_hardware, load_mesh
from tests.cli.running import assert_one_line, document, run


def test_hardware_list_names_every_profile() -> None:
    found = document("hardware", "list")
    names = [entry["name"] for entry in found["hardware"]]
    assert names == list_hardware()
    assert [entry["name"] for entry in found["meshes"]] == list_meshes()
    assert {"wse-2": 850_000}.items() <= {
        entry["name"]: entry["cores"] for entry in found["meshes"]
    }.items()
    text = run("hardware", "list").stdout
    assert all(name in text for name in (*names, *list_meshes()))
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


def test_a_mesh_is_shown_with_its_sources(tmp_path: Path) -> None:
    text = run("hardware", "show", "CS-2").stdout
    assert text.startswith("wse-2: Cerebras WSE-2")
    for part in ("mesh.link_width", "B/cycle", "constants.stage_latency", "Luczynski"):
        assert part in text
    found = document("hardware", "show", "galaxy", "--set", "mesh.clock=9e8")
    assert found["mesh"]["clock"] == 9e8
    assert found["mesh"]["chip_rows"] == load_mesh("galaxy").chip_grid[0]
    own = tmp_path / "own.toml"
    own.write_text('extends = "wse-2"\n[mesh]\nclock = 1e9\n')
    assert document("hardware", "show", str(own))["mesh"]["clock"] == 1e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wse-2", "--set", "mesh.clok=1"), "no value 'mesh.clok'"),
        (("wse-2", "--set", "mesh.clock=-1"), "above 0"),
        (("wse-9",), "did you mean wse-"),
    ],
)
def test_what_a_mesh_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert_one_line(run("hardware", "show", *arguments), message)
