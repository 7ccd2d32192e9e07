"""Times of attention over chosen keys, and of the indexer that chooses: `kernels.attention`.

How many keys queries see is known in closed form. A query sees the last `window` tokens, its own
included, and keys of a second kind, each of which stands for `compression` whole tokens, or is a
token: `selected` of these, or all. Queries are aligned to the end of the keys, as everywhere. An
indexer makes logits of all keys, and chooses the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.columns import Floats, broadcast, check_least
from perfmodel.base.errors import DataError, did_you_mean
from perfmodel.compute.attention import LARGEST_COUNT, AttentionTimes
from perfmodel.compute.attention_device import attention_device, check_cache
from perfmodel.compute.stream import work_times
from perfmodel.compute.stream_catalogue import top_k
from perfmodel.hwprofiles import Hardware, load_hardware


class SparseKeys(NamedTuple):
    """Keys of one sequence under one head; columns of equal length.

    Attributes
    ----------
    pairs : ndarray of float64
        Keys that the queries see, summed up.
    places : ndarray of float64
        Keys in the list of one query: as many as the last query sees, whole blocks; the first
        queries leave places empty.
    gathered : ndarray of float64
        Places of all queries.
    distinct : ndarray of float64
        Different keys among those, at most.
    """

    pairs: Floats
    places: Floats
    gathered: Floats
    distinct: Floats


def limited_pairs(length: ArrayLike, limit: ArrayLike, step: ArrayLike = 1) -> Floats:
    """Return the sum of ``min(limit, floor(m / step))`` for ``m = 1 .. length``.

    Parameters
    ----------
    length : array_like
        Positions, whole and >= 0.
    limit : array_like
        Keys that a query sees at most, whole and >= 0.
    step : array_like
        Tokens that one key stands for, whole and >= 1.
    """
    m, most, s = (np.asarray(number, np.float64) for number in (length, limit, step))
    rising = np.minimum(m, most * s)
    whole = np.floor(rising / s)
    rest = rising - whole * s
    return s * whole * (whole - 1.0) / 2.0 + whole * (rest + 1.0) + (m - rising) * most


def block_pairs(length: ArrayLike, selected: ArrayLike, block: ArrayLike) -> Floats:
    """Return the sum over the first positions of the keys that they see in chosen blocks.

    Parameters
    ----------
    length : array_like
        Positions, whole and >= 0.
    selected : array_like
        Keys in the chosen blocks of a query at most, a multiple of `block`.
    block : array_like
        Tokens of a block.

    Returns
    -------
    ndarray
        All keys before ``selected``; beyond, whole blocks and the query's own, which is always
        chosen, up to itself.
    """
    m, most, b = (np.asarray(number, np.float64) for number in (length, selected, block))
    rising = np.minimum(m, most)
    beyond = m - rising
    whole = np.floor(beyond / b)
    rest = beyond - whole * b
    own = whole * b * (b + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0
    return rising * (rising + 1.0) / 2.0 + beyond * (most - b) + own


def sparse_keys(
    query_length: ArrayLike,
    key_length: ArrayLike,
    *,
    selected: ArrayLike = 0,
    window: ArrayLike = 0,
    compression: ArrayLike = 0,
    block: ArrayLike = 1,
) -> SparseKeys:
    """Return the keys of one sequence.

    Parameters
    ----------
    query_length, key_length : array_like
        Tokens, whole; no more queries than keys.
    selected : array_like
        Keys of the second kind that a query sees at most; 0: all of them, where there are some.
    window : array_like
        Last tokens that it sees, its own included; 0: none.
    compression : array_like
        Tokens that a key of the second kind stands for; 0: none, and with nothing `selected`
        there are no keys of that kind. 1 with nothing selected is dense attention.
    block : array_like
        Keys that are chosen together, 1 or more; 1 where keys are compressed.

    Examples
    --------
    DeepSeek-V3.2 chooses 2,048 keys; of 4,096 tokens a query sees 1,536.25 on average:

    >>> float(sparse_keys(4096, 4096, selected=2048).pairs) / 4096
    1536.25
    """
    queries, keys, most, last, ratio, size = np.broadcast_arrays(
        *(
            np.asarray(number, np.float64)
            for number in (query_length, key_length, selected, window, compression, block)
        )
    )
    step = np.maximum(ratio, 1.0)
    stored = np.where((ratio > 0.0) | (most > 0.0), np.floor(keys / step), 0.0)
    whole = np.ceil(stored / size) * size
    chosen = np.where(most > 0.0, np.minimum(most, whole), whole)
    before = keys - queries

    def seen(length: Floats) -> Floats:
        blocks, tokens = block_pairs(length, chosen, size), limited_pairs(length, chosen, step)
        return np.where(size > 1.0, blocks, tokens) + limited_pairs(length, last)

    near = np.minimum(last, keys)
    places = np.maximum(near + chosen, 1.0)
    recent = np.where(last > 0.0, np.minimum(keys, queries + last - 1.0), 0.0)
    distinct = recent + np.minimum(stored, queries * chosen)
    return SparseKeys(
        pairs=seen(keys) - seen(before),
        places=places,
        gathered=places * queries,
        distinct=np.maximum(distinct, 1.0),
    )


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
    from perfmodel.kernels.attention import indexer as kernel
    from perfmodel.kernels.work import kernel_work

    hardware = load_hardware(hardware)
    if kv_precision is not None:
        check_cache(hardware, kv_precision, ("sparse",))
    device = attention_device(hardware, precision, kv_precision=kv_precision, steady=steady)
    names = ("batch", "query_length", "heads", "key_value_heads", "head_dim_qk", "head_dim_v")
    with kernel_work(sparse_attentions=shared.size) as run:
        times = run(kernel.sparse_attention_times)(
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


INDEXER_BOUNDS = ("compute", "vector", "memory", "latency")
"""Meaning of the codes in `IndexerTimes.bound`."""


class IndexerTimes(NamedTuple):
    """Columns of equal length."""

    time: np.ndarray  # float64 [s]
    flops: np.ndarray  # float64, of the matrix products over keys that are seen
    memory_traffic: np.ndarray  # float64, from and to device memory [B]
    bound: np.ndarray  # uint8, index into INDEXER_BOUNDS: of the matrix products
    choice_time: np.ndarray  # float64, part of `time` that chooses the keys [s]


def indexer_times(
    hardware: Hardware | str,
    *,
    batch: ArrayLike,
    query_length: ArrayLike,
    key_length: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    top_k: ArrayLike,
    compression: ArrayLike = 0,
    block: ArrayLike = 1,
    phase: str = "forward",
    precision: str | None = None,
    steady: bool = False,
) -> IndexerTimes:
    """Return the times of an indexer's kernels, without its projections.

    Parameters
    ----------
    hardware : Hardware
        Profile.
    batch : array_like of int
        Sequences, >= 1.
    query_length, key_length : array_like of int
        Tokens per sequence, >= 1, no more queries than keys. Queries are aligned to the end.
    heads, head_dim : array_like of int
        Index heads, over one key head, and their width.
    top_k : array_like of int
        Keys chosen per query; a multiple of `block`.
    compression : array_like of int
        Tokens that one key stands for (DeepSeek-V4, CSA: 4); 0: keys are tokens.
    block : array_like of int
        Keys that are chosen together by their largest logit, for each head on its own
        (MiniMax-M3: 128). 1: the heads' logits are summed up, and one choice is for all.
    phase : {"forward", "backward", "decode"}
        Forward and decode are logits and choice. Backward is the gradient of the KL loss over
        the chosen keys; over all keys, the loss of the dense warm-up, with
        ``top_k >= key_length``. Attention summed over heads, at which it aims, is not in it.
    precision : {"bf16", "fp16", "fp8"}, optional
        Of the products; default: fp8 where the device has it, backward bf16 (fp16 where it
        has no bf16).
    steady : bool
        See `perfmodel.compute.attention_device.attention_device`.

    Returns
    -------
    IndexerTimes
        One row per broadcast call; device time only.

    Raises
    ------
    DataError
        Shapes that don't broadcast, or numbers out of range.
    HardwareError
        Precision that the device lacks, or a missing calibration key.
    """
    hardware = load_hardware(hardware)
    columns = counts(
        "indexer_times",
        {
            "batch": (batch, 1),
            "query_length": (query_length, 1),
            "key_length": (key_length, 1),
            "heads": (heads, 1),
            "head_dim": (head_dim, 1),
            "compression": (compression, 0),
            "block": (block, 1),
            "selected": (top_k, 1),
        },
    )
    check_choice("indexer_times", columns, phase)
    backward = phase == "backward"
    if precision is None:
        rates = hardware.device.peak_flops
        wide = "bf16" if "bf16" in rates else "fp16"
        precision = "fp8" if "fp8" in rates and not backward else wide
    lengths = columns["query_length"], columns["key_length"]
    columns["compression"] = ratio = np.maximum(columns["compression"], 1.0)
    chosen = sparse_keys(
        *lengths, selected=columns["selected"], compression=ratio, block=columns["block"]
    )
    scored = sparse_keys(*lengths, compression=ratio).pairs
    from perfmodel.kernels.attention import indexer as kernel
    from perfmodel.kernels.work import kernel_work

    device = attention_device(hardware, precision, steady=steady)
    names = ("batch", "query_length", "key_length", "heads", "head_dim", "compression", "block")
    with kernel_work(indexers=ratio.size) as run:
        time, flops, traffic, bound = run(kernel.indexer_times)(
            device,
            *(columns[name].astype(np.int64) for name in names),
            chosen.places.astype(np.int64),
            chosen.pairs if backward else scored,
            chosen.gathered,
            chosen.distinct,
            phase == "decode",
            backward,
            has_shared_cache(hardware),
        )
    if backward:
        return IndexerTimes(time, flops, traffic, bound, np.zeros(time.size))
    choice, moved = _choice(hardware, columns, scored, chosen.places)
    return IndexerTimes(time + choice, flops, traffic + moved, bound, choice)


def _choice(
    hardware: Hardware, columns: dict[str, np.ndarray], scored: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return time [s] and traffic [B] of choosing keys, or blocks of them for each head."""
    block = columns["block"]
    choosers = np.where(block > 1.0, columns["heads"], 1.0)
    rows = columns["batch"] * columns["query_length"] * choosers
    row = scored / columns["query_length"] / block
    stored = np.floor(columns["key_length"] / columns["compression"]) / block
    work = top_k(rows, row, np.minimum(places / block, stored), longest=stored)
    return work_times(hardware, work).time, np.asarray(work.bytes_read + work.bytes_written)
