"""What mixers with a state keep for their backward pass.

Their kernels bring autograd functions of their own, which keep inputs and outputs and compute
states again (`perfmodel.compute.recurrence.recurrence_saved_bytes`, with the sources). What
stands around the kernels is here. Shape letters: n heads of values, m heads of keys, k and v
length of a key and of a value.
"""

from __future__ import annotations

from perfmodel.compute.recurrence import recurrence_saved_bytes
from perfmodel.model.recurrence import RecurrenceSpec
from perfmodel.operations.operations import Size
from perfmodel.training.activations import SINGLE, Kept, Scope


def recurrence_kept(at: Scope, spec: RecurrenceSpec) -> Kept:
    """Return what one mixer with a state keeps, its norm over the hidden size left out."""
    saved = recurrence_saved_bytes(
        spec.kind,
        heads=at.shard(spec.heads),
        key_heads=at.shard(spec.key_heads),
        key_dim=spec.key_dim,
        value_dim=spec.value_dim,
        chunk=spec.chunk,
        element_bytes=at.stored,
    )
    around = {
        "gated_delta": _delta_rule,
        "kimi_delta": _kimi_delta,
        "mamba2": _mamba2,
        "mamba1": _mamba1,
        "lightning": _lightning,
    }[spec.kind](at, spec)
    kept = at.tokens * (saved + around) + at.products(spec.extra)
    widest = at.tokens * (_read(at, spec) + _inner(at, spec)) * at.stored
    return Kept(kept, widest=widest)


def _inner(at: Scope, spec: RecurrenceSpec) -> Size:
    """Numbers per token that come out of the recurrence."""
    return at.shard(spec.heads) * spec.value_dim


def _read(at: Scope, spec: RecurrenceSpec) -> Size:
    """Queries, keys and values per token, which are the channels of a convolution."""
    return 2 * at.shard(spec.key_heads) * spec.key_dim + _inner(at, spec)


def _delta_rule(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around a delta rule: the convolution's input (causal_conv1d, `CausalConv1dFn`) and the gate.

    The fused norm of the output keeps its input, the gate, and a statistic per head
    (flash-linear-attention, ``modules/fused_norm_gate.py``). Unfused code keeps input, gate
    and the gate's activation in single precision, and the output normalised and scaled
    (transformers, `Qwen3NextRMSNormGated`). The projection behind keeps its input.
    """
    inner = _inner(at, spec)
    convolution = _read(at, spec) * at.stored if spec.conv_kernel else 0.0
    gated = 2 * inner * at.stored
    if spec.output_norm and not at.fused:
        gated = inner * (3 * SINGLE + 2 * at.stored)
    return convolution + gated + at.shard(spec.heads) * SINGLE + inner * at.inputs


def _kimi_delta(at: Scope, spec: RecurrenceSpec) -> Size:
    """As around the delta rule, and the low ranks of decay and gate."""
    forget = 0 if spec.full_forget_gate else spec.value_dim
    return _delta_rule(at, spec) + (forget + spec.gate_rank) * at.inputs


def _mamba2(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around the scan of Mamba-2: a statistic of the norm for every group.

    One function may span convolution, scan, gated norm and output projection, and compute the
    projection's input again. Where norm and projection stand behind it, both keep their inputs.
    """
    statistics = at.shard(spec.key_heads) * SINGLE if spec.output_norm else 0.0
    if at.framework.fused_mamba_output:
        return statistics
    inner = _inner(at, spec)
    norm = at.norm_input(inner) if spec.output_norm else 0.0
    return statistics + norm + inner * at.inputs


def _mamba1(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around the scan of Mamba-1.

    One function spans convolution, projections and scan (mamba_ssm,
    ``ops/selective_scan_interface.py``, `MambaInnerFn`): for the convolved input and the time
    step, which it computes again, it keeps what the convolution and the projections read. With
    norms of time step, B and C inside (Jamba) the scan stands alone (`SelectiveScanFn`), and
    what is around it keeps its inputs.
    """
    inner = _inner(at, spec)
    projected = (spec.time_step_rank + 2 * spec.key_dim) * at.stored
    kept = inner * at.stored + projected
    if not spec.inner_norms:
        return kept - 2 * inner * at.stored
    return kept + spec.time_step_rank * at.inputs + inner * at.inputs


def _lightning(at: Scope, spec: RecurrenceSpec) -> Size:
    """Around lightning attention: what its activation reads, and the gated norm of the output.

    The output is normalised and multiplied by the sigmoid of a gate (transformers,
    `MiniMaxLightningAttention`), both factors of which a product keeps.
    """
    inner = _inner(at, spec)
    norm = at.norm_input(inner) if spec.output_norm else 0.0
    return _read(at, spec) * at.stored + norm + 2 * inner * at.stored + inner * at.inputs
