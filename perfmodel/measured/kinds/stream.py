"""Measured streaming operations, row by row; see `perfmodel.measured.kind` for the rest.

Two tables are read: single operations (``op, rows, cols, dtype, time_us``), and the
operations of training graphs (``target, input_shapes, output_shape, fwd_us, bwd_us``), one row per
node, whose forward and backward kernels are compared together. All ran again and again on the same
tensors, or on as many as ``copies`` says.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np

from perfmodel.base.errors import did_you_mean
from perfmodel.base.precisions import OPERAND_BYTES, STREAM_PRECISIONS
from perfmodel.base.regimes import regime_name
from perfmodel.compute.stream import QUANTISATIONS, quantise, quantise_unfused
from perfmodel.compute.stream_catalogue import (
    ELEMENTWISE,
    StreamWork,
    elementwise,
    embedding,
    norm,
    softmax,
)
from perfmodel.hwprofiles import Hardware
from perfmodel.measured.kind import (
    Case,
    Columns,
    KernelKind,
    kernel_hardware,
    measured_time,
    stated,
)
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words


def node(row: MeasuredRow) -> tuple[str, list[tuple[int, ...]], tuple[int, ...], bool]:
    """Return operation, input shapes, output shape and whether backward ran a kernel.

    Raises
    ------
    Skip
        A product, or a node that runs no kernel or that the table says too little of.
    """
    target = row.lower("target")
    backward = (row.number("bwd_us") or 0.0) > 0.0
    if meaning(words("stream")["products"], target):
        raise Skip("not a streaming operation", target, scorable=False)
    operation = meaning(words("stream")["targets"], target)
    try:
        inputs = [tuple(shape) for shape in ast.literal_eval(row.text("input_shapes"))]
        output = tuple(ast.literal_eval(row.text("output_shape")))
    except (ValueError, SyntaxError, TypeError):
        raise row.error("input_shapes", "a list of shapes, and output_shape a shape") from None
    if not operation or math.prod(output) <= 1:
        raise Skip("runs no kernel", target, scorable=False)
    if operation == "dropout" and not backward:
        raise Skip("runs no kernel", "dropout outside training", scorable=False)
    if operation == "embedding" and backward:
        detail = "the gradient of an embedding fills its whole table"
        raise Skip("size not stated", detail, scorable=False)
    if operation == "copy":
        detail = "'contiguous' copies nothing where it need not"
        raise Skip("size not stated", detail, scorable=False)
    tensors = [shape for shape in inputs if math.prod(shape) > 1]
    if operation in ("add", "sub", "mul") and len(tensors) < 2:
        operation = "mul_scalar" if operation == "mul" else operation
    return operation, tensors, output, backward and operation in words("stream")["gradients"]


def node_works(row: MeasuredRow, element_bytes: float) -> tuple[StreamWork, ...]:
    """Return the kernels of a node, forward and, where it was timed, backward."""
    operation, inputs, output, backward = node(row)
    n, s = float(math.prod(output)), element_bytes
    last = float(output[-1])
    if operation == "layer_norm":
        forward = norm(n / last, last, s, mean=True, fused=False)
    elif operation == "softmax":
        forward = softmax(n / last, last, s)
    elif operation == "embedding":
        forward = embedding(n / last, last, s)
    else:
        kind = ELEMENTWISE["add" if operation == "select" else operation]
        read = sum(math.prod(shape) for shape in inputs) * s
        forward = StreamWork(read, n * s * kind.outputs, n * kind.flops, n * kind.specials)
    if not backward:
        return (forward,)
    reads, writes, kernels = words("stream")["gradients"][operation]
    gradient = StreamWork(n * s * reads, n * s * writes, n * 6.0, launches=kernels)
    return (forward, gradient)


ELEMENT_BYTES = {name: OPERAND_BYTES[name] for name in STREAM_PRECISIONS} | {
    "bf16->fp8": OPERAND_BYTES["bf16"]
}

ROW_OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray, float, bool], StreamWork]] = {
    "layer_norm": lambda r, c, s, back: norm(r, c, s, mean=True, backward=back, fused=False),
    "rms_norm": lambda r, c, s, back: norm(r, c, s, backward=back, fused=False),
    "softmax": lambda r, c, s, back: softmax(r, c, s, backward=back),
}

REPLAYED = ("sglang", "vllm", "trtllm", "pytorch_graph")
"""Frameworks whose kernels are timed in a replayed graph; others are called from Python."""

COMPILED = ("gelu", "layer_norm")
"""LLMCompass (2e015fd) times these through torch.compile, its softmax not."""


class Variant(NamedTuple):
    """What is the same for all rows priced in one call."""

    operation: str
    backward: bool
    element_bytes: float
    framework: str
    dispatch: str


def derived(row: MeasuredRow) -> dict[str, str]:
    """Return the ``regime`` of a row, from the bytes that it reads and writes once."""
    try:
        case = case_of(row)
    except Skip:
        return {"regime": ""}
    columns = {name: np.array([value]) for name, value in case.sizes.items()}
    works = works_of(cast(Variant, case.variant), columns)
    size = sum(float(np.sum(work.bytes_read + work.bytes_written)) for work in works)
    return {"regime": regime_name("stream", size)}


def case_of(row: MeasuredRow) -> Case:
    """Read a row of single operations or of a training graph.

    Raises
    ------
    Skip
        No profile, no measurement, or an operation that the catalogue does not have.
    """
    hardware, notes = kernel_hardware(row)
    dtype = row.text("dtype")
    if dtype not in ELEMENT_BYTES:
        raise Skip("unknown dtype", f"'{dtype}'{did_you_mean(dtype, ELEMENT_BYTES)}")
    if "fwd_us" in row.cells:
        return _node_case(row, hardware, notes)
    named = row.lower("op")
    operation = words("stream")["names"].get(named, named)
    if operation not in {**ELEMENTWISE, **ROW_OPERATIONS, **QUANTISATIONS}:
        raise Skip("unknown streaming operation", named)
    framework = row.lower("framework")
    dispatch = "graph" if framework in REPLAYED else "eager"
    if row.text("source").startswith("LLMCompass") and operation in COMPILED:
        dispatch = "compiled"
    backward = row.lower("phase") in ("bwd", "backward")
    variant = Variant(operation, backward, ELEMENT_BYTES[dtype], framework, dispatch)
    sizes = {
        "rows": float(stated(row, "rows")),
        "columns": float(stated(row, "cols")),
        "copies": float(row.whole("copies") or 1),
    }
    return Case(hardware, variant, sizes, measured_time(row), notes)


def _node_case(row: MeasuredRow, hardware: Hardware, notes: tuple[str, ...]) -> Case:
    """Read a node of a training graph; its sizes are those of its kernels."""
    size = ELEMENT_BYTES[row.text("dtype")]
    works = node_works(row, size)
    passes = ("fwd_us", "bwd_us")[: len(works)]
    measured = sum(row.number(name) or 0.0 for name in passes) * 1e-6
    if measured <= 0.0:
        raise Skip("no usable measurement", scorable=False)
    names = StreamWork._fields
    sizes = {
        f"{i}.{name}": float(value)
        for i, work in enumerate(works)
        for name, value in zip(names, work, strict=True)
    }
    variant = Variant(f"node of {len(works)}", len(works) > 1, size, "pytorch", "eager")
    return Case(hardware, variant, sizes, measured, notes)


def works_of(variant: Variant, columns: Columns) -> tuple[StreamWork, ...]:
    """Return the kernels of an operation, one after the other."""
    if variant.operation.startswith("node"):
        count = len(columns) // len(StreamWork._fields)
        return tuple(
            StreamWork(*(columns[f"{i}.{name}"] for name in StreamWork._fields))
            for i in range(count)
        )
    r, c = columns["rows"], columns["columns"]
    name, size = variant.operation, variant.element_bytes
    if name in ROW_OPERATIONS:
        return (ROW_OPERATIONS[name](r, c, size, variant.backward),)
    if name in QUANTISATIONS:
        # SGLang has no kernel for a scale that is known: it divides, clips, casts, copies.
        if name == "fp8_static" and variant.framework == "sglang":
            return quantise_unfused(r * c, size)
        work = quantise(name, r, c, size)
        # vLLM gives a block to each row, 16 elements to a thread, even where no row needs one.
        by_row = {"rows": r, "row_bytes": c * size, "threads": np.clip(c / 16.0, 64.0, 1024.0)}
        return (work._replace(**by_row) if variant.framework == "vllm" else work,)
    return (elementwise(f"{name}_backward" if variant.backward else name, r * c, size),)


def price(hardware: Hardware, variant: Variant, columns: Columns) -> Columns:
    """Return time, bytes and bound of the rows of one variant."""
    from perfmodel.compute.stream import STREAM_BOUNDS, cached_share, work_times

    works = works_of(variant, columns)
    # Forward and backward of a node are called one by one; the kernels of one call queue up.
    called = [i == 0 or variant.operation.startswith("node") for i in range(len(works))]
    moved = [np.asarray(work.bytes_read + work.bytes_written) for work in works]
    copies = columns.get("copies", 1.0)
    times = [
        work_times(
            hardware,
            work,
            cached_share(hardware, size, copies),
            variant.dispatch if alone else "graph",
        )
        for work, size, alone in zip(works, moved, called, strict=True)
    ]
    longest = np.argmax([one.time for one in times], axis=0)
    bound = np.stack([one.bound for one in times])[longest, np.arange(longest.size)]
    return {
        "time": np.sum([one.time for one in times], axis=0),
        "bytes": np.sum(moved, axis=0),
        "bound": np.array(STREAM_BOUNDS)[bound],
    }


KIND = KernelKind(
    name="stream",
    needed=("hardware", "dtype"),
    measurements=("time_us", "fwd_us"),
    group_by=("hardware", "dtype", "framework", "op", "regime"),
    whole=("rows", "cols", "copies"),
    numbers=("fwd_us", "bwd_us"),
    derived=derived,
    case_of=case_of,
    price=price,
    kernel_class="stream",
    calibration="stream",
    alike=("op", "cols", "columns"),
)
