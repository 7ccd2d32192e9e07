"""The hardware that a row of a table of measured runs names, and the network adapters of a cell.

The profile gives every number; a cell of the row replaces one only where it states a
number of its own. All bandwidths become bytes per second, device and direction.

A node may have several networks: the one between devices (compute, backend, east-west), and
others for storage, for logging in and for management, which training does not use. A cell
lists them in any order, as ``Storage: 2x ConnectX-7 400Gb/s, Compute: 8x ConnectX-7 400Gb/s``
or ``8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC``.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.base.errors import HardwareError
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware


SAME = 0.05  # a stated number this near to the profile's is the profile's
_LINK = re.compile(
    r"(?:(\d{1,2})\s*[x×*]\s*)?(\d+(?:\.\d+)?)\s*([GT])B(?:/s|ps)\w*(\s*(?:/|per|each)\s*link)?",
    re.I,
)
_CORES = re.compile(r"\bcores?\b|\bneuroncores?\b|\btensorcores?\b", re.I)
_DOMAIN = re.compile(
    r"NVL\s*(\d+)|\b(\d+)[- ](?:GPU|device|way)s?\s+(?:NVLink\s+|scale-?up\s+)?domain"
    r"|domain (?:size )?(?:of )?(\d+)",
    re.I,
)
_NODE = re.compile(
    r"\b(\d+)[- ](?:GPU|device)s?\s+(?:node|server)|\b(\d+) (?:GPU|device)s? (?:per|a|each) node",
    re.I,
)
_SCALE_UP = re.compile(r"nvlink|nvswitch|\bnvl\d|xgmi|infinity fabric", re.I)


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
    joined = _joins(row, base)
    if joined[0] > 1:
        base = _joined(name, *joined)
        notes.append(f"nodes of {joined[0]} devices with links of their own, from the row")
    if _counts_halves(row, base):
        values |= _halves(base)
        notes.append("the table counts half chips (cores) as devices; the profile is halved")
    else:
        values |= _node(row, base)
        values |= _scale_up(row, base)
        values |= _scale_out(row, base) | _fabric(row, base)
        notes += [f"{path}={value:g} from the row" for path, value in values.items()]
    return _changed(name, joined, tuple(sorted(values.items()))), tuple(notes)


@lru_cache(maxsize=256)
def profile_name(text: str) -> str:
    """Return the name or alias of a profile that a cell means, empty where it means none.

    Words that tables add to a device's name are left out, one after the other, until it is known:
    what stands in parentheses, a count, a maker's series, cores, the size of a TPU slice, and at
    last the memory or the power limit.
    """
    known: str = meaning(words("hardware")["devices"], text.lower().removeprefix("nvidia "))
    for pattern in ("^$", *words("hardware")["added"]):
        text = re.sub(pattern, "", text, flags=re.I).strip(" -_/,")
        try:
            _profile(text)
        except HardwareError:
            continue
        return text
    return known


def bf16_peak(row: MeasuredRow) -> float:
    """Return the bf16 peak of a row's device [TFLOP/s], as utilisations are published of."""
    return hardware_of(row)[0].device.peak_flops["bf16"] / 1e12


@lru_cache(maxsize=256)
def _profile(name: str) -> Hardware:
    from perfmodel.hwprofiles import load_hardware

    return load_hardware(name)


@lru_cache(maxsize=256)
def _changed(name: str, joined: _Joined, values: tuple[tuple[str, float], ...]) -> Hardware:
    base = _joined(name, *joined) if joined[0] > 1 else _profile(name)
    return base.with_values(dict(values)) if values else base


_Joined = tuple[int, float, bool]
"""Devices that links join, their bandwidth [B/s], and whether switches stand between them."""


def _joins(row: MeasuredRow, base: Hardware) -> _Joined:
    """Tell whether links join devices that the profile has in nodes of their own (GH200)."""
    text = row.text("scaleup_link")
    bandwidth = _link_bandwidth(text)
    if base.system.devices_per_node > 1 or not bandwidth:
        return 0, 0.0, False
    domain = _domain(text)
    return domain or row.whole("gpus_per_node") or 0, bandwidth, domain > 0


@lru_cache(maxsize=256)
def _joined(name: str, devices: int, bandwidth: float, switched: bool) -> Hardware:
    """Return a profile of single devices with links between as many as make a node."""
    from perfmodel.hwprofiles.hardware import hardware_from_dict

    document = _profile(name).to_dict()
    system, source = document["system"], document["source"]
    tier = {
        "name": "link",
        "topology": "switch" if switched else "fully-connected",
        "size": devices,
        "bandwidth": bandwidth,
        "latency": words("hardware")["link_latency"],
    }
    system["network"] = [tier, *system["network"]]
    system["devices_per_node"] = devices
    moved = {re.sub(r"network\.0", "network.1", path): text for path, text in source.items()}
    return hardware_from_dict(
        {**document, "source": {**moved, "system.network.0": "cell scaleup_link of the row"}}
    )


