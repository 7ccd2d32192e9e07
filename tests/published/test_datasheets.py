"""Facts of hardware profiles against datasheets and architecture papers."""

from __future__ import annotations

import re

import pytest

from perfmodel.base.errors import HardwareError
from perfmodel.hwprofiles import (
    list_hardware,
    load_hardware,
    resolve_name,
)

GIB = 2**30

FACTS = [
    # profile, dotted path, value                                              source
    ("dgx-a100", "device.peak_flops.bf16", 312e12),  # NVIDIA A100 datasheet
    ("dgx-a100", "device.memory.bandwidth", 2039e9),  # NVIDIA A100 80GB datasheet
    ("dgx-a100", "device.compute_units", 108),  # NVIDIA A100 whitepaper
    ("dgx-a100", "system.network.0.bandwidth", 300e9),  # NVLink3, 12 x 25 GB/s
    ("dgx-a100", "system.network.1.bandwidth", 25e9),  # HDR 200 Gb/s
    ("dgx-a100-40gb", "device.memory.bandwidth", 1555e9),  # NVIDIA A100 datasheet
    ("dgx-a100-40gb", "device.memory.capacity", 42405855232),  # deviceQuery
    ("a100-80gb-pcie", "device.memory.bandwidth", 1935e9),  # NVIDIA A100 datasheet, PCIe
    ("a100-40gb-pcie", "device.tdp", 250),  # NVIDIA A100 datasheet, PCIe
    ("dgx-h100", "device.peak_flops.bf16", 989.4e12),  # NVIDIA H100 whitepaper
    ("dgx-h100", "device.peak_flops.fp8", 1978.9e12),  # NVIDIA H100 whitepaper
    ("dgx-h100", "system.network.0.bandwidth", 450e9),  # NVLink4, 18 x 25 GB/s
    ("dgx-h100", "system.network.1.bandwidth", 50e9),  # NDR 400 Gb/s
    ("h100-pcie", "device.compute_units", 114),  # NVIDIA H100 whitepaper
    ("h100-pcie", "device.peak_flops.bf16", 756.4e12),  # NVIDIA H100 whitepaper
    ("h100-nvl", "device.memory.bandwidth", 3938e9),  # H100 NVL product brief
    ("h100-96gb-hbm2e", "device.memory.bandwidth", 2.4e12),  # torchtitan docs/performance.md
    ("h100-96gb-hbm2e", "device.tdp", 500),  # torchtitan docs/performance.md
    # NVIDIA DGX H100 datasheet: 2 TB; two processors with eight channels of DDR5-4800.
    ("dgx-h100", "system.host.memory_capacity", 2048e9 / 8),
    ("dgx-h100", "system.host.memory_bandwidth", 2 * 8 * 4800e6 * 8 / 8),
    ("dgx-a100", "system.host.memory_bandwidth", 2 * 8 * 3200e6 * 8 / 8),
    ("dgx-b200", "system.host.memory_bandwidth", 2 * 8 * 5600e6 * 8 / 8),
    ("dgx-1-v100", "system.host.memory_bandwidth", 2 * 4 * 2400e6 * 8 / 8),
    ("dgx-h100", "system.host_power", (10.2e3 - 8 * 700) / 8),  # NVIDIA DGX H100 datasheet
    ("dgx-a100", "system.host_power", (6.5e3 - 8 * 400) / 8),  # NVIDIA DGX A100 datasheet
    ("dgx-b200", "system.host_power", (14.3e3 - 8 * 1000) / 8),  # NVIDIA DGX B200 datasheet
    ("dgx-h100", "system.price", 55.04 / 8),  # AWS p5.48xlarge, US East
    ("trn1-32xl", "system.price", 21.50 / 16),  # AWS trn1.32xlarge, US East
    ("dgx-h200", "device.memory.bandwidth", 4.8e12),  # NVIDIA H200 datasheet
    ("hgx-h800", "system.network.0.bandwidth", 200e9),  # DeepSeek ISCA 2025: 400 GB/s both ways
    ("dgx-b200", "device.peak_flops.fp4", 9000e12),  # NVIDIA HGX B200 datasheet
    ("dgx-b200", "device.memory.bandwidth", 7.7e12),  # aiconfigurator b200_sxm.yaml
    ("dgx-b300", "system.network.1.bandwidth", 100e9),  # NVIDIA DGX B300 datasheet, 800 Gb/s
    ("gb200-nvl72", "system.network.0.size", 72),  # NVIDIA GB200 NVL72 datasheet
    ("gb200-nvl72", "system.devices_per_node", 4),  # NVIDIA GB200 NVL72: 4 GPUs per tray
    ("gb200-nvl72", "device.peak_flops.bf16", 2500e12),  # NVIDIA GB200 NVL72 datasheet
    ("gb300-nvl72", "device.peak_flops.fp4", 15000e12),  # NVIDIA GB300 NVL72 datasheet
    ("l40s-server", "device.peak_flops.bf16", 362.05e12),  # NVIDIA L40S datasheet, dense
    ("mi300x-server", "device.peak_flops.bf16", 1307.4e12),  # AMD MI300X datasheet
    ("mi300x-server", "system.network.0.bandwidth", 448e9),  # 7 links x 64 GB/s
    ("mi325x-server", "device.memory.bandwidth", 6.0e12),  # AMD MI325X datasheet
    ("mi355x-server", "device.peak_flops.fp8", 5033.2e12),  # AMD MI355X datasheet
    ("mi350x-server", "device.boost_clock", 2.2e9),  # AMD MI350X datasheet
    ("tpu-v5e-pod", "device.peak_flops.bf16", 197e12),  # scaling-book tpus.md
    ("tpu-v5e-pod", "system.network.0.bandwidth", 180e9),  # 4 links x 45 GB/s
    ("tpu-v5p-pod", "system.network.0.size", 8960),  # 16 x 20 x 28, scaling-book tpus.md
    ("tpu-v6e-pod", "device.memory.bandwidth", 1640e9),  # cloud.google.com/tpu/docs
    ("trn1-32xl", "device.memory.bandwidth", 820e9),  # AWS Neuron documentation
    ("trn2-48xl", "device.peak_flops.bf16", 667e12),  # AWS Neuron documentation
    ("astra-sanity", "system.network.0.bandwidth", 450 * GIB),  # ASTRA-sim counts GiB/s
    ("astra-sanity", "device.memory.bandwidth", 1600e9),  # ASTRA-sim counts GB/s here
    ("astra-system-1", "device.peak_flops.bf16", 450e12),  # ASTRA-sim peak-perf in TFLOP/s
    ("astra-system-2", "system.network.2.bandwidth", 2000 * GIB),  # system_2, 2000 GiB/s
]


