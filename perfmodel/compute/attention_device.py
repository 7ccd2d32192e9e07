"""What the attention kernels need to know of a profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import HardwareError, did_you_mean
from perfmodel.base.precisions import (
    ATTENTION_KINDS,
    ATTENTION_PRECISIONS,
    CACHE_FORMATS,
    OPERAND_BYTES,
    attention_rule,
    cache_rule,
)
from perfmodel.compute.library import attention_facts, library_facts
from perfmodel.compute.stream import check_reuse
from perfmodel.hwprofiles import Hardware
from perfmodel.hwprofiles.constants import Lookup, known

if TYPE_CHECKING:
    from perfmodel.kernels.attention.device import AttentionDevice

REFERENCE = "reference"
"""Library whose facts hold where neither the library of a call nor the profile says otherwise."""


def attention_constants(hardware: Hardware, library: str = "") -> Lookup:
    """Return the constants of a library's kernels.

    Raises
    ------
    HardwareError
        The profile has no ``[calibration.attention]``.
    """
    words = {"library": library} if library else {}
    facts, defaults = attention_facts(library), attention_facts(REFERENCE)
    return hardware.lookup("attention", facts=facts, defaults=defaults, **words)


def attention_device(
    hardware: Hardware,
    precision: str,
    *,
    kv_precision: str | None = None,
    library: str = "",
    steady: bool = False,
    alone: bool = False,
    copies: float = 0.0,
    resident: float = 0.0,
) -> AttentionDevice:
    """Return what the attention kernels need to know of a device.

    Parameters
    ----------
    hardware : Hardware
        Profile with an ``[calibration.attention]`` table; its datasheet facts set rates,
        bandwidths, capacities and power.
    precision : {"bf16", "fp16", "fp8"}
        Of the matrix products and of the queries.
    kv_precision : {"bf16", "fp16", "fp8", "nvfp4"}, optional
        Of the stored keys and values; default: that of the products. Over nvfp4 products run in
        fp8, whatever `precision` is.
    library : str
        Whose kernels, where the profile knows them apart: ``portable`` for those in a portable
        language (Triton), ``flashinfer``, ``trtllm``; otherwise those of the reference
        (FlashAttention, or the vendor's where it is faster).
    steady : bool
        True inside a training step: the power limit is felt at once, and shared with all
        else that runs (``calibration.gemm.steady_energy_ratio``).
    alone : bool
        Of a steady load: nothing else runs, as in a benchmark that lasts.
    copies : float
        Calls until the same queries, keys and values come up again: 1 where a benchmark
        replays one call; 0: they come from memory, as inside a model.
    resident : float
        In its place: all bytes that are in use from call to call [B].

    Returns
    -------
    AttentionDevice
        Rates, tiles and efficiencies.

    Raises
    ------
    HardwareError
        Unknown precision, one that the device lacks, or a missing calibration key.
    DataError
        Copies below 1, or a negative number of bytes.
    """
    from perfmodel.kernels.attention.device import AttentionDevice, PortableKernel, SerialKernel
    from perfmodel.kernels.recurrence.blocks import SHARED_BYTES_PER_CLOCK

    check_reuse("attention", resident, copies=copies)
    stored = precision if kv_precision is None else kv_precision
    for name, known_formats in ((precision, ATTENTION_PRECISIONS), (stored, CACHE_FORMATS)):
        if name not in known_formats:
            raise HardwareError(
                f"attention has no precision '{name}'{did_you_mean(name, known_formats)}"
            )
    check_cache(hardware, stored)
    cache = cache_rule(stored)
    if cache.own_products:
        precision = cache.products
    device = hardware.device
    memory = device.memory
    constant = attention_constants(hardware, library)
    energy = constant("energy_per_flop")
    # Portable kernels have one tile for heads of all widths.
    narrow_tile = "query_tile" if constant("portable") else "narrow_query_tile"
    if steady and not alone:
        energy *= hardware.calibrated("gemm", "steady_energy_ratio")
    scaled_by = attention_rule(precision)  # fp8_matrix, or none
    narrow = constant(scaled_by) if scaled_by else 1.0
    facts: dict[str, Any] = dict(
        matrix_rate=float(device.peak(precision)),
        exponential_rate=float(device.special_function_rate),
        vector_rate=float(device.vector_flops),
        units=float(device.compute_units),
        bandwidth=float(memory.bandwidth),
        cache_bandwidth=float(memory.l2_bandwidth) * constant("cache_efficiency"),
        cache_capacity=float(memory.last_capacity),
        scratchpad=float(memory.shared_memory_per_unit),
        scratchpad_bandwidth=SHARED_BYTES_PER_CLOCK * device.boost_clock * device.compute_units,
        power_limit=float(device.tdp),
        query_bytes=OPERAND_BYTES[precision],
        key_bytes=OPERAND_BYTES[stored],
        output_bytes=OPERAND_BYTES["bf16"],  # O and gradients stay wide
        narrow_query_tile=constant(narrow_tile, constant("query_tile")),
        backward_wide_key_tile=constant("backward_wide_key_tile", constant("backward_key_tile")),
        portable_kernel=PortableKernel(**asdict(library_facts("portable_attention")["portable"])),
        serial_kernel=SerialKernel(**asdict(library_facts("serial_attention")["trtllm"])),
        matrix_efficiency=constant("matrix_efficiency") * narrow,
        # products over a latent cache reach as much of the fp8 rate as of the bf16 rate
        latent_efficiency=constant("latent_efficiency") / narrow,
        energy_per_flop=energy * OPERAND_BYTES[precision] / 2.0,
        power_exponent=float(hardware.calibrated("gemm", "power_exponent")),
        heat_time=0.0 if steady else float(hardware.calibrated("gemm", "heat_time")),
        copies=float(copies),
        resident=float(resident),
        conversion_operations=constant("conversion_operations") + cache.conversion,
    )
    # Whatever else it has is a number of ``[calibration.attention]`` as it stands.
    facts |= {key: constant(key) for key in AttentionDevice._fields if key not in facts}
    return AttentionDevice(**facts)


def check_cache(hardware: Hardware, precision: str, kinds: Iterable[str] = ()) -> None:
    """Refuse a format of cached keys and values for which there are no kernels.

    Parameters
    ----------
    hardware : Hardware
    precision : str
        Of `perfmodel.base.precisions.CACHE_FORMATS`.
    kinds : iterable of str
        What attention over it is, of `perfmodel.base.precisions.ATTENTION_KINDS`.

    Raises
    ------
    StrategyError
        The format has no rule for its time.
    HardwareError
        The device, or such attention, has no kernels for it.
    """
    rule = cache_rule(precision)
    for kind in kinds:
        if kind not in rule.kinds:
            raise HardwareError(
                f"{ATTENTION_KINDS[kind]} has no kernels for a cache in {precision} "
                f"({rule.source}); bf16 and fp8 are possible"
            )
    if rule.instructions and hardware.device.instruction_class != rule.instructions:
        raise HardwareError(
            f"hardware profile '{hardware.name}' has no kernels for a cache in {precision}: they "
            f"need {rule.instructions} instructions ({rule.source}); bf16 and fp8 are possible"
        )


def deterministic_slowdown(hardware: Hardware, library: str = "") -> float:
    """Time of a deterministic backward pass relative to one that adds dQ as it comes.

    Blocks add their share of dQ in one order and wait for each other (FlashAttention, cuDNN). A
    prior from published rates, not a measurement of this model's tables.
    """
    prior = known("attention")["deterministic_slowdown"].prior
    return attention_constants(hardware, library)("deterministic_slowdown", prior)


def generation_slowdown(hardware: Hardware, generation: int, backward: bool = False) -> float:
    """Time of an older generation of attention kernels relative to the device's best.

    Read from ``calibration.attention.generation_<n>_slowdown`` (1 where the profile has none),
    and for backward passes from ``generation_<n>_backward_slowdown`` where that is stated.
    """
    found = hardware.lookup("attention")
    forward = found(f"generation_{generation}_slowdown", 1.0)
    return found(f"generation_{generation}_backward_slowdown", forward) if backward else forward
