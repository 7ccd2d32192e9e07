"""Meshes that ship, and what is wrong with files that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import list_meshes, load_hardware, load_mesh, mesh_paths
from perfmodel.hwprofiles.mesh import CONSTANTS, MESH, MOST_CONSTANTS
from perfmodel.hwprofiles.mesh_loader import is_mesh, names_mesh
from tests.data import DOCS, table_of

SYSTEMS = {"n150": 1, "n300": 2, "quietbox": 8, "galaxy": 32, "p100": 1, "p150": 1}
SYSTEMS |= {"quietbox-blackhole": 4, "wse-2": 1, "wse-3": 1, "wse-2-nodes": 56}


@pytest.mark.parametrize("name", list_meshes())
def test_every_number_has_a_source(name: str) -> None:
    mesh = load_mesh(name)
    assert mesh.name == name
    for path in mesh_paths(mesh):
        assert mesh.source[path] != "not stated", path
        assert mesh.value(path) >= 0.0
    assert len(mesh.constants) <= MOST_CONSTANTS
    assert mesh.chips == SYSTEMS.get(name, 1)
    for alias in (*mesh.aliases, name.upper().replace("-", " ")):
        assert load_mesh(alias) is mesh
        assert is_mesh(alias)


def test_rates_are_those_of_data_sheets() -> None:
    """7.5 PFLOP/s of a WSE-2; 262, 74 and 148 TFLOP/s of Tenstorrent's cards."""
    wafer = load_mesh("wse-2")
    assert 2 * wafer.cores * wafer.peak_macs("fp16") * wafer.clock == pytest.approx(
        7.5e15, rel=0.01
    )
    both = wafer.sram_read + wafer.sram_write
    assert wafer.cores * both * wafer.clock == pytest.approx(20e15, rel=0.13)
    assert wafer.cores * wafer.sram_per_core == pytest.approx(40e9, rel=0.05)
    card = load_mesh("n150")
    assert 2 * card.cores * card.peak_macs("fp16") * card.clock == pytest.approx(74e12, rel=0.01)
    assert 2 * card.cores * card.peak_macs("bfp8") * card.clock == pytest.approx(148e12, rel=0.01)
    card = load_mesh("p100")
    assert 2 * card.cores * card.peak_macs("bfp8") * card.clock == pytest.approx(664e12, rel=0.01)


@pytest.mark.skipif(not DOCS.is_dir(), reason="an installed package has no docs folder")
def test_the_page_names_every_key_constant_and_mesh() -> None:
    text = (DOCS / "hardware.md").read_text()
    for key, field in {**MESH, **CONSTANTS}.items():
        unit = field.unit or "–"
        assert f"| `{key}` | {field.kind} | {unit} | {field.description} |" in text, key
    for name in list_meshes():
        mesh = load_mesh(name)
        others = ", ".join(f"`{alias}`" for alias in mesh.aliases)
        assert f"| `{name}` | {mesh.title} | {others} |" in text, name


def test_overrides_and_files(tmp_path: Path) -> None:
    mesh = load_mesh("wse-2", {"mesh.clock": 0.85e9, "constants.stage_latency": 3})
    assert (mesh.clock, mesh.constant("stage_latency")) == (0.85e9, 3.0)
    assert mesh.source["mesh.clock"] == "overridden"
    assert load_mesh("wse-2").clock == 1.1e9
    small = load_mesh("wse-2", {"mesh.rows": 10, "mesh.columns": 20, "mesh.chip_columns": 2} | LINK)
    assert (small.cores, small.chips, small.chip_grid) == (200, 2, (1, 2))
    own = tmp_path / "mine.toml"
    own.write_text('extends = "wse-2"\n[mesh]\nclock = 1e9\n')
    assert names_mesh(own)
    assert not names_mesh(tmp_path / "nosuch.toml")
    assert load_mesh(own).clock == 1e9
    assert load_mesh(own).name == "mine"
    assert load_mesh(own).source["mesh.clock"] == "not stated"
    second = tmp_path / "second.toml"
    second.write_text('extends = "./mine.toml"\n[mesh]\nroutes = 4\n')
    assert names_mesh(second)
    assert (load_mesh(second).clock, load_mesh(second).routes) == (1e9, 4)


LINK = {"mesh.chip_bandwidth": 1e9}
WRONG_FILES = table_of(__file__, "wrong_files")


@pytest.mark.parametrize(("text", "message"), WRONG_FILES)
def test_wrong_files_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(HardwareError) as caught:
        load_mesh(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_rates_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    keys = ("rows", "columns", "clock", "sram_per_core", "sram_read", "sram_write", "link_width")
    lines = [f"{key} = 1" for key in (*keys, "hop_cycles", "ramp_cycles")]
    path.write_text("[mesh]\n" + "\n".join(lines))
    with pytest.raises(HardwareError, match="names no precision"):
        load_mesh(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("wse-4", "did you mean"), ("dgx-h100", "is no mesh of cores"), ("", "unknown mesh")],
)
def test_unknown_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        load_mesh(name)


@pytest.mark.parametrize("path", ["mesh.clok", "clock", "constants.dram_fraction"])
def test_unknown_overrides_are_refused(path: str) -> None:
    with pytest.raises(HardwareError, match=f"no value '{path}'"):
        load_mesh("wse-2", {path: 1.0})


def test_a_mesh_is_no_device() -> None:
    with pytest.raises(HardwareError, match="'wse-2' is a mesh of cores"):
        load_hardware("wse-2")
