"""Attention as a serving framework calls it: the kernel and what runs beside it.

A measured row of a serving framework is one replayed graph: the append of new keys and
values to the cache, small kernels that the framework needs (casts, copies of odd
layouts), and the attention kernel. Their number and bytes follow from what the framework
does; each costs the launch latency of the profile and its bytes, and a replay has its own
start (``calibration.attention.replay_latency``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.precisions import OPERAND_BYTES, cache_rule
from perfmodel.compute.attention import AttentionTimes, attention_times
from perfmodel.compute.attention_device import attention_constants, attention_device
from perfmodel.hwprofiles import Hardware
from perfmodel.software.library import library_facts

SERVING = tuple(library_facts("serving"))
"""Frameworks whose rows are replayed graphs."""

CAST = 2.0
"""Bytes that casting one element from 16 bits reads, beside those that it writes."""

SCALED_CAST = 6.0
"""The same after a division by the scale in place: 2 read, 2 written before."""


class Call(NamedTuple):
    """One attention call of a framework; whole numbers but `causal`.

    Attributes
    ----------
    framework, kernel, phase : str
        ``sglang``, …; name of the kernel; ``fwd``, ``bwd`` or ``decode``.
    kv_precision : str
        Of the cache.
    latent : bool
        Whether the call belongs to latent attention (MLA), absorbed or not.
    causal : bool
    batch, queries, heads, key_value_heads, width_qk, width_v : float
    planned : bool
        Whether FlashInfer plans the call on the device: prefill of its kernels for ``tcgen05``.
    """

    framework: str
    kernel: str
    phase: str
    kv_precision: str
    latent: bool
    causal: bool
    batch: float
    queries: float
    heads: float
    key_value_heads: float
    width_qk: float
    width_v: float
    planned: bool = False


class SmallKernels(NamedTuple):
    """Kernels beside the attention kernel, and the bytes that they read and write [B]."""

    launches: float
    moved: float


def small_kernels(call: Call) -> SmallKernels:
    """Return what a framework launches beside the attention kernel.

    Notes
    -----
    Every causal call appends its keys and values to the cache: one kernel that reads and
    writes them. What comes with it is a fact of the framework
    (`perfmodel.software.library.ServingCalls`): copies of keys and values of unequal width;
    scales and casts to an fp8 cache, in every phase for kernels of TensorRT-LLM, in decode for
    others; what precedes FlashInfer's prefill on Blackwell; assembly of queries and keys of latent
    prefill. Encoders have no cache; FlashAttention-3 pads their odd head widths.
    """
    element = OPERAND_BYTES[call.kv_precision]
    tokens = call.batch * call.queries
    stored = call.key_value_heads * (call.width_qk + call.width_v)
    if call.latent and call.phase == "decode":
        stored = call.width_qk
    launches, moved = 1.0, 2.0 * tokens * stored * element
    products = cache_rule(call.kv_precision).products
    narrow = products != ""
    cast = (CAST + OPERAND_BYTES.get(products, 0.0)) * tokens
    query_cast = cast * call.heads * call.width_qk
    if not call.causal:
        padded = call.kernel == "flash_attention_v3" and call.width_qk % 32 > 0
        return SmallKernels(2.0 if padded else 0.0, 0.0)
    habits = library_facts("serving").get(call.framework)
    if habits is None:
        return SmallKernels(launches, moved)
    if not call.latent:
        if call.width_qk != call.width_v:
            launches += habits.unequal_width_launches
        if call.planned:
            launches += habits.flashinfer_launches
        if narrow and call.kernel == "trtllm_mha":
            launches += habits.scaled_cast_launches
            if habits.scaled_cast_launches:
                moved += query_cast + (SCALED_CAST + element) * tokens * stored
        elif narrow and call.phase == "decode":
            if "triton" in call.kernel:
                launches += habits.portable_cast_launches
            elif "flashinfer" in call.kernel and "trtllm" not in call.kernel:
                launches += habits.flashinfer_cast_launches
            else:
                launches += habits.cast_launches
    elif call.phase == "fwd":
        launches += habits.latent_launches
        if habits.latent_width:
            moved = 2.0 * tokens * habits.latent_width * element
        if narrow and habits.latent_cast_launches:
            launches += habits.latent_cast_launches
            moved += query_cast + (CAST + element) * tokens * stored
    return SmallKernels(launches, moved)


def replayed_times(
    hardware: Hardware,
    precision: str,
    columns: Mapping[str, Any],
    launches: np.ndarray,
    moved: np.ndarray,
    *,
    kv_precision: str,
    library: str = "",
    copies: float = 1.0,
) -> AttentionTimes:
    """Return the times of calls that a benchmark replays alone, again and again.

    Parameters
    ----------
    hardware, precision, kv_precision, library
        See `perfmodel.compute.attention.attention_times`.
    columns : mapping of str to ndarray, shape (call,)
        Its other arguments, without `copies`: what fits the cache is there.
    launches, moved : ndarray, shape (call,)
        `small_kernels` of each call.
    copies : float
        Of its tensors, that the replays go round.

    Returns
    -------
    AttentionTimes
        `time` holds the whole replay; the other columns belong to the attention kernel.
    """
    found = attention_times(
        hardware,
        precision,
        **columns,
        copies=copies,
        kv_precision=kv_precision,
        library=library,
    )
    around = library if library == "trtllm" else ""  # the others name a kernel alone
    device = attention_device(hardware, precision, kv_precision=kv_precision, library=around)
    replay = attention_constants(hardware, around)("replay_latency")
    from perfmodel.kernels.attention.forward import CACHE_RAMP

    room = device.cache_share - copies * moved / device.cache_capacity
    hit = np.clip(1.0 + room / CACHE_RAMP, 0.0, 1.0)
    beside = launches * device.launch_latency
    beside += moved * (1.0 - hit) / (device.bandwidth * device.memory_efficiency)
    beside += moved * hit / device.cache_bandwidth
    return found._replace(time=found.time + beside + replay)
