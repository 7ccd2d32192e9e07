"""How cells about the machine of a measured run are understood."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.measured.row_hardware import device_bandwidth, hardware_of, profile_name
from perfmodel.measured.rows import MeasuredRow


def row(**cells: Any) -> MeasuredRow:
    basic = {"hardware": "H100-80GB-SXM", "n_gpus": "64", "precision": "fp8"}
    return MeasuredRow({**basic, **{k: str(v) for k, v in cells.items()}}, "runs.csv", 2)


@pytest.mark.parametrize(
    ("cells", "path", "value"),
    [
        # Jean Zay: 4 Omni-Path links of 100 Gb/s per node of 8 A100, 2.6 GB/s per channel.
        (
            {"hardware": "A100-80GB-SXM", "scaleout_link": "50Gb/s/GPU (4 Omni-Path 100Gb links)"},
            "system.network.1.bandwidth",
            2.6e9 / 0.952,
        ),
        (
            {"hardware": "A100-80GB-SXM", "scaleout_link": "10Gb/s/GPU Omni-Path"},
            "system.network.1.bandwidth",
            1.25e9,
        ),
        ({"scaleout_link": "200Gb/s/GPU RoCE (1600Gb/s node)"}, "system.network.1.bandwidth", 25e9),
        ({"scaleout_link": "400Gb/s/GPU IB (DGX H100)"}, "system.network.1.bandwidth", 50e9),
        ({"scaleout_link": "1600 Gb/s per node"}, "system.network.1.bandwidth", 25e9),
        (
            {
                "hardware": "GB200",
                "gpus_per_node": 4,
                "scaleout_link": "4x ConnectX-7 IB NDR 400Gb/s",
            },
            "system.network.1.bandwidth",
            50e9,
        ),
        (
            {
                "gpus_per_node": 8,
                "scaleout_link": "Storage: 2x ConnectX-7 IB NDR 400Gb/s, "
                "Compute: 4x ConnectX-7 IB NDR 400Gb/s",
            },
            "system.network.1.bandwidth",
            25e9,
        ),
        # PCIe rates say nothing about adapters.
        (
            {"scaleout_link": "InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s"},
            "system.network.1.bandwidth",
            50e9,
        ),
        ({"scaleup_link": "NVLink4 400GB/s bidir"}, "system.network.0.bandwidth", 200e9),
        ({"scaleup_link": "NVLink4 900GB/s bidir"}, "system.network.0.bandwidth", 450e9),
        (
            {"hardware": "B200", "scaleup_link": "5th Gen NVLink, 14.4 TB/s aggregated bandwidth"},
            "system.network.0.bandwidth",
            900e9,
        ),
        (
            {"hardware": "B200", "scaleup_link": "NVLink5 1800GB/s bidir, NVL72 domain"},
            "system.network.0.size",
            72,
        ),
        ({"gpus_per_node": 4}, "system.devices_per_node", 4),
        ({"gpus_per_node": 4, "n_gpus": 4}, "system.devices_per_node", 8),  # half a node in use
        (
            {
                "hardware": "TPU-v6e",
                "n_gpus": 256,
                "gpus_per_node": 128,
                "scaleout_link": "DCN between slices",
            },
            "system.network.0.size",
            128,
        ),
        # trn1.32xlarge: 16 chips, or 32 cores of 95 TFLOP/s where a table counts cores.
        ({"hardware": "Trn1", "gpus_per_node": 32}, "device.peak_flops.bf16", 95e12),
        ({"hardware": "Trn1", "gpus_per_node": 16}, "device.peak_flops.bf16", 190e12),
        # A chip of two cores whose table counts cores: by name, or by the stated peak.
        ({"hardware": "TPU7x"}, "device.memory.capacity", 203e9),
        ({"hardware": "TPU7x (TensorCores)"}, "device.memory.capacity", 101.5e9),
        ({"hardware": "TPU7x", "bf16_peak_used": 1153.5}, "device.memory.capacity", 101.5e9),
        ({"hardware": "Trn1 NeuronCore"}, "device.peak_flops.bf16", 95e12),
    ],
)
def test_hardware_cells(cells: dict[str, Any], path: str, value: float) -> None:
    hardware, _ = hardware_of(row(**cells))
    assert hardware.value(path) == pytest.approx(value)


def test_a_profile_is_left_alone_where_the_row_repeats_it() -> None:
    hardware, notes = hardware_of(
        row(gpus_per_node=8, scaleup_link="NVLink4 900GB/s bidir", scaleout_link="400Gb/s/GPU IB")
    )
    assert hardware.overrides == {}
    assert notes == ()


@pytest.mark.parametrize(
    ("cell", "profile"),
    [
        ("H100-80GB-SXM (HGX)", "dgx-h100"),
        ("8x H100", "dgx-h100"),
        ("AMD Instinct MI355X", "mi355x-server"),
        ("GB200 NVL72 (192GB)", "gb200-nvl72"),
        ("TPU v5p-256", "tpu-v5p-pod"),
        ("B300-270GB", "dgx-b300"),
        ("H100-96GB-HBM2e(500W)", "h100-96gb-hbm2e"),
        ("A100-class (MegaScale)", "dgx-a100"),
    ],
)
def test_spellings_of_devices(cell: str, profile: str) -> None:
    hardware, notes = hardware_of(row(hardware=cell))
    assert hardware.name.partition("[")[0] == profile
    known = profile_name(cell)
    assert (known == cell) != any(f"'{cell}' is read as" in note for note in notes)
    assert profile_name("abacus") == ""


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [
        ("", 0),
        ("Ethernet", 0),
        ("50Gb/s/GPU (4 Omni-Path 100Gb links per 8-GPU node)", 50),
        ("(4 Omni-Path 100Gb links per 8-GPU node)", 50),
        ("400Gb/s/GPU IB (8x50GB/s)", 400),
        ("50 GB/s/GPU", 400),
        ("3.2 Tb/s per node", 400),
        ("8x400GbE", 400),
        ("400Gb/s x8", 400),
        ("4x ConnectX-7 IB NDR 400 Gb/s", 200),
        # Networks for something else, in any order.
        ("Storage+Management: 1x BlueField 2 100Gb/s, Compute: 8x ConnectX-7 400Gb/s", 400),
        ("Compute: 4x ConnectX-7 400Gb/s, Storage: 2x ConnectX-7 800Gb/s", 200),
        ("frontend: 2x 400GbE; backend: 8x200GbE", 200),
        ("2x 400Gb/s storage and 8x 200Gb/s compute", 200),
        ("Storage: 2x ConnectX-7 400Gb/s", 0),
        ("Storage+Management: 1x BlueField 2 DPU 100Gb/s, Compute: 8x NVIDIA Connec", 0),
        # The fastest of those that may serve.
        ("200Gb/s Ethernet NIC + 8x ConnectX-7 IB NDR 400Gb/s", 400),
        # Rates of PCIe say nothing of the network.
        ("InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", 0),
        # A rate alone.
        ("200Gb/s InfiniBand", 200),
        ("3200 Gb/s RoCE", 400),
        ("100 Gb/s Ethernet", 12.5),
        ("EFA 3200 Gbps", 400),
        ("100GbE InfiniBand", 0),  # of an Ethernet beside
        # Generations of InfiniBand stand for their rates.
        ("8x NDR InfiniBand", 400),
        ("4x HDR100", 50),
    ],
)
def test_networks_of_a_cell(text: str, gigabits: float) -> None:
    assert device_bandwidth(text, 8) * 8 / 1e9 == pytest.approx(gigabits)
