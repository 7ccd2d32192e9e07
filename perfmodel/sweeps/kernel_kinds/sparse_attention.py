"""Attention over chosen or compressed keys, and the choice of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.precisions import ATTENTION_PRECISIONS
from perfmodel.sweeps.kernel_kinds.attention import ATTENTION, sequence_lengths
from perfmodel.sweeps.kernel_kinds.kind import (
    Grid,
    GridAxis,
    Kernel,
    Setting,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated


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
    from perfmodel.compute.sparse_attention import INDEXER_BOUNDS, indexer_times

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
