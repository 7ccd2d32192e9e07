"""Grids of collectives: every combination of the axes on one or more systems.

The dataset has the form of `perfmodel.sweeps.grid_dataset`. A combination that cannot be, such as
a reduction in switches that do not reduce, stays in it with NaN as its time and with the
reason as its ``status``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.collectives import ALGORITHMS, COLLECTIVES, PROTOCOLS, bus_factor
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.regimes import regime
from perfmodel.base.table import Axis, Column, Table, cartesian, flags
from perfmodel.compute.collectives import algorithms_of, collective_choices
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.rows import width_table
from perfmodel.sweeps.grid_dataset import COLLECTIVE_VARIABLES, KERNEL_VARIABLES, kernel_table

AUTO = "auto"
NONE = "none"
"""What stands for the algorithm or protocol of a group of one, and where there is no time."""

STATUS_REASONS: Mapping[str, str] = {
    "ok": "",
    "not_for_collective": "the algorithm does not do this collective",
    "no_in_network_reduction": "no switch between these members reduces",
    "not_with_protocol": "the algorithm does not use this protocol here",
    "placement_impossible": "nodes of this system cannot hold that many members, evenly spread",
    "not_on_this_network": "the algorithm does not run on this network",
}
STATUSES = tuple(STATUS_REASONS)

_NAMES: Mapping[str, tuple[str, ...]] = {
    "collective": COLLECTIVES,
    "algorithm": (*ALGORITHMS, AUTO),
    "protocol": (*PROTOCOLS, AUTO),
}
_AXES = {
    "collective": ("1", "collective operation"),
    "algorithm": ("1", "algorithm asked for; auto: the library's choice"),
    "protocol": ("1", "protocol asked for; auto: the library's choice"),
    "size": ("B", "size as nccl-tests counts it"),
    "members": ("1", "ranks of the group"),
    "members_per_node": ("1", "ranks of the group in each node"),
    "stride": ("1", "distance between neighbouring ranks of the group"),
}


def strides(
    hardware: Hardware, members: ArrayLike, members_per_node: ArrayLike
) -> NDArray[np.int64]:
    """Return the stride that puts so many members of a group into each node.

    Parameters
    ----------
    hardware : Hardware
    members : array_like of int
    members_per_node : array_like of int
        As many as that, or all members where these are fewer.

    Returns
    -------
    int64[rows]
        0 where the nodes have fewer devices, or cannot spread their members evenly.

    Examples
    --------
    16 members, 2 in each node of 8: every fourth rank.

    >>> from perfmodel.hwprofiles import load_hardware
    >>> strides(load_hardware("dgx-h100"), 16, 2).tolist()
    [4]
    """
    ranks, wanted = np.broadcast_arrays(np.atleast_1d(members), np.atleast_1d(members_per_node))
    devices = hardware.system.devices_per_node
    inside = np.minimum(ranks, wanted)
    spread = np.where(ranks > wanted, devices // np.maximum(inside, 1), 1)
    possible = (inside <= devices) & ((ranks <= wanted) | (devices % np.maximum(inside, 1) == 0))
    return np.where(possible, spread, 0).astype(np.int64)


def collective_grid(
    rows: Sequence[Hardware],
    axes: Mapping[str, Sequence[Any]],
    *,
    swept: Mapping[str, Sequence[float]] | None = None,
) -> Table:
    """Time every combination of collectives, algorithms, sizes and groups.

    Parameters
    ----------
    rows : sequence of Hardware
    axes : mapping of str to sequence
        ``collective``, ``size`` [B] and ``members``; may have ``algorithm`` and ``protocol``
        (default: ``auto``), and ``stride`` (default: 1) or ``members_per_node``.
    swept : mapping of str to sequence of float, optional
        Values of swept paths of the profile, one per row of hardware.

    Returns
    -------
    Table
        Dimensions ``hardware`` and ``shape``; the axes are coordinates along ``shape``.
        ``time`` [s], ``time_low`` and ``time_high`` (10-90 % band by
        ``[calibration.uncertainty]``), ``algorithm_bandwidth``, ``bus_bandwidth`` [B/s],
        ``chosen_algorithm``, ``chosen_protocol`` and ``status`` (flags), ``stride``.

    Raises
    ------
    DataError
        Unknown axis, collective, algorithm or protocol, both ways to place a group, numbers
        out of range, or too many combinations.
    HardwareError
        A profile has no network that collectives could run on.
    """
    grid = _checked_axes(axes)
    columns = cartesian(grid, len(rows), len(KERNEL_VARIABLES))
    coded = cartesian([_coded(axis) for axis in grid], results=len(KERNEL_VARIABLES))
    found = [_evaluate(hardware, coded) for hardware in rows]
    results = {name: np.stack([one[name] for one in found]) for name in found[0]}
    time = {"time": results["time"]}
    table = kernel_table("collective", rows, grid, columns, time, (), swept)
    table.attrs["title"] = "Times of collectives"
    labels = {
        "chosen_algorithm": (*ALGORITHMS, NONE),
        "chosen_protocol": (*PROTOCOLS, NONE),
        "status": STATUSES,
    }
    for name, variable in COLLECTIVE_VARIABLES.items():
        if name in results and name not in table.coords:
            about: dict[str, Any] = {**variable.attributes()}
            about |= flags(labels[name]) if name in labels else {}
            table[name] = Column(("hardware", "shape"), results[name], about)
    return table


def _checked_axes(axes: Mapping[str, Sequence[Any]]) -> list[Axis]:
    given = {"algorithm": [AUTO], "protocol": [AUTO], **axes}
    for name in given:
        if name not in _AXES:
            raise DataError(f"unknown axis '{name}' of collectives{did_you_mean(name, _AXES)}")
    if "stride" in given and "members_per_node" in given:
        raise DataError("stride and members_per_node both place a group; give one of them")
    if "members_per_node" not in given:
        given.setdefault("stride", [1])
    for name, names in _NAMES.items():
        for value in given.get(name, ()):
            if value not in names:
                raise DataError(f"unknown {name} '{value}'{did_you_mean(str(value), names)}")
    for name in dict.fromkeys(("collective", "size", "members", *given)):
        if not len(given.get(name, ())):
            raise DataError(f"no values of '{name}'; a grid of collectives needs at least one")
    for name in ("size", "members", "members_per_node", "stride"):
        least = 0 if name == "size" else 1
        for value in given.get(name, ()):
            if not (np.isfinite(value) and value >= least and (value == int(value) or not least)):
                whole = "a whole number" if least else "a number"
                raise DataError(f"{name} {value}: {whole} >= {least} is needed")
    return [Axis(name, given[name], *_AXES[name]) for name in _AXES if name in given]


def _coded(axis: Axis) -> Axis:
    """Return an axis of names as one of their codes; -1 for ``auto``."""
    if axis.name not in _NAMES:
        return axis
    names = _NAMES[axis.name]
    codes = [-1 if value == AUTO else names.index(value) for value in axis.values]
    return replace(axis, values=codes)


def _evaluate(hardware: Hardware, columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns of results of one system; names are codes."""
    collective, size, members = (columns[name] for name in ("collective", "size", "members"))
    if "stride" in columns:
        stride = columns["stride"].astype(np.int64)
    else:
        stride = strides(hardware, members, columns["members_per_node"])
    allowed = np.array(
        [[name in algorithms_of(kind) for name in ALGORITHMS] for kind in COLLECTIVES]
    )
    fits = (columns["algorithm"] < 0) | allowed[collective, columns["algorithm"]]
    status = np.where(fits, 0, STATUSES.index("not_for_collective")).astype(np.int8)
    status[stride == 0] = STATUSES.index("placement_impossible")

    time = np.full(size.size, np.nan)
    algorithm = np.full(size.size, len(ALGORITHMS), np.int8)
    protocol = np.full(size.size, len(PROTOCOLS), np.int8)
    cells = np.flatnonzero(status == 0)
    asked = columns["algorithm"][cells]
    calls = (collective[cells], size[cells], members[cells], stride[cells], asked)
    found = collective_choices(hardware, *calls, columns["protocol"][cells])
    runs = np.isfinite(found.time)
    time[cells] = np.where(runs, found.time, np.nan)
    algorithm[cells] = np.where(runs & (found.algorithm >= 0), found.algorithm, len(ALGORITHMS))
    protocol[cells] = np.where(runs & (found.protocol >= 0), found.protocol, len(PROTOCOLS))
    if not runs.all():
        with_any = np.isfinite(collective_choices(hardware, *calls).time)
        switches = [ALGORITHMS.index(name) for name in ("in_network", "in_network_tree")]
        in_network = np.isin(asked, switches)
        reason = np.where(in_network, "no_in_network_reduction", "not_on_this_network")
        reason = np.where(with_any, "not_with_protocol", reason)[~runs]
        status[cells[~runs]] = [STATUSES.index(name) for name in reason.tolist()]

    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = np.where(time > 0.0, size / time, np.nan)
    factor = np.empty(size.size)
    for code in np.unique(collective).tolist():
        chosen = collective == code
        factor[chosen] = bus_factor(COLLECTIVES[code], members[chosen])
    width = np.exp(width_table(hardware, "collective")[regime("collective", size)])
    return {
        "time": time,
        "time_low": time / width,
        "time_high": time * width,
        "algorithm_bandwidth": bandwidth,
        "bus_bandwidth": bandwidth * factor,
        "chosen_algorithm": algorithm,
        "chosen_protocol": protocol,
        "status": status,
        "stride": stride.astype(np.int32),
    }
