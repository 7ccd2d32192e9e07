"""What a profile holds: device, memory, network, system, calibrated constants.

All values are SI base units: seconds, bytes, FLOP, hertz, watts; bandwidth is
per device and direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.base.errors import HardwareError
from perfmodel.base.precisions import rate_format


@dataclass(frozen=True)
class Memory:
    """Memory levels of a device, from the device memory inwards.

    Parameters
    ----------
    capacity : float
        Device memory that a process can see [B].
    bandwidth : float
        Datasheet bandwidth of the device memory [B/s].
    l2_capacity, l2_bandwidth : float
        Device-wide second-level cache [B], its read bandwidth [B/s].
    last_level_cache_capacity : float
        Cache between L2 and the device memory [B]; 0 where none.
    last_level_cache_bandwidth : float
        Its read bandwidth [B/s]; 0 where not stated.
    l2_partitions : int
        Parts of that cache, or of L2 where it is the last, between which lines are copied.
    shared_memory_per_unit, register_file_per_unit : float
        Scratchpad and registers of one compute unit [B].
    """

    capacity: float
    bandwidth: float
    l2_capacity: float
    l2_bandwidth: float
    last_level_cache_capacity: float
    shared_memory_per_unit: float
    register_file_per_unit: float
    last_level_cache_bandwidth: float = 0.0
    l2_partitions: int = 1

    @property
    def last_capacity(self) -> float:
        """The last cache before the device memory [B]."""
        return max(self.l2_capacity, self.last_level_cache_capacity)


@dataclass(frozen=True)
class Device:
    """One accelerator as the software sees it.

    Parameters
    ----------
    compute_units : int
        SMs, CUs or cores.
    boost_clock : float
        Clock behind the peak rates [Hz].
    peak_flops : dict of str to float
        Dense matrix rate by number format [FLOP/s].
    vector_flops : float
        fp32 rate of the general units [FLOP/s].
    special_function_rate : float
        Exponentials per second of the whole device [1/s].
    tdp : float
        Board power limit [W]; 0 where not stated.
    instruction_class : str
        One of `perfmodel.hwprofiles.schema.INSTRUCTION_CLASSES`.
    fp8_transposed_copies : bool
        Per-tensor fp8 products take their operands in one layout only, so that gradients
        need transposed copies.
    """

    name: str
    vendor: str
    architecture: str
    compute_units: int
    compute_unit_name: str
    boost_clock: float
    peak_flops: dict[str, float]
    vector_flops: float
    special_function_rate: float
    tdp: float
    memory: Memory
    fp8_transposed_copies: bool = True
    instruction_class: str = "other"

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
    """One level of the interconnect, the innermost being level 0.

    Parameters
    ----------
    topology : str
        One of `perfmodel.hwprofiles.schema.TOPOLOGIES`.
    size : int
        Members of the level; 0 = unbounded (outermost level only).
    bandwidth : float
        Per device and direction [B/s].
    latency : float
        One message, device to device, without software [s].
    in_network_reduction : bool
        Whether the switches reduce.
    oversubscription : float
        Uplink contention of a fat tree, >= 1.
    device_links : int
        Links of one device into the level; 0 where it does not matter.
    closing_side : int
        Of a torus that is handed out in slices: devices along a side from which a slice closes
        on itself; 0 where the torus is one machine.
    peer_path : str
        Of a bus, one of `perfmodel.hwprofiles.schema.PEER_PATHS`: what a message from device to
        device passes.
    uplink_devices, socket_devices : int
        Of a bus: devices behind one switch, and on one processor; 0 where each has a port of
        its own, and where one processor holds all.
    uplink_bandwidth, socket_bandwidth : float
        What the devices behind a switch share on the way to the processor, and those of a
        processor on the way to the next one, per direction [B/s].
    """

    name: str
    topology: str
    size: int
    bandwidth: float
    latency: float
    in_network_reduction: bool = False
    oversubscription: float = 1.0
    device_links: int = 0
    closing_side: int = 0
    peer_path: str = "switch"
    uplink_devices: int = 0
    uplink_bandwidth: float = 0.0
    socket_devices: int = 0
    socket_bandwidth: float = 0.0


@dataclass(frozen=True)
class Host:
    """The host's memory and drives, as each device has them.

    Parameters
    ----------
    bandwidth : float
        Of a device's link to it, each way, while all devices of the node copy [B/s]; 0 for none.
    memory_capacity : float
        Of the node over its devices [B].
    memory_bandwidth : float
        The same by datasheet [B/s].
    nvme_capacity : float
        Of the drives of the node over its devices [B]; 0 for none.
    nvme_read, nvme_write : float
        The same of what they read and write in long runs [B/s].
    """

    bandwidth: float = 0.0
    memory_capacity: float = 0.0
    memory_bandwidth: float = 0.0
    nvme_capacity: float = 0.0
    nvme_read: float = 0.0
    nvme_write: float = 0.0


@dataclass(frozen=True)
class System:
    """Node and network.

    Parameters
    ----------
    devices_per_node : int
        Devices that share a host.
    network : tuple of Network
        The innermost level first.
    host_power : float
        Rating of a node beside the power limits of its devices, per device [W]; 0 where not
        stated.
    price : float
        One device on demand [USD/h]; 0 where none is known.
    host : Host
        Where state of training may wait.
    """

    devices_per_node: int
    network: tuple[Network, ...]
    host_power: float = 0.0
    price: float = 0.0
    host: Host = Host()

    @property
    def scale_up_devices(self) -> int:
        """Devices within the levels of bounded size: a node, an NVL72 rack, a TPU slice."""
        bounded = math.prod(level.size for level in self.network if level.size)
        return max(bounded, self.devices_per_node)


@dataclass(frozen=True)
class Calibrated:
    """A fitted number with its prior, its physical bounds and its data.

    Parameters
    ----------
    value, prior, low, high : float
        Value in use, value before the fit, bounds of what is physical; SI units.
    source : str
        Data and fit behind the value.
    unit : str
        SI unit; empty for pure numbers.
    adjustable : bool
        Whether ``perfmodel calibrate`` may fit it to measurements.
    uncertainty : float
        Standard deviation of the fitted value, in its unit; 0 where not known.
    fit : str
        Id in ``fits.toml`` of the fit behind the value; empty where there is none.
    reason : str
        Why a fitted value lies on a bound, or more than three times from its prior.
    trust : {"calibrated", "transferred", "prior", "fact"}
        Whether the value was fitted to this device, comes from measured relatives by rule, or
        from none; facts need no measurement.
    """

    value: float
    prior: float
    low: float
    high: float
    source: str
    unit: str = ""
    adjustable: bool = False
    uncertainty: float = 0.0
    fit: str = ""
    reason: str = ""
    trust: str = "fact"
