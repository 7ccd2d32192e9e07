"""What a device gets of the network between nodes, as cells word it."""

from __future__ import annotations

import pytest

from perfmodel.measured.row_adapters import device_bandwidth


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
