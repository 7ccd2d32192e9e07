"""What a hardware profile may say: every key with its kind, unit, limits and meaning; its names.

The loader checks against these tables, ``docs/hardware.md`` explains them and
the tests walk over them, so that a key exists in one place only.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Literal

from perfmodel.base.precisions import MATRIX_RATES


def normalise(name: str) -> str:
    """Return a name in lower case with ``-`` for every run of spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_\-]+", "-", name.strip().lower()).strip("-")


def is_path(name: str | os.PathLike[str]) -> bool:
    """Return whether a profile is named by its file: it ends in ``.toml`` or has a separator."""
    if not isinstance(name, str):
        return True
    return name.endswith(".toml") or "/" in name or os.sep in name


Kind = Literal["text", "count", "number", "flag"]
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


@dataclass(frozen=True)
class Field:
    """One key of a profile.

    Parameters
    ----------
    kind : {"text", "count", "number", "flag"}
        ``count`` is an integer, ``number`` any finite real.
    meaning : str
        One line for documentation and messages.
    unit : str
        SI unit; empty for text, flags and pure numbers.
    minimum : float
        Smallest value that is allowed.
    positive : bool
        Whether the value must exceed zero (in place of `minimum`).
    default : float or str or bool, optional
        Value where the profile is silent; None makes the key compulsory.
    choices : tuple of str
        Allowed texts; empty allows any.
    maximum : float
        Largest value that is allowed.
    """

    kind: Kind
    meaning: str
    unit: str = ""
    minimum: float = 0.0
    positive: bool = False
    default: Scalar | None = None
    choices: tuple[str, ...] = ()
    maximum: float = math.inf

    def expectation(self) -> str:
        """Return what a right value looks like, for messages."""
        unit = f" [{self.unit}]" if self.unit else ""
        if self.kind == "text":
            return "one of " + ", ".join(self.choices) if self.choices else "a text"
        if self.kind == "flag":
            return "true or false"
        noun = "an integer" if self.kind == "count" else "a finite number"
        limit = (
            f"above 0 (at least {LEAST:g})" if self.positive else f"of at least {self.minimum:g}"
        )
        if self.maximum < math.inf:
            limit = f"{limit}, at most {self.maximum:.10g}"
        return f"{noun} {limit}{unit}"

    def accepts(self, value: object) -> bool:
        """Return whether `value` has the kind and lies within the limits of this key."""
        if self.kind == "text":
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if self.kind == "flag":
            return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not math.isfinite(value) or (self.kind == "count" and value != int(value)):
            return False
        if value > self.maximum:
            return False
        if self.positive or 0 < value < LEAST:
            return value >= LEAST
        return value >= self.minimum


INSTRUCTION_CLASSES = ("mma.sync", "wgmma", "tcgen05", "mfma", "systolic", "other")

DEVICE = {
    "name": Field("text", "product name"),
    "vendor": Field("text", "maker"),
    "architecture": Field("text", "architecture and compiler target, e.g. 'Hopper sm90'"),
    "instruction_class": Field(
        "text",
        "how its matrix units are driven; devices of one class hand constants to each other",
        default="other",
        choices=INSTRUCTION_CLASSES,
    ),
    "compute_units": Field("count", "SMs, CUs or cores that software sees", positive=True),
    "compute_unit_name": Field("text", "what the maker calls one unit"),
    "boost_clock": Field("number", "clock behind the peak rates", "Hz", positive=True),
    "vector_flops": Field(
        "number", "fp32 rate of the general (not matrix) units", "FLOP/s", positive=True
    ),
    "special_function_rate": Field(
        "number", "exponentials per second of the whole device", "1/s", positive=True
    ),
    "tdp": Field("number", "board power limit; 0 where not stated", "W"),
    "fp8_transposed_copies": Field(
        "flag", "fp8 products need a transposed copy of an operand for gradients", default=True
    ),
}

PEAK_FLOPS = {
    precision: Field("number", f"dense {precision} matrix rate", "FLOP/s", positive=True)
    for precision in MATRIX_RATES
}

