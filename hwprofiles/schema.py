"""What a hardware profile holds: every key with its kind, unit, limits and meaning.

Its parts (device, memory, network, system, calibrated constants) declare each key once
(`perfmodel.base.fields.fact`): the loader checks against these tables, ``docs/hardware.md``
explains them and the tests walk over them. All values are SI base units: seconds, bytes, FLOP,
hertz, watts; bandwidth is per device and direction. Names are as users write them.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from functools import partial

from perfmodel.base.errors import HardwareError
from perfmodel.base.fields import fact, fact_field, facts_of
from perfmodel.base.precisions import MATRIX_RATES, rate_format


def normalise(name: str) -> str:
    """Return a name in lower case with ``-`` for every run of spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_\-]+", "-", name.strip().lower()).strip("-")


def is_path(name: str | os.PathLike[str]) -> bool:
    """Return whether a profile is named by its file: it ends in ``.toml`` or has a separator."""
    if not isinstance(name, str):
        return True
    return name.endswith(".toml") or "/" in name or os.sep in name


Scalar = float | int | str | bool

TOPOLOGIES = (
    "ring",
    "fully-connected",
    "switch",
    "fat-tree",
    "torus-2d",
    "torus-3d",
    "mesh-2d",
)

PEER_PATHS = ("switch", "host-bridge", "memory")
"""What a message over a bus passes: a switch of the bus, the processor's bridge (NCCL's path
PHB), or the host's memory, where devices have no access to each other."""

BUS_NAMES = ("pcie", "pci")
"""Names of levels that are a bus."""


LEAST = 1e-100
"""Smallest of the numbers above 0: those near 5e-324 have no reciprocal."""

INSTRUCTION_CLASSES = ("mma.sync", "wgmma", "tcgen05", "mfma", "systolic", "other")

TRUST = ("calibrated", "transferred", "prior", "fact")
"""What a constant is to its device; see `Calibrated`."""

