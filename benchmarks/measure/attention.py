"""Measure fused attention: the table that `perfmodel compare attention` reads.

    python benchmarks/measure/attention.py -o attention.csv
    python benchmarks/measure/attention.py -o attention.csv --phases fwd,bwd --heads 32 --kv-heads 8
    python benchmarks/measure/attention.py -o decode.csv --phases decode --batch 1,16,256

kernels: ``sdpa_flash`` and ``sdpa_cudnn`` (PyTorch), ``flash_attn`` (the package of that
name, version 2), ``flash_attn_3`` (its Hopper build); those that are missing are left
out. phases: ``fwd``, ``bwd`` (the backward pass alone), ``decode`` (one
query over a cache; of the append nothing).
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

COLUMNS = (
    *("hardware", "framework", "kernel", "phase", "batch", "heads", "kv_heads", "d_qk", "d_v"),
    *("q_len", "kv_len", "causal", "window", "dtype", "kv_dtype"),
)
KERNELS = ("sdpa_flash", "sdpa_cudnn", "flash_attn", "flash_attn_3")
PHASES = ("fwd", "bwd", "decode")
PREFILL = [512, 1024, 2048, 4096, 8192, 16384, 32768]
CACHED = [512, 2048, 8192, 32768, 131072]
MOST_TOKENS = 2**17  # batch x length of prefill and backward
MOST_CACHE = 2**34  # bytes of keys and values of decode


def options() -> Any:
    """Return the parser."""
    made = common.parser(__doc__.split("\n\n")[0])
    made.add_argument("--kernels", type=common.choices(*KERNELS), default=["sdpa_flash"])
    made.add_argument("--phases", type=common.choices(*PHASES), default=list(PHASES))
    made.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    made.add_argument("--batch", type=common.wholes, default=[1, 2, 8, 32, 128], help="sequences")
    made.add_argument("--heads", type=common.wholes, default=[8, 32, 64], help="query heads")
    made.add_argument("--kv-heads", type=common.wholes, default=[1, 8, 32], help="key heads")
    made.add_argument("--head-dim", type=common.wholes, default=[64, 128], help="width")
    made.add_argument("--head-dim-v", type=common.wholes, help="width of a value, as --head-dim")
    made.add_argument("--lengths", type=common.wholes, help="keys of a sequence")
    made.add_argument("--window", type=int, default=0, help="keys that a query sees; 0 all")
    made.add_argument("--no-causal", dest="causal", action="store_false", help="see all keys")
    return made


def shapes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return every shape that the arguments name and a device is likely to hold."""
    found = []
    for phase, kernel in itertools.product(arguments.phases, arguments.kernels):
        decode = phase == "decode"
        lengths = arguments.lengths or (CACHED if decode else PREFILL)
        for heads, kv_heads, width, batch, length in itertools.product(
            arguments.heads, arguments.kv_heads, arguments.head_dim, arguments.batch, lengths
        ):
            cache = 2 * 2 * batch * length * kv_heads * width
            if heads % kv_heads or (cache > MOST_CACHE if decode else batch * length > MOST_TOKENS):
                continue
            found += [
                {
                    "kernel": kernel,
                    "phase": phase,
                    "batch": batch,
                    "heads": heads,
                    "kv_heads": kv_heads,
                    "d_qk": width,
                    "d_v": value_width,
                    "q_len": 1 if decode else length,
                    "kv_len": length,
                    "causal": arguments.causal,
                    "window": arguments.window,
                    "dtype": arguments.dtype,
                    "kv_dtype": arguments.dtype,
                }
                for value_width in arguments.head_dim_v or [width]
            ]
    return found


def prepare(torch: Any, shape: common.Shape, arguments: argparse.Namespace) -> common.Operation:
    """Return the operation of a shape."""
    queries = shape["batch"] * shape["q_len"] * shape["heads"]
    keys = shape["batch"] * shape["kv_len"] * shape["kv_heads"]
    size = 2 * (queries + keys) * (shape["d_qk"] + shape["d_v"])
    backward = shape["phase"] == "bwd"
    attend, framework = _attend(torch, shape)

    def call() -> timing.Call:
        query, key, value = _tensors(torch, shape, backward)
        if not backward:
            return lambda: attend(query, key, value)
        out = attend(query, key, value)
        upstream = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (query, key, value), upstream, retain_graph=True)

    return common.Operation(size * (2 if backward else 1), call, {"framework": framework})


def _tensors(torch: Any, shape: common.Shape, backward: bool) -> tuple[Any, Any, Any]:
    """Return query, key and value of shape (batch, length, heads, width)."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape["dtype"]]

    def normal(length: str, heads: str, width: str) -> Any:
        sizes = (shape["batch"], shape[length], shape[heads], shape[width])
        return torch.randn(*sizes, device="cuda", dtype=dtype, requires_grad=backward)

    return (
        normal("q_len", "heads", "d_qk"),
        normal("kv_len", "kv_heads", "d_qk"),
        normal("kv_len", "kv_heads", "d_v"),
    )


def _attend(torch: Any, shape: common.Shape) -> tuple[Any, str]:
    """Return the attention function of (batch, length, heads, width), and its library."""
    decode, kernel = shape["phase"] == "decode", shape["kernel"]
    # One query at the end of its keys sees all of them: no mask is needed.
    causal, window = shape["causal"] and not decode, shape["window"]
    if kernel.startswith("sdpa"):
        if window:
            raise ValueError("scaled_dot_product_attention has no window; use flash_attn")
        return _sdpa(torch, kernel, causal, shape["heads"] != shape["kv_heads"]), "pytorch"
    sides = (window - 1, 0) if window else (-1, -1)
    if kernel == "flash_attn_3":
        from flash_attn_interface import flash_attn_func, flash_attn_with_kvcache
    else:
        from flash_attn import flash_attn_func, flash_attn_with_kvcache
    if decode:
        return (
            lambda query, key, value: flash_attn_with_kvcache(
                query, key, value, cache_seqlens=shape["kv_len"], window_size=sides
            ),
            kernel,
        )

    def flash(query: Any, key: Any, value: Any) -> Any:
        out = flash_attn_func(query, key, value, causal=causal, window_size=sides)
        return out[0] if isinstance(out, tuple) else out

    return flash, kernel


def _sdpa(torch: Any, kernel: str, causal: bool, grouped: bool) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {
        "sdpa_flash": SDPBackend.FLASH_ATTENTION,
        "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    }[kernel]
    attend = torch.nn.functional.scaled_dot_product_attention

    def sdpa(query: Any, key: Any, value: Any) -> Any:
        with sdpa_kernel(backend):
            turned = (tensor.transpose(1, 2) for tensor in (query, key, value))
            return attend(*turned, is_causal=causal, enable_gqa=grouped)

    return sdpa


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    arguments = options().parse_args(words)
    return common.run(arguments, shapes(arguments), COLUMNS, prepare)


if __name__ == "__main__":
    sys.exit(main())
