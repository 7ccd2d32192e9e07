"""Bandwidths and latencies of SimAI-Analytical (parity mode only).

Everything here is SimAI's, oddities included, and serves nothing but
`perfmodel.workloads.twins.simai.step`: our own collective model does not use it. SimAI computes in
C++ ``float``, so these functions do too.

Sources: aliyun/SimAI (Apache-2.0) f5efb5a9, formulas unchanged in cef83f9d:
``astra-sim/system/calbusbw.h`` and ``calbusbw.cc`` (constants, `bus_bandwidth`,
`bandwidth_ratio`), ``astra-sim/workload/Layer.cc`` (`LATENCY`, `group_layout`),
``inputs/ratio/{nic,nvlink,ata}_ratio.csv`` (``ratios.csv``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.files import read_rows

# Per direction [GB/s]: NVLink rate × links, and an adapter's achievable rate.
NVLINK_RATE = {
    "A100": 20.0 * 12,
    "A800": 20.0 * 8,
    "H100": 20.6 * 18,
    "H800": 20.6 * 8,
    "H20": 20.6 * 18,
}
NIC_RATE = {"CX6": 23.5, "CX7": 48.5, "BF3": 48.5}

# Time of a message of 2 B to 1 MiB by members of the group [ns]; any other group: 0.
LATENCY = {2: 10e3, 4: 12e3, 8: 15e3, 16: 66e3, 32: 135e3, 64: 200e3, 128: 320e3}
SMALLEST_LARGE_MESSAGE = 2**20  # [B]

# Achieved share of the bus bandwidth by size (rows: 16 MiB × 2^i) and nodes (columns:
# 1, 2, 4 … 128). Blank cells of the files count as 1. The last column, "Multi 16", stands
# for groups with one member per node.
RATIO_SIZES = 2**24 * 2 ** np.arange(11)
_RATIOS = read_rows(Path(__file__).with_name("ratios.csv"))


def _ratios(of: str) -> NDArray[np.float64]:
    columns = (*(str(2**i) for i in range(8)), "multi")
    rows = [row for row in _RATIOS if row["of"] == of]
    return np.array([[float(row.get(column, 1.0)) for column in columns] for row in rows])


NIC_RATIO, NVLINK_RATIO, ALL_TO_ALL_RATIO = map(_ratios, ("nic", "nvlink", "all_to_all"))
MULTI = 9  # nodes that select the last column
_COLUMN = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5, 64: 6, 128: 7, MULTI: 8}
_OTHER_COLUMN = 4  # any other number of nodes is taken for 16

TENSOR = "tensor"
DATA = "data"
EXPERT = "expert"
EXPERT_DATA = "expert data"


def is_number(value: Any) -> bool:
    """Tell whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    return bool(-math.inf < value < math.inf)


