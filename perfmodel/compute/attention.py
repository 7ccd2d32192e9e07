"""Times of fused attention on a hardware profile; see `perfmodel.kernels.attention.columns`.

A measured row of a serving framework is one replayed graph (`replayed_times`): the
append of new keys and values to the cache, small kernels that the framework needs (casts, copies of
odd layouts), and the attention kernel. Their number and bytes follow from what the framework does;
each costs the launch latency of the profile and its bytes, and a replay has its own start
(``calibration.attention.replay_latency``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import broadcast
from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, cache_rule
from perfmodel.compute.attention_device import (
    attention_constants,
    attention_device,
    check_cache,
    deterministic_slowdown,
)
from perfmodel.compute.library import library_facts
from perfmodel.hwprofiles import Hardware, load_hardware

ATTENTION_BOUNDS = ("compute", "softmax", "memory", "latency")
"""Meaning of the codes in `AttentionTimes.bound`."""

FLAGS = ("causal", "latent", "prefill", "backward")

LARGEST_COUNT = 2**30
"""So that a product of two lengths fits 64 bits."""


class AttentionTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    flops: np.ndarray  # float64, executed: unmasked pairs only
    memory_traffic: np.ndarray  # float64, from and to device memory [B]
    bound: np.ndarray  # uint8, index into ATTENTION_BOUNDS


def attention_times(
    hardware: Hardware | str,
    precision: str,
    batch: ArrayLike,
    query_length: ArrayLike,
    key_length: ArrayLike,
    heads: ArrayLike,
    key_value_heads: ArrayLike,
    head_dim_qk: ArrayLike,
    head_dim_v: ArrayLike,
    causal: ArrayLike = True,
    window: ArrayLike = 0,
    backward: ArrayLike = False,
    *,
    kv_precision: str | None = None,
    library: str = "",
    latent: ArrayLike = False,
    prefill: ArrayLike = False,
    steady: bool = False,
    alone: bool = False,
    copies: float = 0.0,
    resident: float = 0.0,
    deterministic: bool = False,
) -> AttentionTimes:
    """Return the times of fused attention calls on one device.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    precision : {"bf16", "fp16", "fp8"}
        Of the matrix products.
    batch : array_like of int
        Sequences, >= 1.
    query_length, key_length : array_like of int
        Tokens per sequence, >= 1. Queries are aligned to the end of the keys.
    heads, key_value_heads : array_like of int
        Heads on this device, the first a multiple of the second.
    head_dim_qk, head_dim_v : array_like of int
        Width of a query or key and of a value.
    causal : array_like of bool
        Whether later keys are masked.
    window : array_like of int
        Sliding window, the query's own position included; 0 for none.
    backward : array_like of bool
        True: the whole backward pass instead of the forward pass.
    kv_precision : {"bf16", "fp16", "fp8", "nvfp4"}, optional
        Of the stored keys and values; default: that of the products. Over nvfp4 products run in
        fp8, whatever `precision` is.
    library : str
        See `attention_device`.
    latent : array_like of bool
        Values are the first elements of the keys: absorbed latent attention, with one
        key head.
    prefill : array_like of bool
        A single query goes to the library's kernel for prefill too, not to that for decode.
    steady, alone, copies, resident
        See `attention_device`.
    deterministic : bool
        Backward passes add the sums of dQ in one order; see `deterministic_slowdown`.

    Returns
    -------
    AttentionTimes
        One row per broadcast call; device time only.

    Raises
    ------
    DataError
        Shapes that don't broadcast, or numbers out of range.
    HardwareError
        Precision that the device lacks, or a missing calibration key.
    """
    hardware = load_hardware(hardware)
    from perfmodel.kernels.attention import columns as kernel
    from perfmodel.kernels.work import kernel_work

    device = attention_device(
        hardware,
        precision,
        kv_precision=kv_precision,
        library=library,
        steady=steady,
        alone=alone,
        copies=copies,
        resident=resident,
    )
    columns = {
        "batch": batch,
        "query_length": query_length,
        "key_length": key_length,
        "heads": heads,
        "key_value_heads": key_value_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "causal": causal,
        "window": window,
        "latent": latent,
        "prefill": prefill,
        "backward": backward,
    }
    flat = broadcast("attention_times", columns, dtype=None)
    integers = {name: _integers(name, flat[name]) for name in columns if name not in FLAGS}
    flags = {name: _flags(name, flat[name]) for name in FLAGS}
    _check_heads(integers)
    if kv_precision is not None:
        asked = {"latent": flags["latent"], "backward": flags["backward"]}
        check_cache(hardware, kv_precision, (kind for kind, rows in asked.items() if rows.any()))
    wide = flags["latent"] & (integers["head_dim_v"] > integers["head_dim_qk"])
    if wide.any():
        row = int(np.argmax(wide))
        raise DataError(
            f"attention_times: head_dim_v[{row}] = {integers['head_dim_v'][row]} exceeds "
            f"head_dim_qk[{row}] = {integers['head_dim_qk'][row]}, which holds the values (latent)"
        )
    with kernel_work(attentions=integers["batch"].size) as run:
        times = run(kernel.attention_times)(
            device,
            integers["batch"],
            integers["query_length"],
            integers["key_length"],
            integers["heads"],
            integers["key_value_heads"],
            integers["head_dim_qk"],
            integers["head_dim_v"],
            flags["causal"],
            integers["window"],
            flags["latent"],
            flags["prefill"],
            flags["backward"],
        )
    found = AttentionTimes(*times)
    if deterministic and flags["backward"].any():
        slowdown = deterministic_slowdown(hardware, library)
        found = found._replace(time=np.where(flags["backward"], slowdown, 1.0) * found.time)
    return found


def _check_heads(integers: Mapping[str, np.ndarray]) -> None:
    """Refuse heads that don't share key-value heads evenly."""
    uneven = integers["heads"] % integers["key_value_heads"] != 0
    if uneven.any():
        row = int(np.argmax(uneven))
        raise DataError(
            f"attention_times: heads[{row}] = {integers['heads'][row]} is not a multiple of "
            f"key_value_heads[{row}] = {integers['key_value_heads'][row]}"
        )


def _integers(name: str, column: np.ndarray) -> np.ndarray:
    """Return an int64 column, or refuse what is not a count in range."""
    least = 0 if name == "window" else 1
    if column.dtype.kind not in "iuf":
        raise DataError(f"attention_times: {name} must be numbers, not {column.dtype}")
    wrong = ~np.isfinite(column) | (column < least) | (column > LARGEST_COUNT)
    if column.dtype.kind == "f":
        wrong |= column != np.floor(column)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"attention_times: {name}[{row}] = {column[row]}; "
            f"it must be a whole number from {least} to {LARGEST_COUNT}"
        )
    return np.array(column, dtype=np.int64, order="C")


def _flags(name: str, column: np.ndarray) -> np.ndarray:
    """Return a bool column, or refuse what is no truth value."""
    if column.dtype.kind not in "biuf" or not np.isin(column, (0, 1)).all():
        raise DataError(f"attention_times: {name} must be true or false in every row")
    return np.ascontiguousarray(column, dtype=np.bool_)


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
    (`perfmodel.compute.library.ServingCalls`): copies of keys and values of unequal width;
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
