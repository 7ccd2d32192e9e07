"""The hardware that a row of a table of measured runs names.

The profile gives every number; a cell of the row replaces one only where it states a
number of its own. All bandwidths become bytes per second, device and direction.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from perfmodel.base.errors import HardwareError
from perfmodel.measured.row_adapters import device_bandwidth
from perfmodel.measured.rows import MeasuredRow, Skip

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware

SAME = 0.05  # a stated number this near to the profile's is the profile's
_LINK = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s", re.I)
_ADDED = (
    r"\([^()]*\)",
    r"^\d+\s*[x×]\s*",
    r"\b(?:instinct|radeon|tesla|google|cloud|amd|nvidia|aws)\b",
    r"\b(?:tensor|neuron)?cores?\b",
    r"(?<=v\d[ep])-\d+$|(?<=v\d)-\d+$|(?<=7x)-\d+$",
    r"[-_ ]?\d+\s*(?:GB|GiB|W)\b",
)
_CORES = re.compile(r"\bcores?\b|\bneuroncores?\b|\btensorcores?\b", re.I)
_TWO_CORES = ("trn1", "tpu7x")  # chips that software shows as two devices
_DOMAIN = re.compile(r"NVL\s*(\d+)", re.I)


def hardware_of(row: MeasuredRow) -> tuple[Hardware, tuple[str, ...]]:
    """Return the hardware of a row, and notes on how its cells were read.

    Raises
    ------
    Skip
        No profile has that name.
    """
    stated = row.text("hardware")
    name = profile_name(stated)
    if not name:
        raise Skip("no hardware profile", stated)
    base = _profile(name)
    values: dict[str, float] = {}
    notes = [note for note in base.notes if note.startswith(f"'{name}'")]
    if name != stated:
        notes.append(f"'{stated}' is read as {name}")
    if _counts_halves(row, base):
        values |= _halves(base)
        notes.append("the table counts half chips (cores) as devices; the profile is halved")
    else:
        values |= _node(row, base)
        values |= _scale_up(row, base)
        values |= _scale_out(row, base) | _fabric(row, base)
        notes += [f"{path}={value:g} from the row" for path, value in values.items()]
    return _changed(name, tuple(sorted(values.items()))), tuple(notes)


@lru_cache(maxsize=256)
def profile_name(text: str) -> str:
    """Return the name or alias of a profile that a cell means, empty where it means none.

    Words that tables add to a device's name are left out, one after the other, until it is known:
    what stands in parentheses, a count, a maker's series, cores, the size of a TPU slice, and at
    last the memory or the power limit.
    """
    for pattern in ("^$", *_ADDED):
        text = re.sub(pattern, "", text, flags=re.I).strip(" -_/,")
        try:
            _profile(text)
        except HardwareError:
            continue
        return text
    return ""


@lru_cache(maxsize=256)
def _profile(name: str) -> Hardware:
    from perfmodel.hwprofiles import load_hardware

    return load_hardware(name)


@lru_cache(maxsize=256)
def _changed(name: str, values: tuple[tuple[str, float], ...]) -> Hardware:
    base = _profile(name)
    return base.with_values(dict(values)) if values else base


def _counts_halves(row: MeasuredRow, base: Hardware) -> bool:
    """Tell whether a table's device is half of the profile's: one core of a two-core chip."""
    stated = row.number("bf16_peak_used")
    nodes = row.whole("gpus_per_node")
    twofold = base.name.startswith(_TWO_CORES)
    named = twofold and _CORES.search(row.text("hardware"))
    cores = named or (base.name.startswith("trn") and nodes == 2 * base.system.devices_per_node)
    peak = base.device.peak_flops.get("bf16", 0.0) / 1e12
    return bool(cores) or (stated is not None and abs(stated - peak / 2) < SAME * peak / 2)


def _halves(base: Hardware) -> dict[str, float]:
    """Values of a profile whose devices are cut in two."""
    device, system = base.device, base.system
    values: dict[str, float] = {
        f"device.peak_flops.{name}": rate / 2 for name, rate in device.peak_flops.items()
    }
    values["device.compute_units"] = max(device.compute_units // 2, 1)
    values["device.vector_flops"] = device.vector_flops / 2
    values["device.special_function_rate"] = device.special_function_rate / 2
    for name in ("capacity", "bandwidth", "l2_capacity", "l2_bandwidth"):
        values[f"device.memory.{name}"] = getattr(device.memory, name) / 2
    values["system.devices_per_node"] = system.devices_per_node * 2
    values["system.network.0.size"] = system.network[0].size * 2
    for i, network in enumerate(system.network):
        values[f"system.network.{i}.bandwidth"] = network.bandwidth / 2
    return values


def _is_torus(base: Hardware) -> bool:
    return base.system.network[0].topology.startswith("torus")


def _node(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """Devices per node, where a full node of the row is not the profile's."""
    stated = row.whole("gpus_per_node")
    devices = row.whole("n_gpus") or 0
    system = base.system
    if stated is None or len(system.network) < 2:
        return {}
    if _is_torus(base):
        # For a torus the table states the chips of a slice or pod, and "DCN" joins several.
        joined = "dcn" in row.lower("scaleout_link") and devices > stated
        differs = joined and stated not in (system.devices_per_node, system.network[0].size)
        return {"system.network.0.size": stated} if differs else {}
    if devices <= stated or stated == system.devices_per_node:
        return {}
    values = {"system.devices_per_node": float(stated)}
    if system.network[0].size == system.devices_per_node:
        values["system.network.0.size"] = float(stated)
    return values


