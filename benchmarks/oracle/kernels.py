"""Kernels that transformers takes from elsewhere, as what their autograd functions keep.

Without them transformers falls back to code of its own, which keeps far more than anybody trains
with. Here they are operations without a computation: shapes of what goes in and comes out, and
what is saved for backward, each as the source that it names has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rules (flash-linear-attention)."""

SCAN_BLOCK = 2048
"""Tokens between two states that the selective scan of Mamba-1 writes (mamba_ssm)."""


@cache
def _registered() -> Any:
    """Register one operation with any inputs and outputs, and its gradient."""
    import torch
    from torch import Tensor

    def blank(like: Tensor, sizes: list[int], ranks: list[int], wide: list[bool]) -> list[Tensor]:
        made, start = [], 0
        for rank, single in zip(ranks, wide, strict=True):
            kind = torch.float32 if single else like.dtype
            made.append(like.new_empty(sizes[start : start + rank], dtype=kind))
            start += rank
        return made

    library = torch.library.Library("oracle_kernels", "DEF")
    shapes = "int[] sizes, int[] ranks, bool[] wide"
    library.define(f"kernel(Tensor[] given, {shapes}, int[] kept) -> Tensor[]")
    library.define(f"gradient(Tensor[] given, {shapes}) -> Tensor[]")
    torch.library.register_fake(
        "oracle_kernels::kernel",
        lambda given, sizes, ranks, wide, kept: blank(given[0], sizes, ranks, wide),
        lib=library,
    )
    torch.library.register_fake(
        "oracle_kernels::gradient",
        lambda given, sizes, ranks, wide: blank(given[0], sizes, ranks, wide),
        lib=library,
    )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        given, *_, kept = inputs
        tensors = [*given, *output]
        ctx.save_for_backward(*(tensors[number] for number in kept))
        ctx.given = [(list(tensor.shape), tensor.dtype == torch.float32) for tensor in given]

    def backward(ctx: Any, gradients: Any) -> Any:
        first = next(gradient for gradient in gradients if gradient is not None)
        found = torch.ops.oracle_kernels.gradient(
            [first, *ctx.saved_tensors],
            [size for shape, _ in ctx.given for size in shape],
            [len(shape) for shape, _ in ctx.given],
            [single for _, single in ctx.given],
        )
        return found, None, None, None, None

    torch.library.register_autograd(
        "oracle_kernels::kernel", backward, setup_context=keep, lib=library
    )
    return library


def _call(given: list[Any], made: list[tuple[tuple[int, ...], bool]], kept: list[int]) -> list[Any]:
    """Return tensors of the shapes in `made` (True: single precision).

    `kept` numbers what is saved among inputs and outputs together.
    """
    import torch

    _registered()
    found: list[Any] = torch.ops.oracle_kernels.kernel(
        given,
        [size for shape, _ in made for size in shape],
        [len(shape) for shape, _ in made],
        [single for _, single in made],
        kept,
    )
    return found


def convolution(x: Any, weight: Any, bias: Any = None, *_: Any, **__: Any) -> Any:
    """causal_conv1d, `CausalConv1dFn`: keeps its input."""
    x = x.contiguous()
    return _call([x, weight], [(tuple(x.shape), False)], [0])[0]


def _delta(query: Any, key: Any, value: Any, g: Any, beta: Any, triangles: int) -> Any:
    query, key, value = (tensor.contiguous() for tensor in (query, key, value))
    batch, length, key_heads, _ = query.shape
    heads = value.shape[2]
    norm = ((batch, length, key_heads), True)
    made = [
        (tuple(value.shape), False),
        (tuple(query.shape), False),
        (tuple(key.shape), False),
        norm,
        norm,
        *[((batch, length, heads, DELTA_CHUNK), False)] * triangles,
    ]
    if triangles == 1:  # the decay summed within chunks
        made.append(((batch, length, heads), True))
        inputs = [2, 4]
    else:  # the decay as it comes
        inputs = [2, 3, 4]
    outputs = range(6, 5 + len(made))  # all but what is returned
    return _call([query, key, value, g, beta], made, [*inputs, *outputs])[0], None


def gated_delta(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> Any:
    """flash-linear-attention, `ChunkGatedDeltaRuleFunction`."""
    return _delta(query, key, value, g, beta, 1)


def kimi_delta(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> Any:
    """flash-linear-attention, `ChunkKDAFunction` with ``disable_recompute=False``."""
    return _delta(query, key, value, g, beta, 2)


def mamba2(
    projected: Any,
    weight: Any,
    bias: Any,
    step_bias: Any,
    decay: Any,
    headdim: int,
    ngroups: int,
    rmsnorm_weight: Any,
    outproj_weight: Any,
    **others: Any,
) -> Any:
    """mamba_ssm, `MambaSplitConv1dScanCombinedFn`: the projection, the scan's output, a norm."""
    batch, length, _width = projected.shape
    made = [
        ((batch, length, outproj_weight.shape[0]), False),
        ((batch, length, decay.shape[0], headdim), False),
        ((batch, length, ngroups), True),
    ]
    given = [projected, weight, step_bias, decay, others["D"], rmsnorm_weight, outproj_weight]
    return _call(given, made, [0, 1, 2, 3, 4, 5, 6, 8, 9])[0]


def mamba1(
    projected: Any,
    weight: Any,
    bias: Any,
    inner_weight: Any,
    step_weight: Any,
    output_weight: Any,
    output_bias: Any,
    decay: Any,
    *_: Any,
    **__: Any,
) -> Any:
    """mamba_ssm, `MambaInnerFn`: the projections, B and C, states far apart, the scan's output."""
    batch, _, length = projected.shape
    channels, state = decay.shape
    blocks = -(-length // SCAN_BLOCK)
    made = [
        ((batch, length, output_weight.shape[0]), False),
        ((batch * length, inner_weight.shape[0]), False),
        ((batch, 1, state, length), False),
        ((batch, 1, state, length), False),
        ((batch, channels, blocks, 2 * state), True),
        ((batch, channels, length), False),
    ]
    given = [projected, weight, inner_weight, step_weight, output_weight, decay]
    return _call(given, made, [*range(6), *range(7, 12)])[0]


STAND_INS = {
    "causal_conv1d_fn": convolution,
    "torch_chunk_gated_delta_rule": gated_delta,
    "chunk_kimi_delta_attention": kimi_delta,
    "mamba2_split_conv1d_scan_combined": mamba2,
    "mamba_inner_fn": mamba1,
}
"""Names by which transformers calls them -> what stands in for them."""


@contextmanager
def stand_ins() -> Iterator[None]:
    """Let the models that are loaded call what stands in for their kernels."""
    replaced = []
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models.") or "modeling_" not in name:
            continue
        for called, stand_in in STAND_INS.items():
            if called in vars(module):
                replaced.append((module, called, vars(module)[called]))
                setattr(module, called, stand_in)
    try:
        yield
    finally:
        for module, called, original in replaced:
            setattr(module, called, original)
