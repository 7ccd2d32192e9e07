"""Grids of collectives as ASTRA-sim times them; the labelled form of `collective`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.base.collectives import SIMULATED
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.table import Column, Table, described
from perfmodel.sweeps.collective_grids import bus_factor
from perfmodel.sweeps.grid_dataset import SCHEMA_VERSION, Axis, cartesian
from perfmodel.workloads.twins.astra.collective import (
    AstraNetwork,
    AstraSystem,
    simulate_collectives,
)


def astra_grid(
    network: AstraNetwork,
    system: AstraSystem,
    collectives: Sequence[str],
    sizes: Sequence[int],
    *,
    engine: str = "congestion-unaware",
    label: str = "astra",
) -> Table:
    """Time collectives over all devices of a network of ASTRA-sim.

    Parameters
    ----------
    network : AstraNetwork
    system : AstraSystem
    collectives : sequence of str
    sizes : sequence of int
        [B] as nccl-tests counts, as in `perfmodel.sweeps.collective_grids`; ASTRA-sim's own
        comm_size of an all-gather is the share of one device.
    engine : {"congestion-unaware", "congestion-aware"}
    label : str
        Name of the system in the dataset.

    Returns
    -------
    Table
        Dimensions ``hardware`` (one) and ``shape``: ``time`` and ``time_fastest`` [s] of the
        last and the first device, ``algorithm_bandwidth`` and ``bus_bandwidth`` [B/s].

    Raises
    ------
    DataError
        Unknown collective, or an all-gather that does not divide among the devices.
    HardwareError
        The simulator itself cannot time it.
    """
    members = network.devices
    for name in collectives:
        if name not in SIMULATED:
            raise DataError(f"ASTRA-sim has no collective '{name}'{did_you_mean(name, SIMULATED)}")
    uneven = [size for size in sizes if size % members]
    if uneven and "all_gather" in collectives:
        raise DataError(
            f"an all_gather of {uneven[0]} B does not divide among the {members} devices"
        )
    axes = [
        Axis("collective", collectives, "1", "collective operation"),
        Axis("size", sizes, "B", "size as nccl-tests counts it"),
    ]
    columns = cartesian(axes)
    found = []
    for name in collectives:
        share = members if name == "all_gather" else 1
        amounts = np.array(sizes, np.int64) // share
        found.append(simulate_collectives(network, system, name, amounts, engine=engine))
    seconds = np.concatenate(found) * 1e-9
    factor = np.concatenate(
        [np.repeat(bus_factor(name, members), len(sizes)) for name in collectives]
    )
    bandwidth = columns["size"] / seconds[:, 0]
    variables = {
        "time": (seconds[:, 0], "s", "time until the last device is done"),
        "time_fastest": (seconds[:, 1], "s", "time until the first device is done"),
        "algorithm_bandwidth": (bandwidth, "B/s", "size over time (algbw of nccl-tests)"),
        "bus_bandwidth": (bandwidth * factor, "B/s", "busbw of nccl-tests"),
    }
    implementation = [",".join(system.implementation(name)) for name in collectives]
    along = {axis.name: (columns[axis.name], axis.units, axis.long_name) for axis in axes} | {
        "members": (np.full(bandwidth.size, members), "1", "devices of the network"),
        "implementation": (
            np.repeat(implementation, len(sizes)),
            "1",
            "algorithm of each dimension",
        ),
    }
    coordinates = {
        "shape": Column(
            "shape", np.arange(bandwidth.size), {"units": "1", "long_name": "row of the grid"}
        ),
        "hardware": Column(
            "hardware", [label], {"units": "1", "long_name": "network of ASTRA-sim"}
        ),
    } | {
        name: Column("shape", values, {"units": units, "long_name": text})
        for name, (values, units, text) in along.items()
    }
    data = {
        name: Column(("hardware", "shape"), values[None], {"units": units, "long_name": text})
        for name, (values, units, text) in variables.items()
    }
    attributes = described(
        "Times of collectives as ASTRA-sim computes them",
        SCHEMA_VERSION,
        kernel="collective",
        engine=engine,
        network=repr(network),
        system=repr(system),
    )
    return Table(data, coordinates, attributes)