def _counts_halves(row: MeasuredRow, base: Hardware) -> bool:
    """Tell whether a table's device is half of the profile's: one core of a two-core chip."""
    stated = row.number("bf16_peak_used")
    nodes = row.whole("gpus_per_node")
    twofold = base.name.startswith(tuple(words("hardware")["two_cores"]))
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
    """Device links; a network between nodes of one device each is none."""
    text = row.text("scaleup_link")
    inner = base.system.network[0]
    if not _SCALE_UP.search(text) or base.system.devices_per_node == 1 or _is_torus(base):
        return {}
    values: dict[str, float] = {}
    bandwidth = _link_bandwidth(text)
    if bandwidth and abs(bandwidth / inner.bandwidth - 1) > SAME:
        values["system.network.0.bandwidth"] = bandwidth
    domain = _domain(text)
    if domain > 8 and domain != inner.size:
        values["system.network.0.size"] = float(domain)
    return values


def _link_bandwidth(text: str) -> float:
    """Return a device's links, in one direction; 0 where none are stated.

    ``400GB/s bidir`` is both directions together, as NVLink is sold; a rate of one link counts
    where their number stands by it, and what a whole node has does not.
    """
    found = _LINK.search(text)
    if not found or not _SCALE_UP.search(text) or re.search("aggregat|node|total", text, re.I):
        return 0.0
    count, rate, scale, of_one = found.groups()
    if of_one and not count:
        return 0.0
    one_way = re.search(r"unidir|one[- ]way|(?:per|each) (?:direction|way)", text, re.I)
    value = float(rate) * (1e9 if scale.upper() == "G" else 1e12)
    return value * int(count or 1) / (1 if one_way else 2)


def _domain(text: str) -> int:
    """Return the devices of a link domain that a cell names; 0 for none."""
    found = _DOMAIN.search(text)
    return int(next(filter(None, found.groups()))) if found else 0