MEMORY = {
    "capacity": Field("number", "device memory that a process can see", "B", positive=True),
    "bandwidth": Field("number", "datasheet bandwidth of the device memory", "B/s", positive=True),
    "l2_capacity": Field("number", "device-wide second-level cache", "B"),
    "l2_bandwidth": Field("number", "read bandwidth of that cache", "B/s", positive=True),
    "last_level_cache_capacity": Field("number", "cache beyond L2; 0 where none", "B", default=0.0),
    "last_level_cache_bandwidth": Field(
        "number", "its read bandwidth; 0 where not stated", "B/s", default=0.0
    ),
    "l2_partitions": Field(
        "count", "parts of the last cache between which lines are copied", positive=True, default=1
    ),
    "shared_memory_per_unit": Field("number", "scratchpad of one compute unit", "B"),
    "register_file_per_unit": Field("number", "register file of one compute unit", "B"),
}

SYSTEM = {
    "devices_per_node": Field("count", "devices that share a host", positive=True),
    "host_power": Field(
        "number",
        "rating of a node beside its devices' limits, per device; 0 where not stated",
        "W",
        default=0.0,
    ),
    "price": Field(
        "number", "one device on demand, per hour; 0 where none is known", "USD/h", default=0.0
    ),
}

HOST = {
    "bandwidth": Field(
        "number",
        "a device's link to the host's memory, each way, with all devices copying; 0: none",
        "B/s",
        default=0.0,
    ),
    "memory_capacity": Field("number", "the host's memory, per device", "B", default=0.0),
    "memory_bandwidth": Field(
        "number", "datasheet bandwidth of the host's memory, per device", "B/s", default=0.0
    ),
    "nvme_capacity": Field(
        "number", "the host's NVMe drives for data, per device; 0: none", "B", default=0.0
    ),
    "nvme_read": Field("number", "what they read in long runs, per device", "B/s", default=0.0),
    "nvme_write": Field("number", "what they write in long runs, per device", "B/s", default=0.0),
}

NETWORK = {
    "name": Field("text", "name of the level, e.g. 'nvlink'"),
    "topology": Field("text", "how the members of the level are joined", choices=TOPOLOGIES),
    "size": Field("count", "members of the level; 0 = unbounded, outermost level only"),
    "bandwidth": Field("number", "per device and direction", "B/s", positive=True),
    "latency": Field("number", "one message, device to device, no software", "s"),
    "in_network_reduction": Field("flag", "switches reduce (NVLink SHARP)", default=False),
    "oversubscription": Field(
        "number", "uplink contention of a fat tree", minimum=1.0, default=1.0
    ),
    "device_links": Field(
        "count", "links of one device into the level; 0 where it does not matter", default=0
    ),
    "closing_side": Field(
        "count",
        "of a torus handed out in slices: side from which one closes on itself; 0: one machine",
        default=0,
    ),
    "peer_path": Field(
        "text",
        "of a bus (pcie): what a message from device to device passes",
        choices=PEER_PATHS,
        default="switch",
    ),
    "uplink_devices": Field(
        "count", "of a bus: devices behind one switch; 0: each has a port of its own", default=0
    ),
    "uplink_bandwidth": Field(
        "number", "what these share on the way to the processor, per direction", "B/s", default=0.0
    ),
    "socket_devices": Field(
        "count", "of a bus: devices on one processor; 0: all of them", default=0
    ),
    "socket_bandwidth": Field(
        "number",
        "what these share on the way to the next processor, per direction",
        "B/s",
        default=0.0,
    ),
}

TRUST = ("calibrated", "transferred", "prior", "fact")
"""What a constant is to its device; see `perfmodel.hwprofiles.parts.Calibrated`."""

CALIBRATED = {
    "value": Field("number", "the value in use"),
    "prior": Field("number", "what physics or literature says before any fit"),
    "low": Field("number", "lower bound of what is physical"),
    "high": Field("number", "upper bound of what is physical"),
    "source": Field("text", "data and fit behind the value"),
    "unit": Field("text", "SI unit", default=""),
    "adjustable": Field("flag", "'perfmodel calibrate' may fit it", default=False),
    "uncertainty": Field(
        "number", "standard deviation of the fitted value; 0 where not known", default=0.0
    ),
    "fit": Field("text", "fit behind the value, an id of fits.toml", default=""),
    "reason": Field("text", "physics of a fit on a bound or far from its prior", default=""),
    "trust": Field("text", "how far it is to be trusted", default="fact", choices=TRUST),
}

TOP_LEVEL = {
    "name": "name of the profile, equal to its file name",
    "title": "one line for lists",
    "extends": "profile that this one refines",
    "inherited": "list of facts, as dotted keys, that hold for another number of compute_units too",
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