_fact = partial(fact, least=LEAST, noun="an integer")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory levels of a device, from the device memory inwards."""

    capacity: float = _fact("device memory that a process can see", "B", positive=True)
    bandwidth: float = _fact("datasheet bandwidth of the device memory", "B/s", positive=True)
    l2_capacity: float = _fact("device-wide second-level cache", "B")
    l2_bandwidth: float = _fact("read bandwidth of that cache", "B/s", positive=True)
    last_level_cache_capacity: float = _fact("cache beyond L2; 0 where none", "B", default=0.0)
    last_level_cache_bandwidth: float = _fact(
        "its read bandwidth; 0 where not stated", "B/s", default=0.0
    )
    l2_partitions: int = _fact(
        "parts of the last cache between which lines are copied", positive=True, default=1
    )
    shared_memory_per_unit: float = _fact("scratchpad of one compute unit", "B")
    register_file_per_unit: float = _fact("register file of one compute unit", "B")

    @property
    def last_capacity(self) -> float:
        """The last cache before the device memory [B]."""
        return max(self.l2_capacity, self.last_level_cache_capacity)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator as the software sees it."""

    name: str = _fact("product name")
    vendor: str = _fact("maker")
    architecture: str = _fact("architecture and compiler target, e.g. 'Hopper sm90'")
    instruction_class: str = _fact(
        "how its matrix units are driven; devices of one class hand constants to each other",
        default="other",
        choices=INSTRUCTION_CLASSES,
    )
    compute_units: int = _fact("SMs, CUs or cores that software sees", positive=True)
    compute_unit_name: str = _fact("what the maker calls one unit")
    boost_clock: float = _fact("clock of its rates, which follow it", "Hz", positive=True)
    vector_flops: float = _fact(
        "fp32 rate of the general (not matrix) units", "FLOP/s", positive=True
    )
    special_function_rate: float = _fact(
        "exponentials per second of the whole device", "1/s", positive=True
    )
    tdp: float = _fact("board power limit; 0 where not stated", "W")
    fp8_transposed_copies: bool = _fact(
        "fp8 products need a transposed copy of an operand for gradients", default=True
    )
    peak_flops: dict[str, float]
    memory: Memory

    def peak(self, precision: str) -> float:
        """Return the dense matrix rate of a precision [FLOP/s].

        Block-scaled formats run at the rate of their element: ``fp8_block``
        and ``mxfp8`` at fp8, ``nvfp4`` and ``mxfp4`` at fp4.

        Raises
        ------
        HardwareError
            The device has no matrix unit for this precision.
        """
        key = rate_format(precision)
        if precision == "mxfp8" and "fp4" not in self.peak_flops:
            # Matrix units that scale blocks came with 4 bits.
            raise HardwareError(
                f"{self.name} has no matrix rate for precision 'mxfp8', whose block scales need "
                f"the matrix units that came with fp4; it has {', '.join(self.peak_flops)}"
            )
        if key not in self.peak_flops:
            raise HardwareError(
                f"{self.name} has no matrix rate for precision '{precision}'; "
                f"it has {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[key]


@dataclass(frozen=True)
class Network:
    """One level of the interconnect, the innermost being level 0."""

    name: str = _fact("name of the level, e.g. 'nvlink'")
    topology: str = _fact("how the members of the level are joined", choices=TOPOLOGIES)
    size: int = _fact("members of the level; 0 = unbounded, outermost level only")
    bandwidth: float = _fact("per device and direction", "B/s", positive=True)
    latency: float = _fact("one message, device to device, no software", "s")
    in_network_reduction: bool = _fact("switches reduce (NVLink SHARP)", default=False)
    oversubscription: float = _fact("uplink contention of a fat tree", minimum=1.0, default=1.0)
    device_links: int = _fact(
        "links of one device into the level; 0 where it does not matter", default=0
    )
    closing_side: int = _fact(
        "of a torus handed out in slices: side from which one closes on itself; 0: one machine",
        default=0,
    )
    peer_path: str = _fact(
        "of a bus (pcie): what a message from device to device passes",
        choices=PEER_PATHS,
        default="switch",
    )
    uplink_devices: int = _fact(
        "of a bus: devices behind one switch; 0: each has a port of its own", default=0
    )
    uplink_bandwidth: float = _fact(
        "what these share on the way to the processor, per direction", "B/s", default=0.0
    )
    socket_devices: int = _fact("of a bus: devices on one processor; 0: all of them", default=0)
    socket_bandwidth: float = _fact(
        "what these share on the way to the next processor, per direction", "B/s", default=0.0
    )


@dataclass(frozen=True)
class Host:
    """The host's memory and drives, as each device has them; state of training may wait there."""

    bandwidth: float = _fact(
        "a device's link to the host's memory, each way, with all devices copying; 0: none",
        "B/s",
        default=0.0,
    )
    memory_capacity: float = _fact("the host's memory, per device", "B", default=0.0)
    memory_bandwidth: float = _fact(
        "datasheet bandwidth of the host's memory, per device", "B/s", default=0.0
    )
    nvme_capacity: float = _fact(
        "the host's NVMe drives for data, per device; 0: none", "B", default=0.0
    )
    nvme_read: float = _fact("what they read in long runs, per device", "B/s", default=0.0)
    nvme_write: float = _fact("what they write in long runs, per device", "B/s", default=0.0)


@dataclass(frozen=True, kw_only=True)
class System:
    """Node and network, the innermost level first."""

    devices_per_node: int = _fact("devices that share a host", positive=True)
    network: tuple[Network, ...]
    host_power: float = _fact(
        "rating of a node beside its devices' limits, per device; 0 where not stated",
        "W",
        default=0.0,
    )
    price: float = _fact(
        "one device on demand, per hour; 0 where none is known", "USD/h", default=0.0
    )
    host: Host = Host()

    @property
    def scale_up_devices(self) -> int:
        """Devices within the levels of bounded size: a node, an NVL72 rack, a TPU slice."""
        bounded = math.prod(level.size for level in self.network if level.size)
        return max(bounded, self.devices_per_node)


@dataclass(frozen=True)
class Calibrated:
    """A fitted number with its prior, its physical bounds and its data."""

    value: float = _fact("the value in use")
    prior: float = _fact("what physics or literature says before any fit")
    low: float = _fact("lower bound of what is physical")
    high: float = _fact("upper bound of what is physical")
    source: str = _fact("data and fit behind the value")
    unit: str = _fact("SI unit", default="")
    adjustable: bool = _fact("'perfmodel calibrate' may fit it", default=False)
    uncertainty: float = _fact(
        "standard deviation of the fitted value; 0 where not known", default=0.0
    )
    fit: str = _fact("fit behind the value, an id of fits.toml", default="")
    reason: str = _fact("physics of a fit on a bound or far from its prior", default="")
    trust: str = _fact("how far it is to be trusted", default="fact", choices=TRUST)


DEVICE, MEMORY, NETWORK, HOST, SYSTEM, CALIBRATED = map(
    facts_of, (Device, Memory, Network, Host, System, Calibrated)
)
PEAK_FLOPS = {
    precision: fact_field(
        "number", f"dense {precision} matrix rate", "FLOP/s", positive=True, least=LEAST
    )
    for precision in MATRIX_RATES
}

TOP_LEVEL = {
    "name": "name of the profile, equal to its file name",
    "title": "one line for lists",
    "extends": "profile that this one refines",
    "inherited": "list of facts, as dotted keys, that hold at another clock, for other units too",
    "measured_on": "of a family: the chip that its constants are fitted to",
    "transferred": "true: what is inherited as fitted comes from all measured relatives instead",
    "abstract": "true for a family or chip that is no complete system",
    "aliases": "other names that mean this profile",
    "ambiguous": "table alias -> why the alias could mean something else, and what was chosen",
    "notes": "list of texts: what is uncertain",
    "device": "vendor facts of the chip",
    "system": "vendor facts of node and network",
    "calibration": "fitted numbers, [calibration.<group>]",
    "source": "table dotted key or prefix -> where the numbers are from",
}
