"""How grids of kernels are evaluated: attention, products, experts, streams and mixers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, QUANTISED
from perfmodel.sweeps.kernel_kinds.kind import (
    Grid,
    Values,
    check_names,
    kernel_of,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.compute.stream_catalogue import StreamWork
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated

    Work = Callable[[Any, Any, float], StreamWork]


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
ATTENTION = kernel_of("attention", lambda axes: _ATTENTION)


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
_SPARSE_ATTENTION = Grid(
    "sparse attention",
    ("phase", "precision", "kv_precision"),
    (
        *("batch", "heads", "kv_heads", "head_dim", "head_dim_v", "q_len", "kv_len"),
        *("selected", "window", "compression", "block"),
    ),
    _sparse_attention,
)
SPARSE_ATTENTION = kernel_of("sparse-attention", lambda axes: _SPARSE_ATTENTION)
_INDEXER = Grid(
    "indexer",
    ("phase", "precision"),
    ("batch", "heads", "head_dim", "q_len", "kv_len", "top_k", "compression", "block"),
    _indexer,
)
INDEXER = kernel_of("indexer", lambda axes: _INDEXER)


def _gemm(
    hardware: Hardware, part: Columns, precision: str, quantise: bool, **options: Any
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.gemm import GEMM_BOUNDS, gemm_times, quantised_gemm_times

    if quantise and precision in QUANTISED:
        found, passes = quantised_gemm_times(hardware, precision, **part, **options)
    else:
        found = gemm_times(hardware, precision, **part, **options)
        passes = np.zeros(found.time.size)
    columns = timed_columns(found, "tile_m", "tile_n", "split_k") | {"time": found.time + passes}
    return columns | ({"quantise_time": passes} if quantise else {}), GEMM_BOUNDS


def _grouped_gemm(
    hardware: Hardware, part: Columns, precision: str, launches: str, **unused: Any
) -> Evaluated:
    from perfmodel.compute.grouped_gemm import GROUPED_BOUNDS, even_loads, grouped_gemm_times

    for name in ("resident", "weight_copies", "activation_copies"):
        if unused.get(name):
            raise DataError(f"{name} is for products that are not grouped, and for MoE layers")
    loads = even_loads(part["groups"], part["m"])
    found = grouped_gemm_times(hardware, precision, loads, part["n"], part["k"], launches=launches)
    return timed_columns(found), GROUPED_BOUNDS


def _choose_gemm(axes: Values) -> Grid:
    if axes["groups"] == [0]:
        return Grid("gemm", ("precision",), ("m", "n", "k", "batch"), _gemm)
    if 0 in axes["groups"] or axes["batch"] != [1]:
        raise DataError("--groups of 1 and more stand alone: no 0 among them, no --batch")
    long_names = {"m": "rows of A and C of each group"}
    apart, sizes = ("precision", "launches"), ("groups", "m", "n", "k")
    return Grid("grouped gemm", apart, sizes, _grouped_gemm, long_names)


GEMM = kernel_of("gemm", _choose_gemm)


def _moe(
    hardware: Hardware, part: Columns, routing: str, precision: str, seed: int, **options: Any
) -> Evaluated:
    from perfmodel.base.routing import parse_routing
    from perfmodel.compute.moe import MOE_BOUNDS, moe_times

    spread = parse_routing(routing, seed)
    found = moe_times(hardware, precision, **part, routing=spread, **options)
    return timed_columns(found, "active_experts", "largest_load", "tile_m", "tile_n"), MOE_BOUNDS


_MOE_SIZES = (
    *("tokens", "hidden", "intermediate", "experts", "top_k"),
    *("tensor_parallel", "expert_parallel"),
)
_MOE = Grid("moe", ("routing", "precision"), _MOE_SIZES, _moe)
MOE = kernel_of("moe", lambda axes: _MOE)


def stream_kernels() -> Mapping[str, Work]:
    """Return the operations on a tensor: (rows, columns, bytes of an element) -> its work."""
    from perfmodel.compute.stream import QUANTISATIONS, quantise
    from perfmodel.compute.stream_catalogue import (
        ELEMENTWISE,
        cross_entropy,
        elementwise,
        embedding,
        norm,
        softmax,
    )

    def each(name: str) -> Work:
        return lambda r, c, s: elementwise(name, r * c, s)

    def narrowed(name: str) -> Work:
        return lambda r, c, s: quantise(name, r, c, s)

    return {
        **{name: each(name) for name in ELEMENTWISE},
        "rms_norm": norm,
        "rms_norm_residual": lambda r, c, s: norm(r, c, s, residual=True),
        "rms_norm_backward": lambda r, c, s: norm(r, c, s, backward=True),
        "layer_norm": lambda r, c, s: norm(r, c, s, mean=True),
        "layer_norm_backward": lambda r, c, s: norm(r, c, s, mean=True, backward=True),
        "softmax": softmax,
        "softmax_backward": lambda r, c, s: softmax(r, c, s, backward=True),
        "cross_entropy": lambda r, c, s: cross_entropy(r, c, element_bytes=s),
        "cross_entropy_backward": lambda r, c, s: cross_entropy(
            r, c, backward=True, element_bytes=s
        ),
        "embedding": embedding,
        "embedding_backward": lambda r, c, s: embedding(r, c, s, backward=True),
        **{f"quantise_{name}": narrowed(name) for name in QUANTISATIONS},
    }


def _stream(
    hardware: Hardware, part: Columns, operation: str, dtype: str, cached: float
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.stream import STREAM_BOUNDS, work_times

    known = stream_kernels()
    check_names([operation], known, "unknown operation")
    sizes = (part["rows"].astype(float), part["columns"].astype(float))
    work = known[operation](*sizes, OPERAND_BYTES[dtype])
    found = work_times(hardware, work, cached)
    count = found.time.size
    return {
        "time": found.time,
        "flops": np.broadcast_to(work.flops, count),
        "memory_traffic": np.broadcast_to(work.bytes_read + work.bytes_written, count),
        "bound": found.bound,
    }, STREAM_BOUNDS


def _bytes(hardware: Hardware, part: Columns, cached: float) -> Evaluated:
    from perfmodel.compute.stream import STREAM_BOUNDS, stream_times

    read, written = part["bytes_read"].astype(float), part["bytes_written"].astype(float)
    found = stream_times(hardware, read, written, cached=cached)
    columns = {"time": found.time, "memory_traffic": read + written, "bound": found.bound}
    return columns, STREAM_BOUNDS


def _choose_stream(axes: Values) -> Grid:
    moved = axes["bytes_read"] != [0] or axes["bytes_written"] != [0]
    if moved == bool(axes["operation"]):
        raise DataError("name either an OPERATION, or --bytes-read and --bytes-written")
    if moved:
        return Grid("stream", (), ("bytes_read", "bytes_written"), _bytes)
    return Grid("stream", ("operation", "dtype"), ("rows", "columns"), _stream)


STREAM = kernel_of("stream", _choose_stream)


def _scan(hardware: Hardware, part: Columns, kind: str, phase: str, precision: str) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import RECURRENCE_BOUNDS, recurrence_times

    width = 1 if kind == "mamba1" else part["key_dim"]
    heads = 1 if kind == "mamba1" else part["heads"]
    found = recurrence_times(
        hardware,
        precision,
        kind=kind,
        batch=part["batch"],
        length=part["seq_len"],
        heads=part["heads"],
        key_heads=np.where(part["key_heads"] > 0, part["key_heads"], heads),
        key_dim=part["key_dim"],
        value_dim=np.where(part["value_dim"] > 0, part["value_dim"], width),
        chunk=part["chunk"],
        phase=phase,
    )
    return timed_columns(found), RECURRENCE_BOUNDS


_SCAN = Grid(
    "scan",
    ("kind", "phase", "precision"),
    ("batch", "heads", "key_heads", "key_dim", "value_dim", "chunk", "seq_len"),
    _scan,
)
SCAN = kernel_of("scan", lambda axes: _SCAN)


def _convolution(
    hardware: Hardware, part: Columns, phase: str, precision: str, activation: bool
) -> Evaluated:
    import numpy as np

    from perfmodel.compute.recurrence import (
        convolution_bytes,
        convolution_flops,
        convolution_times,
    )
    from perfmodel.compute.stream import STREAM_BOUNDS

    names = {"tokens": "tokens", "channels": "channels", "kernel": "kernel_size"}
    sizes: Any = {name: np.asarray(part[axis], np.float64) for name, axis in names.items()}
    options: Any = {"phase": phase, "precision": precision}
    found = convolution_times(hardware, **sizes, **options, activation=activation)
    per_token = convolution_flops(sizes["channels"], sizes["kernel"], phase)
    return {
        "time": found.time,
        "flops": sizes["tokens"] * np.asarray(per_token),
        "memory_traffic": np.add(*convolution_bytes(**sizes, **options)),
        "bound": found.bound,
    }, STREAM_BOUNDS


_CONVOLUTION = Grid(
    "convolution", ("phase", "precision"), ("channels", "kernel_size", "tokens"), _convolution
)
CONVOLUTION = kernel_of("convolution", lambda axes: _CONVOLUTION)