def _fabric(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """Latency of a named network between nodes."""
    tier = _between_nodes(base)
    found = meaning(words("hardware")["latency"], row.lower("scaleout_link"), None)
    return {} if found is None or tier < 0 else {f"system.network.{tier}.latency": found}


def _between_nodes(base: Hardware) -> int:
    """Return the position of the network between nodes; -1 where there is none."""
    if _is_torus(base):
        return -1
    if base.system.devices_per_node == 1 and len(base.system.network) == 1:
        return 0
    return 1 if len(base.system.network) > 1 else -1


def _scale_out(row: MeasuredRow, base: Hardware) -> dict[str, float]:
    """What a device has of the network between nodes.

    The rate of its adapters, or less where what a channel carries bounds it: of that the profile
    takes what its own adapters reach of theirs, which the rate of a channel has in it.
    """
    tier = _between_nodes(base)
    if tier < 0:
        return {}
    text = row.text("scaleout_link")
    named = _NODE.search(text)
    in_text = int(next(filter(None, named.groups()))) if named else 0
    per_node = row.whole("gpus_per_node") or in_text or base.system.devices_per_node
    bandwidth = device_bandwidth(text, per_node)
    reached = base.calibrated("network", "scale_out_efficiency")
    if rate := meaning(words("hardware")["channel_rate"], text.lower(), 0.0):
        bandwidth = min(bandwidth or math.inf, rate / reached)
    if not bandwidth or abs(bandwidth / base.system.network[tier].bandwidth - 1) <= SAME:
        return {}
    return {f"system.network.{tier}.bandwidth": bandwidth}


_RATE = re.compile(
    r"(?:(?<![\w.-])|(?<=\d[x×*]))(\d+(?:\.\d+)?)\s*([GT])"
    r"(?:(B/s(?:ec\w*)?|Bps|Bytes?/s\w*)|b(?:its?)?(?:/[sS](?:ec\w*)?|ps|E)?|E|igE|igabit)?(?![A-Za-z])"
)
_PER_DEVICE = re.compile(r"\s*(?:/|per\s+)\s*(?:gpu|device|chip|accelerator)\b", re.I)
_PER_NODE = re.compile(
    r"\s*(?:/|per\s+|an?\s+|(?:in )?each\s+)?\s*(?:\d+-gpu\s+)?(?:node|host|server|instance|vm)\b",
    re.I,
)
_COUNT_BEFORE = re.compile(r"(?<![\w.-])(\d{1,2})\s*(?:[x×*]\s*|\s+(?=[A-Za-z]))", re.I)
_COUNT_AFTER = re.compile(r"\s*[x×*]\s*(\d{1,2})\b", re.I)
_LABEL = re.compile(r"^([A-Za-z][A-Za-z /&+_-]*?)\s*:\s*")
LARGEST_ADAPTER = 800e9 / 8


class _Network(NamedTuple):
    """What one part of a cell states: words that tell its use, and bytes/s of a device."""

    words: str
    bandwidth: float


def device_bandwidth(text: str, devices_per_node: int) -> float:
    """Return what a device gets of the network between nodes [bytes/s]; 0 where none is stated.

    Parameters
    ----------
    text : str
        Cell; several networks are divided by ``,``, ``;``, ``+`` or ``and``.
    devices_per_node : int

    Notes
    -----
    A network that is named for compute counts before one without a name, and one without a name
    before those named for storage, management or the front end, which never count. Of several,
    the fastest does: libraries use adapters of one speed.

    Rates "per GPU" stand as they are; "per node", ``N x …`` and what a cloud states of an
    instance are divided among the devices. A rate alone is that of an adapter: one per device
    of InfiniBand and RoCE, one per node of other networks; more than any adapter has
    (800 Gb/s) is that of a node. A rate of Ethernet (``100GbE``) beside the word InfiniBand is that
    of another network, and InfiniBand's is not stated.
    """
    return _best(_networks(text, devices_per_node))


_BETWEEN = re.compile(r"(?:[,;]|\s\+\s|\band\b)(?![^()]*\))")
"""What divides networks, outside of parentheses."""


def _parts(text: str) -> list[str]:
    """Return what a cell says of each network: what stands in parentheses where nothing else does.

    ``8x InfiniBand (NDR, 400Gb/s)`` is one network, said twice; ``RoCE (1600Gb/s a node)`` too.
    """
    parts = []
    for part in _BETWEEN.split(text):
        outside = re.sub(r"\([^()]*\)", " ", part)
        if _RATE.search(outside):
            parts.append(outside.strip())
        else:
            inside = re.split(r"[,;]|\s\+\s|\band\b", " ".join(re.findall(r"\(([^()]*)\)", part)))
            parts += [f"{outside} {more}".strip() for more in inside]
    return parts


def _best(networks: list[_Network]) -> float:
    named = [it.bandwidth for it in networks if _used("compute", it.words)]
    others = [it.bandwidth for it in networks if not _used("other", it.words)]
    return max(named or others, default=0.0)


def _networks(text: str, devices_per_node: int) -> list[_Network]:
    """Return the networks of a cell; a label holds until the next one."""
    found, label = [], ""
    for part in _parts(text):
        if match := _LABEL.match(part):
            label, part = match.group(1), part[match.end() :]
        bandwidth = _bandwidth(part, devices_per_node)
        if bandwidth and not _used("none", label):
            own = re.sub(r"(?:/|per )\s*(?:gpu|host)\b", " ", part, flags=re.I)
            found.append(_Network(f"{label} {own}", bandwidth))
    return found


def _used(what: str, text: str) -> bool:
    """Tell whether a text says what a network is for."""
    return re.search(words("hardware")["use"][what], text.lower()) is not None


def _bandwidth(part: str, devices_per_node: int) -> float:
    """Return bytes/s and device of one network, 0 where it states none."""
    rate = _RATE.search(part)
    if rate is None:
        return _by_generation(part, devices_per_node)
    if rate.group(0).endswith("E") and re.search("infini-?band", part, re.I):
        return 0.0
    scale = 1e9 if rate.group(2) == "G" else 1e12
    value = float(rate.group(1)) * scale * (1.0 if rate.group(3) else 0.125)
    rest = part[rate.end() :]
    if _PER_DEVICE.match(rest):
        return value
    if _PER_NODE.match(rest):
        return value / devices_per_node
    count = _COUNT_BEFORE.search(part[: rate.start()]) or _COUNT_AFTER.match(rest)
    if count:
        return int(count.group(1)) * value / devices_per_node
    per_device = _used("remote_memory", part) and not _used("cloud", part)
    return value if per_device and value <= LARGEST_ADAPTER else value / devices_per_node


def _by_generation(part: str, devices_per_node: int) -> float:
    """Return what ``8x NDR InfiniBand`` or a cloud's instance means, where no rate is written."""
    said = words("hardware")
    if instance := meaning(said["instances"], part.lower(), 0.0):
        return float(instance) / 8 * 1e9 / devices_per_node
    count = _COUNT_BEFORE.search(part) or _COUNT_AFTER.search(part)
    for name, rate in said["generations"].items():
        if re.search(rf"\b{name}(200|400|800)?\b", part, re.I):
            return (int(count.group(1)) / devices_per_node if count else 1.0) * rate / 8 * 1e9
    return 0.0
