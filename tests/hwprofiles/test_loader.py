"""Loading hardware profiles: overrides, inheritance and wrong input."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import (
    hardware_from_dict,
    list_aliases,
    list_ambiguous,
    list_hardware,
    load_hardware,
    resolve_name,
)
from perfmodel.hwprofiles.constants import constants
from perfmodel.hwprofiles.loader import FOLDER, normalise, profile_files
from perfmodel.hwprofiles.schema import DEVICE, MEMORY, NETWORK, TOPOLOGIES
from tests.data import DOCS, NO_DOCUMENTS, SHARED, needed, table_of

# A complete system in one file, for tests that write profiles.
COMPLETE = """
name = "{name}"
[device]
name = "chip"
vendor = "maker"
architecture = "arch"
compute_units = 10
compute_unit_name = "core"
boost_clock = 1e9
vector_flops = 1e12
special_function_rate = 1e11
tdp = 100
[device.peak_flops]
bf16 = 1e14
[device.memory]
capacity = 1e10
bandwidth = 1e12
l2_capacity = 1e6
l2_bandwidth = 2e12
shared_memory_per_unit = 1e5
register_file_per_unit = 1e5
[system]
devices_per_node = 4
[[system.network]]
name = "inner"
topology = "ring"
size = 4
bandwidth = 1e11
latency = 1e-6
[[system.network]]
name = "outer"
topology = "fat-tree"
size = 0
bandwidth = 1e10
latency = 2e-6
[calibration.host]
launch_time = {{ value = 4e-6, prior = 5e-6, low = 1e-6, high = 9e-6, source = "prior" }}
[source]
device = "test"
system = "test"
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    return write(tmp_path, "complete", COMPLETE.format(name="complete"))


def test_hardware_can_be_pickled_and_hashed() -> None:
    hardware = load_hardware("dgx-h100")
    assert pickle.loads(pickle.dumps(hardware)) == hardware
    assert hash(hardware) == hash(load_hardware("H100"))


def test_child_refines_tables_and_replaces_the_network(tmp_path: Path, complete: Path) -> None:
    child = write(
        tmp_path,
        "child",
        """
extends = "complete.toml"
[device.memory]
bandwidth = 3e12
[[system.network]]
name = "only"
topology = "switch"
size = 0
bandwidth = 5e10
latency = 1e-6
[source]
"device.memory.bandwidth" = "new datasheet"
""",
    )
    hardware = load_hardware(child)
    assert hardware.name == "child"
    assert hardware.device.memory.bandwidth == 3e12
    assert hardware.device.memory.capacity == 1e10
    assert hardware.source["device.memory.bandwidth"] == "new datasheet"
    assert hardware.source["device.memory.capacity"] == "test"
    assert [level.name for level in hardware.system.network] == ["only"]
    assert hardware.source["system.network.0.bandwidth"].startswith("not stated")
    assert "system.network.1.bandwidth" not in hardware.source


def test_child_refines_one_network_level_by_index(tmp_path: Path, complete: Path) -> None:
    child = write(
        tmp_path, "child", 'extends = "complete.toml"\n[system.network.1]\nbandwidth = 2e10\n'
    )
    hardware = load_hardware(child)
    assert [level.bandwidth for level in hardware.system.network] == [1e11, 2e10]
    bad = write(tmp_path, "bad", 'extends = "complete.toml"\n[system.network.7]\nbandwidth = 1.0\n')
    with pytest.raises(HardwareError, match=r"bad\.toml.*system\.network\.7.*0 to 1"):
        load_hardware(bad)


def test_child_may_extend_a_profile_that_ships(tmp_path: Path) -> None:
    child = write(tmp_path, "mine", 'extends = "DGX-H100"\n[device]\ntdp = 500\n')
    hardware = load_hardware(str(child))
    assert hardware.device.tdp == 500
    assert hardware.device.peak_flops == load_hardware("dgx-h100").device.peak_flops


def test_calibration_entry_replaces_as_a_whole(tmp_path: Path, complete: Path) -> None:
    child = write(
        tmp_path,
        "child",
        'extends = "complete.toml"\n[calibration.host]\nlaunch_time = { value = 2e-6 }\n',
    )
    entry = load_hardware(child).calibration["host"]["launch_time"]
    general = constants()["host"]["launch_time"]
    assert (entry.value, entry.prior, entry.high) == (2e-6, general.prior, general.high)
    assert entry.source == f"not stated ({child})"


def test_circle_of_extends_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a", 'extends = "b.toml"\n')
    write(tmp_path, "b", 'extends = "a.toml"\n')
    with pytest.raises(HardwareError, match=r"circle: a -> b -> a"):
        load_hardware(tmp_path / "a.toml")


def test_unknown_parent_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a", 'extends = "nvidia-hoper"\n')
    with pytest.raises(HardwareError, match=r"'nvidia-hoper'; did you mean nvidia-hopper"):
        load_hardware(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    table_of(__file__, "wrong_profile_is_refused_by_file_and_key"),
)
def test_wrong_profile_is_refused_by_file_and_key(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    assert before in COMPLETE
    path = write(tmp_path, "broken", COMPLETE.replace(before, after, 1).format(name="broken"))
    with pytest.raises(HardwareError, match=message) as caught:
        load_hardware(path)
    assert "broken.toml" in str(caught.value)


def test_message_names_the_file_of_the_parent_that_is_wrong(tmp_path: Path) -> None:
    write(tmp_path, "parent", COMPLETE.replace("tdp = 100", "tdp = -1").format(name="parent"))
    child = write(tmp_path, "child", 'extends = "parent.toml"\n')
    with pytest.raises(HardwareError, match=r"parent\.toml.*device\.tdp"):
        load_hardware(child)


def test_profile_without_system_or_device_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "chip", 'extends = "chip-h100-sxm"\n')
    with pytest.raises(HardwareError, match=r"has no \[system\]"):
        load_hardware(path)
    path = write(tmp_path, "nothing", 'title = "x"\n')
    with pytest.raises(HardwareError, match=r"has no \[device\]"):
        load_hardware(path)


