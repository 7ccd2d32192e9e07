"""What the engines answer as labelled tables: runs of text workloads, and grids of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.collectives import SIMULATED, bus_factor
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.base.table import Axis, Column, Table, cartesian, described
from perfmodel.kernels.variables import PHASES
from perfmodel.workloads.formats.astra_machine import AstraNetwork, AstraSystem
from perfmodel.workloads.twins.astra.collective import simulate_collectives

if TYPE_CHECKING:
    import xarray as xr

    from perfmodel.workloads.twins.astra_text.comparison import ModeComparison
    from perfmodel.workloads.twins.astra_text.native import NativeResult
    from perfmodel.workloads.twins.simai.step import SimaiResult

SCHEMA_VERSION = "1.0"
"""Of a grid of collectives: that of our own grids of kernels."""
PHASE_NAMES = ("phase", list(PHASES), {"units": "1", "long_name": "Pass of the training step"})


def run_dataset(result: Any) -> xr.Dataset:
    """Return the figures of a run with any engine of `perfmodel.workloads.twins.engines`."""
    from perfmodel.workloads.twins.astra_text.comparison import ModeComparison
    from perfmodel.workloads.twins.astra_text.native import NativeResult
    from perfmodel.workloads.twins.simai.step import SimaiResult

    if isinstance(result, NativeResult):
        return native_dataset(result)
    if isinstance(result, ModeComparison):
        return modes_dataset(result)
    if isinstance(result, SimaiResult):
        return simai_dataset(result)
    dataset: xr.Dataset = result.to_dataset()
    return dataset


def native_dataset(result: NativeResult) -> xr.Dataset:
    """Return the figures of ASTRA-sim 1.0's loop: by phase and layer, pass, and dimension [SI]."""
    import numpy as np
    import xarray as xr

    by_layer = {
        "compute_time": (result.compute_ns, "Computation"),
        "exposed_communication": (result.exposed_ns, "Communication that the loop waited for"),
        "communication_time": (result.communication_ns, "Communication, from issue to end"),
    }
    variables: dict[str, Any] = {
        name: (("phase", "layer"), values * 1e-9, {"units": "s", "long_name": text})
        for name, (values, text) in by_layer.items()
    }
    variables |= {
        "total_time": ((), result.total_ns * 1e-9, _named("s", "End of the run")),
        "pass_end": (("pass",), result.pass_end_ns * 1e-9, _named("s", "End of a training step")),
        "collectives": (("layer",), result.collectives, _named("1", "Collectives issued")),
        "chunks": ((), result.chunks, _named("1", "Chunks of all collectives")),
        "payload": (("dimension",), result.payload_bytes, _named("B", "Sent by a device")),
        "layer_name": (("layer",), np.array(result.names, object), _named("1", "Layer's name")),
    }
    indices = {
        "layer": (len(result.names), "Layer"),
        "pass": (len(result.pass_end_ns), "Training step"),
        "dimension": (len(result.payload_bytes), "Dimension of the network"),
    }
    coordinates: dict[str, Any] = {"phase": PHASE_NAMES}
    for name, (count, text) in indices.items():
        coordinates[name] = (name, np.arange(count), _named("1", text))
    return xr.Dataset(variables, coords=coordinates)


def modes_dataset(found: ModeComparison) -> xr.Dataset:
    """Return both modes by phase and layer [SI]."""
    import numpy as np
    import xarray as xr

    physical = found.physical
    by_layer = {
        "compute_time": (physical.compute_time, "s", "Computation"),
        "exposed_communication": (physical.exposed_time, "s", "What the loop waited for"),
        "communication_time": (physical.communication_time, "s", "From issue to end"),
        "collective_time": (physical.collective_time, "s", "One collective alone"),
        "exact_collective_time": (
            found.exact_collective_time,
            "s",
            "One collective alone, as ASTRA-sim 1.0 has it",
        ),
    }
    variables: dict[str, Any] = {
        name: (("phase", "layer"), values, {"units": units, "long_name": text})
        for name, (values, units, text) in by_layer.items()
    }
    exact = np.nan if found.native is None else found.native.total_ns / 1e9
    for name, value, text in (
        ("total_time", physical.total_time, "End of the run"),
        ("exact_total_time", exact, "End of the run, as ASTRA-sim 1.0 has it"),
    ):
        variables[name] = ((), value, {"units": "s", "long_name": text})
    one = {"units": "1"}
    names = np.array(physical.names, object)
    variables["layer_name"] = (("layer",), names, one | {"long_name": "Layer's name"})
    coordinates = {
        "phase": PHASE_NAMES,
        "layer": ("layer", np.arange(len(names)), one | {"long_name": "Layer"}),
    }
    return xr.Dataset(variables, coords=coordinates)


def simai_dataset(result: SimaiResult) -> xr.Dataset:
    """Return SimAI's figures: by phase and row of the workload, and the sums [s]."""
    import numpy as np
    import xarray as xr

    phases = [getattr(result, phase) for phase in PHASES]
    by_row = {
        "compute_time": ("compute", "Computation"),
        "communication_time": ("communication", "Collective"),
        "exposed_communication": ("exposed", "Communication that is not declared hidden"),
    }
    variables: dict[str, Any] = {
        name: (
            ("phase", "row"),
            np.array([getattr(phase, key) for phase in phases]),
            _named("s", text),
        )
        for name, (key, text) in by_row.items()
    }
    sums = {
        "total_time": (result.total, "One iteration"),
        "total_compute": (result.compute, "Computation of all rows"),
        **{
            f"exposed_{name}": (
                getattr(result, name),
                f"Exposed communication, {name.replace('_', ' ')}",
            )
            for name in (
                *("data_parallel", "expert_data_parallel", "tensor_parallel"),
                *("expert_parallel", "pipeline_parallel"),
            )
        },
        "bubble": (result.bubble, "Idle time of the pipeline"),
    }
    for name, (value, text) in sums.items():
        variables[name] = ((), value, _named("s", text))
    variables["row_name"] = (
        ("row",),
        np.array(result.name, object),
        _named("1", "Row's name"),
    )
    rows = ("row", np.arange(len(result.name)), _named("1", "Row of the workload"))
    return xr.Dataset(variables, coords={"phase": PHASE_NAMES, "row": rows})


def _named(units: str, text: str) -> dict[str, str]:
    """Return the attributes that every variable bears."""
    return {"units": units, "long_name": text}


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
    columns = cartesian(axes, results=4)
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
