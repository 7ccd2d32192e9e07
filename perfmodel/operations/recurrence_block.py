"""Operations of mixers with a state, and of short convolutions.

Tensor parallelism shards heads (channels), and with them the columns of what leads in and the
rows of what leads out. Context ranks either exchange heads for the sequence (all-to-all, as
Megatron-Core's ``MambaContextParallel``), or each runs its own tokens and the state goes from
rank to rank: hop by hop (LASP, arXiv:2404.02882) or gathered at once (LASP-2, arXiv:2502.07563).
"""

from __future__ import annotations

import numpy as np

from perfmodel.base.columns import Column
from perfmodel.compute.recurrence_counts import STATE_BYTES, recurrence_flops
from perfmodel.compute.stream_catalogue import elementwise, norm, traffic
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.operations.context_block import (
    ALL_GATHER,
    RING,
    exchanges_heads,
    pass_to_next_rank,
)
from perfmodel.operations.operation_list import OperationList
from perfmodel.operations.operations import Communication, Recurrence, Role, Size, Stream

DELTA_RULES = ("gated_delta", "kimi_delta")

LAUNCHES = {
    "gated_delta": (7.0, 12.0),
    "kimi_delta": (8.0, 13.0),
    "mamba2": (5.0, 19.0),
    "mamba1": (1.0, 1.0),
    "lightning": (2.0, 4.0),
}
"""Kernels of the forward and of the backward chain, as `perfmodel.kernels.recurrence` has them."""

ACTIVATION_OPERATIONS = 8.0
"""Operations of SiLU behind a convolution, its exponential included."""


def mixer_flops(spec: RecurrenceSpec) -> float:
    """Return the FLOP of a mixer per token, forward, as its chunked kernels compute them."""
    flops: float = recurrence_flops(
        spec.kind,
        heads=spec.heads,
        key_heads=spec.key_heads,
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        chunk=spec.chunk,
    )
    return flops


def add_recurrence(ops: OperationList, model: ModelSpec, spec: RecurrenceSpec) -> None:
    """Add projections, convolution, the recurrence, its gated norm and their communication."""
    hidden = model.hidden_size
    keys = ops.keys
    own = [piece for piece in spec.pieces(hidden) if piece not in spec.extra]
    products = [piece for piece in own if piece.kind == "matrix" and piece.name != "output"]
    inputs = tuple(piece for piece in products if piece.inputs == hidden)
    inner = spec.inner_size / keys.tensor_parallel
    ops.enter_tensor_parallel("recurrence.input", float(hidden), "recurrence.input")
    ops.products("recurrence", inputs)
    if spec.conv_channels:
        channels = spec.conv_channels / keys.tensor_parallel
        _convolution(ops, "recurrence.convolution", channels, spec.conv_kernel, exchanged=True)
    for piece in products:
        if piece in inputs:
            continue
        ops.products("recurrence", (piece,))
        if piece.split == "rows":
            name = f"recurrence.{piece.name}"
            ops.sum_over_tensor(name, float(piece.outputs), name)
    width = (
        sum(piece.outputs for piece in inputs if piece.split == "columns") / keys.tensor_parallel
    )
    _core(ops, spec, width + inner)
    if spec.kind != "mamba1":  # whose scan holds its gate
        _gated_norm(ops, spec.output_norm, keys.tokens * inner)
    ops.products("recurrence", spec.extra)
    with ops.in_role(Role.RECURRENCE_OUTPUT):
        ops.linear("recurrence.output", keys.tokens, inner, float(hidden))
        ops.leave_tensor_parallel("recurrence.output", float(hidden), "recurrence.output")


def add_short_convolution(ops: OperationList, model: ModelSpec, spec: ShortConvolutionSpec) -> None:
    """Add a gated convolution: h -> 3c, a product ahead of it, one behind it, c -> h (LFM2)."""
    hidden = float(model.hidden_size)
    tokens = ops.keys.tokens
    channels = spec.channels / ops.keys.tensor_parallel
    ops.enter_tensor_parallel("convolution.input", hidden, "convolution.input")
    ops.linear("convolution.input", tokens, hidden, 3.0 * channels)
    product, gradient = (traffic(elementwise(name, 1.0)) for name in ("mul", "mul_backward"))
    both = 2.0 * tokens * channels
    ops.stream("convolution.gates", both, product, gradient, flops=1.0, launches=2.0)
    _convolution(ops, "convolution.core", channels, spec.kernel, exchanged=False)
    ops.products("convolution", spec.extra)
    with ops.in_role(Role.RECURRENCE_OUTPUT):
        ops.linear("convolution.output", tokens, channels, hidden)
        ops.leave_tensor_parallel("convolution.output", hidden, "convolution.output")


