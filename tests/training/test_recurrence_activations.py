"""Bytes of mixers with a state, by hand: what their kernels save, and what is around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.model.layers import LayerSpec
from perfmodel.model.recurrence import RecurrenceSpec
from tests.training.saved_layers import per_token

H = 64
N, M, K, V, C = 8, 4, 16, 32, 64  # heads of values and keys, their lengths, tokens of a chunk


def kept(mixer, framework="megatron", **fields):
    """Bytes per token of a mixer, without the input of its products."""
    return per_token(LayerSpec((mixer,), norms=0), H, framework, **fields) - H * 2


READ = 2 * M * K + N * V
DELTA = RecurrenceSpec("gated_delta", N, M, K, V, conv_kernel=4)


def test_gated_delta_rule():
    """Fla `ChunkGatedDeltaRuleFunction`: q, k, v, step, triangle; norms and decay in fp32.

    Around it the input of the convolution, output and gate with a statistic per head, and the
    input of the output's projection.
    """
    saved = 2 * (READ + N + N * C) + 4 * (2 * M + N)
    around = 2 * READ + 2 * (2 * N * V) + 4 * N + 2 * N * V
    assert kept(DELTA) == saved + around
    assert kept(replace(DELTA, conv_kernel=0)) == saved + around - 2 * READ
    # The gated norm in single precision: three tensors, and two copies in 16 bits.
    assert kept(DELTA, "fsdp") - kept(DELTA) == N * V * (3 * 4 + 2 * 2 - 2 * 2)


def test_kimi_delta():
    """Fla `ChunkKDAFunction`: a decay per channel, two triangles; low ranks of decay and gate."""
    kimi = RecurrenceSpec("kimi_delta", N, N, K, K, conv_kernel=4, gate_rank=K)
    read = 3 * N * K
    saved = 2 * (read + N * K + N + 2 * N * C) + 4 * 2 * N
    around = 2 * read + 2 * (2 * N * K) + 4 * N + 2 * N * K + 2 * (K + K)
    assert kept(kimi) == saved + around


def test_mamba2_keeps_its_projection_and_output():
    """mamba_ssm `MambaSplitConv1dScanCombinedFn`: zxbcdt, the output, a statistic per group."""
    mamba = RecurrenceSpec("mamba2", N, M, K, V, conv_kernel=4, chunk=128)
    fused = 2 * (2 * N * V + 2 * M * K + N) + 2 * N * V + 4 * M
    assert kept(mamba, "torchtitan") == fused
    # Megatron-Core's norm and output projection are modules of their own.
    assert kept(mamba, "megatron") == fused + 2 * N * V + 2 * N * V
    plain = replace(mamba, output_norm=False)
    assert kept(plain, "megatron") == fused - 4 * M + 2 * N * V


def test_mamba1():
    """mamba_ssm `MambaInnerFn`: input, gate, output; x_dbl, B and C; states 2,048 tokens apart."""
    inner, state, rank = 128, 16, 8
    mamba = RecurrenceSpec("mamba1", inner, 1, state, 1, conv_kernel=4, time_step_rank=rank)
    states = 2 * state * inner * 4 / 2048
    assert kept(mamba) == 2 * 3 * inner + 2 * (rank + 4 * state) + states
    # Jamba: convolved input, time step and gated output besides (`SelectiveScanFn`).
    jamba = replace(mamba, inner_norms=True)
    assert kept(jamba) - kept(mamba) == 2 * 3 * inner + 2 * rank


def test_lightning_attention():
    """Queries, keys and values ahead of and behind SiLU; norm, two factors, projection."""
    lightning = RecurrenceSpec("lightning", N, N, V, V, chunk=256)
    inner = N * V
    assert kept(lightning) == 2 * 2 * 3 * inner + 2 * inner + 2 * 2 * inner + 2 * inner


@pytest.mark.parametrize("kind", ["gated_delta", "mamba2", "lightning"])
def test_heads_are_sharded(kind):
    whole = RecurrenceSpec(kind, N, M, K, V, conv_kernel=4)
    assert kept(whole, tensor_parallel=4, sequence_parallel=False) == kept(whole) / 4
