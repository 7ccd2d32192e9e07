"""Measure memory-bound operations: the table that `perfmodel compare stream` reads.

    python benchmarks/measure/stream.py -o stream.csv
    python benchmarks/measure/stream.py -o stream.csv --ops rms_norm,softmax --cols 4096,8192

Operations on a tensor of rows x cols elements, contiguous, out of place. Those of more
than one step are compiled (torch.compile) so that they are one kernel, as fused
libraries have them; ``gated`` is silu(a) b, ``fp8_token`` a cast with a scale per row.
Framework ``pytorch_graph`` means replayed in a CUDA graph, ``pytorch`` launched from
Python.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import timing

COLUMNS = ("hardware", "framework", "op", "phase", "rows", "cols", "dtype")
OPERATIONS = (
    *("copy", "add", "mul", "gelu", "silu", "gated"),
    *("rms_norm", "layer_norm", "softmax", "fp8_token"),
)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
ROWS = [1, 16, 128, 1024, 4096, 16384, 65536]
COLS = [1024, 4096, 8192, 16384]
TENSORS = {"add": 3, "mul": 3, "gated": 3}  # others read one and write one


def options() -> Any:
    """Return the parser."""
    made = common.parser(__doc__.split("\n\n")[0])
    made.add_argument("--ops", type=common.choices(*OPERATIONS), default=list(OPERATIONS))
    made.add_argument("--dtypes", type=common.choices(*DTYPES), default=["bf16"])
    made.add_argument("--rows", type=common.wholes, default=ROWS)
    made.add_argument("--cols", type=common.wholes, default=COLS)
    return made


def shapes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every shape that the arguments name."""
    return [
        {"op": op, "phase": "fwd", "rows": rows, "cols": cols, "dtype": dtype}
        for op, dtype, cols, rows in itertools.product(
            arguments.ops, arguments.dtypes, arguments.cols, arguments.rows
        )
    ]


def prepare(torch: Any, shape: common.Shape, arguments: argparse.Namespace) -> common.Operation:
    """Return the operation of a shape."""
    rows, cols, op = shape["rows"], shape["cols"], shape["op"]
    dtype = getattr(torch, DTYPES[shape["dtype"]])
    size = TENSORS.get(op, 2) * rows * cols * BYTES[shape["dtype"]]
    function = _function(torch, op, cols, dtype)

    def call() -> timing.Call:
        one, other = (torch.randn(rows, cols, device="cuda", dtype=dtype) for _ in range(2))
        return lambda: function(one, other)

    framework = "pytorch_graph" if arguments.graph else "pytorch"
    return common.Operation(size, call, {"framework": framework})


def _function(torch: Any, op: str, cols: int, dtype: Any) -> Callable[[Any, Any], Any]:
    """Return the function of two equal tensors, of which some use the first only."""
    nn = torch.nn.functional
    weight, bias = (torch.randn(cols, device="cuda", dtype=dtype) for _ in range(2))

    def fp8_token(one: Any, _: Any) -> Any:
        largest = torch.finfo(torch.float8_e4m3fn).max
        scale = one.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / largest
        return (one.float() / scale).to(torch.float8_e4m3fn), scale

    eager = {
        "copy": lambda one, _: one.clone(),
        "add": lambda one, other: one + other,
        "mul": lambda one, other: one * other,
        "gelu": lambda one, _: nn.gelu(one),
        "silu": lambda one, _: nn.silu(one),
        "layer_norm": lambda one, _: nn.layer_norm(one, (cols,), weight, bias),
        "softmax": lambda one, _: nn.softmax(one, dim=-1),
    }
    fused = {
        "gated": lambda one, other: nn.silu(one) * other,
        "rms_norm": lambda one, _: nn.rms_norm(one, (cols,), weight, 1e-6),
        "fp8_token": fp8_token,
    }
    if op in eager:
        return eager[op]
    torch.compiler.reset()  # beyond a few shapes of one function it would not be compiled
    return torch.compile(fused[op], dynamic=False)


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    arguments = options().parse_args(words)
    return common.run(arguments, shapes(arguments), COLUMNS, prepare)


if __name__ == "__main__":
    sys.exit(main())