def _scale_up(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """Device links: ``400GB/s bidir`` is both directions together, as NVLink is sold."""
    text = row.text("scaleup_link")
    if "nvlink" not in text.lower() and "xgmi" not in text.lower():
        return {}
    values: dict[str, float] = {}
    inner = base.system.network[0]
    found = _LINK.search(text)
    if found and "aggregate" not in text.lower():
        both_ways = "unidir" not in text.lower()
        bandwidth = float(found.group(1)) * 1e9 / (2 if both_ways else 1)
        if abs(bandwidth / inner.bandwidth - 1) > SAME:
            values["system.network.0.bandwidth"] = bandwidth
    domain = _DOMAIN.search(text)
    if domain and int(domain.group(1)) > 8 and int(domain.group(1)) != inner.size:
        values["system.network.0.size"] = float(domain.group(1))
    return values


FABRIC_LATENCY = {
    # Elastic Fabric Adapter: its SRD protocol acknowledges in software of the network card. AWS
    # (Shalev et al. 2020, IEEE Micro 40(6), "A cloud-optimized transport protocol") measured
    # 15 us from one MPI rank to another where InfiniBand takes 1.5 to 3.
    r"\befa\b|elastic fabric": 1.5e-5,
}
"""Words for a network -> latency of a message through it [s], where it is not InfiniBand's."""

CHANNEL_RATE = {
    # Omni-Path leaves the transport to the host's cores: one thread copies each of NCCL's channels
    # through a verbs queue pair. All-reduces of 4 GB on Jean Zay, four adapters of 100 Gb/s a node
    # (github.com/bigscience-workshop/bigscience, experiments/bandwidth): 84.7 Gb/s through 4
    # channels on nodes of 4 V100, 40.6 through 2 on nodes of 8 A100.
    r"omni-?path|\bopa\b": 2.6e9,
}
"""Words for a network -> what one channel of a device gets through it [bytes/s]."""


def _fabric(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """Latency of a named network between nodes."""
    if len(base.system.network) < 2 or _is_torus(base):
        return {}
    text = row.lower("scaleout_link")
    found = [time for words, time in FABRIC_LATENCY.items() if re.search(words, text)]
    return {"system.network.1.latency": found[0]} if found else {}


def _scale_out(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """What a device has of the network between nodes.

    The rate of its adapters, or less where what a channel carries bounds it: of that the profile
    takes what its own adapters reach of theirs, which the rate of a channel has in it.
    """
    if len(base.system.network) < 2 or _is_torus(base):
        return {}
    per_node = row.whole("gpus_per_node") or base.system.devices_per_node
    text = row.text("scaleout_link")
    bandwidth = device_bandwidth(text, per_node)
    reached = base.calibrated("network", "scale_out_efficiency")
    for words, rate in CHANNEL_RATE.items():
        if re.search(words, text, re.I):
            bandwidth = min(bandwidth or math.inf, rate / reached)
    if not bandwidth or abs(bandwidth / base.system.network[1].bandwidth - 1) <= SAME:
        return {}
    return {"system.network.1.bandwidth": bandwidth}
