"""Mixers with a state: parameters by the formulas that transformers' models confirm."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.model.pieces import parameters_of
from perfmodel.model.recurrence import RecurrenceSpec, ShortConvolutionSpec


def count(spec: RecurrenceSpec | ShortConvolutionSpec, hidden: int) -> int:
    return parameters_of(spec.pieces(hidden))


def test_gated_delta_rule() -> None:
    h, keys, values, dk, dv, taps = 2048, 16, 32, 128, 128, 4
    spec = RecurrenceSpec("gated_delta", values, keys, dk, dv, conv_kernel=taps)
    assert count(spec, h) == (
        h * (2 * keys * dk + 2 * values * dv + 2 * values)
        + taps * (2 * keys * dk + values * dv)
        + 2 * values
        + dv
        + values * dv * h
    )


def test_kimi_delta_attention() -> None:
    h, n, d, taps = 2304, 32, 128, 4
    low = RecurrenceSpec("kimi_delta", n, n, d, d, conv_kernel=taps, gate_rank=d)
    inner = n * d
    rest = 3 * h * inner + 3 * taps * inner + inner + n + h * n + d + inner * h
    assert count(low, h) == rest + 2 * (h * d + d * inner)
    full = RecurrenceSpec("kimi_delta", n, n, d, d, conv_kernel=taps)
    assert count(full, h) == rest + h * d + d * inner + h * inner
    ling = RecurrenceSpec("kimi_delta", n, n, d, d, conv_kernel=taps, full_forget_gate=True)
    assert count(ling, h) == rest + 2 * h * inner


def test_mamba_2() -> None:
    h, heads, p, groups, state, taps = 2688, 64, 64, 8, 128, 4
    inner = heads * p
    channels = inner + 2 * groups * state
    spec = RecurrenceSpec("mamba2", heads, groups, state, p, conv_kernel=taps, conv_bias=True)
    assert count(spec, h) == (
        h * (2 * inner + 2 * groups * state + heads)
        + taps * channels
        + channels
        + 3 * heads
        + inner
        + inner * h
    )


@pytest.mark.parametrize("inner_norms", [False, True])
def test_mamba_1(inner_norms: bool) -> None:
    h, inner, state, rank, taps = 4096, 8192, 16, 256, 4
    spec = RecurrenceSpec(
        "mamba1",
        inner,
        1,
        state,
        1,
        conv_kernel=taps,
        conv_bias=True,
        time_step_rank=rank,
        output_norm=False,
        inner_norms=inner_norms,
    )
    assert count(spec, h) == (
        2 * h * inner
        + taps * inner
        + inner
        + inner * (rank + 2 * state)
        + rank * inner
        + inner
        + inner * state
        + inner
        + inner * h
        + (rank + 2 * state if inner_norms else 0)
    )


def test_lightning_attention_and_short_convolution() -> None:
    h, a, d = 6144, 64, 128
    lightning = RecurrenceSpec("lightning", a, a, d, d)
    assert count(lightning, h) == 3 * h * a * d + h * a * d + a * d + a * d * h
    assert count(ShortConvolutionSpec(2048, 3), 2048) == 4 * 2048**2 + 3 * 2048


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RecurrenceSpec("gru", 8, 8, 64, 64), "key 'kind': 'gru' should be one of"),
        (lambda: RecurrenceSpec("mamba2", 8, 3, 64, 64), "key 'heads': 8 should be a multiple"),
        (lambda: RecurrenceSpec("mamba1", 8, 1, 16, 1), "key 'time_step_rank': 0 should be"),
        (lambda: ShortConvolutionSpec(8, 0), "key 'kernel': 0 should be"),
    ],
)
def test_a_mixer_at_fault_names_the_key(build: object, message: str) -> None:
    with pytest.raises(ModelError) as error:
        build()  # type: ignore[operator]
    assert message in str(error.value)
