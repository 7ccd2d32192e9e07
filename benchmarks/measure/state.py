"""The device that is measured: its profile, and its clocks, power and temperature."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Sequence

# What the driver calls a device (in lower case; the first pattern that it contains
# counts) -> name of the profile. Other devices: --hardware NAME.
DEVICES = (
    ("a100-sxm4-80gb", "dgx-a100"),
    ("a100-sxm4-40gb", "dgx-a100-40gb"),
    ("a100 80gb pcie", "a100-80gb-pcie"),
    ("a100-pcie-40gb", "a100-40gb-pcie"),
    ("gh200", "gh200"),
    ("h100 nvl", "h100-nvl"),
    ("h100 pcie", "h100-pcie"),
    ("h100 80gb hbm3", "dgx-h100"),
    ("h100 96gb", "h100-96gb-hbm2e"),
    ("h100", "dgx-h100"),
    ("h200", "dgx-h200"),
    ("h800", "hgx-h800"),
    ("gb200", "gb200-nvl72"),
    ("gb300", "gb300-nvl72"),
    ("b200", "dgx-b200"),
    ("b300", "dgx-b300"),
    ("l40s", "l40s-server"),
    ("rtx pro 6000 blackwell", "rtx-pro-6000-server"),
    ("mi210", "mi210-server"),
    ("mi300x", "mi300x-server"),
    ("mi308x", "mi308x-server"),
    ("mi325x", "mi325x-server"),
    ("mi350x", "mi350x-server"),
    ("mi355x", "mi355x-server"),
)
STATE = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")


def profile_name(device: str, told: str | None = None) -> str:
    """Return the name of the profile of a device that the driver names.

    Unknown devices keep their name; a profile of your own with that alias finds them.
    """
    if told:
        return told
    lowered = device.lower()
    return next((name for pattern, name in DEVICES if pattern in lowered), device)


class Monitor:
    """Clocks, power and temperature while something is timed, where a tool tells them."""

    def __init__(self, device: int = 0, period: float = 0.02) -> None:
        self.period = period
        self._samples: list[dict[str, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._read = _reader(device)

    def __enter__(self) -> Monitor:
        """Begin to sample."""
        self._samples, self._stop = [], threading.Event()
        if self._read is not None:
            self._thread = threading.Thread(target=self._loop, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)

    def _loop(self) -> None:
        while not self._stop.is_set():
            sample = self._read() if self._read else None
            if sample:
                self._samples.append(sample)
            self._stop.wait(self.period)

    def state(self) -> dict[str, str]:
        """Return the median of every quantity; empty where nothing tells it."""
        found = {}
        for name in STATE:
            values = [sample[name] for sample in self._samples if name in sample]
            found[name] = f"{statistics.median(values):g}" if values else ""
        return found


def _reader(device: int) -> Callable[[], dict[str, float] | None] | None:
    """Return what reads the state once, or None where nothing can."""
    try:
        return _nvml(device)
    except Exception:
        pass  # no NVIDIA driver, or no binding: the tools below may still know
    if shutil.which("nvidia-smi"):
        return lambda: _nvidia_smi(device)
    if shutil.which("rocm-smi"):
        return lambda: _rocm_smi(device)
    return None


def _nvml(device: int) -> Callable[[], dict[str, float] | None]:
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    index = [int(i) for i in visible.split(",")][device] if visible else device
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def read() -> dict[str, float] | None:
        try:
            return {
                "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                "memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
                "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                "temperature_c": pynvml.nvmlDeviceGetTemperature(
                    handle, pynvml.NVML_TEMPERATURE_GPU
                ),
            }
        except pynvml.NVMLError:
            return None

    return read


def _nvidia_smi(device: int) -> dict[str, float] | None:
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu"
    text = output_of(
        "nvidia-smi", f"--id={device}", f"--query-gpu={query}", "--format=csv,noheader,nounits"
    )
    return parse_numbers(text.split(","), STATE)


def _rocm_smi(device: int) -> dict[str, float] | None:
    text = output_of("rocm-smi", "-d", str(device), "-c", "-P", "-t", "--csv")
    return parse_rocm(text)


def parse_numbers(cells: Sequence[str], names: Sequence[str]) -> dict[str, float] | None:
    """Pair cells with names; leave out what is no number; None where nothing is one."""
    found = {}
    for name, cell in zip(names, cells, strict=False):
        try:
            found[name] = float(cell)
        except ValueError:
            continue
    return found or None


def parse_rocm(text: str) -> dict[str, float] | None:
    """Read the CSV of ``rocm-smi -c -P -t --csv``."""
    lines = [line for line in text.splitlines() if "," in line]
    if len(lines) < 2:
        return None
    found = {}
    for title, cell in zip(lines[0].lower().split(","), lines[1].split(","), strict=False):
        number = cell.strip("()").lower().removesuffix("mhz")
        name = (
            "sm_clock_mhz"
            if "sclk clock speed" in title
            else "memory_clock_mhz"
            if "mclk clock speed" in title
            else "power_w"
            if "power" in title
            else "temperature_c"
            if "junction" in title
            else None
        )
        values = parse_numbers([number], [name]) if name else None
        found |= values or {}
    return found or None


def output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
