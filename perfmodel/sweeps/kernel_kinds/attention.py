"""Grids of attention: over all keys, over a list of keys of every query's own, and its indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.precisions import ATTENTION_PRECISIONS, CACHE_FORMATS
from perfmodel.sweeps.kernel_kinds.kind import (
    COPIES,
    RESIDENT,
    Grid,
    GridAxis,
    Kernel,
    Setting,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated


def sequence_lengths(part: Columns, phase: str) -> tuple[Any, Any]:
    """Return queries and keys of a sequence from axes of which one may be left out.

    Raises
    ------
    DataError
        Both are.
    """
    import numpy as np

    keys = np.where(part["kv_len"] > 0, part["kv_len"], part["q_len"])
    if np.any(keys == 0):
        raise DataError("neither q_len nor kv_len is given; one of them must be at least 1")
    if phase == "decode":
        return np.maximum(part["q_len"], 1), keys
    return np.where(part["q_len"] > 0, part["q_len"], keys), keys


def _attention(
    hardware: Hardware,
    part: Columns,
    phase: str,
    precision: str,
    kv_precision: str,
    copies: float,
    resident: float,
    deterministic: bool,
    **flags: bool,
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.attention import ATTENTION_BOUNDS, attention_times

    queries, keys = sequence_lengths(part, phase)
    flags |= {"prefill": phase == "forward", "backward": phase == "backward"}
    everywhere: dict[str, Any] = {
        name: np.full(part["batch"].size, flag) for name, flag in flags.items()
    }
    found = attention_times(
        hardware,
        precision,
        batch=part["batch"],
        query_length=queries,
        key_length=keys,
        heads=part["heads"],
        key_value_heads=np.where(part["kv_heads"] > 0, part["kv_heads"], part["heads"]),
        head_dim_qk=part["head_dim"],
        head_dim_v=np.where(part["head_dim_v"] > 0, part["head_dim_v"], part["head_dim"]),
        window=part["window"],
        kv_precision=None if kv_precision == "same" else kv_precision,
        copies=copies,
        resident=resident,
        deterministic=deterministic,
        **everywhere,
    )
    return timed_columns(found), ATTENTION_BOUNDS


_ATTENTION = Grid(
    "attention",
    ("phase", "precision", "kv_precision"),
    ("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "q_len", "kv_len", "window"),
    _attention,
)
ATTENTION = Kernel(
    "attention",
    "Fused attention.",
    (
        GridAxis("batch", "sequences", default=1),
        GridAxis("heads", "query heads on the device"),
        GridAxis(
            "kv_heads",
            "key and value heads on the device; 0: one per query head",
            "Key and value heads on the device; 0: as --heads",
            0,
        ),
        GridAxis("head_dim", "width of a query and key", default=128),
        GridAxis(
            "head_dim_v",
            "width of a value; 0: as that of a query",
            "Width of a value; 0: as --head-dim",
            0,
        ),
        GridAxis(
            "q_len",
            "queries of a sequence; 0: 1 for decode, else all keys",
            "Queries of a sequence; 0: 1 for decode, else all of --kv-len",
            0,
        ),
        GridAxis(
            "kv_len",
            "keys of a sequence, cached ones included; 0: as many as queries",
            "Keys of a sequence, cached ones included; 0: as --q-len",
            0,
        ),
        GridAxis("window", "keys that a query sees, its own included; 0: all", default=0),
        GridAxis(
            "phase",
            "forward, whole backward, or decode with a cache",
            "Passes",
            "forward",
            ("forward", "backward", "decode"),
        ),
        GridAxis(
            "precision",
            "number format of the matrix products",
            "Number formats",
            "bf16",
            ATTENTION_PRECISIONS,
        ),
        GridAxis(
            "kv_precision",
            "number format of stored keys and values",
            "Number formats of the stored keys and values",
            "same",
            ("same", *CACHE_FORMATS),
        ),
    ),
    (
        Setting("causal", "Mask later keys.", True, ("--causal/--no-causal",)),
        Setting(
            "latent",
            "Values are the first --head-dim-v elements of the keys: absorbed latent attention "
            "(MLA: --head-dim 576 --head-dim-v 512 --kv-heads 1).",
            False,
        ),
        COPIES,
        RESIDENT,
        Setting(
            "deterministic",
            "Backward passes add the sums of dQ in one order and repeat bit for bit; how much "
            "slower that is is a prior from published rates.",
            False,
        ),
    ),
    lambda axes: _ATTENTION,
)


def _sparse_attention(
    hardware: Hardware,
    part: Columns,
    phase: str,
    precision: str,
    kv_precision: str,
    shared_values: bool,
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.attention import ATTENTION_BOUNDS
    from perfmodel.compute.sparse_attention import sparse_attention_times

    queries, keys = sequence_lengths(part, phase)
    found = sparse_attention_times(
        hardware,
        precision,
        batch=part["batch"],
        query_length=queries,
        key_length=keys,
        heads=part["heads"],
        key_value_heads=part["kv_heads"],
        head_dim_qk=part["head_dim"],
        head_dim_v=np.where(part["head_dim_v"] > 0, part["head_dim_v"], part["head_dim"]),
        **{name: part[name] for name in ("selected", "window", "compression", "block")},
        shared_key_value=shared_values,
        phase=phase,
        kv_precision=None if kv_precision == "same" else kv_precision,
    )
    return timed_columns(found), ATTENTION_BOUNDS


def _indexer(hardware: Hardware, part: Columns, phase: str, precision: str) -> Evaluated:
    from perfmodel.compute.indexer import INDEXER_BOUNDS, indexer_times

    queries, keys = sequence_lengths(part, phase)
    found = indexer_times(
        hardware,
        query_length=queries,
        key_length=keys,
        **{name: part[name] for name in _INDEXER_COLUMNS},
        phase=phase,
        precision=precision,
    )
    return timed_columns(found, "choice_time"), INDEXER_BOUNDS


_INDEXER_COLUMNS = ("batch", "heads", "head_dim", "top_k", "compression", "block")
_AXES = {axis.name: axis for axis in ATTENTION.axes}
_LENGTHS = (_AXES["q_len"], _AXES["kv_len"])
_COMPRESSION = GridAxis(
    "compression",
    "tokens that a key stands for; 0: keys are tokens",
    "Tokens that a key outside the window stands for (DeepSeek-V4: 4 or 128); 0: keys are tokens",
    0,
)
_BLOCK = GridAxis("block", "tokens that are chosen together", default=1)
_SPARSE_ATTENTION = Grid(
    "sparse attention",
    ("phase", "precision", "kv_precision"),
    (
        *("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "q_len", "kv_len"),
        *("selected", "window", "compression", "block"),
    ),
    _sparse_attention,
)
SPARSE_ATTENTION = Kernel(
    "sparse-attention",
    "Attention over chosen or compressed keys.",
    (
        _AXES["batch"],
        _AXES["heads"],
        GridAxis("kv_heads", "key and value heads on the device", default=1),
        GridAxis("head_dim", "width of a query and key", default=512),
        _AXES["head_dim_v"],
        *_LENGTHS,
        GridAxis(
            "selected",
            "keys that a query chooses; 0: all that are compressed",
            "Keys that a query chooses, beside those in its window; 0: all that are compressed",
            0,
        ),
        GridAxis("window", "last tokens that a query sees, its own included", default=0),
        _COMPRESSION,
        _BLOCK,
        _AXES["phase"],
        _AXES["precision"],
        _AXES["kv_precision"],
    ),
    (
        Setting(
            "shared_values",
            "Values are the first --head-dim-v elements of the keys, or have rows of their own.",
            True,
            ("--shared-values/--own-values",),
        ),
    ),
    lambda axes: _SPARSE_ATTENTION,
)
_INDEXER = Grid(
    "indexer",
    ("phase", "precision"),
    ("batch", "heads", "head_dim", "q_len", "kv_len", "top_k", "compression", "block"),
    _indexer,
)
INDEXER = Kernel(
    "indexer",
    "Logits of keys, and the choice among them.",
    (
        _AXES["batch"],
        GridAxis("heads", "index heads, over one key head"),
        _AXES["head_dim"],
        *_LENGTHS,
        GridAxis("top_k", "keys that a query chooses"),
        _COMPRESSION,
        _BLOCK,
        _AXES["phase"],
        GridAxis(
            "precision",
            "number format of the products",
            "Number formats; gradients are usually bf16",
            "fp8",
            ATTENTION_PRECISIONS,
        ),
    ),
    (),
    lambda axes: _INDEXER,
)
