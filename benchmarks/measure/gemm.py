"""Measure matrix products: the table that `perfmodel compare gemm` and `calibrate` read.

    python benchmarks/measure/gemm.py -o gemm.csv
    python benchmarks/measure/gemm.py -o gemm.csv --dtypes bf16,fp8 --m 1,16,256,4096
    python benchmarks/measure/gemm.py -o training.csv --layouts TN,NN,NT

dtypes: ``bf16``, ``fp16``; ``fp8`` is the product with the pass that quantises A (one
scale per row, found in the pass), ``fp8_rowwise`` the same product alone.

layouts, as the three products of a linear layer with weights W[n, k]: ``TN`` Y = X Wᵀ,
``NN`` the gradient of X, ``NT`` that of W. Rows state m, n, k of the product itself.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import timing

COLUMNS = ("hardware", "framework", "dtype", "batch", "m", "n", "k", "kernel")
DTYPES = ("bf16", "fp16", "fp8", "fp8_rowwise")
# Name -> cell of the table; a layout is stated for the products of training only.
LAYOUTS = {"TN": "", "NN": "layout=NN", "NT": "layout=NT"}
M = [1, 4, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
# (n, k): the products of dense models from 1 to 400 billion parameters, on 1 to 8 devices.
WEIGHTS = [
    *[(2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384), (1024, 8192), (8192, 1024)],
    *[(6144, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (57344, 8192), (8192, 28672)],
    *[(7168, 2048), (2048, 7168), (5120, 5120), (13824, 5120), (5120, 13824), (1280, 8192)],
    *[(7168, 8192), (8192, 3584), (128, 7168), (32064, 4096), (128256, 4096), (512, 16384)],
]
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp8_rowwise": 1}
FRAMEWORK = "pytorch"


def options() -> Any:
    """Return the parser."""
    made = common.parser(__doc__.split("\n\n")[0])
    made.add_argument("--dtypes", type=common.choices(*DTYPES), default=["bf16"])
    made.add_argument("--layouts", type=common.choices(*LAYOUTS), default=["TN"])
    made.add_argument("--m", type=common.wholes, default=M, help="rows")
    made.add_argument("--n", type=common.wholes, help="columns, with --k in place of models' sizes")
    made.add_argument("--k", type=common.wholes, help="inner sizes")
    made.add_argument("--batch", type=common.wholes, default=[1], help="products in one call")
    return made


def shapes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every shape that the arguments name."""
    if (arguments.n is None) != (arguments.k is None):
        sys.exit("--n and --k belong together")
    weights = WEIGHTS if arguments.n is None else list(itertools.product(arguments.n, arguments.k))
    return [
        {"dtype": dtype, "batch": batch, "m": m, "n": n, "k": k, "kernel": LAYOUTS[layout]}
        for dtype, layout, batch, (n, k), m in itertools.product(
            arguments.dtypes, arguments.layouts, arguments.batch, weights, arguments.m
        )
    ]


def prepare(torch: Any, shape: common.Shape, arguments: argparse.Namespace) -> common.Operation:
    """Return the operation of a shape."""
    m, n, k, batch = (shape[name] for name in ("m", "n", "k", "batch"))
    element = ELEMENT_BYTES[shape["dtype"]]
    size = batch * (element * (m * k + n * k) + 2 * m * n)
    cells = {"framework": FRAMEWORK}
    if shape["dtype"].startswith("fp8"):
        if batch > 1 or shape["kernel"]:
            raise ValueError("fp8 products are measured unbatched, in layout TN")
        make = _fp8(torch, m, n, k, quantise=shape["dtype"] == "fp8")
        return common.Operation(size + 2 * m * k, make, cells)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape["dtype"]]
    layout = shape["kernel"].removeprefix("layout=") or "TN"

    def call() -> timing.Call:
        left, right = _operands(torch, layout, (batch, m, n, k), dtype)
        out = torch.empty(batch, m, n, device="cuda", dtype=dtype)
        if batch == 1:
            a, b, c = left[0], right[0], out[0]
            return lambda: torch.mm(a, b, out=c)
        return lambda: torch.bmm(left, right, out=out)

    return common.Operation(size, call, cells)


def _operands(torch: Any, layout: str, sizes: Sequence[int], dtype: Any) -> tuple[Any, Any]:
    """Return A[batch, m, k] and B[batch, k, n], stored as the layout says."""
    batch, m, n, k = sizes

    def normal(*shape: int) -> Any:
        return torch.randn(batch, *shape, device="cuda", dtype=dtype)

    left = normal(k, m).transpose(1, 2) if layout == "NT" else normal(m, k)
    right = normal(n, k).transpose(1, 2) if layout == "TN" else normal(k, n)
    return left, right


def _fp8(torch: Any, m: int, n: int, k: int, quantise: bool) -> Any:
    """Return what makes the call of an fp8 product with a scale per row of A and of Bᵀ."""
    hip = getattr(torch.version, "hip", None)
    old_amd = hip and "gfx94" in torch.cuda.get_device_properties(0).gcnArchName
    dtype = torch.float8_e4m3fnuz if old_amd else torch.float8_e4m3fn
    largest = torch.finfo(dtype).max

    def cast(tensor: Any) -> tuple[Any, Any]:
        scale = tensor.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / largest
        return (tensor.float() / scale).to(dtype), scale

    torch.compiler.reset()  # beyond a few shapes of one function it would not be compiled
    fused = torch.compile(cast, dynamic=False) if quantise else cast

    def call() -> timing.Call:
        source = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        weight, weight_scale = cast(torch.randn(n, k, device="cuda", dtype=torch.bfloat16))
        known, scale = cast(source)

        def product() -> Any:
            left, left_scale = fused(source) if quantise else (known, scale)
            return torch._scaled_mm(
                left,
                weight.t(),
                scale_a=left_scale,
                scale_b=weight_scale.t(),
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )

        return product

    return call


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    arguments = options().parse_args(words)
    return common.run(arguments, shapes(arguments), COLUMNS, prepare)


if __name__ == "__main__":
    sys.exit(main())
