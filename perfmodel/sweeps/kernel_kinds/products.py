"""Grids of products, experts' layers, memory-bound operations and recurrent mixers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import DataError
from perfmodel.base.precisions import OPERAND_BYTES, OPERANDS, QUANTISED, STREAM_PRECISIONS
from perfmodel.kernels.recurrence.counts import RECURRENCE_PHASES, RECURRENCES
from perfmodel.sweeps.kernel_kinds.kind import (
    COPIES,
    RESIDENT,
    Grid,
    GridAxis,
    Kernel,
    Setting,
    Values,
    check_names,
    timed_columns,
)

if TYPE_CHECKING:
    from perfmodel.compute.stream_catalogue import StreamWork
    from perfmodel.hwprofiles import Hardware
    from perfmodel.sweeps.kernel_kinds.kind import Columns, Evaluated

    Work = Callable[[Any, Any, float], StreamWork]


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


GEMM = Kernel(
    "gemm",
    "Matrix products.",
    (
        GridAxis("m", "rows of A and C", "Rows of A and C (tokens of a linear layer)"),
        GridAxis("n", "columns of B and C", "Columns of B and C (outputs)"),
        GridAxis("k", "inner size", "Inner size (inputs)"),
        GridAxis("batch", "independent products", "Independent products in one launch", 1),
        GridAxis(
            "groups",
            "groups, each with its own B",
            "Groups of a grouped product (experts), each with --m rows and a B of its own; "
            "0: not grouped",
            0,
        ),
        GridAxis(
            "launches",
            "one launch, or one of each group",
            "Launches of a grouped product",
            "one",
            ("one", "each"),
        ),
        GridAxis(
            "precision",
            "number format of A and B",
            "Number formats of A and B",
            "bf16",
            OPERANDS,
        ),
    ),
    (
        Setting(
            "quantise",
            "Count the pass that quantises A, where the format is narrower than 16 bits.",
            True,
            ("--quantise/--no-quantise", "--quantize/--no-quantize"),
        ),
        Setting("output_bytes", "One element of C [B].", 2.0, least=0.0, metavar="B"),
        Setting(
            "steady", "A load of minutes on a warm device (training), not a short benchmark.", False
        ),
        RESIDENT,
        Setting(
            "weight_copies",
            "Calls until the same B comes up again, of what a large cache keeps; 0: B comes "
            "from memory, as inside a model.",
            0,
            least=0,
            metavar="CALLS",
        ),
        Setting(
            "activation_copies",
            "Calls until the same A and C come up again; 0: they come from memory.",
            0,
            least=0,
            metavar="CALLS",
        ),
    ),
    _choose_gemm,
)


def _moe(
    hardware: Hardware, part: Columns, routing: str, precision: str, seed: int, **options: Any
) -> Evaluated:
    from perfmodel.compute.moe import MOE_BOUNDS, moe_times
    from perfmodel.compute.routing import parse_routing

    spread = parse_routing(routing, seed)
    found = moe_times(hardware, precision, **part, routing=spread, **options)
    return timed_columns(found, "active_experts", "largest_load", "tile_m", "tile_n"), MOE_BOUNDS


_MOE_SIZES = (
    GridAxis("tokens", "tokens of all expert-parallel ranks together"),
    GridAxis("hidden", "width of a token"),
    GridAxis("intermediate", "width of one whole expert"),
    GridAxis("experts", "experts of the layer"),
    GridAxis("top_k", "experts per token"),
    GridAxis("tensor_parallel", "ranks that share each expert's width", default=1, option="tp"),
    GridAxis("expert_parallel", "ranks that share the experts", default=1, option="ep"),
)
_MOE = Grid("moe", ("routing", "precision"), tuple(axis.name for axis in _MOE_SIZES), _moe)
MOE = Kernel(
    "moe",
    "Mixture-of-experts layers.",
    (
        *_MOE_SIZES,
        GridAxis(
            "precision",
            "number format of the products",
            "Number formats of the products",
            "bf16",
            OPERANDS,
        ),
        GridAxis(
            "routing",
            "distribution of tokens over experts",
            "How tokens choose experts: identical, balanced, uniform, dirichlet[_CONCENTRATION], "
            "power_law[_EXPONENT], two_level, empirical:FILE (counts per expert).",
            "uniform",
            words=True,
        ),
    ),
    (
        Setting("seed", "Of random routings.", 0, least=0, metavar="N"),
        COPIES,
        RESIDENT,
        Setting("gated", "Three matrices (gate, up, down) or two.", True, ("--gated/--not-gated",)),
        Setting(
            "kernel",
            "How a library runs the layer: triton, triton_tuned, trtllm, cutlass, aiter.  "
            "[default: what serving libraries run on the device]",
            None,
            metavar="NAME",
        ),
    ),
    lambda axes: _MOE,
)


def stream_kernels() -> Mapping[str, Work]:
    """Return the operations on a tensor: (rows, columns, bytes of an element) -> its work."""
    from perfmodel.compute.stream_catalogue import (
        ELEMENTWISE,
        cross_entropy,
        elementwise,
        embedding,
        norm,
        softmax,
    )
    from perfmodel.compute.stream_quantise import QUANTISATIONS, quantise

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


STREAM = Kernel(
    "stream",
    "Memory-bound operations.",
    (
        GridAxis("operation", "what is done", default="", words=True, option="-"),
        GridAxis("rows", "rows of the tensor (tokens)", default=4096),
        GridAxis("columns", "columns of the tensor (width)", default=4096),
        GridAxis(
            "dtype",
            "number format of the tensor",
            "Number formats of the tensor",
            "bf16",
            STREAM_PRECISIONS,
        ),
        GridAxis("bytes_read", "bytes read", "In place of OPERATION: bytes read", 0, units="B"),
        GridAxis(
            "bytes_written", "bytes written", "In place of OPERATION: bytes written", 0, units="B"
        ),
    ),
    (
        Setting(
            "cached",
            "Share of the bytes that the cache holds if the tensors fit: 1 for a kernel that "
            "runs again and again on the same tensors, 0 after others pushed these out.",
            0.5,
            least=0.0,
            most=1.0,
            metavar="SHARE",
        ),
    ),
    _choose_stream,
)


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
_16_BITS = ("bf16", "fp16")
_PHASE = GridAxis(
    "phase",
    "forward, whole backward, forward with the state handed in and out, or one token",
    "Passes",
    "forward",
    RECURRENCE_PHASES,
)
_MIXER_PRECISION = GridAxis(
    "precision", "number format of activations", "Number formats", "bf16", _16_BITS
)
SCAN = Kernel(
    "scan",
    "Linear attention and state-space models.",
    (
        GridAxis(
            "kind",
            "kind of recurrence",
            "Gated DeltaNet, KDA, SSD, selective scan, lightning attention",
            "gated_delta",
            RECURRENCES,
        ),
        GridAxis("batch", "sequences", default=1),
        GridAxis(
            "seq_len",
            "tokens of a sequence; decode takes one",
            "Tokens of a sequence; decode takes one whatever it is",
            4096,
        ),
        GridAxis(
            "heads",
            "value heads on the device",
            "Value heads on the device (mamba1: channels)",
        ),
        GridAxis(
            "key_heads",
            "key heads (mamba2: groups); 0: one per head",
            "Key heads (mamba2: groups); 0: as --heads (mamba1: 1)",
            0,
        ),
        GridAxis("key_dim", "width of a key", "Width of a key (mamba: d_state)", 128),
        GridAxis(
            "value_dim",
            "width of a value; 0: as that of a key",
            "Width of a value (mamba2: headdim); 0: as --key-dim (mamba1: 1)",
            0,
        ),
        GridAxis(
            "chunk", "tokens of a chunk", "Tokens of a chunk; mamba1 and decode have none", 64
        ),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (),
    lambda axes: _SCAN,
)


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
CONVOLUTION = Kernel(
    "convolution",
    "Causal depthwise convolutions.",
    (
        GridAxis("tokens", "tokens of all sequences; decode: sequences", default=4096),
        GridAxis("channels", "channels on the device"),
        GridAxis("kernel_size", "width of the filter along the sequence", default=4),
        _PHASE,
        _MIXER_PRECISION,
    ),
    (
        Setting(
            "activation",
            "SiLU in the same kernel.",
            True,
            ("--activation/--no-activation",),
        ),
    ),
    lambda axes: _CONVOLUTION,
)