def _convolution(
    ops: OperationList, name: str, channels: Column, taps: int, *, exchanged: bool
) -> None:
    """Add a causal depthwise convolution; see `perfmodel.compute.recurrence.convolution_times`.

    A rank needs the last ``taps - 1`` tokens of the one before, unless heads are `exchanged`.
    """
    keys = ops.keys
    elements = keys.tokens * channels
    for phase, read, products in (("forward", 2.0, 2.0), ("backward_input", 4.0, 6.0)):
        # Backward computes the output ahead of the activation again.
        operations = elements * (products * taps + ACTIVATION_OPERATIONS)
        ops.add(Stream(name, phase, elements * read, elements * 2.0, operations))
    halo = (keys.number("context_parallel") > 1) * 1.0
    if exchanged:
        halo = halo * ~exchanges_heads(keys)
    if np.any(halo > 0) and taps > 1:
        size = keys.number("micro_batch_size") * (taps - 1.0) * channels * 2.0
        pass_to_next_rank(ops, f"{name}.halo", size, halo)


def _core(ops: OperationList, spec: RecurrenceSpec, exchanged_width: Column) -> None:
    """Add the recurrence itself, and what carries it over context ranks.

    `exchanged_width` numbers per token go in and out of it on a tensor rank.
    """
    keys = ops.keys
    degree = keys.number("context_parallel")
    exchanged = exchanges_heads(keys)
    split = np.where(exchanged, degree, 1.0)
    heads = spec.heads / keys.tensor_parallel
    key_heads = np.maximum(spec.key_heads / keys.tensor_parallel, 1.0)
    length = keys.number("sequence_length") / np.where(exchanged, 1.0, degree)
    batch = keys.number("micro_batch_size")
    for phase, backward in (("forward", False), ("backward_input", True)):
        ops.add(
            Recurrence(
                "recurrence.core",
                phase,
                spec.kind,
                batch,
                length,
                heads / split,
                np.maximum(key_heads / split, 1.0),
                float(spec.key_dim),
                float(spec.value_dim),
                float(spec.chunk),
                backward,
                LAUNCHES[spec.kind][backward],
            )
        )
    if np.any(degree > 1):
        # A later rank corrects what it computed from nothing by what the earlier ones leave:
        # under a delta rule their states, and what each does to a state that comes in.
        state = spec.value_dim + (spec.key_dim if spec.kind in DELTA_RULES else 0)
        size = batch * heads * (spec.key_dim * state) * STATE_BYTES
        _carry_states(ops, size, keys.tokens * exchanged_width * 2.0)


def _carry_states(ops: OperationList, state: Column, exchanged: Size) -> None:
    """Exchange heads for the sequence, or pass states of `state` bytes from rank to rank."""
    keys = ops.keys
    degree = keys.number("context_parallel")
    kind = keys.columns["context_parallel_kind"]
    for phase in ("forward", "backward_input"):
        ops.add(
            Communication(
                "recurrence.exchange",
                phase,
                "context",
                "all_to_all",
                exchanged,
                degree,
                keys.context_stride,
                count=exchanges_heads(keys) * 1.0,
            )
        )
    pass_to_next_rank(ops, "recurrence.state", state, (kind == RING) * (degree - 1.0))
    gather = ((kind == ALL_GATHER) & (degree > 1)) * 1.0
    for phase in ("forward", "backward_input"):
        ops.add(
            Communication(
                "recurrence.state",
                phase,
                "context",
                "all_gather",
                state * degree,
                degree,
                keys.context_stride,
                count=gather,
            )
        )


def _gated_norm(ops: OperationList, normed: bool, elements: Column) -> None:
    """Norm of what comes out and its product with a gate, in one kernel where they are fused."""
    forward, backward = (traffic(elementwise(x, 1.0)) for x in ("gated", "gated_backward"))
    launches = 1.0
    if normed and not ops.framework.fused_elementwise:
        apart = [traffic(norm(1, 1, backward=b, fused=False)) for b in (False, True)]
        forward = forward[0] + apart[0][0], forward[1] + apart[0][1]
        backward = backward[0] + apart[1][0], backward[1] + apart[1][1]
        launches = 2.0
    ops.stream("recurrence.gated_norm", elements, forward, backward, flops=8.0, launches=launches)
