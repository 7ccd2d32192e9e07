"""Operations of measured training graphs (one row per node), as streaming work.

A row has the operation in ``target``, shapes in ``input_shapes`` and ``output_shape``,
and the times of its forward and backward kernels; both together are compared.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping

from perfmodel.compute.stream_catalogue import ELEMENTWISE, StreamWork, embedding, norm, softmax
from perfmodel.measured.rows import MeasuredRow, Skip

TARGETS: Mapping[str, str] = {
    # pattern of the target: operation
    r"layer_?norm|\bln_(1|2|f)$": "layer_norm",
    r"softmax": "softmax",
    r"dropout|\.drop$": "dropout",
    r"\.(wte|wpe)$|embed_tokens$|_embeddings$|function embedding": "embedding",
    r"function add>": "add",
    r"function sub>": "sub",
    r"function mul>": "mul",
    r"function truediv>": "div_scalar",
    r"(function|method) pow": "pow_scalar",
    r"method where|masked_fill": "select",
    r"gelu": "gelu",
    r"method tanh|pooler\.activation": "tanh",
    r"activation_fn": "relu",
    r"^contiguous$": "copy",
}

PRODUCTS = (
    r"dense$|decoder$|query$|key$|value$|_proj$|fc[12]$|lm_head|classifier|seq_relationship"
    r"|addmm|bmm|matmul"
)

GRADIENTS: Mapping[str, tuple[float, float, float]] = {
    # operation: tensors read and written per output element by backward, and its kernels;
    # gradients of sums pass through
    "layer_norm": (4, 1, 2),  # PyTorch's own reads both tensors again for the weights
    "softmax": (2, 1, 1),
    "dropout": (1.25, 1, 1),
    "mul": (4, 2, 2),
    "mul_scalar": (1, 1, 1),
    "div_scalar": (1, 1, 1),
    "pow_scalar": (4, 3, 3),  # n x^(n-1) in two kernels, and the product
    "select": (1.25, 1, 1),
    "gelu": (2, 1, 1),
    "tanh": (2, 1, 1),
    "relu": (2, 1, 1),
}


def node(row: MeasuredRow) -> tuple[str, list[tuple[int, ...]], tuple[int, ...], bool]:
    """Return operation, input shapes, output shape and whether backward ran a kernel.

    Raises
    ------
    Skip
        A product, or a node that runs no kernel or that the table says too little of.
    """
    target = row.lower("target")
    backward = (row.number("bwd_us") or 0.0) > 0.0
    if re.search(PRODUCTS, target):
        raise Skip("not a streaming operation", target, scorable=False)
    operation = next((name for like, name in TARGETS.items() if re.search(like, target)), "")
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
    return operation, tensors, output, backward and operation in GRADIENTS


def works(row: MeasuredRow, element_bytes: float) -> tuple[StreamWork, ...]:
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
    reads, writes, kernels = GRADIENTS[operation]
    gradient = StreamWork(n * s * reads, n * s * writes, n * 6.0, launches=kernels)
    return (forward, gradient)
