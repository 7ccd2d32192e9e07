"""Times of attention over chosen keys on a hardware profile; see `perfmodel.kernels.sparse`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import Floats, broadcast, check_least
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.compute.attention import LARGEST_COUNT, AttentionTimes
from perfmodel.compute.attention_device import attention_device, check_cache
from perfmodel.compute.sparse_keys import sparse_keys
from perfmodel.hwprofiles import Hardware, load_hardware

SPARSE_PHASES = ("forward", "backward", "decode")
"""Passes: over whole sequences or the ends of them; backward whole; a query or a few each."""


def sparse_attention_times(
    hardware: Hardware | str,
    precision: str,
    *,
    batch: ArrayLike,
    query_length: ArrayLike,
    key_length: ArrayLike,
    heads: ArrayLike,
    head_dim_qk: ArrayLike,
    head_dim_v: ArrayLike,
    key_value_heads: ArrayLike = 1,
    selected: ArrayLike = 0,
    window: ArrayLike = 0,
    compression: ArrayLike = 0,
    block: ArrayLike = 1,
    shared_key_value: ArrayLike = True,
    phase: str = "forward",
    kv_precision: str | None = None,
    steady: bool = False,
) -> AttentionTimes:
    """Return the times of attention of every query over a list of keys of its own.

    ==============================  ========================================================
    layer                           arguments
    ==============================  ========================================================
    sparse MLA (DeepSeek-V3.2)      ``selected=2048``; widths 576 and 512
    block-sparse GQA (MiniMax-M3)   ``selected=2048, block=128, shared_key_value=False``
    DeepSeek-V4, ratio 4 (CSA)      ``window=128, compression=4, selected=512``; widths 512
    DeepSeek-V4, ratio 128 (HCA)    ``window=128, compression=128``
    DeepSeek-V4, ratio 0            ``window=128``
    dense, as its limit             ``compression=1``
    ==============================  ========================================================

    Parameters
    ----------
    hardware : Hardware
        Profile.
    precision : {"bf16", "fp16", "fp8"}
        Of the matrix products.
    batch : array_like of int
        Sequences, >= 1.
    query_length, key_length : array_like of int
        Tokens per sequence, >= 1, no more queries than keys. Queries are aligned to the end.
    heads, key_value_heads : array_like of int
        Heads on this device, the first a multiple of the second.
    head_dim_qk, head_dim_v : array_like of int
        Width of a query or key and of a value.
    selected : array_like of int
        Keys of a query at most, beside those in the window; 0: all, where keys are compressed.
    window : array_like of int
        Last tokens that a query sees always, its own included; 0: none.
    compression : array_like of int
        Tokens for which one of the keys beside the window stands; 0: keys are tokens.
    block : array_like of int
        Keys that are chosen together; `selected` is a multiple of it.
    shared_key_value : array_like of bool
        Values are the first elements of the keys.
    phase : {"forward", "backward", "decode"}
        Pass. Backward is the whole of it, gradients of keys scattered.
    kv_precision : {"bf16", "fp16", "fp8"}, optional
        Of the stored keys and values; default: that of the products.
    steady : bool
        See `perfmodel.compute.attention_device.attention_device`.

    Returns
    -------
    AttentionTimes
        One row per broadcast call; device time only, without the indexer. `flops` are those of
        keys that are seen; the time is that of all places in the lists.

    Raises
    ------
    DataError
        Shapes that don't broadcast, or numbers out of range.
    HardwareError
        Precision that the device lacks, or a missing calibration key.
    """
    columns = counts(
        "sparse_attention_times",
        {
            "batch": (batch, 1),
            "query_length": (query_length, 1),
            "key_length": (key_length, 1),
            "heads": (heads, 1),
            "key_value_heads": (key_value_heads, 1),
            "head_dim_qk": (head_dim_qk, 1),
            "head_dim_v": (head_dim_v, 1),
            "selected": (selected, 0),
            "window": (window, 0),
            "compression": (compression, 0),
            "block": (block, 1),
            "shared_key_value": (shared_key_value, 0),
        },
    )
    shared = columns["shared_key_value"] > 0.0
    refuse(
        "sparse_attention_times",
        {
            "heads must be a multiple of key_value_heads": columns["heads"]
            % columns["key_value_heads"]
            > 0.0,
            "neither window, selected nor compression: queries would see no keys": (
                columns["window"] + columns["selected"] + columns["compression"] == 0.0
            ),
            "head_dim_v exceeds head_dim_qk, which holds the values (shared_key_value)": shared
            & (columns["head_dim_v"] > columns["head_dim_qk"]),
        },
    )
    check_choice("sparse_attention_times", columns, phase)
    keys = sparse_keys(
        columns["query_length"],
        columns["key_length"],
        selected=columns["selected"],
        window=columns["window"],
        compression=columns["compression"],
        block=columns["block"],
    )
    from perfmodel.kernels.sparse import columns as kernel
    from perfmodel.kernels.work import kernel_work

    hardware = load_hardware(hardware)
    if kv_precision is not None:
        check_cache(hardware, kv_precision, ("sparse",))
    device = attention_device(hardware, precision, kv_precision=kv_precision, steady=steady)
    names = ("batch", "query_length", "heads", "key_value_heads", "head_dim_qk", "head_dim_v")
    with kernel_work(sparse_attentions=shared.size):
        times = kernel.sparse_attention_times(
            device,
            *(columns[name].astype(np.int64) for name in names),
            keys.places.astype(np.int64),
            keys.pairs,
            keys.gathered,
            keys.distinct,
            shared,
            phase == "decode",
            phase == "backward",
            has_shared_cache(hardware),
        )
    return AttentionTimes(*times)


def has_shared_cache(hardware: Hardware) -> bool:
    """Whether the second-level cache serves the whole device.

    It does not where there is a cache behind it: its dies have one each (MI300X and later).
    """
    return not hardware.device.memory.last_level_cache_capacity


def counts(what: str, given: Mapping[str, tuple[ArrayLike, int]]) -> dict[str, Floats]:
    """Return whole numbers broadcast together.

    Parameters
    ----------
    what : str
        Who asks, for messages.
    given : mapping of str to (array_like, int)
        Numbers and the least that they may be.

    Raises
    ------
    DataError
        What is no whole number in range, or shapes that don't broadcast.
    """
    columns = broadcast(what, {name: numbers for name, (numbers, _) in given.items()})
    for name, (_, least) in given.items():
        check_least(f"{what}, row {{row}}", {name: columns[name]}, least, whole=True)
        if (columns[name] > LARGEST_COUNT).any():
            raise DataError(f"{what}: {name} must be at most {LARGEST_COUNT}")
    return columns


def check_choice(what: str, columns: Mapping[str, Floats], phase: str) -> None:
    """Refuse lengths and chosen keys that do not go together, and an unknown pass."""
    if phase not in SPARSE_PHASES:
        raise DataError(f"{what}: unknown phase '{phase}'{did_you_mean(phase, SPARSE_PHASES)}")
    refuse(
        what,
        {
            "more queries than keys": columns["query_length"] > columns["key_length"],
            "selected must be a multiple of block": columns["selected"] % columns["block"] > 0.0,
            "blocks are chosen among tokens (block and compression exclude each other)": (
                columns["block"] > 1.0
            )
            & (columns["compression"] > 1.0),
        },
    )


def refuse(what: str, wrong: Mapping[str, np.ndarray]) -> None:
    """Raise DataError with the first reason that is true in some row."""
    for reason, rows in wrong.items():
        if rows.any():
            raise DataError(f"{what}, row {int(np.argmax(rows))}: {reason}")
