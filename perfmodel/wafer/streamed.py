"""Rows of a projection for chips that read weights and cache from memory beside their cores."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.columns import Floats
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import BEYOND_SRAM, CACHE_BEYOND_SRAM, CLOSED_ROWS, VALID
from perfmodel.model.build import ModelSpec
from perfmodel.model.state import sequence_state
from perfmodel.wafer.chips import ELEMENT_BYTES, chip_times, resident_parameters
from perfmodel.wafer.device import default_precision
from perfmodel.wafer.mappings import WaferGrid


def streamed_grid(
    model: ModelSpec, mappings: WaferGrid, hardware: MeshHardware, phase: str, precision: str
) -> tuple[Floats, NDArray[np.int64]]:
    """Project a model on chips with memory beside their cores.

    Parameters
    ----------
    model : ModelSpec
    mappings : WaferGrid
        Of which context and batch count: all cores work on every product, and the model is
        tensor parallel over all chips.
    hardware : MeshHardware
    phase : {"decode", "prefill"}
    precision : str
        Of weights and cache; default: 8-bit blocks where the chip has them, else 16 bit.

    Returns
    -------
    values : array, shape (len(CLOSED_ROWS), mappings)
        [s, B, 1]; bytes of a chip's memory; NaN where the weights do not fit.
    status : array of int, shape (mappings,)

    Raises
    ------
    DataError, HardwareError
        As `chip_times`.
    """
    name = precision or ("bfp8" if "bfp8" in hardware.macs_per_cycle else "")
    name = name or default_precision(hardware)
    found = np.full((len(CLOSED_ROWS), len(mappings)), math.nan)
    status = np.zeros(len(mappings), np.int64)
    at = {row: place for place, row in enumerate(CLOSED_ROWS)}
    known: dict[tuple[int, int], int] = {}
    for i in range(len(mappings)):
        key = int(mappings["context"][i]), int(mappings["batch"][i])
        if key in known:  # other fields change nothing
            found[:, i], status[i] = found[:, known[key]], status[known[key]]
            continue
        known[key] = i
        context, batch = key
        element = ELEMENT_BYTES.get(name, 2.0)
        weights = resident_parameters(model) * element / hardware.chips
        token = (
            sequence_state(model, context, "fp8").total * element * batch / hardware.chips / context
        )
        free = hardware.dram_capacity - weights
        status[i] = VALID if token * context <= free else CACHE_BEYOND_SRAM
        longest = math.floor(free / token) if token > 0.0 else math.inf
        found[at["weight_bytes"], i] = weights
        found[at["cache_bytes"], i] = token * context
        found[at["meshes_needed"], i] = math.ceil(
            (weights + token * context) * hardware.chips / hardware.dram_capacity / hardware.chips
        )
        found[at["cache_tokens_row"], i] = found[at["cache_tokens_shifted"], i] = max(longest, 0)
        found[at["sram_used"], i] = 0.0
        if free < 0.0:
            status[i] = BEYOND_SRAM
            continue
        times = chip_times(
            model, hardware, phase=phase, batch=batch, context=context, precision=name
        )
        found[at["latency"], i] = times.time
        found[at["layer_time"], i] = times.time / model.num_layers
        found[at["compute_time"], i] = times.compute
        found[at["memory_time"], i] = max(0.0, times.memory - times.compute)
        found[at["chip_time"], i] = times.network
        found[at["host_time"], i] = times.host
        for row in ("sram_time", "issue_time", "network_time", "transfer_time", "link_time"):
            found[at[row], i] = 0.0
        share = hardware.constants.get("mac_fraction", 1.0) * times.compute / times.time
        found[at["utilization"], i] = share
        found[at["region_count"], i] = 1.0
        found[at["layers_per_region"], i] = model.num_layers
        found[at["activation_bytes"], i] = 0.0
    return found, status
