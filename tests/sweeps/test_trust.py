"""Trust as columns and as words."""

from __future__ import annotations

from perfmodel.hwprofiles import load_hardware
from perfmodel.hwprofiles.trust import KERNELS
from perfmodel.store.results import trust_by_hardware
from perfmodel.sweeps.grids import kernel_grid
from perfmodel.sweeps.trust import (
    TRUST,
    trust_document,
    trust_words,
    uncalibrated,
    uncalibrated_in_serving,
)


def test_datasets_say_for_every_device_and_class() -> None:
    rows = [load_hardware("dgx-h100"), load_hardware("rtx-pro-6000-server")]
    table = kernel_grid("gemm", rows, {"m": [64], "n": [64], "k": [64]})
    assert table[TRUST].dims == ("kernel_class", "hardware")
    found = trust_by_hardware(table)
    assert list(found) == ["dgx-h100", "rtx-pro-6000-server"]
    assert list(found["dgx-h100"]) == list(KERNELS)
    assert found["dgx-h100"]["gemm"] == "calibrated"
    assert found["rtx-pro-6000-server"]["gemm"] == "transferred"
    assert table.to_xarray()[TRUST].sel(kernel_class="gemm").values.tolist() == [
        "calibrated",
        "transferred",
    ]


def test_words_and_documents_state_the_band() -> None:
    hardware = load_hardware("rtx-pro-6000-server")
    item = trust_document(hardware)["gemm"]
    assert item == {"trust": "transferred", "band": hardware.borrowed_band("gemm")}
    assert f"gemm ±{item['band']:.0%}" in trust_words(hardware)
    assert trust_words(load_hardware("dgx-h100")).startswith("calibrated: gemm, attention")


def test_devices_without_measurements_are_named_by_kernel_class() -> None:
    rows = [load_hardware(name) for name in ("dgx-h100", "a10-server", "p100-pcie")]
    grid = kernel_grid("gemm", rows, {"m": [64], "n": [64], "k": [64], "precision": ["fp16"]})
    assert uncalibrated(grid) == [
        "constants of a10-server transferred: gemm",
        "constants of p100-pcie prior: gemm",
    ]
    served = uncalibrated_in_serving(rows)
    assert [line.split()[2] for line in served] == ["a10-server", "p100-pcie"]
    assert "backward" not in " ".join(served)