@dataclass(frozen=True, slots=True)
class SimaiSystem:
    """The machine that SimAI-Analytical assumes.

    Parameters
    ----------
    devices_per_node : int
        ``-g_p_s``.
    nics_per_node : int
        ``-n_p_s``.
    gpu_type : str, optional
        ``-g_type``, of `NVLINK_RATE`; may be missing where `nvlink_bandwidth` is given.
    nic_type : str
        ``-nic_t``, of `NIC_RATE`.
    nvlink_bandwidth, nic_bandwidth : float, optional
        ``-nv`` and ``-nic``, in B/s instead of GB/s; take precedence over the types.
        SimAI counts 2^30 bytes for each 10^9.

    Raises
    ------
    HardwareError
        A type is unknown, a number not positive, or the bandwidth of a device left open.
    """

    devices_per_node: int
    nics_per_node: int
    gpu_type: str | None = None
    nic_type: str = "CX7"
    nvlink_bandwidth: float | None = None
    nic_bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name in ("devices_per_node", "nics_per_node"):
            value = getattr(self, name)
            if not is_number(value) or value != value // 1 or value < 1:
                raise HardwareError(f"{name} {value!r} should be a whole number >= 1")
        for name in ("nvlink_bandwidth", "nic_bandwidth"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise HardwareError(f"{name} {value!r} should be a number of B/s > 0")
        for name, known in (("gpu_type", NVLINK_RATE), ("nic_type", NIC_RATE)):
            value = getattr(self, name)
            if value is not None and value.upper() not in known:
                hint = did_you_mean(value.upper(), known)
                raise HardwareError(f"SimAI knows no {name} '{value}'{hint}")
        if self.gpu_type is None and self.nvlink_bandwidth is None:
            raise HardwareError("SimAI needs a gpu_type or an nvlink_bandwidth")

    @property
    def nvlink_rate(self) -> np.float32:
        """Bandwidth of a device's links, in SimAI's GB/s."""
        if self.nvlink_bandwidth is not None:
            return np.float32(self.nvlink_bandwidth / 1e9)
        return np.float32(NVLINK_RATE[str(self.gpu_type).upper()])

    @property
    def nic_rate(self) -> np.float32:
        """Bandwidth of one adapter, in SimAI's GB/s."""
        if self.nic_bandwidth is not None:
            return np.float32(self.nic_bandwidth / 1e9)
        return np.float32(NIC_RATE[self.nic_type.upper()])


@dataclass(frozen=True, slots=True)
class Degrees:
    """Tensor-, expert- and data-parallel sizes of a run."""

    tensor_parallel: int
    expert_parallel: int
    data_parallel: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How SimAI spreads a group: nodes, and devices and adapters of each that serve it."""

    nodes: int
    devices: int
    nics: int


def group_layout(group: str, members: int, degrees: Degrees, system: SimaiSystem) -> Layout | None:
    """Return how a group lies on the nodes; None where SimAI counts no time.

    Notes
    -----
    The nodes of data-parallel groups are their members, whatever the node size
    (``Layer::compute_time``). All divisions are whole.
    """
    per_node, nics, tensor_parallel = (
        system.devices_per_node,
        system.nics_per_node,
        degrees.tensor_parallel,
    )
    if group == TENSOR:
        if tensor_parallel <= per_node:
            return Layout(1, tensor_parallel, nics)
        return Layout(tensor_parallel // per_node, per_node, nics)
    if members <= 1:
        return None
    if group == EXPERT:
        if tensor_parallel * members <= per_node:
            return Layout(1, per_node // tensor_parallel, nics)
        share = nics // per_node if tensor_parallel > per_node else nics // tensor_parallel
        return Layout(
            tensor_parallel * members // per_node, max(per_node // tensor_parallel, 1), share
        )
    if group in (DATA, EXPERT_DATA):
        width = tensor_parallel if group == DATA else tensor_parallel * degrees.expert_parallel
        if width <= per_node:
            return Layout(members, per_node // width, nics // width)
        return Layout(members, 1, nics // per_node)
    return None


def bus_bandwidth(all_to_all: bool, layout: Layout, system: SimaiSystem) -> tuple[np.float32, bool]:
    """Return SimAI's bus bandwidth of a group, and whether NVLink bounds a ring over nodes.

    Returns
    -------
    bandwidth : float32
        [GB/s, taken as GiB/s]. 0 for a group of one device, -1 where no adapter is left
        for the group: SimAI's own values, which make its time meaningless.
    nvlink_bound : bool
        Selects the ratio table.

    Notes
    -----
    SimAI forces the ring algorithm (``cal_busbw``), so its tree and NVLS formulas never act.
    """
    nodes, devices = layout.nodes, layout.devices
    nvlink, nics = system.nvlink_rate, np.float32(layout.nics)
    if nodes * devices == 1:
        return np.float32(0), False
    if layout.nics < 1:
        return np.float32(-1), False
    if nodes == 1:
        return nvlink, False
    scale_out = system.nic_rate * nics
    if all_to_all:
        ranks, remote = np.float32(nodes * devices - 1), np.float32((nodes - 1) * devices)
        return scale_out / np.float32(devices) * ranks / remote, False
    if devices == 1:
        return scale_out, False
    # Rings that cross between adapters use a device's links a little less than once each.
    inside = (
        nvlink * np.float32(devices) / np.float32(devices - 1) if scale_out > nvlink else nvlink
    )
    return min(inside, scale_out), bool(inside < scale_out)


def bandwidth_ratio(
    kind: str,
    group: str,
    size: NDArray[np.int64],
    members: int,
    tensor_parallel: int,
    per_node: int,
    nvlink_bound: bool,
) -> NDArray[np.float32]:
    """Return the achieved share of the bus bandwidth for each size.

    Only gathers and scatters of tensor-parallel groups and all-to-alls have one; all-reduces
    and everything data-parallel get 1 (``Layer::cal_ratio``).

    Raises
    ------
    ValueError
        A size is above 16 GiB: SimAI aborts with "Data size out of range".
    """
    if kind == "ALLTOALL" and group == EXPERT:
        if tensor_parallel * members <= per_node:
            return _ratio(ALL_TO_ALL_RATIO, 1, size)
        nodes = MULTI if tensor_parallel >= per_node else tensor_parallel * members // per_node
        return _ratio(ALL_TO_ALL_RATIO, nodes, size)
    if group == TENSOR and kind in ("ALLGATHER", "REDUCESCATTER", "ALLTOALL"):
        table = NVLINK_RATIO if nvlink_bound else NIC_RATIO
        nodes = 1 if tensor_parallel < per_node else tensor_parallel // per_node
        return _ratio(ALL_TO_ALL_RATIO if kind == "ALLTOALL" else table, nodes, size)
    return np.ones(len(size), np.float32)


def _ratio(table: NDArray[np.float64], nodes: int, size: NDArray[np.int64]) -> NDArray[np.float32]:
    """Interpolate a column linearly in size, relative to its last row (``getValue``)."""
    if (size > RATIO_SIZES[-1]).any():
        raise ValueError("Data size out of range")
    column = table[:, _COLUMN.get(nodes, _OTHER_COLUMN)]
    # A size on a row belongs to the interval below it, as in SimAI's search.
    low = np.clip(np.searchsorted(RATIO_SIZES, size) - 1, 0, len(RATIO_SIZES) - 2)
    above = size - RATIO_SIZES[low]
    width = RATIO_SIZES[low + 1] - RATIO_SIZES[low]
    value = column[low] + (column[low + 1] - column[low]) * above / width
    value = np.where(above < 0, column[0], value) / column[-1]
    return np.where(size == 0, 1.0, value).astype(np.float32)
