"""A mesh of cores as the closing kernel wants it, in given number formats."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.hwprofiles.mesh import MeshHardware
from perfmodel.kernels.wafer.columns import MeshDevice

ELEMENT_BYTES: Mapping[str, float] = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    # 16 elements share an exponent of 8 bit (Tenstorrent's block formats).
    "bfp8": 1.0625,
    "bfp4": 0.5625,
}
"""One number with its part of a shared exponent [B]."""

PREFERRED = ("fp16", "bf16")


def default_precision(hardware: MeshHardware) -> str:
    """Return 16 bit where the mesh multiplies such numbers, else its first format."""
    for name in (*PREFERRED, *hardware.macs_per_cycle):
        if name in hardware.macs_per_cycle:
            return name
    raise HardwareError(f"{hardware.name}: 'macs_per_cycle' is empty")


def mesh_device(
    hardware: MeshHardware, precision: str = "", cache_precision: str = ""
) -> MeshDevice:
    """Return the numbers of a mesh in given formats.

    Parameters
    ----------
    hardware : MeshHardware
    precision : str
        Of weights, at whose rate products run; default: `default_precision`. Activations take
        2 B in all formats of at most 16 bit, else 4.
    cache_precision : str
        Of keys and values; default: as activations.

    Raises
    ------
    HardwareError
        A format that is unknown, or at which the mesh does not multiply.
    """
    name = precision or default_precision(hardware)
    for given in (name, cache_precision or name):
        if given not in ELEMENT_BYTES:
            raise HardwareError(
                f"precision: unknown format '{given}'{did_you_mean(given, ELEMENT_BYTES)}"
            )
    peak = hardware.peak_macs(name)
    element = 4.0 if name == "fp32" else 2.0
    constants = hardware.constants
    return MeshDevice(
        rate=peak * constants.get("mac_fraction", 1.0),
        peak=peak,
        sram=hardware.sram_per_core - hardware.sram_reserved,
        sram_read=hardware.sram_read,
        sram_write=hardware.sram_write,
        link_width=hardware.link_width,
        hop=hardware.hop_cycles,
        ramp=hardware.ramp_cycles,
        stage=constants.get("stage_latency", 0.0),
        routes=float(hardware.routes),
        loop_issue=constants.get("loop_issue", 0.0),
        vector_issue=constants.get("vector_issue", 0.0),
        element_cycles=constants.get("element_cycles", 0.0),
        clock=hardware.clock,
        cores=float(hardware.cores),
        rows=float(hardware.rows),
        columns=float(hardware.columns),
        chips=float(hardware.chips),
        chip_bandwidth=hardware.chip_bandwidth,
        chip_latency=hardware.chip_latency,
        element=element,
        weight=ELEMENT_BYTES[name],
        cache=ELEMENT_BYTES[cache_precision] if cache_precision else element,
    )