def test_broken_toml_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "broken", 'name = "broken"\n[device\n')
    with pytest.raises(HardwareError, match=r"broken\.toml: not valid TOML: .*line 2"):
        load_hardware(path)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "caf\xe9"\n')
    with pytest.raises(HardwareError, match=r"latin\.toml: not UTF-8"):
        load_hardware(path)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"cannot read .*nowhere\.toml"):
        load_hardware(tmp_path / "nowhere.toml")
    with pytest.raises(HardwareError, match="not a file"):
        load_hardware(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-h10", r"unknown hardware 'dgx-h10'; did you mean dgx-h100"),
        ("h100_sxn", r"did you mean .*H100_SXM"),
        ("zzzzzzzz", r"list_hardware\(\) names the profiles"),
        ("  ", "hardware name is empty"),
        ("chip-h100-sxm", r"not a complete system; systems with it: .*dgx-h100"),
        ("nvidia-hopper", r"not a complete system; systems with it: .*dgx-h200"),
    ],
)
def test_unknown_or_incomplete_name(name: str, message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        load_hardware(name)


def test_absent_precision_and_calibration_are_named() -> None:
    hardware = load_hardware("dgx-a100")
    hopper = load_hardware("dgx-h100").device
    assert hopper.peak("fp8_block") == 1978.9e12  # NVIDIA H100 whitepaper
    with pytest.raises(HardwareError, match=r"'mxfp8', whose block scales need.*fp4"):
        hopper.peak("mxfp8")
    assert load_hardware("dgx-b200").device.peak("mxfp8") == 4500e12  # NVIDIA HGX B200 datasheet
    with pytest.raises(HardwareError, match=r"A100.*'fp8'; it has .*bf16"):
        hardware.device.peak("fp8")
    with pytest.raises(HardwareError, match=r"dgx-a100.*'lunch_time'.*did you mean launch_time"):
        hardware.calibrated("host", "lunch_time")
    with pytest.raises(HardwareError, match=r"dgx-a100.*\[calibration\.hots\]"):
        hardware.calibrated("hots", "launch_time")


def test_document_without_a_name_is_refused() -> None:
    with pytest.raises(HardwareError, match="'name' is missing"):
        hardware_from_dict({})


SYSTEMS = list_hardware()
EVERYTHING = list_hardware(all=True)

# Names that are no device of ours: a maker without a family here, devices without a published
# datasheet, and a network adapter.
NOT_COVERED = {"r100", "vr200", "Intel Gaudi 2", "Intel Gaudi 3", "NDR 400 NIC"}
# Tables of facts of other machines too, or whose cells are free text ("80GB card").
FREE_TEXT = ("hardware", "simulator_errors", "startup_memory", "dev_imbalance")
FREE_TEXT += ("dev_finetune_memory", "dev_finetune_runs", "dev_rl_refit", "dev_rl_runs")
DOCUMENT = DOCS / "hardware.md"


def test_profiles_are_named_after_their_files() -> None:
    assert {normalise(path.stem) for path in profile_files()} == set(EVERYTHING)
    for name in EVERYTHING:
        assert f'name = "{name}"' in (FOLDER / f"{name}.toml").read_text()


def test_no_alias_means_two_profiles_or_hides_a_profile() -> None:
    owner: dict[str, str] = {normalise(name): name for name in EVERYTHING}
    for alias, name in list_aliases().items():
        assert owner.setdefault(normalise(alias), name) == name, alias


def test_list_hardware_shows_systems_and_all_shows_parts_too() -> None:
    assert "dgx-h100" in SYSTEMS
    assert "nvidia-hopper" not in SYSTEMS
    assert {"nvidia-hopper", "chip-h100-sxm"} < set(EVERYTHING)


def test_ambiguous_name_is_loaded_with_a_note() -> None:
    assert any("PCIe" in note or "pcie" in note for note in load_hardware("A100-80GB").notes)
    assert any("MI325X" in note for note in load_hardware("MI300X|MI325X").notes)
    assert load_hardware("dgx-a100").notes == ()
    assert "A100-80GB" in list_ambiguous()
    assert "A100-80GB" in load_hardware("dgx-a100").aliases


def test_every_hardware_name_of_the_measured_tables_resolves() -> None:
    needed(SHARED)
    names = set()
    for folder in ("measured", "e2e", "primus"):
        for path in (SHARED / folder).glob("*.csv"):
            if path.stem in FREE_TEXT:
                continue
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    names |= {row[key] for key in ("hardware", "gpu") if row.get(key)}
    assert names
    for name in names - NOT_COVERED:
        assert resolve_name(name)[0] in SYSTEMS, name


@pytest.mark.skipif(not DOCUMENT.is_file(), reason=NO_DOCUMENTS)
def test_documentation_names_every_system_key_and_ambiguity() -> None:
    text = DOCUMENT.read_text()
    keys = {*DEVICE, *MEMORY, *NETWORK, *TOPOLOGIES}
    for word in (*SYSTEMS, *sorted(keys), *list_ambiguous()):
        assert f"`{word}`" in text, word
