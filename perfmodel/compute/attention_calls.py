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

from perfmodel.base.precisions import OPERAND_BYTES
from perfmodel.compute.attention import AttentionTimes, attention_times
from perfmodel.compute.attention_device import attention_constants, attention_device
from perfmodel.hwprofiles import Hardware

SERVING = ("sglang", "vllm", "trtllm")
"""Frameworks whose rows are replayed graphs."""

CAST = 3.0
"""Bytes of casting one element from 16 to 8 bits: 2 read, 1 written."""

SCALED_CAST = 7.0
"""The same after a division by the scale in place: 2 read, 2 written before."""

LATENT_CACHE = 576.0
"""Elements of one token in a latent cache (DeepSeek-V2: 512 + 64)."""


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


class SmallKernels(NamedTuple):
    """Kernels beside the attention kernel, and the bytes that they read and write [B]."""

    launches: float
    moved: float


def small_kernels(call: Call) -> SmallKernels:
    """Return what a framework launches beside the attention kernel.

    Notes
    -----
    Every causal call appends its keys and values to the cache: one kernel that reads and
    writes them. Besides,

    - SGLang stores keys and values of unequal width by indexed copies, two kernels each;
    - SGLang divides keys and values by their scales and casts them to an fp8 cache, and
      casts the queries, where its kernel is of TensorRT-LLM; with FlashAttention it casts
      in decode only, keys and values by one kernel each; with Triton the two casts take
      the time of one launch;
    - FlashInfer in prefill launches three more, by the floor of its rows;
    - latent attention in prefill assembles queries and keys from their two parts;
    - encoders have no cache; FlashAttention-3 pads their odd head widths.
    """
    element = OPERAND_BYTES[call.kv_precision]
    tokens = call.batch * call.queries
    stored = call.key_value_heads * (call.width_qk + call.width_v)
    if call.latent and call.phase == "decode":
        stored = call.width_qk
    launches, moved = 1.0, 2.0 * tokens * stored * element
    narrow = call.kv_precision == "fp8"
    query_cast = CAST * tokens * call.heads * call.width_qk
    if not call.causal:
        padded = call.kernel == "flash_attention_v3" and call.width_qk % 32 > 0
        return SmallKernels(2.0 if padded else 0.0, 0.0)
    if call.framework == "sglang" and not call.latent:
        if call.width_qk != call.width_v:
            launches += 4.0
        if call.kernel == "flashinfer" and call.phase == "fwd":
            launches += 3.0
        if narrow and call.kernel == "trtllm_mha":
            launches += 5.0
            moved += query_cast + SCALED_CAST * tokens * stored
        elif narrow and call.phase == "decode":
            launches += 1.0 if "triton" in call.kernel else 2.0
    elif call.latent and call.phase == "fwd":
        if call.framework == "sglang":
            launches += 1.0
            if narrow:
                launches += 5.0
                moved += query_cast + CAST * tokens * stored
        elif call.framework == "trtllm":
            launches += 3.0
            moved = 2.0 * tokens * LATENT_CACHE * element
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
    constants: Mapping[str, float] | None = None,
) -> AttentionTimes:
    """Return the times of calls that a benchmark replays alone, again and again.

    Parameters
    ----------
    hardware, precision, kv_precision, library, constants
        See `perfmodel.compute.attention.attention_times`.
    columns : mapping of str to ndarray, shape (call,)
        Its other arguments, without `cached`: what fits the cache is there.
    launches, moved : ndarray, shape (call,)
        `small_kernels` of each call.

    Returns
    -------
    AttentionTimes
        `time` holds the whole replay; the other columns belong to the attention kernel.
    """
    found = attention_times(
        hardware,
        precision,
        **columns,
        cached=True,
        kv_precision=kv_precision,
        library=library,
        constants=constants,
    )
    around = library if library == "trtllm" else ""  # the others name a kernel alone
    device = attention_device(
        hardware, precision, kv_precision=kv_precision, library=around, constants=constants
    )
    replay = attention_constants(hardware, around, constants)("replay_latency")
    from perfmodel.kernels.attention.forward import CACHE_RAMP

    hit = np.clip(1.0 + (device.cache_share - moved / device.cache_capacity) / CACHE_RAMP, 0.0, 1.0)
    beside = launches * device.launch_latency
    beside += moved * (1.0 - hit) / (device.bandwidth * device.memory_efficiency)
    beside += moved * hit / device.cache_bandwidth
    return found._replace(time=found.time + beside + replay)