@pytest.mark.parametrize(("name", "path", "value"), FACTS)
def test_published_fact(name: str, path: str, value: float) -> None:
    assert load_hardware(name).value(path) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "flop_per_clock"),
    [
        ("dgx-a100", 2048),  # FLOP/clk/SM bf16, NVIDIA A100 whitepaper
        ("dgx-h100", 4096),  # NVIDIA H100 whitepaper
        ("h100-nvl", 4096),
        ("dgx-b200", 8192),
        ("gb300-nvl72", 8192),
        ("l40s-server", 1024),  # NVIDIA Ada whitepaper
        ("l4-server", 1024),
        ("rtx-4090-server", 512),  # NVIDIA Ada whitepaper: half with fp32 accumulation
        ("rtx-5090-server", 512),  # NVIDIA RTX Blackwell whitepaper
        ("a10-server", 1024),  # NVIDIA GA102 whitepaper
        ("a30-server", 2048),
        ("hgx-b100", 8192),
        ("mi250x-server", 1024),  # AMD CDNA2 whitepaper
        ("mi100-server", 512),  # AMD CDNA whitepaper: half of fp16
        ("gaudi2-server", 2 * 256 * 256),  # matrix engines of 256 x 256
        ("gaudi3-server", 2 * 256 * 256),
        ("tpu-v4-pod", 2 * 4 * 128 * 128),  # four arrays of 128 x 128
        ("mi300x-server", 2048),  # AMD CDNA3 whitepaper, FLOP/clk/CU
        ("mi355x-server", 4096),  # AMD CDNA4 whitepaper
    ],
)
def test_peak_equals_units_times_clock_times_rate(name: str, flop_per_clock: int) -> None:
    device = load_hardware(name).device
    derived = device.compute_units * device.boost_clock * flop_per_clock
    assert derived == pytest.approx(device.peak("bf16"), rel=0.015)


@pytest.mark.parametrize(
    ("name", "per_clock"),
    [
        ("dgx-a100", 16),  # CUDA C++ programming guide, arithmetic throughput, 8.0
        ("dgx-h100", 16),  # same table, 9.0
        ("dgx-b200", 16),  # same table, 10.0
        ("dgx-b300", 32),  # NVIDIA blog 'Inside NVIDIA Blackwell Ultra': doubled
        ("mi300x-server", 16),  # CDNA3 ISA guide: quarter rate of 64 lanes
        ("mi355x-server", 32),  # AMD CDNA4 whitepaper: doubled
    ],
)
def test_special_function_rate(name: str, per_clock: int) -> None:
    device = load_hardware(name).device
    derived = device.compute_units * device.boost_clock * per_clock
    assert device.special_function_rate == pytest.approx(derived, rel=1e-3)


