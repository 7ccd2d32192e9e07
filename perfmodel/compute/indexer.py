"""Times of the indexer of sparse attention: logits of all keys, and the choice of the best."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.compute.attention_device import attention_device
from perfmodel.compute.sparse_attention import check_choice, counts, has_shared_cache
from perfmodel.compute.sparse_keys import sparse_keys
from perfmodel.compute.stream import work_times
from perfmodel.compute.stream_catalogue import top_k
from perfmodel.hwprofiles import Hardware, load_hardware

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
    from perfmodel.kernels.sparse import columns as kernel
    from perfmodel.kernels.work import kernel_work

    device = attention_device(hardware, precision, steady=steady)
    names = ("batch", "query_length", "key_length", "heads", "head_dim", "compression", "block")
    with kernel_work(indexers=ratio.size):
        time, flops, traffic, bound = kernel.indexer_times(
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
