"""Network adapters as a cell of a table of measured runs words them.

A node may have several networks: the one between devices (compute, backend, east-west), and
others for storage, for logging in and for management, which training does not use. A cell
lists them in any order, as ``Storage: 2x ConnectX-7 400Gb/s, Compute: 8x ConnectX-7 400Gb/s``
or ``8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RATE = re.compile(
    r"(?:(?<![\w.-])|(?<=\d[x×*]))(\d+(?:\.\d+)?)\s*([GT])"
    r"(?:(B/s|Bps)|b(?:/s|ps|it/s|E|it)?|E|igE|igabit)?(?![A-Za-z])"
)
_PER_DEVICE = re.compile(r"\s*(?:/|per\s+)\s*(?:gpu|device|chip|accelerator)\b", re.I)
_PER_NODE = re.compile(
    r"\s*(?:/|per\s+)?\s*(?:\d+-gpu\s+)?(?:node|host|server|instance|vm)\b", re.I
)
_COUNT_BEFORE = re.compile(r"(?<![\w.-])(\d{1,2})\s*(?:[x×*]\s*|\s+(?=[A-Za-z]))", re.I)
_COUNT_AFTER = re.compile(r"\s*[x×*]\s*(\d{1,2})\b", re.I)
_LABEL = re.compile(r"^([A-Za-z][A-Za-z /&+_-]*?)\s*:\s*")
_COMPUTE = re.compile(r"comput|back-?\s?end|east|gpu|scale-?out|rdma fabric|training", re.I)
_OTHER = re.compile(
    r"storage|manage|mgmt|front-?\s?end|north|in-?band|out-of-band|\boob\b|bmc|host|login"
    r"|ingress",
    re.I,
)
_NO_NETWORK = re.compile(r"pcie", re.I)
# Clouds state what an instance has, all its adapters together.
_CLOUD = re.compile(r"\befa\b|\bena\b|tcpx|gvnic|instance|\bvm\b", re.I)
_REMOTE_MEMORY = re.compile(r"infini-?band|\bib\b|roce|rdma|connectx|\b[hnx]dr\b", re.I)
LARGEST_ADAPTER = 800e9 / 8
# Rates of four InfiniBand lanes by generation (InfiniBand Trade Association, roadmap).
_GENERATIONS = {"HDR100": 100, "EDR": 100, "HDR": 200, "NDR200": 200, "NDR": 400, "XDR": 800}


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
    outside = re.sub(r"\([^()]*\)", " ", text)
    return _best(_networks(outside, devices_per_node)) or _best(
        _networks(re.sub(r"[()]", ",", text), devices_per_node)
    )


def _best(networks: list[_Network]) -> float:
    named = [it.bandwidth for it in networks if _COMPUTE.search(it.words)]
    others = [it.bandwidth for it in networks if not _OTHER.search(it.words)]
    return max(named or others, default=0.0)


def _networks(text: str, devices_per_node: int) -> list[_Network]:
    """Return the networks of a cell; a label holds until the next one."""
    found, label = [], ""
    for part in re.split(r"[,;]|\s\+\s|\band\b", text):
        part = part.strip()
        if match := _LABEL.match(part):
            label, part = match.group(1), part[match.end() :]
        bandwidth = _bandwidth(part, devices_per_node)
        if bandwidth and not _NO_NETWORK.search(label):
            own = re.sub(r"(?:/|per )\s*(?:gpu|host)\b", " ", part, flags=re.I)
            found.append(_Network(f"{label} {own}", bandwidth))
    return found


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
    per_device = _REMOTE_MEMORY.search(part) and not _CLOUD.search(part)
    return value if per_device and value <= LARGEST_ADAPTER else value / devices_per_node


def _by_generation(part: str, devices_per_node: int) -> float:
    """Return what ``8x NDR InfiniBand`` means, where no rate is written."""
    count = _COUNT_BEFORE.search(part)
    for name, rate in _GENERATIONS.items():
        if count and re.search(rf"\b{name}(200|400|800)?\b", part, re.I):
            return int(count.group(1)) * rate / 8 * 1e9 / devices_per_node
    return 0.0