def test_capacity_is_what_a_process_sees_not_the_label() -> None:
    nominal = {"dgx-a100": 80, "dgx-h100": 80, "dgx-h200": 141, "mi300x-server": 192}
    for name, label in nominal.items():
        capacity = load_hardware(name).device.memory.capacity
        assert 0.97 * label * 1e9 < capacity < label * GIB


def test_the_dies_of_a_package_are_devices_joined_by_its_links() -> None:
    package, node = load_hardware("mi250x-server").system.network[:2]
    assert (package.size, package.bandwidth) == (2, 200e9)  # Frontier user guide
    assert package.size * node.size == load_hardware("mi250x-server").system.devices_per_node


@pytest.mark.parametrize("name", ["MI250", "A10G"])
def test_boards_that_only_sound_alike_are_refused(name: str) -> None:
    with pytest.raises(HardwareError, match=f"unknown hardware '{name}'"):
        load_hardware(name)


def test_in_network_reduction_exists_from_hopper_on() -> None:
    def reduces(name: str) -> bool:
        return load_hardware(name).system.network[0].in_network_reduction

    assert reduces("dgx-h100")
    assert reduces("gb200-nvl72")
    assert not reduces("dgx-a100")  # NVLink SHARP came with the third NVSwitch
    assert not reduces("mi300x-server")


NAMES = {
    "H100-80GB-SXM": "dgx-h100",
    "H100_SXM": "dgx-h100",
    "NVIDIA H100 SXM": "dgx-h100",
    "NVIDIA H100 80GB HBM3": "dgx-h100",
    "H100-96GB-HBM2e(500W)": "h100-96gb-hbm2e",
    "H200-141GB": "dgx-h200",
    "NVIDIA H200 SXM": "dgx-h200",
    "H800 SXM": "hgx-h800",
    "GH200-480GB": "gh200",
    "A100_SXM": "dgx-a100",
    "A100-80GB-SXM": "dgx-a100",
    "A100-SXM4-80GB": "dgx-a100",
    "A100-40GB-SXM": "dgx-a100-40gb",
    "A100-40GB": "dgx-a100-40gb",
    "A100_PCIE_40": "a100-40gb-pcie",
    "NVIDIA A100 PCIe": "a100-80gb-pcie",
    "H100-80GB-PCIe": "h100-pcie",
    "b200": "dgx-b200",
    "B300": "dgx-b300",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "L40S": "l40s-server",
    "RTX PRO 6000": "rtx-pro-6000-server",
    "V100_PCIE": "v100-pcie",
    "AMD MI300X": "mi300x-server",
    "MI300X|MI325X": "mi300x-server",
    "MI308X": "mi308x-server",
    "MI210": "mi210-server",
    "MI325X": "mi325x-server",
    "MI350X": "mi350x-server",
    "mi355x_2400": "mi355x-server",
    "TPU-v5e": "tpu-v5e-pod",
    "TPU-v5p": "tpu-v5p-pod",
    "TPU-v6e": "tpu-v6e-pod",
    "TPU7x": "tpu7x-pod",
    "Trn1": "trn1-32xl",
    "trn1.32xlarge (16 Trainium1)": "trn1-32xl",
    "A10": "a10-server",
    "A40": "a40-server",
    "L4": "l4-server",
    "RTX_4090": "rtx-4090-server",
    "GeForce RTX 5090": "rtx-5090-server",
    "H20": "hgx-h20",
    "B100": "hgx-b100",
    "GAUDI3": "gaudi3-server",
    "ASCEND_910B3": "ascend-910b-server",
    "INTEL_ARC_B60": "arc-pro-b60-server",
    "MI250X": "mi250x-server",
    "TPU_v4": "tpu-v4-pod",
    "Trainium3": "trn3-ultraserver",
}


@pytest.mark.parametrize(("name", "profile"), NAMES.items())
def test_name_as_written_in_published_tables(name: str, profile: str) -> None:
    assert resolve_name(name)[0] == profile
    assert resolve_name(name.upper())[0] == profile
    assert load_hardware(name).name == profile


def test_prices_say_whose_and_of_which_day() -> None:
    priced = [hw for hw in map(load_hardware, list_hardware()) if hw.system.price]
    assert len(priced) >= 14
    for hardware in priced:
        source = hardware.source["system.price"]
        assert re.search(r"\b20\d\d-\d\d-\d\d\b", source), (hardware.name, source)
        assert re.search(r"on.demand", source), (hardware.name, source)
